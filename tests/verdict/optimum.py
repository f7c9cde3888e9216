"""Optima of small problems to some 18 digits, with no arithmetic of the library.

    F(v) = Σ_i c_i φ(x_iᵀu + b, y_i) + g(u),   v = (u, b) in the user's own columns

F is evaluated from float64 data without a rounding that matters: x and v are split so that all products are exact in
`numpy.longdouble` (64 bits), the target is part of the same compensated sum, and every row counts from its infimum
inf_z φ, so that all terms are ≥ 0 and nothing cancels. F − inf is then right to about 1e-18 of itself.

F* by Newton's method with an active set: on a face of g (signs of l1, bounds, groups that are not 0) F is smooth; the
step comes from a pivoted Householder QR in long double of √∇²F in centred columns (the condition number enters once,
not squared), damped as by Levenberg and Marquardt far from the minimum. A point enters F to second order only, so
the error of F* is the decrement ½gᵀH⁻¹g that is left (`Optimum.error`), far below 1e-18 of F as a rule.

Shapes: n rows, m features, C columns (classes of the multinomial, else 1); v (m [+ 1], C), the intercept last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

L = np.longdouble
RANK = L(1e-17)  # a column whose part that is new is below this (its norm is 1) depends on the others


# ---------------------------------------------------------------------- arithmetic
def two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def total(terms: np.ndarray) -> np.ndarray:
    """Sum over the first axis, as if in twice the precision."""
    low = np.zeros(terms.shape[1:], L)
    while len(terms) > 1:
        half = len(terms) // 2
        s, e = two_sum(terms[:half], terms[half : 2 * half])
        low = low + e.sum(0)
        terms = np.concatenate([s, terms[2 * half :]])
    return terms[0] + low


def halves(x: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """x = high + low without rounding (Veltkamp); low has `bits` bits, high has 64 − `bits`."""
    t = x * L(2**bits + 1)
    high = t - (t - x)
    return high, x - high


def triangle(J: np.ndarray, least: Any = RANK) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """R with RᵀR = DJᵀJD in the order `perm`, D = 1/scale such that columns have norm 1; the rank. Householder."""
    norms = np.sqrt((J * J).sum(0))
    scale = np.where(norms > 0, norms, L(1))
    A, p = J / scale, J.shape[1]
    perm, rank = np.arange(p), 0
    for k in range(min(p, len(A))):
        left = (A[k:, k:] ** 2).sum(0)
        j = k + int(np.argmax(left))
        size = np.sqrt(left[j - k])
        if size <= least:
            break
        A[:, [k, j]], perm[[k, j]] = A[:, [j, k]], perm[[j, k]]
        h = A[k:, k].copy()
        h[0] += np.copysign(size, h[0])
        A[k:, k:] -= np.outer(h, (2 / (h @ h)) * (h @ A[k:, k:]))
        rank = k + 1
    return np.triu(A[:rank, :]), perm, scale, rank


def solve_normal(
    J: np.ndarray, g: np.ndarray, size: np.ndarray, least: Any = RANK
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """−(JᵀJ)⁻¹g, ½gᵀ(JᵀJ)⁻¹g, and a direction of descent without curvature, 0 where there is none.

    Columns that depend on others are left where they are. `size` is what the sums in g are made of.
    """
    R, perm, scale, r = triangle(J, least)
    q, size = (g / scale)[perm], (size / scale)[perm]
    w = np.zeros(r, L)
    for i in range(r):  # Rᵀw = q
        w[i] = (q[i] - R[:i, i] @ w[:i]) / R[i, i]
    d, flat = np.zeros(len(g), L), np.zeros(len(g), L)
    d[perm[:r]] = -_back(R, w)
    for k in range(r, len(g)):
        x = -_back(R, R[:, k])
        slope = q[k] + x @ q[:r]
        if abs(slope) > L(1e-13) * (size[k] + np.abs(x) @ size[:r]):
            flat[perm[:r]] -= slope * x
            flat[perm[k]] -= slope
    return d / scale, L(0.5) * (w @ w), flat / scale


def _back(R: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x with R[:r, :r] x = w."""
    r = len(w)
    x = np.zeros(r, L)
    for i in reversed(range(r)):
        x[i] = (w[i] - R[i, i + 1 : r] @ x[i + 1 :]) / R[i, i]
    return x


# ---------------------------------------------------------------------- what is minimised
@dataclass(frozen=True)
class Penalty:
    """l1‖u‖₁ + l2/2‖u‖² + strength Σ_g w_g‖u_g‖, lower ≤ u ≤ upper. `groups` label features; w_g = √entries."""

    l1: float = 0.0
    l2: float = 0.0
    lower: float = -math.inf
    upper: float = math.inf
    strength: float = 0.0
    groups: tuple[int, ...] | None = None

    def members(self, m: int) -> list[np.ndarray]:
        if self.strength == 0:
            return []
        labels = np.arange(m) if self.groups is None else np.asarray(self.groups)
        return [np.flatnonzero(labels == label) for label in np.unique(labels)]

    def value(self, u: np.ndarray) -> Any:
        if (u < self.lower).any() or (u > self.upper).any():
            return L(np.inf)
        grouped = sum((np.sqrt(L(rows.size * u.shape[1])) * _norm(u[rows]) for rows in self.members(len(u))), L(0))
        return L(self.l1) * np.abs(u).sum() + L(self.l2) / 2 * (u * u).sum() + L(self.strength) * grouped


@dataclass(frozen=True, eq=False)
class Objective:
    """Rows, loss and penalty. `loss`: squares, logistic, multinomial, poisson, hinge, huber or (of `q`) quantile.

    `width` is ε or δ.

    `y` is ±1 for logistic and hinge, 0 … C−1 for the multinomial; `c` holds the rows' weights, the reduction included;
    `offset` is added to the logits.
    """

    loss: str
    X: np.ndarray
    y: np.ndarray
    c: np.ndarray
    penalty: Penalty = field(default_factory=Penalty)
    intercept: bool = False
    width: float = 1.0
    classes: int = 1
    offset: float = 0.0
    q: float = 0.5

    @staticmethod
    def of(
        blocks: Sequence[tuple], loss: str, penalty: Penalty, *, reduction: str = "sum", **options: Any
    ) -> Objective:
        """From blocks (X, y) or (X, y, weights), as the library takes them."""
        weights = [np.asarray(b[2] if len(b) > 2 else np.ones(b[0].shape[0]), dtype=L) for b in blocks]
        if reduction == "mean":
            weights = [w / w.sum() if w.sum() > 0 else w for w in weights]
        elif reduction == "pooled":
            whole = sum(w.sum() for w in weights)
            weights = [w / whole for w in weights]
        X = np.concatenate([np.asarray(b[0].toarray() if hasattr(b[0], "toarray") else b[0], float) for b in blocks])
        y = np.concatenate([np.asarray(b[1], float) for b in blocks])
        c = np.concatenate(weights)
        keep = c > 0
        return Objective(loss, X[keep], y[keep], c[keep], penalty, **options)

    @property
    def shape(self) -> tuple[int, int]:
        return self.X.shape[1] + int(self.intercept), self.classes

    @cached_property
    def _split(self) -> tuple[np.ndarray, np.ndarray]:
        X = np.hstack([self.X, np.ones((len(self.X), 1))]) if self.intercept else self.X
        return halves(X.T[:, :, None].astype(L), 38)  # 26 and at most 27 bits

    def logits(self, v: np.ndarray) -> np.ndarray:
        """z, less y for squares, Huber and quantiles: (n, C)."""
        xs = self._split
        terms = [x * part[:, None, :] for x in xs for part in halves(v, 32)]
        more = np.zeros((2, len(self.X), self.classes), L)
        more[0] = self.offset
        if self.loss in ("squares", "huber", "quantile"):
            more[1] = -self.y[:, None]
        return total(np.concatenate([*terms, more]))

    def rows(self, z: np.ndarray, width: float | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """φ − inf φ (n,), φ' (n, C) and a root of φ'': (n, k, C), the sum over k of outer products."""
        e = L(self.width if width is None else width)
        y, t = self.y.astype(L), z[:, 0]
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            if self.loss == "squares":
                value, slope, curve = t * t / 2, t, np.ones_like(t)
            elif self.loss == "huber":
                near = np.clip(t, -e, e)
                value, slope, curve = near * (t - near / 2), near, (np.abs(t) <= e).astype(L)
            elif self.loss == "quantile":
                # ½(|p| − ⟨n, p⟩), p = (z − y, ε) and n the unit vector (2q − 1, 2√(q(1 − q))): a cross product, squared
                q = L(self.q)
                tilt, up, root = 2 * q - 1, 2 * np.sqrt(q * (1 - q)), np.hypot(t, e)
                along = tilt * t + up * e
                value = np.where(along > 0, (up * t - tilt * e) ** 2 / (root + np.abs(along)), root - along) / 2
                slope, curve = (t / root - tilt) / 2, e * e / root**3 / 2
            elif self.loss == "poisson":
                d = t - np.log(np.where(y > 0, y, L(1)))
                value = np.where(y > 0, y * (np.expm1(d) - d), np.exp(t))
                slope, curve = np.where(y > 0, y * np.expm1(d), np.exp(t)), np.exp(t)
            elif self.loss == "logistic":
                q = np.exp(-np.abs(t))
                wrong = y * t < 0
                value = np.log1p(q) + np.where(wrong, np.abs(t), L(0))
                slope, curve = -y * np.where(wrong, L(1), q) / (1 + q), q / (1 + q) ** 2
            elif self.loss == "hinge":
                s = 1 - y * t
                root = np.hypot(s, e)
                value = np.where(s < 0, e * e / (root + np.abs(s)), s + root) / 2
                slope, curve = -y * value / root, e * e / root**3 / 2
            else:
                return self._softmax(z)
        return value, slope[:, None], np.sqrt(curve)[:, None, None]

    def _softmax(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        own, n = self.y.astype(int), np.arange(len(z))
        top = z.argmax(1)
        e = np.exp(z - z[n, top][:, None])
        rest = e.copy()
        rest[n, top] = 0
        value = np.log1p(rest.sum(1)) + (z[n, top] - z[n, own])
        p = e / e.sum(1, keepdims=True)
        others = p[:, None, :] * (1 - np.eye(self.classes, dtype=L))
        slope = p.copy()
        slope[n, own] = -others[n, own].sum(1)
        spread = -p[:, None, :] * np.ones((1, self.classes, 1), L)  # e_k − p, its own entry as a sum of the others
        k = np.arange(self.classes)
        spread[:, k, k] = others.sum(2)
        return value, slope, np.sqrt(p)[:, :, None] * spread

    # ------------------------------------------------------------------ values
    def shaped(self, v: Any) -> np.ndarray:
        return np.asarray(v.detach().cpu().numpy() if hasattr(v, "detach") else v).astype(L).reshape(self.shape)

    @cached_property
    def infimum(self) -> Any:
        """Σ c_i inf_z φ: 0 except for Poisson, y − y log y, and quantiles, ε√(q(1 − q))."""
        y = self.y.astype(L)
        if self.loss == "quantile":
            return self.c.sum() * L(self.width) * np.sqrt(L(self.q) * (1 - L(self.q)))
        safe = np.where(y > 0, y, L(1))
        return (self.c * (y - y * np.log(safe))).sum() if self.loss == "poisson" else L(0)

    def above(self, v: Any) -> Any:
        """F(v) less the rows' infimum, in long double; inf where v is not finite or not feasible."""
        v = self.shaped(v)
        g = self.penalty.value(v[: self.X.shape[1]])
        if not np.isfinite(v).all() or not np.isfinite(g):
            return L(np.inf)
        return (self.c * self.rows(self.logits(v))[0]).sum() + g

    def value(self, v: Any) -> Any:
        """F(v)."""
        return self.above(v) + self.infimum

    @cached_property
    def centred(self) -> tuple[np.ndarray, np.ndarray]:
        """The columns less their means where there is an intercept, and the ones; the means."""
        mean = self.c @ self.X / self.c.sum() if self.intercept else np.zeros(self.X.shape[1], L)
        A = self.X.astype(L) - mean
        return (np.hstack([A, np.ones((len(A), 1), L)]) if self.intercept else A), mean

    @cached_property
    def null(self) -> Any:
        """F less the infimum of the best model without features: u = 0, b free where there is an intercept."""
        empty = replace(self, X=self.X[:, :0], penalty=Penalty())
        return Optimum.of(empty).above if self.intercept else empty.above(np.zeros(empty.shape))

    def scale(self, above: Any) -> Any:
        """What a gap is relative to: min(F − inf, max(F_null − F, 1e-4 (F − inf)))."""
        return min(above, max(self.null - above, L(1e-4) * above))


# ---------------------------------------------------------------------- the minimum
@dataclass(frozen=True, eq=False)
class Optimum:
    """F* of an objective. `v` is None where nothing attains it, `error` what F* may be too large by.

    `weakest` is the least eigenvalue of ∇²(Σf_j + l2/2‖·‖²) in centred columns, its diagonal scaled to 1: 0 and what
    rounding makes of it where the rows do not determine v. Shifts of all classes together count as determined.
    """

    objective: Objective
    v: np.ndarray | None
    above: Any
    error: float
    weakest: float = math.nan
    steps: int = 0

    @staticmethod
    def of(objective: Objective) -> Optimum:
        v = np.zeros(objective.shape, L)
        v[-1] -= objective.offset if objective.intercept else 0
        widths = [objective.width]
        if objective.loss == "hinge":  # a wide corner first
            while widths[0] < 0.25:
                widths.insert(0, widths[0] * 4)
        elif objective.loss == "huber" and not objective.X.shape[1]:  # next to a median: Newton would jump about it
            v[:] = _bisect(objective)
        elif objective.loss == "quantile":
            v[-1] = np.median(objective.y) if objective.intercept else v[-1]
            while widths[0] < (np.ptp(objective.y) if objective.intercept else np.abs(objective.y).max()):
                widths.insert(0, widths[0] * 4)
        elif objective.loss == "huber":
            while widths[0] < np.abs(objective.y).max():
                widths.insert(0, widths[0] * 4)
        steps = 0
        for width in widths:
            v, delta, count = _Face(objective, v, width).run()
            steps += count
        above = objective.above(v)
        return Optimum(objective, v, above, float(delta + L(1e-18) * above), _weakest(objective, v), steps)

    @staticmethod
    def unattained(objective: Objective, above: Any = 0.0, error: float = 0.0) -> Optimum:
        """An infimum that no v attains: 0 for separable rows without a penalty."""
        return Optimum(objective, None, L(above), error, 0.0)

    @property
    def value(self) -> Any:
        return self.above + self.objective.infimum

    def gap(self, v: Any) -> float:
        return float(self.objective.above(v) - self.above)

    def relative(self, v: Any) -> float:
        """(F − F*) / scale at v; inf where F is."""
        above = self.objective.above(v)
        if not np.isfinite(above):
            return math.inf
        if above == 0:
            return 0.0
        return float((above - self.above) / self.objective.scale(above))

    @property
    def relative_error(self) -> float:
        """`error` in the same unit."""
        scale = self.objective.scale(self.above)
        return float(self.error / scale) if scale > 0 else 0.0

    def kkt(self) -> float:
        """dist(−∇f, ∂g) of the worst entry, over the sum of the absolute terms of that entry."""
        assert self.v is not None
        o, v, m = self.objective, self.v, self.objective.X.shape[1]
        A, _ = o.centred
        s = o.c[:, None] * o.rows(o.logits(v))[1]
        g, size = A.T @ s, np.abs(A).T @ np.abs(s) + L(1e-4000)
        u, p, worst = v[:m], o.penalty, np.zeros(o.shape, L)
        smooth = g[:m] + L(p.l2) * u
        size[:m] += L(p.l2) * np.abs(u) + p.l1
        inner = np.where(u == 0, np.maximum(np.abs(smooth) - p.l1, 0), smooth + p.l1 * np.sign(u))
        inner = np.where(u == p.lower, np.minimum(inner, 0), np.where(u == p.upper, np.maximum(inner, 0), inner))
        worst[:m] = np.abs(inner)
        for rows in p.members(m):
            t, norm = L(p.strength) * np.sqrt(L(rows.size * o.classes)), _norm(u[rows])
            rest = np.maximum(_norm(g[rows]) - t, 0) if norm == 0 else _norm(g[rows] + t * u[rows] / norm)
            worst[rows], size[rows] = rest, np.maximum(size[rows], t)
        worst[m:] = np.abs(g[m:])
        return float((worst / size).max())


class _Face:
    """Newton's method on a face, from face to face."""

    def __init__(self, objective: Objective, v: np.ndarray, width: float) -> None:
        self.o, self.width, self.m = replace(objective, width=width), width, objective.X.shape[1]
        self.A, self.mean = objective.centred
        self.p, self.groups = objective.penalty, objective.penalty.members(self.m)
        self.v = v.copy()
        u = self.v[: self.m]
        np.clip(u, self.p.lower, self.p.upper, out=u)
        self.free = np.ones(objective.shape, bool)
        self.free[: self.m] = ~((u == self.p.lower) | (u == self.p.upper))
        if self.p.l1 > 0 or self.groups:
            self.free[: self.m] &= u != 0
        self.sign = np.sign(self.v)
        self.limits = [L(self.p.strength) * np.sqrt(L(rows.size * objective.classes)) for rows in self.groups]

    def run(self) -> tuple[np.ndarray, Any, int]:
        tau, D, F, before, rounds = L(1e-3), None, self.o.above(self.v), None, 0
        least = RANK if self.o.classes == 1 else 100 * RANK  # shifts of all classes: dependent, and more rows to round
        for count in range(1, 1000):
            z = self.o.logits(self.v)
            _, slope, root = self.o.rows(z)
            g = self.A.T @ (self.o.c[:, None] * slope)
            g[: self.m] += L(self.p.l2) * self.v[: self.m]
            total_g, J = self._model(g, root)
            if D is None:
                D = np.sqrt((self._loss_root(root, np.ones_like(self.free)) ** 2).sum(0)).reshape(self.free.shape)
                D = np.where(D > 0, D, D.max() + L(1e-300))
            if tau > 0:
                J = np.vstack([J, np.diag(np.sqrt(tau) * D[self.free])])
            size = self._size(slope)
            step, delta, flat = solve_normal(J, total_g[self.free], size[self.free], least)
            quiet = delta <= L(1e-32) * F or (before is not None and delta <= L(1e-15) * F and delta > before / 4)
            if quiet and tau == 0 and flat.any():  # F falls in a straight line, to the end of the face
                F, before = self._move(flat, L(0), F, far=True)[1], None
                continue
            if quiet and tau == 0:
                rounds += 1
                if not self._release(g, root, size, rounds <= 3):
                    return self.v, delta, count
                F, before, tau = self.o.above(self.v), None, L(0)
                continue
            if quiet:
                tau, before = L(0), None
                continue
            before = delta if tau == 0 else None
            good, F = self._move(step, delta, F)
            near = tau == 0 and delta <= L(1e-15) * F
            tau = (tau / 100 if tau > 1e-13 else L(0)) if good or near else max(tau * 30, L(1e-10))
        raise AssertionError(f"no optimum of {self.o.loss} after {count} steps: {delta / F:.1e}")

    def _loss_root(self, root: np.ndarray, free: np.ndarray) -> np.ndarray:
        J = np.sqrt(self.o.c)[:, None, None, None] * root[:, :, None, :] * self.A[:, None, :, None]
        return J.reshape(-1, free.size)[:, free.ravel()]

    def _model(self, g: np.ndarray, root: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient of F on the face, and a root of its Hessian."""
        free, g = self.free, g.copy()
        parts = [self._loss_root(root, free)]
        place = np.full(free.shape, -1)
        place[free] = np.arange(free.sum())
        if self.p.l2 > 0:
            inside = np.zeros_like(free)
            inside[: self.m] = True
            parts.append(np.sqrt(L(self.p.l2)) * np.eye(int(free.sum()), dtype=L)[inside[free]])
        if self.p.l1 > 0:
            g[: self.m] += L(self.p.l1) * self.sign[: self.m]
        for rows, t in zip(self.groups, self.limits, strict=True):
            if free[rows[0], 0]:
                x, norm = self.v[rows].ravel(), _norm(self.v[rows])
                g[rows] += t * self.v[rows] / norm
                rest = np.zeros((x.size, int(free.sum())), L)
                rest[:, place[rows].ravel()] = np.sqrt(t / norm) * (np.eye(x.size, dtype=L) - np.outer(x, x) / norm**2)
                parts.append(rest)
        return g, np.vstack(parts)

    def _move(self, step: np.ndarray, delta: Any, F: Any, far: bool = False) -> tuple[bool, Any]:
        """Along the step to where F is less, not beyond the face: whether the whole step could be made, and F."""
        d = np.zeros_like(self.v)
        d[self.free] = step
        u, du = self.v[: self.m], d[: self.m]
        reach = np.full(u.shape, L(np.inf))
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.p.l1 > 0:
                reach = np.where(self.free[: self.m] & (du * self.sign[: self.m] < 0), -u / du, reach)
            low, up = (L(self.p.lower) - u) / du, (L(self.p.upper) - u) / du
            reach = np.where((du < 0) & np.isfinite(low), np.minimum(reach, low), reach)
            reach = np.where((du > 0) & np.isfinite(up), np.minimum(reach, up), reach)
        first = reach.min() if reach.size else L(np.inf)
        shift = d.copy()  # in the user's columns
        if self.o.intercept:
            shift[-1] -= self.mean @ du
        t = start = min(first, L(2) ** 120 if far else L(1))
        while True:
            new = self.v + t * shift
            hits = np.zeros_like(self.free)
            if t == first:
                hits[: self.m] = reach <= first
                inner = new[: self.m]
                ends = np.where(du < 0, self.p.lower, self.p.upper) if self.p.l1 == 0 else np.zeros_like(inner)
                inner[hits[: self.m]] = ends[hits[: self.m]]
            Fn = self.o.above(new)
            if far and t < first and Fn < F:  # a row may bend before the face ends
                while (half := self.o.above(self.v + t / 2 * shift)) < Fn:
                    t, Fn, new = t / 2, half, self.v + t / 2 * shift
            if Fn <= F - L(1e-4) * t * delta + L(1e-17) * F:
                break
            t = t / 2 if t > L(1e-3) else t / 16
            if t < L(1e-30):
                return False, F
        self.v, self.free = new, self.free & ~hits
        if hits.any() and self.p.l1 > 0:
            self.sign[hits] = 0
        return t == start, self._drop(d, Fn)

    def _drop(self, d: np.ndarray, F: Any) -> Any:
        """Groups that shrink are set to 0 where that is no worse and 0 is where they want to be."""
        for rows, t in zip(self.groups, self.limits, strict=True):
            if not self.free[rows[0], 0] or _norm(self.v[rows]) > 2 * _norm(d[rows]):
                continue
            new = self.v.copy()
            if self.o.intercept:
                new[-1] += self.mean[rows] @ new[rows]
            new[rows] = 0
            s = self.o.c[:, None] * self.o.rows(self.o.logits(new))[1]
            Fn = self.o.above(new)
            if Fn <= F and _norm(self.A[:, rows].T @ s) <= t:
                self.v, F = new, Fn
                self.free[rows] = False
        return F

    def _size(self, slope: np.ndarray) -> np.ndarray:
        size = np.abs(self.A).T @ np.abs(self.o.c[:, None] * slope)
        size[: self.m] += self.p.l1 + L(self.p.l2) * np.abs(self.v[: self.m])
        return size

    def _release(self, g: np.ndarray, root: np.ndarray, size: np.ndarray, many: bool) -> bool:
        """Entries that want to leave their bound or 0: the worst, or all. Whether there were any."""
        rough = L(1e-14) * size[: self.m]
        inner, u, held = g[: self.m], self.v[: self.m], ~self.free[: self.m]
        if self.groups:
            return self._release_group(g, root, rough)
        if self.p.l1 > 0:
            want = np.where(held, np.abs(inner) - L(self.p.l1), L(0))
        else:
            want = np.where(held & (u == self.p.lower), -inner, np.where(held & (u == self.p.upper), inner, L(0)))
        want = np.where(want > rough, want / (size[: self.m] + L(1e-4000)), L(0))
        if not want.size or want.max() <= 0:
            return False
        chosen = want > 0 if many else want == want.max()
        self.free[: self.m] |= chosen
        self.sign[: self.m] = np.where(chosen, -np.sign(inner), self.sign[: self.m])
        return True

    def _release_group(self, g: np.ndarray, root: np.ndarray, rough: np.ndarray) -> bool:
        found = False
        for rows, t in zip(self.groups, self.limits, strict=True):
            pull = _norm(g[rows])
            if self.free[rows[0], 0] or pull <= t + rough[rows].max() * 10:
                continue
            d = np.zeros_like(self.v)
            d[rows] = -g[rows] / pull
            free = np.zeros_like(self.free)
            free[rows] = True
            step = (pull - t) / ((self._loss_root(root, free) @ d[rows].ravel()) ** 2).sum()
            if self.o.intercept:
                d[-1] -= self.mean @ d[: self.m]
            F = self.o.above(self.v)
            while not (Fn := self.o.above(self.v + step * d)) < F and step > L(1e-25):
                step /= 4
            if Fn < F:
                self.v = self.v + step * d
                self.free[rows] = True
                found = True
                break
        return found


def _bisect(o: Objective) -> Any:
    """The constant at which the slopes cancel."""
    low, high = L(o.y.min()), L(o.y.max())
    for _ in range(100):
        b = (low + high) / 2
        if o.c @ o.rows(o.logits(np.full(o.shape, b)))[1] > 0:
            high = b
        else:
            low = b
    return (low + high) / 2


def _norm(x: np.ndarray) -> Any:
    return np.sqrt((x * x).sum())


def _weakest(o: Objective, v: np.ndarray) -> float:
    face = _Face(o, v, o.width)
    m, C = o.X.shape[1], o.classes
    root = o.rows(o.logits(v))[2]
    parts = [face._loss_root(root, np.ones_like(face.free))]
    if o.penalty.l2 > 0:
        parts.append(np.sqrt(L(o.penalty.l2)) * np.eye(m * C, parts[0].shape[1], dtype=L))
    if C > 1:
        H = np.sqrt((parts[0] ** 2).sum(0)).reshape(-1, C)
        shifts = np.eye(len(H), dtype=L)[:, :, None] * H.mean(1)[:, None, None] * np.ones(C, L)
        parts.append(shifts.reshape(len(H), -1)[m if o.penalty.l2 > 0 else 0 :])
    R, _, _, rank = triangle(np.vstack(parts))
    if rank < R.shape[1]:
        return 0.0
    return float(np.linalg.svd(R.astype(float), compute_uv=False)[-1] ** 2) if rank else 1.0
