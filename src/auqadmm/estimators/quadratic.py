"""Elastic nets from their sums: minimise ½vᵀGv − pᵀv + l1‖v‖₁ + l2/2‖v‖² for many strengths, exactly.

At v the coordinates that move are those that are not zero and those at zero where the penalty is too weak
(|∇| > l1; at most as many at once as are nonzero). On them F is a quadratic as long as no sign changes, and

    d_A = −(G + l2)_AA⁻¹ (∇ + l1·sign)_A

leads to its minimum. Coordinates that leave zero must leave it in the direction of their slope; one that does not is
kept at zero, and the rest solved again. Where a sign changes along d, v + d with those coordinates at zero is tried,
and if F does not fall by that, the minimum of F along d is taken: F falls in every step, signs are finitely many, and
so are steps. A step without a change of sign ends at the exact solution for its signs, which is why there is no
tolerance but that of rounding, on coordinate i

    η_i = 8ε √G_ii (√q + Σ_j √G_jj|v_j|)

Strengths are taken from strong to weak, each from the solution before, so that most take one step; problems (folds,
shares of l1) take their steps together. G may be singular: a tiny share of its diagonal is added to the step, not to F.

Reference: H. Lee, A. Battle, R. Raina, A. Ng, Efficient sparse coding algorithms, NIPS 2006 (one coordinate at a time).

Shapes: k problems, K strengths, m features; G (k, m, m), v, p, ∇ (k, m), l1, l2, q (k,).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from scipy.linalg.lapack import dposv
from threadpoolctl import ThreadpoolController

from auqadmm.methods.newton.model import ActiveFactor

EPS = float(np.finfo(np.float64).eps)
TOGETHER = 128  # features up to which problems take their steps together
LIMIT = 1000  # steps for one strength
LEAST_ENTERING = 8  # coordinates that may leave zero at once
THREADED_BELOW, THREADED_ABOVE = 32, 1500  # features between which one thread is best
TRACE = 1e-14  # of the diagonal, added to a step's matrix; more where that is not enough


@dataclass(frozen=True, eq=False)
class Quadratics:
    """k quadratics: G (k, m, m), p (k, m) and q (k,)."""

    G: np.ndarray
    p: np.ndarray
    q: np.ndarray

    def path(
        self, l1: np.ndarray, l2: np.ndarray, start: np.ndarray | None = None, kept: Kept | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Solutions (k, K, m) for strengths (k, K) from strong to weak, and which of them converged (k, K); `start`
        (k, m) in place of zero. `kept`: factors that a problem keeps from path to path while features are appended."""
        k, K = l1.shape
        m = self.p.shape[1]
        models, reached = np.zeros((k, K, m)), np.zeros((k, K), dtype=bool)
        step = k if m <= TOGETHER else 1
        with _one_thread(m):
            for i in range(0, k, step):
                some = slice(i, i + step)
                part = _Steps(self.G[some], self.p[some], self.q[some], kept if k == 1 and kept else Kept())
                v = np.zeros((len(part.p), m)) if start is None else start[some]
                for j in range(K):
                    v, reached[some, j] = part.solve(v, l1[some, j, None], l2[some, j, None])
                    models[some, j] = v
        return models, reached


def ridges(G: np.ndarray, p: np.ndarray, strengths: np.ndarray) -> np.ndarray:
    """(G + l2)⁻¹p for strengths (K,) of l2 alone: (K, m)."""
    with _one_thread(len(p)):
        models = []
        for l2 in strengths.tolist():
            v = _inverse_times(G.copy(), p, l2)
            models.append(v + _inverse_times(G.copy(), p - G @ v - l2 * v, l2))  # one step of refinement
    return np.array(models)


@lru_cache(maxsize=1)
def _threads() -> ThreadpoolController:
    return ThreadpoolController()


def _one_thread(features: int) -> AbstractContextManager[object]:
    """Factors of this size gain nothing from threads, and are slower where cores are busy."""
    return _threads().limit(limits=1, user_api="blas") if THREADED_BELOW < features < THREADED_ABOVE else nullcontext()


@dataclass
class Kept:
    """A factor that may be reused in the next step."""

    factor: ActiveFactor | None = None


class _Steps:
    """Batched steps of several problems."""

    def __init__(self, G: np.ndarray, p: np.ndarray, q: np.ndarray, kept: Kept) -> None:
        self.G, self.p = G, p
        self.diagonal = np.einsum("kii->ki", G)
        self.size = np.sqrt(np.maximum(self.diagonal, 0.0))
        self.length = np.sqrt(np.maximum(q, 0.0))[:, None]
        self.H = torch.from_numpy(G[0]) if len(G) == 1 and len(p[0]) > TOGETHER else None
        self.kept = kept
        if kept.factor is not None:
            kept.factor = None if self.H is None else kept.factor.within(self.H)

    def solve(self, v: np.ndarray, l1: np.ndarray, l2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """From v to the minimum; and which of the problems have converged, to rounding."""
        Gv = self._times(v)
        least, done = np.full(len(v), np.inf), np.zeros(len(v), dtype=bool)
        for _ in range(LIMIT):
            grad = Gv + l2 * v - self.p
            reach = self.length + (self.size * np.abs(v)).sum(1, keepdims=True)
            noise = (8 * EPS) * (self.size * reach + l2 * np.abs(v))
            at_zero = v == 0
            excess = np.where(at_zero, np.abs(grad) - l1, 0.0)
            enter = excess > noise
            theta = np.where(at_zero, np.where(enter, -np.sign(grad), 0.0), np.sign(v))
            slope = np.where(at_zero & ~enter, 0.0, grad + l1 * theta)
            live = (np.abs(slope) > noise).any(1) & ~done
            if not live.any():
                return v, np.ones(len(v), dtype=bool)
            d = self._direction(v, slope, theta, enter, excess, l2, live)
            # the same signs again without progress: rounding beyond its estimate η
            hoped = -(slope * d).sum(1)
            same = live & ~enter.any(1)
            done = done | (same & (hoped >= 0.5 * least))
            least = np.where(same, hoped, np.inf)
            v, Gv, crossed = self._moved(v, d, slope, theta, l1, l2)
            least = np.where(crossed, np.inf, least)
        return v, ~live

    # ------------------------------------------------------------------ direction
    def _direction(
        self,
        v: np.ndarray,
        slope: np.ndarray,
        theta: np.ndarray,
        enter: np.ndarray,
        excess: np.ndarray,
        l2: np.ndarray,
        live: np.ndarray,
    ) -> np.ndarray:
        """The step on the coordinates that move, entering ones in the direction of their slope."""
        enter = enter & live[:, None]
        gain = np.where(enter, excess / np.where(self.size > 0, self.size, 1.0), 0.0)
        room = np.maximum(LEAST_ENTERING, (v != 0).sum(1))
        for i in np.flatnonzero(enter.sum(1) > room):
            weakest = np.argpartition(-gain[i], room[i])[room[i] :]
            enter[i, weakest] = False
        first = enter
        while True:
            active = ((v != 0) & live[:, None]) | enter
            d = self._solved(active, slope, l2)
            wrong = enter & (d * theta <= 0)
            if not wrong.any():
                return d
            enter = enter & ~wrong
            for i in np.flatnonzero(wrong.any(1) & ~enter.any(1)):
                if first[i].sum() > 1:  # alone, with the others optimal, it moves in the right direction
                    enter[i, gain[i].argmax()] = True
                    first = first.copy()
                    first[i] = enter[i]

    def _solved(self, active: np.ndarray, slope: np.ndarray, l2: np.ndarray) -> np.ndarray:
        """−(G + l2)_AA⁻¹ slope_A for the set A of every problem."""
        d = self._kept(active[0], slope[0], float(l2[0, 0]))
        if d is not None:
            return d[None]
        d = np.zeros_like(slope)
        for i, row in enumerate(active):
            own = row.nonzero()[0]
            if len(own):
                d[i, own] = -_inverse_times(self.G[i][own[:, None], own], slope[i, own], float(l2[i, 0]))
        return d

    def _kept(self, active: np.ndarray, slope: np.ndarray, l2: float) -> np.ndarray | None:
        """The same for one problem of many features, by updating the factor of an earlier set, if it differs by few."""
        if self.H is None or not active.any():
            return None
        A, h = torch.from_numpy(active), torch.full((len(active),), l2, dtype=torch.float64)
        b = torch.from_numpy(np.where(active, -slope, 0.0))
        kept = self.kept
        d = None if kept.factor is None else kept.factor.solve(A, h, b)
        if d is None:
            kept.factor = ActiveFactor.of(self.H, A, h)
            d = None if kept.factor is None else kept.factor.solve(A, h, b)
        return d.numpy() if d is not None and bool(d.isfinite().all()) else None

    # ------------------------------------------------------------------ step length
    def _moved(
        self, v: np.ndarray, d: np.ndarray, slope: np.ndarray, theta: np.ndarray, l1: np.ndarray, l2: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The next v with Gv, and which signs changed along the step."""
        there = v + d
        crossed = (v != 0) & (there * theta <= 0) & (d != 0)
        which = crossed.any(1)
        if not which.any():
            return there, self._times(there), which
        cut = np.where(crossed, 0.0, there)
        change = cut - v
        # the change of F, without the cancellation of two values of F
        fall = (change * (slope + 0.5 * (self._times(change) + l2 * change))).sum(1)
        for i in np.flatnonzero(which):
            first = float(d[i] @ slope[i])
            if not fall[i] <= 0.05 * first:
                cut[i] = _line(v[i], d[i], first, float(l1[i, 0]), crossed[i])
        return cut, self._times(cut), which

    def _times(self, v: np.ndarray) -> np.ndarray:
        if len(v) == 1:
            own = np.flatnonzero(v[0])
            if 4 * len(own) < v.shape[1]:
                return (v[:, own] @ self.G[0][own])[:1]
        return np.matmul(self.G, v[:, :, None])[:, :, 0]


def _inverse_times(H: np.ndarray, b: np.ndarray, l2: float) -> np.ndarray:
    """(H + l2)⁻¹b, with more of the diagonal added where singular; a coordinate without curvature does not move."""
    diagonal = H.diagonal() + l2
    flat = diagonal <= 0
    if flat.any():
        diagonal, b = np.where(flat, 1.0, diagonal), np.where(flat, 0.0, b)
    step = len(b) + 1
    trace = TRACE
    while True:
        H.flat[::step] = (1 + trace) * diagonal
        _, x, info = dposv(H, b)
        if info == 0:
            return x
        trace *= 16


def _line(v: np.ndarray, d: np.ndarray, first: float, l1: float, crossed: np.ndarray) -> np.ndarray:
    """The minimum of F on the segment from v to v + d: its slope is first·(1 − t), plus 2·l1|d_i| from each zero on."""
    own = np.flatnonzero(crossed)
    t = -v[own] / d[own]
    order = np.argsort(t)
    own, t = own[order], t[order]
    jumps = 2 * l1 * np.abs(d[own])
    before = np.concatenate([[0.0], np.cumsum(jumps)[:-1]])
    after = before + jumps
    past = first * (1 - t) + after >= 0
    if not past.any():
        return v + d * min(1.0, 1 + after[-1] / first)
    j = int(past.argmax())
    if first * (1 - t[j]) + before[j] >= 0:  # between two zeros
        best = 1 + before[j] / first
        return v + best * d
    moved = v + t[j] * d
    moved[own[t == t[j]]] = 0.0
    return moved
