"""Paths, cross-validations and single fits of elastic nets from Gram matrices, in two reductions.

Workers send the sums of `moments.py`, once for all folds and strengths; whatever depends on strengths happens at the
server (`quadratic.py`). A fold's model is fitted to the merger of the other folds' sums and scored on its own,

    Σ_test s(x̃ᵀc + b̃ − ỹ)² = q − 2pᵀc + cᵀGc + S(ȳ − ȳ_train − (μ − μ_train)ᵀc)²

and where that difference cancels (a nearly perfect fit) workers compute it in one more round.

How far a fit is from its optimum follows from the shortest subgradient ξ. F is strongly convex in H = G + l2:

    F(v) − F* ≤ ½ ξᵀH⁻¹ξ

and where H is singular from the duality gap, to the precision of F.

Shapes: n rows, c cells, m features, K strengths; coef (K, m), intercept (K,).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from scipy.linalg.lapack import dposv

from auqadmm.callbacks import Progress
from auqadmm.core.history import History, Row
from auqadmm.core.reduce import Reduce, Traffic
from auqadmm.core.result import Result
from auqadmm.core.solve import Iteration
from auqadmm.core.state import Status
from auqadmm.core.stopping import Certificate, Stopping
from auqadmm.engines import resolve
from auqadmm.estimators.blocks import Rows, later
from auqadmm.estimators.checks import EngineChoice, Matrix
from auqadmm.estimators.fitting import FitSettings
from auqadmm.estimators.moments import Moments, Squares
from auqadmm.estimators.quadratic import EPS, Quadratics, ridges
from auqadmm.problem import LeastSquares, Problem, Zero

MOST_FEATURES = 4096  # features
NUMBERS = 2**27  # of all Gram matrices at once
SCORE_DIGITS = 1e-10  # of a score, relative
EXPLAINED_SHARE = 1e-4  # as in a certificate: the least share of F that counts as explained
HALVING = 0.5  # factor between strengths on the path to a single one


@dataclass(frozen=True, eq=False)
class Split:
    """Folds as cells: masks (c, n) over the rows, and which cells make up the train and the test rows of each fold,
    (f, c), and all rows, (c,)."""

    masks: np.ndarray
    train: np.ndarray
    test: np.ndarray
    whole: np.ndarray

    @staticmethod
    def none(rows: int) -> Split:
        """All rows, no fold."""
        return Split(np.ones((1, rows), dtype=bool), np.zeros((0, 1), bool), np.zeros((0, 1), bool), np.ones(1, bool))

    @staticmethod
    def of(folds: list[tuple[np.ndarray, np.ndarray]]) -> Split:
        """From masks (train, test). Rows that are in the same folds share a cell, unless there are too many such kinds:
        then train and test rows of each fold are cells of their own."""
        train, test = (np.array(x) for x in zip(*folds, strict=True))
        kinds, code = np.unique(train + 2 * test, axis=1, return_inverse=True)
        code = code.ravel()
        count = kinds.shape[1]
        if count <= 2 * len(folds):
            masks = code == np.arange(count)[:, None]
            return Split(masks, (kinds & 1) > 0, (kinds & 2) > 0, np.ones(count, bool))
        f = len(folds)
        masks = np.vstack([train, test, np.ones((1, train.shape[1]), bool)])
        unit = np.eye(2 * f + 1, dtype=bool)
        return Split(masks, unit[:f], unit[f : 2 * f], unit[-1])


def is_applicable(rows: Rows, settings: FitSettings, split: Split) -> bool:
    """Is this applicable? The Gram matrices of all cells must fit."""
    return by_sums(settings, split) and fits(rows, split)


def by_sums(settings: FitSettings, split: Split) -> bool:
    """The method must be free to choose, and one process must know the folds of all rows."""
    ours = isinstance(settings.method, str) and settings.method.lower() == "auto"
    return ours and not hasattr(settings.engine, "map_sum") and not (len(split.train) and several(settings.engine))


def fits(rows: Rows, split: Split) -> bool:
    return rows.features <= MOST_FEATURES and len(split.masks) * rows.features**2 <= NUMBERS


def several(engine: EngineChoice) -> bool:
    """Do several processes call this, each with its own rows?"""
    return bool(getattr(resolve(engine), "spmd", False))


@dataclass
class SplitBlocks:
    """Blocks split into cells on the workers, and the traffic."""

    reduce: Reduce
    cells: tuple[int, ...]
    count: int
    features: int
    began: float = field(default_factory=time.perf_counter)

    def moments(self, intercept: bool) -> Moments:
        return Moments.of(self.reduce, self.cells, self.count, self.features, intercept)

    def squares(self, W: np.ndarray, b: np.ndarray, centre: np.ndarray) -> np.ndarray:
        """Σs(…)² of models (c, k, m) on every cell, (c, k)."""
        models, offsets, means = (torch.from_numpy(np.ascontiguousarray(x)) for x in (W, b, centre))
        shared = (models, offsets, means)
        return self.reduce(Squares(self.cells, self.count), None, shared, shared)[1]["squares"].numpy()


@contextmanager
def split_blocks(rows: Rows, split: Split, settings: FitSettings) -> Iterator[SplitBlocks]:
    """The rows of every cell of every block as a separate block, on the engine."""
    began = time.perf_counter()
    blocks, cells = [], []
    first = np.concatenate([[0], np.cumsum(rows.sizes)])
    for j, (X, y, w) in enumerate(zip(rows.X, rows.y, rows.weight, strict=True)):
        for c, mask in enumerate(split.masks):
            own = mask[first[j] : first[j + 1]]
            if own.all():
                blocks.append((X, y, w))
            elif own.any():
                blocks.append((later(partial(_some, keep=np.flatnonzero(own)), X), y[own], w[own]))
            else:
                continue
            cells.append(c)
    problem = Problem(LeastSquares(), Zero(), blocks)
    engine = resolve(settings.engine).place(problem, torch.float64, torch.device("cpu"))
    try:
        yield SplitBlocks(Reduce(engine), tuple(cells), len(split.masks), rows.features, began)
    except BaseException as error:
        with suppress(Exception):  # the first error matters
            engine.close(error)
        raise
    engine.close()


def _some(X: Matrix, keep: np.ndarray) -> Matrix:
    return X[keep]


# ---------------------------------------------------------------------- strengths and models
def largest(moments: Moments, l1_ratio: float, k: int = 0) -> float:
    """The smallest strength that leaves all coefficients 0."""
    top = float(np.max(np.abs(moments.p[k]), initial=0.0)) / (moments.S[k] * l1_ratio)
    return max(top, EPS)  # a target without any correlation: every strength gives the same model


def nets(moments: Moments, grids: np.ndarray, ratios: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (c, R, K, m) for every cell and share along its grid (R, K), and which converged (c, R, K)."""
    R = len(grids)
    share = np.array(ratios)[:, None]
    l1, l2 = ((x[None] * moments.S[:, None, None]) for x in (grids * share, grids * (1 - share)))
    if R == 1:
        many = Quadratics(moments.G, moments.p, moments.q)
        models, reached = many.path(l1[:, 0], l2[:, 0])
        return models[:, None], reached[:, None]
    parts = [nets(moments, grids[r : r + 1], ratios[r : r + 1]) for r in range(R)]
    return np.concatenate([p[0] for p in parts], axis=1), np.concatenate([p[1] for p in parts], axis=1)


def single(moments: Moments, alpha: float, l1_ratio: float) -> np.ndarray:
    """The coefficients (m,) for one strength, by a path of stronger ones."""
    if alpha * l1_ratio == 0:
        return ridges(moments.G[0], moments.p[0], alpha * moments.S)[0]
    ratio = max(largest(moments, l1_ratio) / alpha, 1.0)
    steps = max(1, math.ceil(math.log(ratio) / -math.log(HALVING)))
    grid = alpha * ratio ** np.linspace(1.0, 0.0, steps + 1)
    grid[-1] = alpha
    return nets(moments, grid[None], [l1_ratio])[0][0, 0, -1]


# ---------------------------------------------------------------------- how good they are
def errors(data: SplitBlocks, parts: Moments, split: Split, trained: Moments, coef: np.ndarray) -> np.ndarray:
    """Mean squared errors (f, k) of models coef (f, k, m), each fold's own, on its test rows; 0 for weight 0."""
    tested = parts.merged(split.test)
    Gc = np.matmul(coef, tested.G)
    inner = tested.q[:, None] - 2 * np.einsum("fi,fki->fk", tested.p, coef) + (coef * Gc).sum(2)
    shift = (tested.middle - trained.middle)[:, None] - np.einsum("fi,fki->fk", tested.mean - trained.mean, coef)
    squares = np.maximum(inner, 0.0) + tested.S[:, None] * shift**2
    spread = np.sqrt(np.maximum(np.einsum("fii->fi", tested.G), 0.0))
    size = np.sqrt(np.maximum(tested.q, 0.0))[:, None] + np.einsum("fi,fki->fk", spread, np.abs(coef))
    if bool((8 * EPS * size**2 > SCORE_DIGITS * squares).any() & (size > 0).any()):
        squares = _test_squares(data, split, trained, coef)
    return squares / np.maximum(tested.S, np.finfo(np.float64).tiny)[:, None]


def _test_squares(data: SplitBlocks, split: Split, trained: Moments, coef: np.ndarray) -> np.ndarray:
    """The same squares, row by row at the workers: cells get the models of all folds that they test."""
    f, k = coef.shape[:2]
    total = np.zeros((f, k))
    left = split.test.copy()
    while left.any():  # a cell may be in the test rows of several folds: one of them at a time
        fold = np.where(left.any(0), left.argmax(0), 0)
        b = np.repeat(trained.middle[fold][:, None], k, axis=1)
        squares = data.squares(coef[fold], b, trained.mean[fold])
        for c in np.flatnonzero(left.any(0)):
            total[fold[c]] += squares[c]
            left[fold[c], c] = False
    return total


def certified(
    moments: Moments,
    coef: np.ndarray,
    l1: np.ndarray,
    l2: np.ndarray,
    k: int = 0,
    beyond: np.ndarray | None = None,
) -> Certificate:
    """The certificate of models (K, m) on cell k, strengths (K,) per row; of several, their sum.

    `beyond` (K, 2): the moments are those of a working set, and outside of it the largest |∇| and Σ(|∇| − l1)₊² are
    these. Then only l2 is known of the curvature.
    """
    S, p, q = moments.S[k], moments.p[k] / moments.S[k], max(float(moments.q[k] / moments.S[k]), 0.0)
    G = moments.G[k] / S
    v, l1, l2 = coef, np.asarray(l1)[:, None], np.asarray(l2)[:, None]
    Gv = v @ G
    grad = Gv - p + l2 * v
    at_zero = np.sign(grad) * np.maximum(np.abs(grad) - l1, 0.0)
    xi = np.where(v == 0, at_zero, grad + l1 * np.sign(v))
    left = np.maximum(q - 2 * v @ p + (v * Gv).sum(1), 0.0)
    F = 0.5 * left + (l1 * np.abs(v)).sum(1) + 0.5 * (l2 * v**2).sum(1)
    scale = np.minimum(F, np.maximum(0.5 * q - F, EXPLAINED_SHARE * F))
    size = math.sqrt(q) + np.abs(v) @ np.sqrt(np.maximum(np.diag(G), 0.0))
    kkt = float(np.linalg.norm(xi)) / max(float(np.linalg.norm(p)), float(np.finfo(np.float64).tiny))
    top, over = np.zeros((2, len(v))) if beyond is None else beyond.T
    bound = _by_curvature(G, xi, float(l2.min())) if beyond is None else _by_l2((xi**2).sum(1) + over, l2[:, 0])
    floor = 0.5 * EPS**2 * size**2
    dual = _dual_gap(v, Gv, p, q, l1, l2, F, left, top, over)
    evidence = "proved"
    if bound is None and dual is None:
        return Certificate(float(F.sum()), kkt, scale=float(scale.sum()))
    if bound is None or (dual is not None and float((dual - bound).sum()) < 0):
        assert dual is not None
        bound = dual
        # F is made of products that are as large as the square of `size`
        if bool((dual <= EPS * np.maximum(64 * np.maximum(F, q), 8 * size**2)).all()):
            evidence = "rounding"
    gap = np.maximum(bound, floor)
    # an exact fit has no scale
    relative = np.where(gap > 0, gap / np.where(scale > 0, scale, np.finfo(np.float64).tiny), 0.0)
    if bool((floor >= F).any()):
        evidence = "rounding"
    return Certificate(
        objective=float(F.sum()),
        kkt=kkt,
        duality_gap=None if dual is None else float(dual.sum()),
        gap_bound=float(gap.sum()),
        relative=float(relative.max()),
        evidence=evidence,
        scale=float(scale.sum()),
        delta=float(gap.sum()),
    )


def _by_curvature(G: np.ndarray, xi: np.ndarray, l2: float) -> np.ndarray | None:
    """½ξᵀH⁻¹ξ with the weakest l2 of all; None where H is singular to rounding. Columns without values are ignored."""
    diagonal = np.diag(G) + l2
    empty = diagonal <= 0
    if bool((xi[:, empty] != 0).any()):
        return None
    H = G.copy()
    # minus a bound of rounding
    H.flat[:: len(H) + 1] = np.where(empty, 1.0, diagonal * (1 - 8 * EPS * len(H)))
    _, x, info = dposv(H.T, xi.T, overwrite_a=1)
    return 0.5 * np.maximum((xi.T * x).sum(0), 0.0) if info == 0 else None


def _by_l2(squares: np.ndarray, l2: np.ndarray) -> np.ndarray | None:
    """½‖ξ‖²/l2 of every model."""
    return 0.5 * squares / l2 if bool((l2 > 0).all()) else None


def _dual_gap(
    v: np.ndarray,
    Gv: np.ndarray,
    p: np.ndarray,
    q: float,
    l1: np.ndarray,
    l2: np.ndarray,
    F: np.ndarray,
    left: np.ndarray,
    beyond: np.ndarray,
    over_there: np.ndarray,
) -> np.ndarray | None:
    """F plus the conjugates at the residual, scaled where l2 = 0; None where there is no penalty. Of columns that v
    does not have, the largest |∇| and Σ(|∇| − l1)₊², (K,)."""
    if bool(((l1 == 0) & (l2 == 0)).any()):
        return None
    w = np.abs(Gv - p)
    top = np.maximum(w.max(1, initial=0.0), beyond)
    c = np.where(l2[:, 0] > 0, 1.0, np.minimum(1.0, l1[:, 0] / np.where(top > 0, top, 1.0)))
    over = np.maximum(c[:, None] * w - l1, 0.0)
    squares = (over**2).sum(1) + over_there
    conjugate = np.where(l2 > 0, squares[:, None] / (2 * np.where(l2 > 0, l2, 1.0)), 0.0)[:, 0]
    rows = 0.5 * c**2 * left + c * (v @ p - q)
    rounding = EPS * (F + c**2 * left + c * (np.abs(v) @ np.abs(p) + q) + conjugate)
    return np.maximum(F + rows + conjugate, rounding)


def enough(certificate: Certificate, tol: float) -> bool:
    """Within `tol`, or within the rounding of F."""
    nearest = certificate.gap_bound <= EPS * certificate.objective
    return certificate.passes(tol) or certificate.evidence == "rounding" or nearest


# ---------------------------------------------------------------------- fitted attributes
def result(
    data: SplitBlocks, certificate: Certificate, v: np.ndarray, intercept: np.ndarray | None, settings: FitSettings
) -> Result:
    """Models (K, m) and intercepts (K,) as a run of one iteration."""
    tol = settings.tol
    t: Traffic = data.reduce.traffic
    passes, known = certificate.passes(tol), certificate.words()
    status = Status.converged if passes else Status.rounding if enough(certificate, tol) else Status.max_iter
    words = {
        Status.converged: f"Converged: {known}, from {t.rounds} rounds of sums.",
        Status.rounding: f"As good as the arithmetic allows: {known}, from {t.rounds} rounds of sums.",
        Status.max_iter: f"Not converged: {known}, and the sums of squares have no more digits.",
    }
    row = Row(
        iteration=1,
        objective=certificate.objective,
        primal_residual=None,
        dual_residual=None,
        eps_primal=None,
        eps_dual=None,
        kkt=certificate.kkt,
        seconds=time.perf_counter() - data.began,
        rounds=t.rounds,
        bytes=t.up + t.down,
        bytes_up=t.up,
        bytes_down=t.down,
        hvps=0,
        reductions=t.reductions,
        relative=certificate.relative_gap,
    )
    if settings.verbose:
        nowhere: Any = SimpleNamespace(blocks=None, shared=None)  # no block has a local model
        stopping = Stopping(settings.max_iter, certificate_tol=tol)
        with Progress(mode="auto", every=1) as progress:
            progress(Iteration(row, nowhere, stopping, "gram"))
    model = v.T if intercept is None else np.vstack([v.T, intercept])
    return Result(
        v=torch.from_numpy(np.ascontiguousarray(model)),
        status=status,
        message=words[status],
        n_iter=1,
        history=History((row,)),
        certificate=certificate,
        method="gram",
        has_intercept=intercept is not None,
    )


def fit(rows: Rows, alpha: float, l1_ratio: float, intercept: bool, settings: FitSettings) -> Result | None:
    """One elastic net in the user's units; None where not applicable, or not accurate enough."""
    split = Split.none(len(rows.order))
    if not is_applicable(rows, settings, split):
        return None
    with split_blocks(rows, split, settings) as data:
        moments = data.moments(intercept)
        if not moments.finite:
            return None
        v = single(moments, alpha, l1_ratio)
        return concluded(data, moments, v, alpha, l1_ratio, intercept, settings)


def concluded(
    data: SplitBlocks,
    moments: Moments,
    v: np.ndarray,
    alpha: float,
    l1_ratio: float,
    intercept: bool,
    settings: FitSettings,
) -> Result | None:
    """A model (m,) of the only cell, with its certificate; None where it is not accurate enough."""
    l1, l2 = np.array([alpha * l1_ratio]), np.array([alpha * (1 - l1_ratio)])
    certificate = certified(moments, v[None], l1, l2)
    if not enough(certificate, settings.tol):
        return None
    offset = moments.middle - moments.mean @ v if intercept else None
    return result(data, certificate, v[None], offset, settings)
