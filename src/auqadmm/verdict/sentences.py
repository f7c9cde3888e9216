"""Why a verdict is not "converged", and which columns have no influence, by names of columns, blocks and rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from auqadmm.verdict.model import QuadraticModel

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard
    from auqadmm.verdict.judge import Judge


def collinear(judge: Judge, model: QuadraticModel) -> str:
    weights = model.weakest()
    names = [_named(judge, k) for k in (weights > 0.1 * weights.max()).nonzero()[:, 0].tolist()]
    if len(names) <= 1:
        return (
            f"{_listed(names) or 'A column'} hardly bends the objective any more: rows are saturated, or the "
            "column is nearly empty. Nothing can be proved; add an L2 term."
        )
    return (
        f"{_listed(names)} are collinear to rounding: nothing can be proved about that direction. Drop one of "
        "them, or add an L2 term."
    )


def undecidable(judge: Judge) -> str:
    n = judge.setup.unknowns
    if not judge.g.quadratic:
        return (
            f"{n} unknowns are too many for the Hessian itself, and there is no duality gap for this loss and "
            "regularizer: nothing can be proved."
        )
    return (
        f"{n} unknowns are too many for the Hessian itself, and without an L2 term there is no other bound: add "
        "one, however small."
    )


def notes(judge: Judge) -> str:
    """Columns without influence, as far as known; constant ones from the first triangle on."""
    if judge.columns is None:
        return ""
    empty, said = judge.columns.unused, []
    for which, one, many in (
        (empty, "is zero in every row: its coefficient has", "are zero in every row: their coefficients have"),
        (judge.constant, "is constant beside an intercept: it has", "are constant beside an intercept: they have"),
    ):
        if which:
            said.append(f"{_listed([_named(judge, k) for k in which])} {one if len(which) == 1 else many} no say.")
    return " ".join(said)


def infinite(judge: Judge, v: Tensor) -> str:
    assert judge.columns is not None
    rows = judge.reduce.gather(_BadRow(judge.columns.centre, v), None)
    bad = (rows != -1).nonzero()[:, 0].tolist()
    if not bad:
        return "The objective is not finite: rescale the features or the targets."
    name, row = judge.reduce.engine.names[bad[0]], int(rows[bad[0]])
    where = name if row < 0 else f"{name}, row {row},"
    return f"The loss of {where} is not finite at this model: rescale its features or targets, or start elsewhere."


def _named(judge: Judge, k: int) -> str:
    if judge.setup.intercept and k == judge.setup.features - 1:
        return "the intercept"
    names = judge.setup.names
    return f"column {k}" if names is None else f"column {names[k]!r}"


def _listed(names: list[str]) -> str:
    shown = names if len(names) <= 6 else [*names[:5], f"{len(names) - 5} more"]
    text = shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + f" and {shown[-1]}" if shown else ""
    return text[:1].upper() + text[1:]


@dataclass(frozen=True)
class _BadRow:
    """Of every block, the first row whose loss is not finite at v in centred columns; −1: none. (B,)"""

    centre: Tensor | None
    v: Tensor

    def __call__(self, shard: Shard, blocks: object) -> Tensor:
        return shard.exact(self.centre).bad_rows(self.v.to(shard.device))
