"""A conformance suite for regularizers: the proximal map, convexity, and the properties that a regularizer declares.

Every law rests on one fact: v = prox(s, K) gives a subgradient, ξ = s − Kv ∈ ∂g(v), at a point where g is finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.vstep import LowRankMetric
from auqadmm.testing.cases import Suite, close, need

if TYPE_CHECKING:
    from auqadmm.problem.regularizers import Regularizer

ROUND = 1e-9  # errors of rounding, and of an iterative proximal map


class RegularizerSuite(Suite):
    """Laws of a regularizer: `class TestMine(RegularizerSuite): regularizer = MyRegularizer()`.

    Attributes
    ----------
    regularizer
        The regularizer to check.
    shape
        (features, columns) of the unknown that it is checked on.
    scales
        Sizes of s: some should be below the kinks of g and some above.

    Examples
    --------
    >>> import auqadmm as aq
    >>> class TestL1(aq.testing.RegularizerSuite):
    ...     regularizer = aq.L1(1.0)
    >>> TestL1().failures()
    {}
    """

    regularizer: Regularizer | None = None
    shape: tuple[int, int] = (5, 2)
    scales: tuple[float, ...] = (0.3, 3.0)

    # ------------------------------------------------------------------ points
    def draw(self, seed: int, scale: float = 1.0) -> Tensor:
        return scale * torch.from_numpy(np.random.default_rng(seed).normal(size=self.shape))

    def metrics(self) -> list[Any]:
        """A number, one per entry, one per feature; small and large."""
        rng = np.random.default_rng(7)
        each = torch.from_numpy(rng.uniform(0.2, 5.0, size=self.shape))
        return [0.05, 1.0, 40.0, each, each[:, :1]]

    def pairs(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Any]]:
        """v = prox(s, K), the subgradient ξ = s − Kv with rounded zeros set to zero, and s and K."""
        g = self.under_test("regularizer")
        for (i, K), scale in product(enumerate(self.metrics()), self.scales):
            s = self.draw(20 * i + int(10 * scale), scale)
            v = g.prox(s, K)
            xi = s - K * v
            yield v, torch.where(xi.abs() <= 1e-13 * (s.abs() + (K * v).abs()), 0.0, xi), s, K

    def others(self) -> list[Tensor]:
        """Points to compare with, some where g is certainly finite."""
        g = self.under_test("regularizer")
        drawn = [self.draw(200 + i, scale) for i, scale in enumerate((0.1, 1.0, 5.0))]
        return [torch.zeros(self.shape, dtype=torch.float64), *drawn, *(g.prox(x, 1.0) for x in drawn)]

    # ------------------------------------------------------------------ value and proximal map
    def test_shapes_and_kinds(self) -> None:
        g = self.under_test("regularizer")
        g.check(self.shape[0])
        for v, _, s, _ in self.pairs():
            need(v.shape == s.shape and v.dtype == s.dtype, f"prox gives {v.dtype} of shape {tuple(v.shape)}")
            need(bool(v.isfinite().all()), "prox is not finite")
            need(g.value(v).shape == (), f"value has shape {tuple(g.value(v).shape)} instead of ()")
            need(math.isfinite(float(g.value(v))), "g is not finite at a point of its proximal map")
            narrow = g.prox(s.float(), 1.0)
            need(narrow.dtype == torch.float32, f"prox is {narrow.dtype} where s is float32")

    def test_prox_is_optimal(self) -> None:
        """g(w) ≥ g(v) + ⟨s − Kv, w − v⟩ for every w."""
        g = self.under_test("regularizer")
        for v, xi, s, K in self.pairs():
            near = [v + self.draw(300 + i, size) for i, size in enumerate((1e-3, 0.1))]
            for w in [*self.others(), *near, *(g.prox(K * x, K) for x in near)]:
                excess = float(g.value(w) - g.value(v) - (xi * (w - v)).sum())
                size = float(g.value(v).abs() + (s.abs() * (w - v).abs()).sum() + 1e-12)
                need(excess >= -ROUND * size, f"a point lies {-excess:.1e} below prox(s, K): s − Kv is no subgradient")

    def test_prox_is_nonexpansive(self) -> None:
        """⟨v − v′, s − s′⟩ ≥ ‖v − v′‖²_K: firmly so, in the metric."""
        g = self.under_test("regularizer")
        for (i, K), scale in product(enumerate(self.metrics()), self.scales):
            s, t = self.draw(400 + i, scale), self.draw(450 + i, scale)
            d, e = g.prox(s, K) - g.prox(t, K), s - t
            short = float((d * e).sum() - (K * d * d).sum())
            need(short >= -ROUND * float((d * e).abs().sum() + 1e-12), f"prox expands by {-short:.1e}")

    def test_a_metric_may_be_a_number_or_a_tensor(self) -> None:
        g, s = self.under_test("regularizer"), self.draw(1)
        for other in (torch.tensor(2.0, dtype=torch.float64), torch.full(self.shape, 2.0, dtype=torch.float64)):
            close("prox", g.prox(s, other), g.prox(s, 2.0), ROUND, 1.0)

    def test_value_is_convex(self) -> None:
        g = self.under_test("regularizer")
        inside = [v for v, *_ in self.pairs()]
        for a, b in pairwise(inside):
            for t in (0.25, 0.5, 0.8):
                chord = (1 - t) * g.value(a) + t * g.value(b)
                above = float(g.value((1 - t) * a + t * b) - chord)
                need(above <= ROUND * float(g.value(a).abs() + g.value(b).abs() + 1e-12), f"{above:.1e} above a chord")

    def test_nothing_is_written_into_what_is_given(self) -> None:
        g, s = self.under_test("regularizer"), self.draw(1, 3.0)
        K = self.metrics()[3]
        kept = s.clone(), K.clone()
        first = g.prox(s, K)
        g.value(s), g.subgradient_distance(first, s)
        need(torch.equal(s, kept[0]) and torch.equal(K, kept[1]), "an argument has changed")
        need(torch.equal(g.prox(s, K), first), "two answers to one question")

    # ------------------------------------------------------------------ the certificate
    def test_subgradient_distance(self) -> None:
        """Zero at −ξ; never more than the distance to a known subgradient; not zero where a better point is known."""
        g = self.under_test("regularizer")
        for i, (v, xi, s, K) in enumerate(self.pairs()):
            size = float(s.norm() + (K * v).norm())
            need(float(g.subgradient_distance(v, -xi)) <= 1e-7 * size, "a subgradient is at a distance from ∂g")
            noise = self.draw(500 + i)
            distance = float(g.subgradient_distance(v, noise - xi))
            need(distance <= float(noise.norm()) * (1 + 1e-9), "the distance exceeds that to a known subgradient")
            better = g.prox(K * v + xi - noise, K)
            fall = float(g.value(v) - g.value(better) - ((xi - noise) * (v - better)).sum())
            need(distance > 0 or fall <= 1e-9 * size, "no distance, but a point that lies below")
        outside = [x for x in self.others() if not math.isfinite(float(g.value(x)))]
        need(all(math.isinf(g.subgradient_distance(x, x)) for x in outside), "a finite distance where g is infinite")

    def test_subgradient(self) -> None:
        """Its norm is the distance, and it is a subgradient: g is above its tangent. Skipped where unknown."""
        g = self.under_test("regularizer")
        for i, (v, xi, s, K) in enumerate(self.pairs()):
            grad = self.draw(700 + i) - xi
            nearest = g.subgradient(v, grad)
            if nearest is None:
                return
            size = float(s.norm() + (K * v).norm() + grad.norm())
            distance = float(g.subgradient_distance(v, grad))
            need(abs(float(nearest.norm()) - distance) <= 1e-9 * size, "a subgradient that is not the closest one")
            for x in self.others():
                below = float(((nearest - grad) * (x - v)).sum() + g.value(v) - g.value(x))
                need(below <= 1e-9 * size * float(1 + (x - v).norm()), "a point lies below the tangent: no subgradient")

    def test_fall_is_the_difference_of_values(self) -> None:
        g = self.under_test("regularizer")
        inside = [v for v, *_ in self.pairs()]
        for a, b in pairwise(inside):
            size = float(g.value(a).abs() + g.value(b).abs() + 1e-12)
            need(abs(float(g.fall(a, b)[0] - (g.value(a) - g.value(b)))) <= ROUND * size, "fall is not g(v) − g(there)")

    def test_conjugate_belongs_to_the_value(self) -> None:
        """Fenchel: g*(w) ≥ ⟨w, x⟩ − g(x), with equality at subgradients. Skipped where g* is unknown."""
        g = self.under_test("regularizer")
        pairs = [(v, xi) for v, xi, *_ in self.pairs()]
        if not any(math.isfinite(float(g.conjugate(xi))) for _, xi in pairs):
            return
        for v, xi in pairs:
            size = float(g.value(v).abs() + (xi * v).abs().sum() + 1.0)
            # rounding may leave a subgradient just outside the domain of g*
            inside = 1 - 1e-12 if math.isinf(g.conjugate(xi)) else 1.0
            equal = float(g.conjugate(inside * xi) + g.value(v) - inside * (xi * v).sum())
            need(abs(equal) <= 1e-8 * size, f"g(v) + g*(ξ) − ⟨ξ, v⟩ is {equal:.1e}")
            for x in self.others():
                least = float((xi * x).sum() - g.value(x))
                need(float(g.conjugate(inside * xi)) >= least - 1e-8 * (size + abs(least)), "g* is too small")

    def test_dual_scale_ends_at_the_domain_of_the_conjugate(self) -> None:
        g = self.under_test("regularizer")
        for i, scale in enumerate((0.1, 1.0, 30.0)):
            w = self.draw(600 + i, scale)
            c = g.dual_scale(w)
            if c is None:
                continue
            need(0.0 <= c <= 1.0, f"dual_scale is {c}")
            need(math.isfinite(float(g.conjugate(c * w))), "g* is infinite at the point that dual_scale gives")
            need(c == 1.0 or math.isinf(g.conjugate((1 + 1e-6) * c * w)), "dual_scale stops short of the boundary")

    # ------------------------------------------------------------------ claims
    def test_strong_convexity(self) -> None:
        """g(w) ≥ g(v) + ⟨ξ, w − v⟩ + ½Σc(w − v)² with `convexity` and `strong_convexity`."""
        g = self.under_test("regularizer")
        for v, xi, s, _ in self.pairs():
            c = g.convexity(v)
            need(c.shape == v.shape, f"convexity has shape {tuple(c.shape)}")
            need(bool((c >= g.strong_convexity - 1e-12).all()), "convexity is below strong_convexity")
            for w in self.others():
                extra = 0.5 * (c * (w - v).square()).sum()
                excess = float(g.value(w) - g.value(v) - (xi * (w - v)).sum() - extra)
                size = float(g.value(v).abs() + (s.abs() * (w - v).abs()).sum() + extra + 1e-12)
                need(excess >= -ROUND * size, "g is less convex than it says")

    def test_separable_means_entry_by_entry(self) -> None:
        """And then `prox_slope`, where there is one, is the derivative."""
        g = self.under_test("regularizer")
        if not g.separable:
            return
        for i, (v, _, s, K) in enumerate(self.pairs()):
            for k in range(s.numel()):
                moved = s.clone().reshape(-1)
                moved[k] += 0.7
                changed = (g.prox(moved.reshape(s.shape), K) != v).reshape(-1)
                changed[k] = False
                need(not bool(changed.any()), f"entry {k} of s moves other entries of prox: g is not separable")
            slope = g.prox_slope(s, K)
            if slope is not None:
                h = 1e-7 * max(1.0, float(s.abs().max()))
                ahead, behind = g.prox(s + h, K), g.prox(s - h, K)
                smooth = ((ahead - v) - (v - behind)).abs() <= 1e-5 * ((ahead - behind).abs() + 1e-12)  # no kink nearby
                off = (slope - (ahead - behind) / (2 * h)).abs()[smooth]
                need(not bool((off > 1e-5 * (1 + slope.abs().max())).any()), f"prox_slope is off, case {i}")
            need(g.value(v).isclose(self._by_entries(v), rtol=1e-9, atol=1e-12).item(), "g is no sum over entries")

    def _by_entries(self, v: Tensor) -> Tensor:
        g = self.under_test("regularizer")
        zero = g.prox(torch.zeros_like(v), 1.0)  # a point where g is finite
        total = g.value(zero).clone()
        for k in range(v.numel()):
            one = zero.clone().reshape(-1)
            one[k] = v.reshape(-1)[k]
            total += g.value(one.reshape(v.shape)) - g.value(zero)
        return total

    def test_quadratic_means_a_linear_map(self) -> None:
        g = self.under_test("regularizer")
        if not g.quadratic:
            return
        for K in self.metrics():
            a, b = self.draw(700, 3.0), self.draw(701, 3.0)
            half = g.prox(0.5 * (a + b), K)
            close("prox between two points", half, 0.5 * (g.prox(a, K) + g.prox(b, K)), ROUND)

    def test_some_rows_alone(self) -> None:
        """g of some features, the others at zero: the same differences."""
        g = self.under_test("regularizer")
        rows = torch.arange(0, self.shape[0], 2)
        part = g.some(rows, self.shape[0])
        if part is None:
            return
        a, b = (x.index_fill(0, torch.arange(1, self.shape[0], 2), 0.0) for x in (self.draw(800), self.draw(801)))
        if not (math.isfinite(float(g.value(a))) and math.isfinite(float(g.value(b)))):
            return
        few, whole = part.value(a[rows]) - part.value(b[rows]), g.value(a) - g.value(b)
        close("the difference of values", few, whole, ROUND, float(g.value(a).abs() + 1e-12))
        s = self.draw(802, 3.0)
        close("prox of some rows", part.prox(s[rows], 1.5), g.prox(s, 1.5)[rows], ROUND)

    def test_unknowns_at_rest_are_zero(self) -> None:
        g = self.under_test("regularizer")
        for i, scale in enumerate((0.02, 0.3, 2.0)):
            w, radius = self.draw(900 + i, scale), 0.1 * scale * torch.ones(self.shape, dtype=torch.float64)
            rest = g.at_rest(w, radius)
            if rest is None:
                return
            for seed in range(5):
                step = self.draw(920 + seed)
                near = w + radius * step / step.norm(dim=1, keepdim=True).clamp(min=1e-12)
                need(not bool((g.prox(near, 0.5) != 0)[rest].any()), "an unknown at rest is not zero")

    # ------------------------------------------------------------------ other metrics
    def test_consensus_step_in_a_metric_with_low_rank(self) -> None:
        """s − Kv is a subgradient for non-diagonal K too: the v-step of auq-lr, fast or slow."""
        g = self.under_test("regularizer")
        metric = low_rank_metric(*self.shape)
        for i, scale in enumerate(self.scales):
            s = self.draw(950 + i, 5 * scale)
            v_step = metric.solve(g, s, tol=1e-11 * float(s.norm()))
            v, xi = v_step.v, s - metric.apply(v_step.v)
            need(v_step.residual <= 1e-7 * float(s.norm()), f"{v_step.by} leaves a residual of {v_step.residual:.1e}")
            for w in [*self.others(), v + self.draw(960 + i, 0.1)]:
                excess = float(g.value(w) - g.value(v) - (xi * (w - v)).sum())
                size = float(g.value(v).abs() + s.norm() * (w - v).norm() + 1e-12)
                need(excess >= -1e-6 * size, f"{v_step.by}: a point lies {-excess:.1e} below the consensus step")


def low_rank_metric(features: int, columns: int, blocks: int = 3, seed: int = 3) -> LowRankMetric:
    """K of a few blocks with curvature of rank two."""
    rng = np.random.default_rng(seed)
    U = torch.linalg.qr(torch.from_numpy(rng.normal(size=(blocks, features, 2))))[0]
    M = torch.diag_embed(torch.from_numpy(rng.uniform(1.0, 30.0, size=(blocks, 2))))
    d = torch.from_numpy(rng.uniform(0.0, 1.0, size=(blocks, features)))
    S = torch.eye(columns, dtype=torch.float64).expand(blocks, columns, columns).clone()
    if columns > 1:
        S += 0.3
    return LowRankMetric(LowRank(U, M, d, S, torch.full((blocks,), 0.2, dtype=torch.float64)))
