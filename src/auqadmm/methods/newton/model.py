"""The quadratic model of F on some unknowns, minimised: d = argmin g(v + d) + ⟨G, d⟩ + ½⟨d, Hd⟩, zero elsewhere.

For separable g by block pivoting (`metrics/composite.py`) on factors that are kept:

    m(x) = g(x) − g(v) + ⟨G, x − v⟩ + ½⟨x − v, H(x − v)⟩

Every guess of the active set A takes one linear system on A. After the first, guesses differ by few unknowns, so
that the factor of one set serves for the next: with P added and R removed since A was factored, and B the borders,

    [ H_AA  B ] [x]   [b]        B = [H_AP, E_R],   C = diag(H_PP, 0),    S = C − BᵀH_AA⁻¹B is as small as B is thin
    [ Bᵀ    C ] [y] = [c]

Value and slope of the model are exact at every point. Guesses go on until nothing moves, or until one lowers the model
by no more than `enough`, or than a `share` of all that was gained. The error is not bounded: steps do not
need that, and verdicts have their own bound (verdict/model.py).

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., section 16.2, for solves by borders.

Shapes: m features, C columns; v, G, d (m, C); index flat, H (p, p) of p unknowns; of pivoting G, v, x (p, 1),
a unknowns of a factor, k of a border.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.metrics.composite import PIVOT_PATIENCE, PIVOT_ROUNDS, ActivePieces, Composite, Operator
from auqadmm.metrics.sums import unpack
from auqadmm.metrics.weights import Penalty
from auqadmm.verdict.model import EPS, SINGULAR, QuadraticModel

if TYPE_CHECKING:
    from auqadmm.problem.regularizers import Regularizer

# Chosen, not measured (see method.py).
LIFTS = (1e-6, 1e-4, 1e-2)  # of the diagonal of a singular GroupedHessian, one after the other
SHARP = 1e100  # a metric in which a proximal step moves nothing that may stay at its kink
THIN = 1 / 8  # of a factor: borders up to which it is worth keeping
MODEL_ROUNDING = 1e-6  # of a value: tolerable loss by rounding
MANY_ARRIVALS = 64  # new active unknowns of one guess
SAME = 1e-12  # of a diagonal


@dataclass(frozen=True)
class RestrictedRegularizer:
    """g as a function of some unknowns, the others fixed at v."""

    g: Regularizer
    v: Tensor
    index: Tensor

    @property
    def quadratic(self) -> bool:
        return self.g.quadratic

    @property
    def separable(self) -> bool:
        return self.g.separable

    def prox(self, t: Tensor, K: Tensor | float) -> Tensor:
        return self._some(self.g.prox(self._whole(t, 0.0), self._whole(torch.as_tensor(K).expand_as(t), 1.0)))

    def value(self, x: Tensor) -> Tensor:
        return self.g.value(self._at(x))

    def fall(self, v: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        return self.g.fall(self._at(v), self._at(there))

    def subgradient(self, v: Tensor, grad: Tensor) -> Tensor | None:
        nearest = self.g.subgradient(self._at(v), self._whole(grad, 0.0))
        return None if nearest is None else self._some(nearest)

    def _some(self, x: Tensor) -> Tensor:
        return x.reshape(-1)[self.index][:, None]

    def _whole(self, x: Tensor, rest: float) -> Tensor:
        whole = torch.full((self.v.numel(),), rest, dtype=x.dtype, device=x.device)
        return whole.index_put((self.index,), x[:, 0]).reshape(self.v.shape)

    def _at(self, x: Tensor) -> Tensor:
        return self.v.reshape(-1).index_put((self.index,), x[:, 0]).reshape(self.v.shape)


@dataclass(frozen=True)
class GroupedHessian:
    """H of some unknowns, in groups that do not interact: flat indices and matrices."""

    groups: tuple[tuple[Tensor, Tensor], ...]

    @classmethod
    def of(cls, upper: Tensor, index: Tensor, columns: int, apart: bool) -> GroupedHessian:
        """From the sums of workers: a triangle for every class (`apart`), or one for all."""
        parts = [index[index % columns == c] for c in range(columns)] if apart else [index]
        groups, first = [], 0
        for part in parts:
            size = len(part) * (len(part) + 1) // 2
            if len(part):
                groups.append((part, unpack(upper[None, first : first + size])[0]))
            first += size
        return cls(tuple(groups))

    def joined(self) -> GroupedHessian:
        """Merged into one group."""
        if len(self.groups) <= 1:
            return self
        index = torch.cat([i for i, _ in self.groups])
        return GroupedHessian(((index, torch.block_diag(*[H for _, H in self.groups])),))

    def where(self, flat: Tensor) -> GroupedHessian:
        """Restricted to the unknowns where `flat` is True."""
        groups = []
        for index, H in self.groups:
            few = flat[index].nonzero()[:, 0]
            groups.append((index[few], H.index_select(0, few).index_select(1, few)))
        return GroupedHessian(tuple(groups))

    def lifted(self, share: float) -> GroupedHessian:
        """With more curvature, a share of the diagonal."""
        return GroupedHessian(tuple((index, _lifted(H, share)) for index, H in self.groups))

    def diagonal(self, like: Tensor) -> Tensor:
        """The diagonal where it is known, NaN elsewhere, in the shape of v."""
        out = torch.full_like(like.reshape(-1), torch.nan)
        for index, H in self.groups:
            out[index] = H.diagonal().to(out)
        return out.reshape(like.shape)

    def apply(self, d: Tensor) -> Tensor:
        """Hd on the unknowns of H, zero elsewhere."""
        flat, out = d.reshape(-1), torch.zeros_like(d.reshape(-1))
        for index, H in self.groups:
            out[index] = H @ flat[index]
        return out.reshape(d.shape)


def _lifted(H: Tensor, share: float) -> Tensor:
    return H + torch.diag(share * H.diagonal())


@dataclass(frozen=True)
class NewtonStep:
    """d, the decrease of the model δ, and its linear part ⟨−G, d⟩ + g(v) − g(v + d) ≥ δ."""

    d: Tensor
    delta: float
    linear: float


def into_domain(g: Regularizer, x: Tensor) -> tuple[Tensor, float]:
    """x, moved by a rounding error into the domain of g if needed, and g there."""
    value = float(g.value(x))
    if math.isfinite(value):
        return x, value
    K = torch.full_like(x, SHARP)
    x = g.prox(K * x, K)
    return x, float(g.value(x))


def newton_step(
    g: Regularizer, v: Tensor, G: Tensor, H: GroupedHessian, enough: float, share: float | None = None
) -> NewtonStep:
    """The step; a singular H gets a little extra curvature in every direction, and more where the step would not lower
    the model. With a `share` of δ that may be missing, δ is the decrease attained, else an upper bound."""
    step = _newton_step(g, v, G, H, enough, share)
    for lift in LIFTS:
        if math.isfinite(step.linear) and step.linear >= -enough:
            break
        step = _newton_step(g, v, G, H.lifted(lift), enough, share)
    return step


def _newton_step(
    g: Regularizer, v: Tensor, G: Tensor, H: GroupedHessian, enough: float, share: float | None
) -> NewtonStep:
    groups: Sequence[tuple[Tensor, Tensor]] = H.groups if g.separable or g.quadratic else H.joined().groups
    l2, d, delta = g.convexity(v).reshape(-1), torch.zeros_like(v.reshape(-1)), 0.0
    for index, matrix in groups:
        slopes, some = (x.reshape(-1)[index][:, None] for x in (G, v))
        quick = None
        if share is not None and g.separable and not g.quadratic:
            few = (g.some(index, len(v)) if v.shape[1] == 1 else None) or RestrictedRegularizer(g, v, index)
            quick = minimise_model(few, matrix.to(v), slopes, some, enough, share)
            # with more unknowns than curved rows pivoting may not end, and a step need not be exact; several columns
            # may be singular by their intercepts alone, which is harmless
            for lift in LIFTS if quick is None and share > 0 and v.shape[1] == 1 else ():
                quick = quick or minimise_model(few, _lifted(matrix, lift).to(v), slopes, some, enough, share)
        if quick is not None:
            d[index] = (quick.x - some)[:, 0]
            delta += max(-quick.value, 0.0)
            continue
        strength = l2[index][:, None]
        absent = torch.zeros_like(strength, dtype=torch.bool)
        model = QuadraticModel.of(matrix[None].to(v), strength, absent)
        if model.singular:
            model = model.lifted()
        proximal = model.step(RestrictedRegularizer(g, v, index), slopes, some, enough)
        d[index] = proximal.d[:, 0]
        delta += proximal.delta
    d = d.reshape(v.shape)
    fell = float(g.fall(v, into_domain(g, v + d)[0])[0])
    return NewtonStep(d, delta, fell - float((G * d).sum()))


# ---------------------------------------------------------------------- block pivoting on factors that are kept


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
    """In place of a `Composite`'s inverse: `minimise_model` keeps factors of its own, and guesses need none."""
    raise AssertionError("The pivots of a working set are solved by their own factors.")
