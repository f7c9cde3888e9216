"""Every operation that sites serve: how its answer leaves, and at which models it looks at rows.

    sums      leave as a sum over sites, which masks can hide
    state     changes what the site keeps; nothing leaves
    site      something of this site alone
    figures   counts by bins of a score: nearly rows, so they leave as masked sums only

An operation that is not listed here is not served, and one that is only by the requests of its rule: the same map as a
sum, as an extreme value and as a list would leave by three doors. Models are found in the arguments, so that the policy
can weigh the rows there before anything is computed; where blocks have models of their own (ADMM), those are weighed
afterwards. What else a coordinator may choose (directions, constants, a grid of bins) is bounded by how often.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from auqadmm.blocks.curvature import times
from auqadmm.blocks.exact_rows import BlockRows, with_offset
from auqadmm.blocks.rows import RowLoss
from auqadmm.blocks.shard import Shard
from auqadmm.columns import InFrame
from auqadmm.engines.operations import name_of
from auqadmm.problem.made_of_losses import loss_of_rows
from auqadmm.quality.measures import middle_of

Asked = tuple[Any, Any]  # the operation, and its replicated argument


def _none(asked: Asked) -> list[Tensor]:
    return []


def _shared(asked: Asked) -> list[Tensor]:
    return [asked[1]]


def _all_shared(asked: Asked) -> list[Tensor]:
    return list(asked[1])


def _state(asked: Asked) -> list[Tensor]:
    return [asked[1].v]


def _round(asked: Asked) -> list[Tensor]:
    directive, shared = asked[1]
    return [shared.v] if directive.home is None else [shared.v, directive.home]


def _centred(asked: Asked) -> list[Tensor]:
    return [uncentred(asked[1], asked[0].centre)]


def _first_centred(asked: Asked) -> list[Tensor]:
    return [uncentred(asked[1][0], asked[0].centre)]


def _fan(asked: Asked) -> list[Tensor]:
    query, (v, d) = asked
    steps = [v] if d is None else [v, *(v + t * d for t in query.fan)]
    return [uncentred(x, query.centre) for x in steps]


def _own_v(asked: Asked) -> list[Tensor]:
    return [uncentred(asked[0].v, getattr(asked[0], "centre", None))]


def _models(asked: Asked) -> list[Tensor]:
    models = asked[0].models
    return [uncentred(v, models.centre) for v in models.v]


def _folded_v(asked: Asked) -> list[Tensor]:
    v = asked[0].v
    return list(v) if v.ndim == 3 else [v]


def uncentred(v: Tensor, centre: Tensor | None) -> Tensor:
    """A model of centred columns, in the columns of the shard."""
    if centre is None:
        return v
    return torch.cat([v[:-1], v[-1:] - (centre[:-1, None].to(v) * v[:-1]).sum(0, keepdim=True)])


@dataclass(frozen=True)
class Rule:
    """`leaves`: see above; `models`: at which rows are looked at; `own`: the new state has models of the blocks; `by`:
    the requests that it is served by; `chosen`: it has arguments that nobody weighs, so its asks are counted;
    `weights`: of rows, where what is asked about is no model."""

    leaves: str
    models: Callable[[Asked], list[Tensor]] = _none
    own: bool = False
    by: tuple[str, ...] = ("sum",)
    chosen: bool = False
    weights: Callable[[Asked, Shard], Iterator[Mapping[str, Tensor]]] | None = None


def _apart(models: Callable[[Asked], list[Tensor]] = _none, by: str = "gather") -> Rule:
    """Something of this site alone."""
    return Rule("site", models, by=(by,))


def _weights_on_the_line(asked: Asked, shard: Shard) -> Iterator[Mapping[str, Tensor]]:
    """Of a model that is stretched and moved, to be calibrated."""
    query, (a, d) = asked
    loss, middle = query.measure.loss, middle_of(query.first)
    for _, rows in query.models.scored(shard):
        yield _weights(loss, rows.z + a + d * (rows.linear - middle)[:, None], rows.y, rows.c)


def _weights_of_a_constant(asked: Asked, shard: Shard) -> Iterator[Mapping[str, Tensor]]:
    """Of a constant beside offsets."""
    loss, rows = loss_of_rows(shard.loss), BlockRows(shard)
    for j in range(shard.blocks):
        parts = [part for _, part in rows.chunks(j)]
        each = [_weights(loss, with_offset(p, asked[1].to(p.c).expand(len(p.c), 1)), p.y, p.c) for p in parts]
        if each:
            yield {name: torch.cat([w[name] for w in each]) for name in each[0]}


def _weights(loss: RowLoss, z: Tensor, y: Tensor, c: Tensor) -> Mapping[str, Tensor]:
    s = loss.prepare(z)
    return {"slopes": times(c, loss.row_slope(s, y)), "curvature": times(c, loss.row_curvature(s, y).diagonal())}


RULES: Mapping[str, Rule] = {
    # a first look, and the state of blocks
    "moments": Rule("sums"),
    "start": Rule("state", _state),
    "enter columns": Rule("state"),
    "unpack": Rule("state"),
    "weights": Rule("state"),
    "pack": Rule("state", by=("concat",)),
    "holds": Rule("sums", by=("minmax",)),
    "why refused": _apart(by="concat"),
    # methods
    "score": Rule("sums", _shared),
    "value and gradient": Rule("sums", _shared),
    "value and next gradient": Rule("sums", _all_shared),
    "scores and next gradient": Rule("sums", _all_shared),
    "typical curvature": Rule("sums", _shared),
    "newton": Rule("sums", _fan, chosen=True),
    "dual": Rule("sums", _state),
    "primal": Rule("sums", _state, own=True),
    "dual and primal": Rule("sums", _state, own=True),
    "ranges": _apart(_state, "minmax"),
    "auq-lr round": Rule("sums", _round, own=True),
    "auq-lr first parts": _apart(by="concat"),
    "auq-lr next parts": _apart(by="concat"),
    "lbfgs-w visit": Rule("sums", _shared),
    # verdicts
    "null": Rule("sums", chosen=True),
    "triangle": Rule("sums", _centred, chosen=True),
    "products": Rule("sums", _first_centred, chosen=True),
    "slope sizes": Rule("sums", _centred),
    "conjugate": Rule("sums", _centred, chosen=True),
    "reach": Rule("sums", chosen=True),
    "diagonal reach": Rule("sums", chosen=True),
    # after the run
    "multipliers": _apart(),
    "itself": _apart(by="peek"),
    "shapes": _apart(by="minmax"),
    "padded": _apart(),
    "failed": _apart(),
    "health": _apart(),
    "distance": _apart(),
    "digest": Rule("state", by=("gather",)),
    "statistics": Rule("sums", _centred, chosen=True),
    "class statistics": Rule("sums", _centred, chosen=True),
    "column products": Rule("sums", _own_v, chosen=True),
    "null slopes": Rule("sums", chosen=True, weights=_weights_of_a_constant),
    "series": Rule("sums", chosen=True),
    "trend": Rule("sums", _shared, chosen=True),
    "site estimates": _apart(_own_v),
    "pairs": _apart(_own_v),
    "baseline": _apart(_own_v),
    "quality first": Rule("sums", _models),
    "quality second": Rule("figures", _models, chosen=True),
    "quality line": Rule("sums", _models, chosen=True, weights=_weights_on_the_line),
    "quality by site": _apart(_models),
    "quality of survival": _apart(_folded_v),
}
# operations with arguments of their own in front: what these may be
ARGUMENTS: Mapping[str, Callable[..., bool]] = {
    "holds": lambda fn: name_of(fn) == "direct solves apply",
    "shapes": lambda names: all(isinstance(name, str) for name in names),
    "padded": lambda name, size: isinstance(name, str),
}
TESTING = ("testing ", "values along")  # operations of the library's own tests
# arrays that are powers of single rows: rounded up by at most a factor of two per power, which keeps them bounds
RAISED = {"reach": 16, "far": 16}
# estimates and quality of one site
FIGURES = ("site estimates", "pairs", "baseline", "quality by site", "quality of survival")
# numbers of blocks rather than of rows
PLAIN = ("holds", "failed", "health", "why refused")


def asked_of(operation: Any, shared: object) -> tuple[str, Asked, str | None]:
    """The name of an operation, what its rule reads, and the run whose columns it works in."""
    run = None
    while isinstance(operation, InFrame):
        operation, run = operation.fn, operation.run
    return name_of(operation), (operation, shared), run


def well_made(name: str, operation: object) -> bool:
    """Has it arguments in front only where its rule knows them?"""
    given = operation.args if isinstance(operation, functools.partial) else ()
    takes = ARGUMENTS.get(name)
    if takes is None:
        return not given
    return len(given) == takes.__code__.co_argcount and takes(*given)


def own_models(blocks: object) -> Tensor | None:
    """The models of blocks in their new state, (B, m, C)."""
    u = getattr(blocks, "u", None)
    return u if isinstance(u, Tensor) and u.ndim == 3 else None
