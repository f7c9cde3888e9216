"""Problems on which a verdict could flatter, and points at known distances from their optimum.

    TABLE      what was once called converged far from the optimum, row by row
    RANDOM     every loss with every regularizer; means, scales, offsets, weights, collinear and sparse columns drawn
    UNBOUNDED  problems without a minimiser, and one with more columns than rows
    QUANTILES  quantiles with every regularizer, drawn likewise

`CASES` is all of them. Everything is seeded; optima are computed when asked for and kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
import torch

import auqadmm as aq
from tests.verdict.optimum import L, Objective, Optimum, Penalty, triangle

TOL = 1e-5
TARGETS = (1e-2, 0.3, 3.0, 100.0, 1e4)  # true relative gaps of the points, in units of the tolerance
LOSSES = {
    "squares": aq.LeastSquares,
    "logistic": aq.Logistic,
    "multinomial": aq.Multinomial,
    "poisson": aq.Poisson,
    "hinge": aq.SmoothedHinge,
    "huber": aq.Huber,
    "quantile": aq.Quantile,
}


@dataclass(frozen=True)
class Point:
    """A float64 model v (m [+ 1], C) and its true relative gap; `target` is what was asked for.

    They differ where float64 cannot come closer (v rounds), or where a box does not reach that far.
    """

    v: torch.Tensor
    relative: float
    target: float


@dataclass(frozen=True, eq=False)
class Case:
    """One problem. `start` is a model to start from at which F is infinite in float64.

    Without a minimiser (`has_minimiser` False): `escape` is the direction, (m [+ 1], C), along which F falls for ever;
    the infimum is that of the rows and columns that the direction leaves alone, attained at `rest`.
    """

    name: str
    blocks: tuple = field(repr=False)
    loss: str
    penalty: Penalty
    intercept: bool = True
    reduction: str = "sum"
    width: float = 1.0
    classes: int = 1
    offset: float = 0.0
    q: float = 0.5
    duplicate: bool = False
    start: np.ndarray | None = field(default=None, repr=False)
    escape: np.ndarray | None = field(default=None, repr=False)

    def problem(self) -> aq.Problem:
        return aq.Problem(self._loss(), self._regularizer(), list(self.blocks), intercept=self.intercept)

    def _loss(self) -> Any:
        if self.offset:
            offset = self.offset
            return aq.CustomLoss(
                lambda u, X, y: torch.exp(X @ u + offset) - y * (X @ u + offset), reduction=self.reduction
            )
        widths = {
            "hinge": {"eps": self.width},
            "huber": {"delta": self.width},
            "quantile": {"eps": self.width, "q": self.q},
        }
        width = widths.get(self.loss, {})
        return LOSSES[self.loss](**width, reduction=self.reduction)

    def _regularizer(self) -> Any:
        p = self.penalty
        if p.strength:
            return aq.GroupLasso(p.strength, p.groups)
        if p.lower > -math.inf or p.upper < math.inf:
            return aq.NonNegative() if (p.lower, p.upper) == (0, math.inf) else aq.Box(p.lower, p.upper)
        if p.l1 and p.l2:
            return aq.ElasticNet(p.l1, p.l2)
        return aq.L1(p.l1) if p.l1 else aq.L2(p.l2) if p.l2 else aq.Zero()

    @property
    def has_minimiser(self) -> bool:
        return self.escape is None

    @cached_property
    def objective(self) -> Objective:
        options = {"intercept": self.intercept, "width": self.width, "classes": self.classes, "offset": self.offset}
        options["q"] = self.q
        return Objective.of(self.blocks, self.loss, self.penalty, reduction=self.reduction, **options)

    @cached_property
    def oracle(self) -> Optimum:
        if self.escape is None:
            return Optimum.of(self.objective)
        inner = self._rest
        return Optimum.unattained(self.objective, inner.above if inner else 0.0, inner.error if inner else 0.0)

    @cached_property
    def _rest(self) -> Optimum | None:
        """The optimum of what `escape` leaves alone: None where it moves every row."""
        o, m = self.objective, self.objective.X.shape[1]
        moved = (o.X @ self.escape[:m] + (self.escape[m:] if self.intercept else 0) != 0).any(1)
        if moved.all():
            return None
        kept = np.flatnonzero((self.escape[:m] == 0).all(1))
        return Optimum.of(replace(o, X=o.X[~moved][:, kept], y=o.y[~moved], c=o.c[~moved]))

    @cached_property
    def rest(self) -> np.ndarray:
        """Where `escape` starts from, (m [+ 1], C) in long double."""
        v = np.zeros(self.objective.shape, L)
        if self._rest is not None:
            m = self.objective.X.shape[1]
            kept = np.flatnonzero((self.escape[:m] == 0).all(1))
            v[np.r_[kept, np.arange(m, len(v))]] = self._rest.v
        return v

    @property
    def singular(self) -> bool:
        """H + l2 at the optimum, its diagonal scaled to 1, has an eigenvalue below 80·eps·n: float64 cannot see it."""
        return self.oracle.weakest < 80 * np.finfo(float).eps * math.prod(self.objective.shape)


# ---------------------------------------------------------------------- points
def points(case: Case, rng: np.random.Generator, tol: float = TOL) -> list[Point]:
    """Models at true relative gaps of tol · TARGETS, each in a direction of its own kind."""
    if case.escape is not None and case._rest is None:
        return [_point(case, L(t) * case.escape, 1.0) for t in (1, 10, 100, 1000)]  # the gap is all of F
    base = case.oracle.v if case.has_minimiser else case.rest + L(60) * case.escape
    return [_at(case, base, factor * tol, rng) for factor in TARGETS]


def _point(case: Case, v: np.ndarray, target: float) -> Point:
    v = v.astype(float)
    return Point(torch.from_numpy(v), case.oracle.relative(v), target)


def _at(case: Case, base: np.ndarray, target: float, rng: np.random.Generator) -> Point:
    """Along one direction to the target: gap ∼ t² or ∼ t, so that t·(target/gap)^½ closes in; bisection beyond that."""
    d = _direction(case, base, rng, sparse=target < 100 * TOL)
    p, m = case.penalty, case.objective.X.shape[1]

    def at(t: Any) -> Point:
        v = (base + t * d).astype(float)
        v[:m] = np.clip(v[:m], p.lower, p.upper)
        return _point(case, v, target)

    t, low, high, best = L(1e-3), L(0), L(np.inf), None
    for _ in range(40):
        found = at(t)
        if best is None or _miss(found, target) < _miss(best, target):
            best = found
        if 0.8 <= found.relative / target <= 1.25:
            break
        low, high = (t, high) if found.relative < target else (low, t)
        ratio = L(target) / L(found.relative) if 0 < found.relative < math.inf else L(1e12 if t == low else 1e-12)
        t = t * np.clip(np.sqrt(ratio), L(1e-6), L(1e6))
        if not low < t < high:
            t = np.sqrt(low * high) if low > 0 and np.isfinite(high) else (high / 16 if low == 0 else low * 16)
        if t > L(1e30) or t < L(1e-40):
            break
    return best


def _miss(point: Point, target: float) -> float:
    return abs(math.log(max(point.relative, 1e-300) / target)) if point.relative < math.inf else math.inf


def _direction(case: Case, base: np.ndarray, rng: np.random.Generator, sparse: bool) -> np.ndarray:
    """Random: in the user's columns, in columns of size 1, or the one in which the rows say least."""
    o = case.objective
    A, mean = o.centred
    free = np.ones(o.shape, bool)
    m = o.X.shape[1]
    if case.penalty.l1 or case.penalty.strength:
        free[:m] = (base[:m] != 0) | (not sparse)
    if math.isfinite(case.penalty.lower) or math.isfinite(case.penalty.upper):
        inside = (base[:m] > case.penalty.lower) & (base[:m] < case.penalty.upper)
        free[:m] = inside | (not sparse)
    size = np.sqrt((o.c[:, None] * A * A).sum(0))[:, None]
    size = np.where(size > 0, size, L(1))
    d = rng.normal(size=o.shape).astype(L)
    kind = rng.integers(3)
    if kind == 1:
        d = d / size
    elif kind == 2:
        R, perm, scale, rank = triangle(np.sqrt(o.c)[:, None] * A)
        weak = np.linalg.svd(R.astype(float))[2][-1] if rank else np.ones(len(perm))
        d[perm] = (weak[:, None] + 1e-6 * d[perm]) / scale[perm][:, None]
        d = d * rng.choice([-1, 1], size=(1, o.classes))
    d = np.where(free, d, L(0))
    if not d.any():
        d = rng.normal(size=o.shape).astype(L) / size
    p = case.penalty  # from a corner of the box, inwards
    if not ((base[:m] > p.lower) & (base[:m] < p.upper)).any():
        d[:m] = np.where(base[:m] == p.lower, np.abs(d[:m]), np.where(base[:m] == p.upper, -np.abs(d[:m]), d[:m]))
    if case.escape is not None:
        d = np.where((case.escape != 0).any(1)[:, None], L(0), d)
    if case.intercept and kind != 0:
        d[-1] -= mean @ d[:m]
    return d / np.sqrt((d * d).sum())


# ---------------------------------------------------------------------- the table
def split(X: Any, y: np.ndarray, parts: int, w: np.ndarray | None = None) -> tuple:
    rows = np.array_split(np.arange(len(y)), parts)
    return tuple((X[r], y[r]) if w is None else (X[r], y[r], w[r]) for r in rows)


def _data(seed: int = 0, n: int = 400, m: int = 6) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, m))
    return X, X @ rng.normal(size=m), rng


def table() -> Iterator[Case]:
    X, t, rng = _data()
    noise = rng.normal(size=400)
    y = t + 0.1 * noise
    label = np.where(t + 1.5 * noise > 0, 1.0, -1.0)
    apart = np.where(t > 0, 1.0, -1.0)
    for mean in (300, 1000, 3000, 1e5, 1e6):
        for b in (True, False):
            name = f"squares, mean {mean:g}, {'' if b else 'no '}intercept"
            yield Case(name, split(X + mean, y, 4), "squares", Penalty(l2=1e-3), b, "mean")
    scales = np.array([1e-6, 1e6, 1, 1, 1, 1])
    for l2 in (0.0, 1e-12):
        yield Case(f"scales 1e-6 and 1e6, l2 {l2:g}", split(X * scales, y, 4), "squares", Penalty(l2=l2), True, "mean")
    mild = np.array([1e-4, 1, 1e-4, 1, 1e-4, 1])
    yield Case("scales 1e-4 and 1, Zero", split(X * mild, y, 4), "squares", Penalty(), True, "mean")
    for size in (1e-5, 1e-8):
        yield Case(f"noise {size:g}, Zero", split(X, t + size * noise, 4), "squares", Penalty(), True, "mean")
    yield Case("logistic, mean 1000", split(X + 1000, label, 4), "logistic", Penalty(l2=1e-4))
    year = np.column_stack([rng.integers(1950, 2024, size=400).astype(float), X[:, 1:]])
    trend = y + 0.02 * (year[:, 0] - 1990)
    yield Case("a year column, squares", split(year, trend, 4), "squares", Penalty(l2=1e-3), True, "mean")
    yield Case("a year column, logistic", split(year, label, 4), "logistic", Penalty(l2=1e-3), True, "mean")
    yield Case("target offset 1e6", split(X, y + 1e6, 4), "squares", Penalty(l2=1e-3), True, "mean")
    for heavy in (1e6, 1e12):
        w = np.ones(400)
        w[17] = heavy
        yield Case(f"one weight {heavy:g}", split(X, t + noise, 4, w), "squares", Penalty(l2=1e-3))
    for l2 in (1e-6, 1e-8):
        yield Case(f"separable logistic, l2 {l2:g}", split(X, apart, 4), "logistic", Penalty(l2=l2))
    truth = np.append(np.linalg.lstsq(X, t, rcond=None)[0], 0.0)[:, None]
    yield Case("separable logistic, Zero", split(X, apart, 4), "logistic", Penalty(), escape=truth)
    wide = X * np.array([1e3, 1, 1, 1, 1, 1])
    count = rng.poisson(np.exp(0.4 * t + 0.5)).astype(float)
    bad = np.zeros((7, 1))
    bad[0] = 1.0  # exp(1000) in some row
    poisson = Case("poisson, a huge column, infinite start", split(wide, count, 4), "poisson", Penalty(l2=1e-3))
    yield replace(poisson, start=bad)
    custom = Case("custom loss, infinite at 0", split(X, count, 4), "poisson", Penalty(l2=1e-3), offset=720.0)
    yield replace(custom, start=np.zeros((7, 1)))


# ---------------------------------------------------------------------- at random
PENALTIES = ("zero", "l1", "l2", "elastic", "box", "nonnegative", "group")


def random_cases(count: int = 84) -> Iterator[Case]:
    for k in range(count):
        yield draw(tuple(LOSSES)[k % 6], PENALTIES[(k // 6) % 7], seed=k)


def draw(loss: str, kind: str, seed: int) -> Case:
    rng = np.random.default_rng([2024, seed])
    classes = int(rng.integers(3, 5)) if loss == "multinomial" else 1
    m = int(rng.integers(1, 6 if classes > 1 else 13))
    n = int(rng.integers(max(20, 15 * m) if kind in ("zero", "nonnegative") else 20, 121 if classes > 1 else 401))
    told, intercept = [loss, kind], bool(rng.random() < 0.6)

    # columns
    Z = rng.normal(size=(n, m))
    sparse, duplicate = rng.random() < 0.2, False
    if sparse:
        Z[rng.random((n, m)) < 0.6] = 0.0
        told.append("sparse")
    beta = rng.normal(size=(m, classes)) / math.sqrt(m)
    if m > 1 and rng.random() < 0.35:
        near = float(rng.choice([1e-3, 1e-5, 1e-7, 1e-9, 0.0]))
        Z[:, -1] = Z[:, 0] + near * rng.normal(size=n) * (Z[:, 0] != 0)
        duplicate = near == 0
        told.append(f"collinear {near:g}")
    t = Z @ beta
    mean = np.zeros(m)
    if not sparse and rng.random() < 0.4:
        far = float(rng.choice([10, 300, 1e3, 1e5, 1e6]))
        if not intercept and "collinear" in told[-1]:
            far = min(far, 300.0)  # beyond, the columns differ by less than 64 bits tell
        mean = far * (np.ones(m) if rng.random() < 0.5 else np.arange(m) % 2 == 0)
        told.append(f"mean {far:g}")
    reach = float(rng.choice([0, 0, 1, 3, 6]))
    scale = 10.0 ** np.round(rng.uniform(-reach, reach, size=m))
    if reach:
        told.append(f"scales 1e±{reach:g}")
    X = (Z + mean) * scale
    if duplicate:
        X[:, -1] = X[:, 0]

    # targets
    apart = loss in ("logistic", "hinge", "multinomial") and kind in ("l1", "l2", "elastic", "box", "group")
    apart = apart and rng.random() < 0.3
    width, q = 1.0, 0.5
    if apart:
        told.append("separable")
    if loss in ("squares", "huber", "quantile"):
        noise = float(rng.choice([1e-6, 1e-2, 0.3, 1.0]))
        level = float(rng.choice([0, 0, 0, 1e3, 1e6]))
        if loss != "squares" and level:  # residuals of very many widths make a vertex, not a minimum to converge to
            noise, level = max(noise, 0.3), level if intercept else 0.0
        y = t[:, 0] + noise * rng.standard_t(3, size=n) + level
        width = (noise if kind == "zero" else max(noise, 0.1)) * float(rng.choice([0.7, 1.5]))  # a penalty leaves more
        told += [f"noise {noise:g}"] + [f"target {level:g}"] * (level > 0)
        if loss == "quantile":
            q, width = float(rng.choice([0.5, 0.1, 0.9, 0.97])), width * float(rng.choice([1.0, 0.1, 0.02]))
            told.append(f"q {q:g}, width {width:g}")
    elif loss == "poisson":
        y = rng.poisson(np.exp(np.clip(0.5 * t[:, 0] + rng.uniform(0, 3), None, 6))).astype(float)
    elif loss == "multinomial":
        y = np.argmax(t if apart else t + rng.gumbel(size=t.shape), axis=1).astype(float)
        y[:classes] = np.arange(classes)
    else:
        y = np.where(t[:, 0] + (0 if apart else rng.logistic(size=n)) > 0, 1.0, -1.0)
        y[:2] = -1, 1
        width = float(rng.choice([0.1, 0.02, 1 / 500]))
        told += [f"width {width:g}"] * (loss == "hinge")

    # rows
    w = None
    if rng.random() < 0.35:
        w = rng.uniform(0.1, 3, size=n)
        w[rng.integers(n)] = float(rng.choice([1.0, 1e4, 1e8]))
        w[rng.integers(n)] = 0.0
        told.append(f"weights to {w.max():.0e}")
    order = np.argsort(y, kind="stable") if rng.random() < 0.3 else rng.permutation(n)
    X, y, w = X[order], y[order], None if w is None else w[order]
    parts = int(rng.integers(1, 6))
    cuts = np.sort(rng.choice(np.arange(1, n), size=parts - 1, replace=False))
    blocks = []
    for r in np.split(np.arange(n), cuts):
        rows = scipy.sparse.csr_matrix(X[r]) if sparse else X[r]
        blocks.append((rows, y[r]) if w is None else (rows, y[r], w[r]))
    if rng.random() < 0.25:
        blocks.insert(1, tuple(part[:0] for part in blocks[0]))
        told.append("an empty block")
    reduction = str(rng.choice(["sum", "mean", "pooled"]))
    told += [reduction] if intercept else [reduction, "no intercept"]
    case = Case("", tuple(blocks), loss, Penalty(), intercept, reduction, width, classes, q=q, duplicate=duplicate)
    return replace(case, name=f"{seed}: " + ", ".join(told), penalty=_penalty(case, kind, rng))


def _penalty(case: Case, kind: str, rng: np.random.Generator) -> Penalty:
    """Strengths that matter: of the size of the slopes at the model without features, and of the curvature."""
    o = case.objective
    m = o.X.shape[1]
    A, _ = o.centred
    middle = np.zeros(o.shape)
    if o.intercept and o.loss in ("squares", "huber", "quantile"):
        middle[-1] = np.average(o.y, weights=o.c.astype(float))
    s = o.c[:, None] * o.rows(o.logits(middle.astype(L)))[1]
    pull = np.abs((A.T @ s)[:m]).max()
    size = float(np.median((o.c[:, None] * A[:, :m] ** 2).sum(0)))
    l1, l2 = float(pull) * 10 ** rng.uniform(-3, -0.5), size * 10 ** rng.uniform(-8, 0)
    if kind == "box":
        side = float(10 ** rng.uniform(-1.5, 0) / np.median(np.sqrt(np.mean(np.square(A[:, :m].astype(float)), 0))))
        return Penalty(lower=-side, upper=2 * side)
    groups = tuple(int(g) for g in np.sort(rng.integers(0, max(1, m // 2), size=m))) if rng.random() < 0.7 else None
    return {
        "zero": Penalty(),
        "l1": Penalty(l1=l1),
        "l2": Penalty(l2=l2),
        "elastic": Penalty(l1=l1, l2=l2),
        "nonnegative": Penalty(lower=0.0),
        "group": Penalty(strength=l1 / 2, groups=groups),
    }[kind]


# ---------------------------------------------------------------------- without a minimiser
def unbounded() -> Iterator[Case]:
    X, t, rng = _data(seed=5, n=120, m=4)
    beta = np.append(np.linalg.lstsq(X, t, rcond=None)[0], 0.0)[:, None]
    apart, label = np.where(t > 0, 1.0, -1.0), np.where(t + 2 * rng.normal(size=120) > 0, 1.0, -1.0)
    yield Case("separable hinge, Zero", split(X, apart, 3), "hinge", Penalty(), width=0.05, escape=beta)
    V = rng.normal(size=(5, 3))
    far = np.hstack([X, np.ones((120, 1))]) @ V
    clear = np.sort(far, 1)[:, -1] - np.sort(far, 1)[:, -2] > 0.05
    yield Case(
        "separable multinomial, Zero",
        split(X[clear], far.argmax(1)[clear].astype(float), 3),
        "multinomial",
        Penalty(),
        classes=3,
        escape=V,
    )
    rare = np.column_stack([X, np.zeros(120)])
    rare[np.flatnonzero(label > 0)[:7], -1] = 1.0  # a category seen with one label only
    only = np.array([0, 0, 0, 0, 1.0, 0])[:, None]
    yield Case("a category of one label, logistic, Zero", split(rare, label, 3), "logistic", Penalty(), escape=only)
    count = rng.poisson(np.exp(0.3 * t + 1)).astype(float)
    count[:6] = 0.0
    never = np.column_stack([X, np.zeros(120)])
    never[:6, -1] = 1.0
    yield Case("a category without counts, poisson, Zero", split(never, count, 3), "poisson", Penalty(), escape=-only)
    W, z, rng = _data(seed=6, n=20, m=40)
    yield Case(
        "more columns than rows, l1", split(W, W[:, 0] - W[:, 1] + 0.1 * z, 2), "squares", Penalty(l1=1.0), False
    )


TABLE = tuple(table())
RANDOM = tuple(random_cases())
UNBOUNDED = tuple(unbounded())
QUANTILES = tuple(draw("quantile", kind, seed=300 + k) for k, kind in enumerate(2 * PENALTIES))
CASES = (*TABLE, *RANDOM, *UNBOUNDED, *QUANTILES)
