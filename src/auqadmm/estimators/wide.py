"""Many columns, few of them active: paths and choices of elastic nets from working sets of columns.

Where a Gram matrix of all columns is too large, workers send it for a *working set* A of each group of rows (the rows
that a fold is fitted to, or all of them), which grows along the path from strong to weak strengths. In a round a group
needs

    products of new columns N with A: those whose gradients ∇ = Σs x̃(x̃ᵀw − ỹ) are closest to l1, and
    gradients of all columns for models of the next few strengths, which were solved on A at the server (`quadratic.py`)

A model is optimal when no column outside A has |∇| > l1. Those before the first that is not are kept; violating
columns enter next, at most as many as A has. N serves models that are not solved yet, by extrapolated
gradients: a set that looks ahead far enough saves a round. The strengths per round double while all succeed. All
groups share their rounds.

Workers send only sums over a group's rows: no row, and no products of columns that are far from active.

Shapes: m features, a columns of A, K strengths, M models of a round; p, D (m,), G (a, a), index (a,), slopes (M, m).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from auqadmm.core.state import ROUND_COST
from auqadmm.core.stopping import Certificate
from auqadmm.estimators import squares
from auqadmm.estimators.blocks import Rows
from auqadmm.estimators.checks import Grid
from auqadmm.estimators.fitting import FitSettings
from auqadmm.estimators.moments import Means, Moments, Sides, Sums, Wider
from auqadmm.estimators.quadratic import EPS, Kept, Quadratics
from auqadmm.methods.newton.working_set import affordable
from auqadmm.metrics.sums import unpack

MOST_COLUMNS = 4096  # columns of a working set
SLOPES = 2**24  # numbers of all gradients of a round
FIRST_STRENGTHS = 8  # strengths of a group's first round
NEARLY_STEEP = 0.9  # of l1: gradients from which on a column enters
MODELS_AHEAD = 4  # models from the first wrong one on whose violating columns enter: later ones are too inaccurate
FEWER_STRENGTHS = 0.5  # of the strengths of a round after one that failed
AFFORDABLE = affordable(ROUND_COST)  # columns that a set has room for
TINY = float(np.finfo(np.float64).tiny)


def is_applicable(
    rows: Rows, settings: FitSettings, split: squares.Split, ratios: Sequence[float], alphas: Grid
) -> bool:
    """Is this applicable? Gram matrices do not fit, and l1 leaves columns out."""
    few = min(ratios) > 0 and (np.ndim(alphas) == 0 or float(np.min(alphas)) > 0)
    return few and squares.by_sums(settings, split) and not squares.fits(rows, split)


class GaveUp(Exception):
    """A working set would have too many columns, or a model on it did not converge."""


@dataclass
class Track:
    """Strengths (K,) on one group, per sum of rows, and of the models found so far: coefficients on A as it was, the
    squares of its test rows, and of columns outside A the largest |∇| and Σ(|∇| − l1)₊², which is rounding.

    `steep` (m,): |∇|/l1 of every column at the last query. `alone`: a single strength, solved by a path of
    stronger ones that are not returned.
    """

    l1: np.ndarray
    l2: np.ndarray
    steep: np.ndarray
    alone: bool = False
    models: list[np.ndarray] = field(default_factory=list)
    scores: list[tuple[float, float, float]] = field(default_factory=list)
    asked: list[np.ndarray] = field(default_factory=list)
    stride: int = FIRST_STRENGTHS
    waits: bool = False
    before: tuple[float, np.ndarray] = (0.0, np.zeros(0))

    @property
    def next(self) -> slice:
        """The strengths of the models in the query."""
        return slice(len(self.models), len(self.models) + len(self.asked))

    def coef(self, size: int) -> np.ndarray:
        """Models (K, a) on the current A."""
        return np.array([_padded(v, size) for v in self.models]).reshape(len(self.models), size)

    def accept(self, slopes: np.ndarray, left: np.ndarray, outside: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Keep the optimal models; returns the columns outside A that violate the others, (m,)."""
        l1, size = self.l1[self.next], np.abs(slopes)
        over = np.where(outside, np.maximum(size - l1[:, None], 0.0), 0.0)
        steep: np.ndarray = over > noise
        wrong: np.ndarray = np.asarray(steep.any(1))
        good = int(wrong.argmax()) if wrong.any() else len(wrong)
        for v, f, s, o in zip(self.asked[:good], left, size, over, strict=False):
            self.models.append(v)
            self.scores.append((float(f), float(np.max(s, where=outside, initial=0.0)), float(o @ o)))
        if wrong.any():
            self.stride = max(1, good, int(FEWER_STRENGTHS * len(wrong)))
        else:
            self.stride = max(self.stride, 2 * good)
        near = slice(good, good + MODELS_AHEAD)
        if wrong.any():
            self.steep = (size[near] / np.maximum(l1[near, None], TINY)).max(0)
        else:
            self.steep = self._ahead(slopes)
        self.asked = []
        return np.asarray(steep[near].any(0))

    def _ahead(self, slopes: np.ndarray) -> np.ndarray:
        """|∇|/l1 at the last model, or at the end of the next round by extrapolation, if that is more."""
        last = len(self.models) - 1
        l1, there = self.l1[last], np.abs(slopes[-1])
        before, old = (self.l1[last + 1 - len(slopes)], slopes[0]) if len(slopes) > 1 else self.before
        self.before = l1, slopes[-1]
        then = max(self.l1[min(last + self.stride, len(self.l1) - 1)], 2 * l1 - before)
        if l1 <= 0 or not before > l1 > then > 0:
            return there / max(l1, TINY)
        turn = (slopes[-1] - old) * (l1 - then) / (before - l1)
        return np.maximum(there / l1, np.abs(slopes[-1] + turn) / then)


@dataclass
class Group:
    """The sums of one group of rows, its working set, and columns that must enter."""

    S: float
    q: float
    mean: np.ndarray
    middle: float
    p: np.ndarray
    D: np.ndarray
    tracks: list[Track] = field(default_factory=list)
    index: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    G: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    missing: np.ndarray | None = None
    kept: Kept = field(default_factory=Kept)

    @property
    def moments(self) -> Moments:
        """Restricted to the working set."""
        numbers = (np.array([x]) for x in (self.S, self.middle, self.q))
        S, middle, q = numbers
        return Moments(S, self.mean[None, self.index], middle, self.G[None], self.p[None, self.index], q)

    def largest(self, l1_ratio: float) -> float:
        """The smallest strength that leaves all coefficients 0; see `squares.largest`."""
        return max(float(np.max(np.abs(self.p), initial=0.0)) / (self.S * l1_ratio), EPS)

    def follow(self, alphas: np.ndarray, l1_ratio: float, alone: bool = False) -> Track:
        """A new track for strengths per row."""
        l1, l2 = self.S * l1_ratio * alphas, self.S * (1 - l1_ratio) * alphas
        self.tracks.append(Track(l1, l2, np.abs(self.p) / max(float(l1[0]), TINY), alone))
        return self.tracks[-1]

    # ------------------------------------------------------------------ queries
    def question(self, models: int, room: int) -> tuple[np.ndarray, np.ndarray]:
        """Columns N, and models (M, a) of the next strengths, at most so many; A may have `room` columns."""
        live = [t for t in self.tracks if len(t.models) < len(t.l1)]
        for t in live:
            t.asked = [] if t.waits else self._solved(t, max(1, models // len(live)))
        asked = [v for t in live for v in t.asked]
        W = np.array(asked).reshape(len(asked), len(self.index))
        return (self._coming(live, room) if live else self.index[:0]), W

    def _solved(self, track: Track, models: int) -> list[np.ndarray]:
        at = len(track.models)
        some = slice(at, at + min(track.stride, models))
        if not len(self.index):  # models that are optimal without any column
            return [np.zeros(0)] * int((track.l1[some] >= np.max(np.abs(self.p), initial=0.0)).sum())
        own = self.moments
        if track.alone:
            both = float(track.l1[0] + track.l2[0])
            return [squares.single(own, both / self.S, float(track.l1[0]) / both)]
        start = _padded(track.models[-1], len(self.index))[None] if at else None
        many = Quadratics(own.G, own.p, own.q)
        solved, reached = many.path(track.l1[None, some], track.l2[None, some], start, self.kept)
        if not reached.all():
            raise GaveUp
        return list(solved[0])

    def _coming(self, live: list[Track], room: int) -> np.ndarray:
        """Violating columns, and those closest to l1, as far as there is room."""
        a, outside = len(self.index), self.outside
        steep = np.max([t.steep for t in live], axis=0)
        needed = np.zeros_like(outside) if self.missing is None else self.missing & outside
        count = min(int(needed.sum()), max(AFFORDABLE, a) if a else len(outside))
        if a + count > room:
            raise GaveUp
        fill = max(AFFORDABLE - a, min(int((steep[outside] > NEARLY_STEEP).sum()), max(AFFORDABLE, a)))
        count = min(max(count, fill), room - a, int(outside.sum()))
        score = np.where(outside, steep, -1.0) + np.where(needed, steep.max(initial=0.0) + 1.0, 0.0)
        order = np.argpartition(-score, count - 1)[:count] if count > 0 else self.index[:0]
        return np.sort(order[score[order] > 0])

    @property
    def outside(self) -> np.ndarray:
        outside = np.ones(len(self.p), dtype=bool)
        outside[self.index] = False
        return outside

    # ------------------------------------------------------------------ replies
    def receive(self, new: np.ndarray, W: np.ndarray, sums: Sums, k: int) -> None:
        outside = self.outside
        if len(new):
            border, corner = sums[f"border{k}"].numpy(), unpack(sums[f"corner{k}"][None])[0].numpy()
            self.G = np.block([[self.G, border.T], [border, corner]])
            self.index = np.concatenate([self.index, new])
        for t in self.tracks:
            t.waits = False
        self.missing = None
        if not len(W):
            return
        slopes, left, first = sums[f"slopes{k}"].numpy(), sums[f"squares{k}"].numpy(), 0
        size = np.sqrt(self.D)
        reach = np.sqrt(max(self.q, 0.0)) + np.abs(W) @ size[self.index[: W.shape[1]]]
        for t in self.tracks:
            some = slice(first, first + len(t.asked))
            first = some.stop
            if t.asked:
                steep = t.accept(slopes[some], left[some], outside, 8 * EPS * reach[some, None] * size)
                steep &= self.outside
                t.waits = bool(steep.any())
                self.missing = steep if self.missing is None else self.missing | steep

    # ------------------------------------------------------------------ results
    def certified(self, track: Track) -> Certificate:
        """The certificate of all models of a track."""
        beyond = np.array([(top, over) for _, top, over in track.scores]) / (self.S, self.S**2)
        coef = track.coef(len(self.index))
        return squares.certified(self.moments, coef, track.l1 / self.S, track.l2 / self.S, beyond=beyond)

    def whole(self, track: Track) -> np.ndarray:
        """All coefficients, (K, m)."""
        coef = np.zeros((len(track.models), len(self.p)))
        coef[:, self.index] = track.coef(len(self.index))
        return coef


class Groups:
    """Groups of rows on the engine: (g, c) cells that each is fitted to, and that each is tested on."""

    def __init__(self, data: squares.SplitBlocks, fits: np.ndarray, tests: np.ndarray, intercept: bool) -> None:
        self.data = data
        self.masks = tuple(tuple(tuple(map(bool, row)) for row in masks) for masks in (fits, tests))
        g, m = len(fits), data.features
        mean, middle = np.zeros((g, m)), np.zeros(g)
        if intercept:
            _, sums = data.reduce(Means(data.cells, data.count), None, None)
            use = fits.astype(np.float64)
            S = np.maximum(use @ sums["S"].numpy(), TINY)
            mean, middle = use @ sums["x"].numpy() / S[:, None], use @ sums["y"].numpy() / S
        shared = torch.from_numpy(mean), torch.from_numpy(middle)
        sides = Sides(data.cells, self.masks[0])
        self.known, sums = data.reduce(sides, None, shared, shared if intercept else ())
        S, q, p, D = (sums[name].numpy() for name in ("S", "q", "p", "D"))
        self.all = [Group(*x) for x in zip(S.tolist(), q.tolist(), mean, middle.tolist(), p, D, strict=True)]
        if not all(bool(np.isfinite(x).all()) for x in (mean, q, p, D)):
            raise GaveUp

    def errors(self, folds: int, grids: np.ndarray, ratios: list[float], mass: np.ndarray) -> np.ndarray:
        """Mean squared errors (f, R, K) of the first groups' models on their test rows, of weight `mass` (f,)."""
        for group in self.all[:folds]:
            for grid, ratio in zip(grids, ratios, strict=True):
                group.follow(grid, ratio)
        self.run()
        left = [[[score[0] for score in t.scores] for t in group.tracks] for group in self.all[:folds]]
        return np.array(left) / np.maximum(mass, TINY)[:, None, None]

    def active(self, track: int, strength: int) -> np.ndarray:
        """Columns that a model of this strength has in any group that has solved it, (m,)."""
        active = np.zeros(self.data.features, dtype=bool)
        for g in self.all:
            for t in (t for t in g.tracks[track : track + 1] if len(t.models) > strength):
                active[g.index[np.flatnonzero(t.models[strength])]] = True
        return active

    def run(self) -> None:
        """Rounds until every track has all its models."""
        data = self.data
        while any(len(t.models) < len(t.l1) for g in self.all for t in g.tracks):
            busy = sum(any(len(t.models) < len(t.l1) for t in g.tracks) for g in self.all)
            models = max(1, SLOPES // (busy * data.features))
            room = min(MOST_COLUMNS, int((squares.NUMBERS // busy) ** 0.5))
            asked = [g.question(models, room) for g in self.all]
            shared = tuple((torch.from_numpy(new), torch.from_numpy(W.T.copy())) for new, W in asked)
            down = tuple(x for pair in shared for x in pair)
            self.known, sums = data.reduce(Wider(data.cells, *self.masks), self.known, shared, down)
            for k, (group, (new, W)) in enumerate(zip(self.all, asked, strict=True)):
                group.receive(new, W, sums, k)


def _padded(v: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([v, np.zeros(size - len(v))])
