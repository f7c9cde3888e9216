"""What was summed at the solution, and how it was asked for: one reduction, and a few numbers of a null model.

Of several classes the sums are relative to one of them: adding a vector to the coefficients of all classes changes
nothing, so that only their differences are known. With the coefficients of a reference class taken away from all,
unknowns are the m of each of the C − 1 others, class by class:

    H   Σ c (diag(p) − ppᵀ) ⊗ xxᵀ          p the probabilities of the other classes
    G   Σ c (p − e) ⊗ x                     e the indicator of the row's own class, zero for the reference
    R   Σ c (p − e)(p − e)ᵀ ⊗ xxᵀ

Shapes: m features (the intercept's ones last); v, G (m,) and H, J, R, C (m, m) in centred columns. Of C classes
M = (C − 1)m unknowns: v (m, C), p, e (r, C − 1), G (M,), H, R (M, M).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from auqadmm.blocks.curvature import times
from auqadmm.blocks.exact_rows import BlockRows, with_offset
from auqadmm.blocks.rows import RowLoss
from auqadmm.core.reduce import B, Reduce, Sums
from auqadmm.errors import InputError
from auqadmm.inference.columns import ChosenInverse, InformationProducts, chosen_inverse, numbers_of
from auqadmm.inference.families import family_of
from auqadmm.inference.last_steps import at_the_optimum, undetermined
from auqadmm.inference.nearly_collinear import whitening
from auqadmm.inference.sums import (
    LARGEST_ENTRY,
    NullSlopesQuery,
    SeriesQuery,
    SiteInformation,
    SitesQuery,
    StatisticsQuery,
    scale_of,
)
from auqadmm.inference.undetermined import refuse_idle
from auqadmm.metrics.sums import pack, unpack
from auqadmm.problem.cox import Cox
from auqadmm.problem.families import Tweedie
from auqadmm.problem.losses import LeastSquares, Multinomial
from auqadmm.problem.made_of_losses import Trials, loss_of_rows
from auqadmm.verdict.queries import ColumnMoments
from auqadmm.verdict.queries import moments as moments_query

if TYPE_CHECKING:
    from auqadmm.blocks.rows import Loss
    from auqadmm.blocks.shard import Census, Shard
    from auqadmm.problem.problem import Problem


SQUARES = ("H", "R", "C")
MOST = 4096  # unknowns whose information is summed as a whole
NULL_STEPS = 60
WITHOUT_NULL = "without null"  # asks for the sums of inference alone


@dataclass(frozen=True)
class ClassesQuery:
    """All sums at v, given in centred columns; `reference`: the number of the class that others are compared with."""

    centre: Tensor | None
    reference: int
    frequency: bool = True

    def __call__(self, shard: Shard, blocks: B, v: Tensor) -> tuple[B, Sums]:
        v = v.to(shard.device)
        rows = BlockRows(shard, None if self.centre is None else self.centre.to(shard.device))
        total: Sums = {}
        for j in range(shard.blocks):
            found = self._block(shard, rows, j, v)
            site = SiteInformation.of(found["H"])
            found |= {"C": torch.outer(found["G"], found["G"]), "Q": site.form(found["G"])}
            found |= {"ranks": v.new_tensor(float(site.rank)), "sites": v.new_tensor(float(site.rank > 0))}
            total = {name: total[name] + x if name in total else x for name, x in found.items()}
        return blocks, {name: pack(x[None])[0] if name in SQUARES else x for name, x in total.items()}

    def _block(self, shard: Shard, rows: BlockRows, j: int, v: Tensor) -> Sums:
        m, C = v.shape
        M, others = (C - 1) * m, [k for k in range(C) if k != self.reference]
        new = v.new_zeros
        sums: Sums = {name: new(()) for name in ("weight", "rows", "f", "log_weights")} | {"shares": new(C)}
        sums |= {name: new(M) for name in ("G", "far", "xx")} | {"H": new(M, M), "R": new(M, M)}
        for _, part in rows.chunks(j):
            c, label = part.c * scale_of(shard), part.y.long()
            z = with_offset(part, part.forward(v))
            logs, own = z.log_softmax(1), torch.nn.functional.one_hot(label, C).to(z)
            p, away = logs.exp()[:, others], (logs.exp() - own)[:, others]
            raw = part.A if rows.centre is None else part.A + rows.centre
            scores = (away[:, :, None] * part.A[:, None]).flatten(1)
            sums["weight"] += c.sum()
            sums["rows"] += (c > 0).sum()
            sums["log_weights"] += torch.where(c > 0, c, 1.0).log().sum()
            sums["f"] -= times(c, logs.gather(1, label[:, None])[:, 0]).sum()
            sums["shares"] += own.mT @ c
            sums["G"] += scores.mT @ c
            sums["R"] += scores.mT @ ((c if self.frequency else c * c)[:, None] * scores)
            sums["far"] += times(c.sign(), part.A.abs().clamp(max=LARGEST_ENTRY).pow(16)).sum(0).repeat(C - 1)
            sums["xx"] += (raw.square().mT @ (c[:, None] * p * (1 - p))).mT.flatten()
            for a in range(C - 1):
                for b in range(a, C - 1):
                    bend = c * p[:, a] * ((1.0 if a == b else 0.0) - p[:, b])
                    block = part.A.mT @ (bend[:, None] * part.A)
                    sums["H"][a * m : a * m + m, b * m : b * m + m] += block
                    if a != b:
                        sums["H"][b * m : b * m + m, a * m : a * m + m] += block
        return sums


def contrasts(v: Tensor, reference: int) -> Tensor:
    """Coefficients (m, C) relative to one class, class by class, (M,)."""
    others = [k for k in range(v.shape[1]) if k != reference]
    return (v[:, others] - v[:, [reference]]).mT.flatten()


def number_of(reference: object, classes: Sequence[object] | np.ndarray | None) -> int:
    """The number of the class that others are compared with: the first unless it is named."""
    known = [] if classes is None else list(classes)
    if reference is None:
        return 0
    for k, label in enumerate(known):
        if label == reference:
            return k
    raise InputError(f"reference {reference!r} is no class; classes are {', '.join(map(str, known))}.")


def null_of_shares(shares: Tensor) -> float:
    """Σcφ of the model that has no columns."""
    return float(-torch.xlogy(shares, shares / shares.sum()).sum())


@dataclass(frozen=True, eq=False)
class Statistics:
    """Sums at v in centred columns, with what they were made of. `turn` (m, m): from centred columns to the problem's;
    `raw` (m, m): from there to those that are shown, None: the same; `strengths` (m,): l2 of every unknown; `sites`:
    estimates of blocks, where they were asked for, (N, 2, m); `searched`: the size k of the negative binomial was found
    from the same rows; `model` (m, C): v in the problem's columns, all classes. With `chosen` coefficients `turn` has
    their rows only, and of H and J there are diagonals."""

    v: np.ndarray
    turn: np.ndarray
    sums: dict[str, np.ndarray]  # H0, where H is singular: the information of coefficients that are zero
    loss: Loss
    regularizer: Any
    strengths: np.ndarray
    names: tuple[str, ...]
    blocks: tuple[str, ...]
    frequency: bool
    null: float
    rounds: int
    numbers: int
    sites: np.ndarray | None = field(default=None, repr=False)
    searched: bool = False
    chosen: ChosenInverse | None = None
    raw: np.ndarray | None = field(default=None, repr=False)
    model: Tensor | None = field(default=None, repr=False)

    @property
    def shown(self) -> np.ndarray:
        """(m, m): from centred columns to those that are shown."""
        return self.turn if self.raw is None else self.raw @ self.turn

    def number(self, name: str) -> float:
        return float(self.sums[name])

    @property
    def penalised(self) -> str:
        """ "" without a penalty, "ridge" for a quadratic one, else "kinks"."""
        if not self.regularizer.quadratic:
            return "kinks"
        return "ridge" if bool((self.strengths > 0).any()) else ""


def measured(
    reduce: Reduce,
    problem: Problem,
    census: Census,
    v: Tensor,
    columns: ColumnMoments | None,
    frequency: bool = True,
    sites: bool = False,
    chosen: object = None,
    expected: bool = False,
    reference: object = None,
    raw: np.ndarray | None = None,
    null_model: bool = True,
) -> Statistics:
    """The sums at v. `columns`: the moments of round 0, which are asked for where they are not known; `chosen`: names
    or numbers of the coefficients whose errors are wanted, of the expected information where `expected`; None: all;
    `reference`: the class that others are compared with; `raw` (m, m): from the problem's unknowns to those that are to
    be shown; `null_model`: search for it where rows have offsets, which takes rounds."""
    if isinstance(problem.loss, Multinomial):
        if sites or chosen is not None:
            raise InputError("sites and columns are for models of one column, and Multinomial has several.")
        return _measured_classes(reduce, problem, census, v, columns, frequency, reference, raw)
    if reference is not None:
        raise InputError("reference is a class of Multinomial; other models have none.")
    loss, whole = problem.loss, chosen is None
    check(loss, census, whole)
    names = names_of(problem, census)
    which = tuple(range(len(names))) if whole else numbers_of(chosen, names)
    inner = loss_of_rows(loss)
    frequency = frequency and not isinstance(inner, Trials)  # whose weights are no numbers of rows
    before = reduce.traffic.rounds, reduce.traffic.up
    if columns is None:
        columns = ColumnMoments.of(reduce.once(moments_query), census.intercept, loss, census.columns)
    inside = columns.inside(v.to(torch.float64))
    centre = columns.centre
    scale = 1.0 if loss.reduction == "sum" else census.weight_total
    strengths = scale * problem.g.convexity(inside)[:, 0].cpu()
    query = StatisticsQuery(centre, frequency, whole)
    sums = reduce.judging(query, inside, (inside,))
    if whole and problem.g.quadratic and family_of(loss) is not None:
        inside, sums = _last_steps(reduce, query, inside, sums, strengths)
        if not loss.quadratic and undetermined(sums, strengths):
            nothing = torch.zeros_like(inside)
            sums = {**sums, "H0": reduce.judging(query, nothing, (nothing,))["H"]}
    found = {name: x.cpu() for name, x in sums.items()}
    if whole and isinstance(inner, RowLoss) and problem.g.quadratic and not strengths.any():
        found |= _whitened(reduce, centre, inside, found)
    m = census.features
    turn = torch.zeros(len(which), m, dtype=torch.float64)
    turn[range(len(which)), list(which)] = 1.0
    if centre is not None and m - 1 in which:
        turn[which.index(m - 1), :-1] = -centre[:-1].cpu()
    null = float(found["null"]) if "null" in found else math.nan  # Cox's has no constant: it was summed at zero
    if "null" not in found and family_of(loss) is not None and (null_model or not census.offset):
        totals = {name: float(found[name]) for name in ("weight", "y", "yy", "offset")}
        null = null_loss(inner, totals, census.offset, partial(_constant, reduce))
    if isinstance(inner, Tweedie) and problem.g.quadratic and not strengths.any():
        found |= _series(reduce, found, m, frequency)
    shown = turn if raw is None else torch.from_numpy(raw) @ turn
    estimates = reduce.gather(SitesQuery(centre, shown, inside), None).cpu().numpy() if sites else None
    inverse = None
    if not whole:
        if problem.g.quadratic is False or bool((strengths > 0).any()):
            raise InputError(
                "columns is for models without a penalty; with one, the spread of a coefficient needs the whole "
                f"information: ask without columns, which takes up to {MOST} unknowns."
            )
        kind = "J" if expected and "J" in found else "H"
        D = found[kind]
        refuse_idle(loss, names, D.numpy(), found["xx"].numpy())
        products = InformationProducts(centre, inside, kind == "J")
        inverse = chosen_inverse(reduce, products, D, found["G"], turn, which, names)
    squares = ("H", "J", "R", "C", "H0") if whole else ()
    return Statistics(
        v=inside[:, 0].cpu().numpy(),
        turn=turn.numpy(),
        sums={k: unpack(x[None])[0].numpy() if k in squares else x.numpy() for k, x in found.items()},
        loss=loss,
        regularizer=problem.g,
        strengths=strengths.numpy(),
        names=names,
        blocks=tuple(reduce.engine.names),
        frequency=frequency,
        null=null,
        rounds=reduce.traffic.rounds - before[0],
        numbers=(reduce.traffic.up - before[1]) // 8,
        sites=estimates,
        chosen=inverse,
        raw=raw,
        model=columns.outside(inside),
    )


def _last_steps(
    reduce: Reduce, query: StatisticsQuery, inside: Tensor, sums: Sums, strengths: Tensor
) -> tuple[Tensor, Sums]:
    def ask(v: Tensor) -> Sums:
        return reduce.judging(query, v[:, None], (v[:, None],))

    v, sums = at_the_optimum(inside[:, 0], sums, strengths, ask)
    return v[:, None], sums


def _whitened(reduce: Reduce, centre: Tensor | None, inside: Tensor, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Where columns are nearly collinear: T with TᵀHT about one, from H, and TᵀHT itself (and TᵀJT) from products with
    T. Rows are multiplied with T before they are squared, so that as many digits are right as the rows tell, not half
    as many."""
    T = whitening(unpack(sums["H"][None])[0])
    if T is None:
        return {}
    found = {"T": T}
    for name in ("H", "J"):
        if name in sums:
            query = InformationProducts(centre, inside, name == "J")
            K = T.mT @ reduce.judging(query, T, (T,))["products"].cpu()
            found["white" + name] = 0.5 * (K + K.mT)
    return found


def _measured_classes(
    reduce: Reduce,
    problem: Problem,
    census: Census,
    v: Tensor,
    columns: ColumnMoments | None,
    frequency: bool,
    reference: object,
    raw: np.ndarray | None,
) -> Statistics:
    """The sums of several classes."""
    loss = problem.loss
    check(loss, census)
    number, classes = number_of(reference, census.classes), census.classes
    assert classes is not None
    if not problem.g.quadratic or bool((problem.g.convexity(v) > 0).any()):
        raise InputError("inference of Multinomial is for fits without a penalty, which treats the reference like any.")
    before = reduce.traffic.rounds, reduce.traffic.up
    if columns is None:
        columns = ColumnMoments.of(reduce.once(moments_query), census.intercept, loss, census.columns)
    inside, centre = columns.inside(v.to(torch.float64)), columns.centre
    query, none = ClassesQuery(centre, number, frequency), torch.zeros(census.features * (len(classes) - 1)).double()
    others = [k for k in range(len(classes)) if k != number]

    def model_of(w: Tensor) -> Tensor:
        """With these differences from the reference, whose own column stays."""
        out = inside.clone()
        out[:, others] = w.reshape(len(others), -1).mT + inside[:, [number]]
        return out

    def ask(w: Tensor) -> Sums:
        return reduce.judging(query, model_of(w), (inside,))

    v, sums = at_the_optimum(contrasts(inside, number), ask(contrasts(inside, number)), none, ask)
    inside = model_of(v)
    found = {name: x.cpu() for name, x in sums.items()}
    found |= {name: torch.zeros((), dtype=torch.float64) for name in ("own", "infimum", "pearson", "constant")}
    turn = torch.eye(census.features, dtype=torch.float64)
    if centre is not None:
        turn[-1, :-1] = -centre[:-1].cpu()
    names = tuple(f"{classes[k]}: {name}" for k in others for name in names_of(problem, census))
    return Statistics(
        v=v.cpu().numpy(),
        turn=np.kron(np.eye(len(others)), turn.numpy()),
        sums={k: unpack(x[None])[0].numpy() if k in SQUARES else x.numpy() for k, x in found.items()},
        loss=loss,
        regularizer=problem.g,
        strengths=np.zeros(len(names)),
        names=names,
        blocks=tuple(reduce.engine.names),
        frequency=frequency,
        null=null_of_shares(found["shares"]),
        rounds=reduce.traffic.rounds - before[0],
        numbers=(reduce.traffic.up - before[1]) // 8,
        raw=None if raw is None else np.kron(np.eye(len(others)), raw),
        model=columns.outside(inside),
    )


def _series(reduce: Reduce, sums: dict[str, Tensor], unknowns: int, frequency: bool) -> dict[str, Tensor]:
    """Tweedie's series for the dispersion that Pearson's statistic estimates; nothing where there are too few rows."""
    left = sums["weight" if frequency else "rows"] - unknowns - sums["own"]
    dispersion = sums["pearson"] / left
    if not (float(left) > 0 and 0 < float(dispersion) < math.inf):
        return {}
    series = reduce.judging(SeriesQuery(frequency), dispersion, (dispersion,))["series"].cpu()
    return {"series": series, "series_dispersion": dispersion}


def check(loss: Loss, census: Census, whole: bool = True) -> None:
    """Refuse what has no standard errors here."""
    inner = loss_of_rows(loss)
    kind = type(inner).__name__
    if not isinstance(inner, RowLoss | Cox):
        raise InputError(f"inference needs a loss of rows, and {kind} is none; write it as an auqadmm.losses.RowLoss.")
    if not whole and isinstance(inner, Cox):
        raise InputError("columns is for losses of rows; of Cox's model all standard errors come at once.")
    several = isinstance(loss, Multinomial)
    if census.columns > 1 and not several:
        raise InputError(
            f"inference is for models of one column, and {kind} has {census.columns}: compare two classes."
        )
    if loss.reduction == "mean" and census.blocks > 1:
        raise InputError(
            "inference needs every row to count alike: reduction='mean' gives rows of small blocks more weight; use "
            "'sum' or 'pooled'."
        )
    unknowns = census.features * (census.columns - 1 if several else 1)
    if whole and unknowns > MOST:
        raise InputError(
            f"inference sums the information of at most {MOST} unknowns; this model has {unknowns}."
            + " Name the coefficients that you need: inference(columns=[…])." * (not several)
        )


def names_of(problem: Problem, census: Census) -> tuple[str, ...]:
    count = census.features - int(census.intercept)
    names = problem.names or tuple(f"x{k}" for k in range(count))
    return (*names, "intercept") if census.intercept else names


def _constant(reduce: Reduce, z: float) -> list[float]:
    at = torch.tensor([z], dtype=torch.float64)
    return reduce.judging(NullSlopesQuery(), at, (at,))["null"].tolist()


def null_loss(loss: RowLoss, sums: Mapping[str, float], offset: bool, ask: Callable[[float], list[float]]) -> float:
    """Σcφ of the best constant of a likelihood: from Σc, Σcy, Σcy² where φ is linear in y, or squares; with offsets by
    a search that begins at the mean less that of offsets. `ask` tells Σcφ, Σcφ' and Σcφ'' of a constant. NaN without
    rows."""
    W, S = sums["weight"], sums["y"]
    if not W > 0:
        return math.nan
    if isinstance(loss, LeastSquares) and not offset:
        return 0.5 * max(sums["yy"] - S * S / W, 0.0)
    z = loss.null_logits(torch.tensor([S / W], dtype=torch.float64), 1)
    if not offset:
        one = torch.ones(1, dtype=torch.float64)
        up, down = (float(loss.row_value(z[:, None], y)) for y in (one, -one))
        return 0.5 * (W + S) * up + 0.5 * (W - S) * down
    constant = float(z) - sums["offset"] / W
    best = math.inf
    for _ in range(NULL_STEPS):
        value, slope, bend = ask(constant)
        step = -slope / bend if bend > 0 else math.nan
        if not math.isfinite(value) or not math.isfinite(step):
            return best if math.isfinite(best) else math.nan
        best = min(best, value)
        if 0.5 * slope * slope / bend <= 1e-15 * (abs(value) + 1):
            break
        constant += max(-2.0, min(2.0, step)) if not loss.quadratic else step
    return best
