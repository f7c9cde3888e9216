"""The quadratic model of F minimised for separable g: block pivoting (`metrics/pivoting`) on factors that are kept.

    m(x) = g(x) − g(v) + ⟨G, x − v⟩ + ½⟨x − v, H(x − v)⟩

Every guess of the active set A takes one linear system on A. After the first, guesses differ by few unknowns, so
that the factor of one set serves for the next: with P added and R removed since A was factored, and B the borders,

    [ H_AA  B ] [x]   [b]        B = [H_AP, E_R],   C = diag(H_PP, 0),    S = C − BᵀH_AA⁻¹B is as small as B is thin
    [ Bᵀ    C ] [y] = [c]

Value and slope of the model are exact at every point. Guesses go on until nothing moves, or until one lowers the model
by no more than `enough`, or than a `share` of all that was gained. The error is not bounded: steps do not
need that, and verdicts have their own bound (verdict/model.py).

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., section 16.2, for solves by borders.

Shapes: p unknowns; H (p, p), G, v, x (p, 1); a unknowns of a factor, k of a border.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from auqadmm.metrics.cg import Operator
from auqadmm.metrics.pivoting import PIVOT_PATIENCE, PIVOT_ROUNDS, ActivePieces
from auqadmm.metrics.proximal_gradient import Composite
from auqadmm.metrics.weights import Penalty
from auqadmm.verdict.model import EPS, SINGULAR

THIN = 1 / 8  # of a factor: borders up to which it is worth keeping
MODEL_ROUNDING = 1e-6  # of a value: tolerable loss by rounding
MANY_ARRIVALS = 64  # new active unknowns of one guess
SAME = 1e-12  # of a diagonal


@dataclass(frozen=True)
class ActiveFactor:
    """(H + diag h)_AA = LLᵀ for the unknowns `where` (a,), `place` (p,) their position, −1: not among them."""

    H: Tensor
    h: Tensor
    where: Tensor
    place: Tensor
    L: Tensor
    halves: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, H: Tensor, active: Tensor, h: Tensor) -> ActiveFactor | None:
        """None: not positive definite to rounding."""
        where = active.nonzero()[:, 0]
        A = H if len(where) == len(H) else H[where].index_select(1, where)
        A = A.clone() if A is H else A
        A.diagonal().add_(h[where] + 4 * EPS * len(where) * H.diagonal()[where])
        size = A.diagonal().clone()
        L = _cholesky(A)
        if L is None or not bool((L.diagonal().square() > SINGULAR * EPS * len(where) * size).all()):
            return None
        place = torch.full_like(active, -1, dtype=torch.int64)
        place[where] = torch.arange(len(where), device=where.device)
        return cls(H, h, where, place, L)

    def within(self, H: Tensor) -> ActiveFactor:
        """The same factor after unknowns were appended to H."""
        more = len(H) - len(self.place)
        place = torch.cat([self.place, self.place.new_full((more,), -1)])
        return ActiveFactor(H, torch.cat([self.h, self.h.new_zeros(more)]), self.where, place, self.L, self.halves)

    def solve(self, active: Tensor, h: Tensor, b: Tensor) -> Tensor | None:
        """(H + diag h)⁻¹b on other unknowns, where they and h differ by little, b (p,); zero elsewhere."""
        old = self.place >= 0
        came, left = (active & ~old).nonzero()[:, 0], (old & ~active).nonzero()[:, 0]
        k = len(came) + len(left)
        both = active & old
        same = (h[both] - self.h[both]).abs() <= SAME * self.H.diagonal()[both]  # rounding of the prox
        if k > THIN * len(self.where) or not bool(same.all()):
            return None
        out = torch.zeros_like(b)
        right = b[self.where] * active[self.where]
        if not k:
            out[self.where] = torch.cholesky_solve(right[:, None], self.L)[:, 0]
            return out
        C = torch.zeros(k, k, dtype=b.dtype, device=b.device)
        C[: len(came), : len(came)] = self.H[came].index_select(1, came) + torch.diag(h[came])
        thin = self._thin(came, left).mT
        r = torch.linalg.solve_triangular(self.L, right[:, None], upper=False)
        c = torch.cat([b[came], b.new_zeros(len(left))])[:, None]
        y, info = torch.linalg.solve_ex(C - thin.mT @ thin, c - thin.mT @ r)
        if bool(info != 0):
            return None
        out[self.where] = torch.linalg.solve_triangular(self.L.mT, r - thin @ y, upper=True)[:, 0]
        out[left] = 0.0
        out[came] = y[: len(came), 0]
        return out

    def _thin(self, came: Tensor, left: Tensor) -> Tensor:
        """(L⁻¹B)ᵀ, (k, a): guesses have most of their borders in common, so that each is solved for once."""
        some = [x[[j not in self.halves for j in x.tolist()]] for x in (came, left)]
        new = len(some[0]) + len(some[1])
        if new:
            B = torch.zeros(len(self.where), new, dtype=self.L.dtype, device=self.L.device)
            B[:, : len(some[0])] = self.H[some[0]].index_select(1, self.where).mT
            B[self.place[some[1]], torch.arange(len(some[0]), new, device=B.device)] = 1.0
            solved = torch.linalg.solve_triangular(self.L, B, upper=False).mT.contiguous()
            self.halves.update(zip(torch.cat(some).tolist(), solved, strict=True))
        return torch.stack([self.halves[j] for j in torch.cat([came, left]).tolist()])


@dataclass(frozen=True)
class ModelPoint:
    """x, −∇ of the smooth part there, and the value of the model."""

    x: Tensor
    w: Tensor
    value: float


def minimise_model(g: Penalty, H: Tensor, G: Tensor, v: Tensor, enough: float, share: float) -> ModelPoint | None:
    """The minimiser, or a point that is as good for a step; None: the guesses cycled."""
    D = H.diagonal()[:, None]
    if not bool((D > 0).all()):
        return None
    at = _model_at(g, H, G, v)
    problem = Composite(H.__matmul__, _factored_here, g, H @ v - G, D, D)
    start, start_w = v, -G
    guess, factor, best = _first(problem, v, -G), None, ModelPoint(v, -G, 0.0)
    fewest, patience, settled = math.inf, PIVOT_PATIENCE, False
    for _ in range(PIVOT_ROUNDS):
        x = torch.where(guess.active, start, guess.t)
        point = ModelPoint(x, start_w, 0.0) if torch.equal(x, start) else at(x)
        b = torch.where(guess.active, point.w - guess.line(x), 0.0)[:, 0]
        active, h = guess.active[:, 0], guess.h[:, 0]
        d = factor.solve(active, h, b) if factor is not None else None
        if d is None:
            factor = ActiveFactor.of(H, active, h)
            d = None if factor is None else factor.solve(active, h, b)
        if d is None or not bool(d.isfinite().all()):
            return None
        there = at(x + d[:, None])
        gained = best.value - there.value
        best = there if gained >= 0 else best
        guess, moves = guess.moved(problem, there.x, there.w)
        if moves == 0:  # iterative refinement
            left = torch.where(guess.active, there.w - guess.line(there.x), 0.0)
            if settled or 0.5 * float((left.square() / D).sum()) <= enough:
                return there if gained >= -MODEL_ROUNDING * abs(best.value) else None
        settled = moves == 0
        if 0 <= gained <= max(enough, -share * best.value):
            return best
        patience = PIVOT_PATIENCE if moves < fewest else patience - 1
        fewest = min(fewest, moves)
        if patience == 0:
            return None
        start, start_w = there.x, there.w
    return None


def _first(problem: Composite, v: Tensor, w: Tensor) -> ActivePieces:
    """Of the unknowns at a kink that violate optimality, the half that would move farther: most others would return."""
    D = problem.D
    guess = ActivePieces.at(problem, D * v + w, D)
    coming = (v == problem.g.prox(torch.zeros_like(v), torch.ones_like(v))) & guess.active
    resting = ActivePieces(torch.zeros_like(coming), v, w, torch.zeros_like(v))
    count = int(coming.sum())
    if count < MANY_ARRIVALS:
        return guess
    far = torch.where(coming, D.sqrt() * (guess.t - v).abs(), 0.0)
    return guess.where(~coming | (far > far[coming].median()), resting)


def _model_at(g: Penalty, H: Tensor, G: Tensor, v: Tensor) -> Callable[[Tensor], ModelPoint]:
    def at(x: Tensor) -> ModelPoint:
        d = x - v
        Hd = H @ d
        fell = float(g.fall(v, x)[0])
        return ModelPoint(x, -G - Hd, float((G * d).sum() + 0.5 * (d * Hd).sum()) - fell)

    return at


def _cholesky(A: Tensor) -> Tensor | None:
    """The lower factor of A, which is overwritten; None: not positive definite."""
    if A.device.type != "cpu" or not len(A):
        L, info = torch.linalg.cholesky_ex(A)
        return None if bool(info != 0) else L
    from scipy.linalg.lapack import dpotrf  # avoids the copies of torch's

    factor, info = dpotrf(A.numpy().T, lower=1, overwrite_a=1)
    return None if info else torch.from_numpy(factor)


def _factored_here(active: Tensor, h: Tensor) -> Operator:
    """In place of the inverse that a `Composite` has: `minimised` keeps factors of its own, and guesses need none."""
    raise AssertionError("The pivots of a working set are solved by their own factors.")
