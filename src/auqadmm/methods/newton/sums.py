"""The state at v from the sums of a round.

Shapes: m features, C columns; inside, G (m, C); index flat.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from auqadmm.core.state import Setup
from auqadmm.methods.newton.dual import dual_bound, predicted_bound
from auqadmm.methods.newton.state import NewtonState
from auqadmm.metrics.triangles import unpack


def state_from_sums(
    current: NewtonState, setup: Setup, inside: Tensor, sums: dict[str, Tensor], index: Tensor
) -> NewtonState:
    """The state at `inside` from the sums of a round."""
    f, g = float(sums["f"]), setup.regularizer
    plain = {"f": sums.get("plain_f", sums["f"]), "G": sums.get("plain_G", sums["G"])}
    F = f + float(g.value(inside))
    upper, gram = sums.get("H"), None
    if setup.loss.quadratic and setup.columns == 1:
        index, gram = grow_gram(current, sums, index)
        upper = None
    new = replace(
        current,
        inside=inside,
        f=f,
        F=F,
        G=sums["G"],
        plain=plain,
        noise=sums["noise"],
        floor=sums["floor"],
        index=index,
        upper=upper if upper is not None or gram is not None else inside.new_zeros(0),
        gram=gram,
        reach=sums.get("reach", current.reach),  # does not depend on v
        aside=sums.get("aside"),
        dual=None,
        turned=current.turned if inside is current.inside else sums["G"] - current.G,
    )
    known, size = new.hessian, scale(new)
    new = replace(new, scale=size)
    new = new if new.complete or new.ease > 1 else screen(new, setup, sums)
    vars(new)["hessian"] = known  # cached: unchanged by this update
    return new


def screen(current: NewtonState, setup: Setup, sums: Mapping[str, Tensor]) -> NewtonState:
    """With a duality gap, if available; unknowns that it proves to be zero are screened for good."""
    g, loss, columns = setup.regularizer, setup.loss, current.columns
    bounds = (
        dual_bound(g, loss, columns, current.inside, sums, current.aside),
        predicted_bound(g, loss, columns, current.inside, sums),
    )
    bound = min((x for x in bounds if x is not None), key=lambda x: x.gap, default=None)
    zero = None if bound is None else bound.zero(g, loss.bend, columns)
    if bound is None or zero is None:
        return replace(current, dual=bound)
    out = zero & (current.inside == 0)
    return replace(current, dual=bound, out=out if current.out is None else current.out | out)


def grow_gram(current: NewtonState, sums: dict[str, Tensor], index: Tensor) -> tuple[Tensor, Tensor]:
    """The products of squares known so far, with the new ones."""
    H = sums.get("H")
    if current.gram is None:
        return index, sums["G"].new_zeros(0, 0) if H is None else unpack(H[None])[0]
    new = drop_screened(index, current.index)
    if H is None or not len(new):
        return current.index, current.gram
    k, p = len(new), len(current.index)
    H = H.reshape(k, p + k)
    top = torch.cat([current.gram, H[:, :p].mT], 1)
    corner = 0.5 * (H[:, p:] + H[:, p:].mT)
    return torch.cat([current.index, new]), torch.cat([top, torch.cat([H[:, :p], corner], 1)])


def scale(current: NewtonState) -> float:
    """The diagonal of H over the spread of its columns, on average."""
    size = current.hessian.diagonal(current.inside)
    known = size.isfinite()
    spread = current.columns.spread.to(size)[:, None].expand(size.shape)
    total = float(spread[known].sum())
    ratio = float(size[known].sum()) / total if total > 0 else 0.0
    return ratio if math.isfinite(ratio) and ratio > 0 else current.scale


def drop_screened(index: Tensor, known: Tensor) -> Tensor:
    return index[~torch.isin(index, known)]
