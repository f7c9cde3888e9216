"""From sums to covariances, or to the sentence why there is none.

    model      H⁻¹ s            observed information, s the dispersion
    expected   J⁻¹ s            expected information
    robust     H⁻¹ R H⁻¹        White's HC0
    cluster    H⁻¹ C H⁻¹        rows of a site may depend on each other
    ridge      (H + L)⁻¹ M (H + L)⁻¹, M = sH, R or C: the spread around a biased mean

Shapes: m unknowns; H, J, R, C (m, m), L, d (m,).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from auqadmm.errors import InputError
from auqadmm.inference.columns import ChosenInverse
from auqadmm.inference.families import Family, family_of
from auqadmm.inference.last_steps import FAR_POWER, NEAR
from auqadmm.inference.nearly_collinear import factor, refuse_untrusted
from auqadmm.inference.size import inverse_with_size, with_size
from auqadmm.inference.statistics import Statistics
from auqadmm.inference.undetermined import listed, refuse_idle
from auqadmm.problem.cox import Cox
from auqadmm.problem.made_of_losses import loss_of_rows
from auqadmm.verdict.model import QuadraticModel

SEPARATED = ((3.0, 0.1), (30.0, 0.03), (100.0, 0.01))  # an error and a Newton step, both times the largest |x|
COLLINEAR = 1e-9  # of the information of single columns: what a combination of them has, if any
KINDS = ("model", "expected", "robust", "cluster")


@dataclass(frozen=True, eq=False)
class Covariance:
    """Of the estimate in the user's columns: vcov (m, m), coef (m,), `one_step` for penalties with kinks; the
    error of a size k that was searched; effective degrees of freedom, the dispersion, and how far v is from the optimum
    in standard errors."""

    vcov: np.ndarray
    coef: np.ndarray
    one_step: np.ndarray | None
    k_se: float | None
    freedom: float
    dispersion: float
    away: float


def covariance(at: Statistics, kind: str, dispersion: float | str | None, correction: bool) -> Covariance:
    family = family_of(at.loss)
    _check(at, kind, family)
    if at.chosen is not None:
        return _of_chosen(at, at.chosen, dispersion, family)
    kinks = at.penalised == "kinks"
    strengths = np.zeros_like(at.strengths) if kinks else at.strengths
    name = "J" if kind == "expected" and "J" in at.sums else "H"
    base = at.sums[name]
    refuse_idle(at.loss, at.names, np.diag(base) + strengths, at.sums["xx"])
    model = QuadraticModel.of(
        torch.from_numpy(base)[None],
        torch.from_numpy(strengths)[:, None],
        torch.zeros(len(strengths), 1, dtype=torch.bool),
    )
    if model.singular:
        raise InputError(_collinear(at, model))
    group = model.groups[0]
    s = group.s.numpy()
    F = factor(group, at.sums, name)
    inverse = F @ F.T
    if kind in ("robust", "cluster") or ("T" not in at.sums and not (strengths > 0).any()):
        refuse_untrusted(group, at.names)
    searched = at.searched and not kinks
    freedom = float(np.sum(inverse * base)) if at.penalised == "ridge" else float(len(s))  # the trace of (H + L)⁻¹H
    step = -inverse @ (at.sums["G"] + strengths * at.v)
    if not kinks:
        _separated(at, family, range(len(s)), np.sqrt(np.diag(inverse)), at.turn @ step)
    n, left, plain = observations(at), _left(at, freedom), not at.penalised or kinks
    phi = _dispersion(at, family, dispersion, left)
    if searched and kind != "expected":  # whose information of u and k together is zero
        inverse, base = inverse_with_size(at, inverse), with_size(at, "Hk", base)
    if kind in ("model", "expected"):
        inside = phi * (inverse if plain else inverse @ base @ inverse)
    else:
        name = "R" if kind == "robust" else "C"
        inside = inverse @ (with_size(at, name + "k", at.sums[name]) if searched else at.sums[name]) @ inverse
        if kind == "cluster" and correction:
            sites = at.number("sites")
            inside = inside * (sites / (sites - 1) * (n - 1) / left)
    k_se = None
    if searched:
        k_se = math.sqrt(inside[-1, -1] if kind != "expected" else 1 / at.sums["Hk"][-1])
        inside = inside[: len(s), : len(s)]
    spread = np.sqrt(np.maximum(np.diag(inside), 0.0))
    away = 0.0 if kinks else float(np.max(np.abs(step) / np.where(spread > 0, spread, math.inf)))
    if not kinks:
        _at_optimum(away)
    vcov = at.shown @ inside @ at.shown.T
    if plain and (kind == "expected" or (kind == "model" and not searched)):  # less cancels in an intercept's error
        shown = at.shown @ F
        vcov = phi * (shown @ shown.T)
    return Covariance(
        vcov=vcov,
        coef=at.shown @ at.v,
        one_step=at.shown @ (at.v + step) if kinks else None,
        k_se=k_se,
        freedom=freedom,
        dispersion=phi,
        away=away,
    )


def _of_chosen(
    at: Statistics, chosen: ChosenInverse, dispersion: float | str | None, family: Family | None
) -> Covariance:
    """Of some coefficients of a model without a penalty."""
    spread, m = np.sqrt(np.diag(chosen.inverse)), len(at.v)
    features = [i for i, k in enumerate(chosen.which) if at.names[k] != "intercept"]
    _separated(at, family, [chosen.which[i] for i in features], spread[features], chosen.step[features])
    phi = _dispersion(at, family, dispersion, _left(at, m))
    away = float(np.max(np.abs(chosen.step) / (spread * math.sqrt(phi))))
    _at_optimum(away)
    return Covariance(
        vcov=phi * chosen.inverse,
        coef=at.turn @ at.v + chosen.step,
        one_step=None,
        k_se=None,
        freedom=float(m),
        dispersion=phi,
        away=away,
    )


def _left(at: Statistics, freedom: float) -> float:
    n, own = observations(at), at.number("own")
    if not n - freedom - own > 0:
        raise InputError(f"There are {n:g} rows for {freedom + own:g} parameters: no standard errors can be estimated.")
    return n - freedom - own


def _at_optimum(away: float) -> None:
    if away > NEAR:
        raise InputError(
            f"The model is {away:.2g} standard errors away from the optimum: solve it to a smaller certificate_tol, or "
            "with more iterations, before its errors are asked for."
        )


def observations(at: Statistics) -> float:
    return at.number("weight") if at.frequency else at.number("rows")


def _check(at: Statistics, kind: str, family: Family | None) -> None:
    name = type(loss_of_rows(at.loss)).__name__
    if kind not in KINDS:
        raise InputError(f"cov must be 'model', 'expected', 'robust' or 'cluster', got {kind!r}.")
    if family is None and kind in ("model", "expected"):
        raise InputError(f"{name} is no likelihood that is known: ask for cov='robust' or cov='cluster'.")
    if kind == "cluster" and at.number("sites") < 2:
        raise InputError("cov='cluster' needs rows of at least two sites.")
    inner = getattr(at.regularizer, "inner", at.regularizer)
    if at.penalised == "kinks" and type(inner).__name__ not in ("L1", "ElasticNet", "GroupLasso"):
        raise InputError(
            f"inference is not offered for models held by {type(inner).__name__}: leave it out, or use L2."
        )


def _dispersion(at: Statistics, family: Family | None, asked: float | str | None, left: float) -> float:
    if isinstance(asked, str):
        if asked != "pearson":
            raise InputError(f"dispersion must be a number, 'pearson' or None, got {asked!r}.")
        if isinstance(at.loss, Cox):
            raise InputError("Cox's model has no Pearson residuals: leave dispersion out.")
        return at.number("pearson") / left
    if asked is not None:
        if isinstance(asked, bool) or not 0 < asked < math.inf:
            raise InputError(f"dispersion must be above zero, got {asked!r}.")
        return float(asked)
    return at.number("pearson") / left if family is not None and family.estimated else 1.0


# ---------------------------------------------------------------------- why there is none
def _collinear(at: Statistics, model: QuadraticModel) -> str:
    """The direction d without information is one in which no row differs, or one whose rows are fitted perfectly: at
    coefficients that are zero only the first has none."""
    weights = model.weakest().numpy()
    first = at.sums.get("H0")
    if first is not None:
        d = (model.groups[0].weakest() / model.groups[0].s).numpy()
        size = np.sqrt(np.maximum(np.diag(first), 0.0))
        if d @ first @ d > COLLINEAR * np.sum((d * size) ** 2):
            raw = np.abs(at.turn @ d) * np.append(size[:-1], 0.0 if "intercept" in at.names else size[-1])
            return _infinite(at, np.flatnonzero(raw > math.sqrt(0.1) * raw.max()))
    among = np.flatnonzero(weights > 0.1 * weights.max())
    if len(among) == 1:
        return (
            f"{listed(at.names, among)} hardly bends the objective at the solution: its rows are saturated (separated "
            "classes) or nearly empty. There are no standard errors; drop it, or add an L2 term."
        )
    return (
        f"{listed(at.names, among)} are collinear: their effects cannot be told apart, and have no standard errors. "
        "Drop one of them, or add an L2 term."
    )


def _infinite(at: Statistics, which: Sequence[int] | np.ndarray) -> str:
    return (
        f"{listed(at.names, which)} separate{'s' * (len(which) == 1)} the outcomes of some rows perfectly: "
        "the best coefficient is infinite, and has no standard error. Drop or merge levels, or add an L2 term."
    )


def _separated(
    at: Statistics, family: Family | None, which: Sequence[int], spread: np.ndarray, step: np.ndarray
) -> None:
    """Rows that are fitted perfectly let a coefficient grow without end: hardly any information is left about it, and
    Newton's step still leads on by about one logit. `spread`, `step`: of the unknowns `which`, dispersion left out."""
    if family is None or family.name in ("Gaussian", "Gamma") or (at.strengths > 0).all():
        return
    largest = at.sums["far"][list(which)] ** (1 / FAR_POWER)
    error, move = spread * largest, np.abs(step) * largest
    bad = [k for i, k in enumerate(which) if any(error[i] > least and move[i] > far for least, far in SEPARATED)]
    if bad:
        raise InputError(_infinite(at, bad))
