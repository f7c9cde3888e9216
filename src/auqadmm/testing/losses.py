"""A conformance suite for losses: derivatives, convexity, rows and blocks, and the properties that a loss declares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from auqadmm.api import solve
from auqadmm.blocks.loss import Loss, Point
from auqadmm.blocks.shard import Shard
from auqadmm.engines import shards_of
from auqadmm.problem import L2, Problem, Zero
from auqadmm.testing.cases import Suite, close, need

STEP = 1e-5  # of finite differences
SAME_NUMBER = 1e-11  # relative rounding between two ways to the same number
CPU = torch.device("cpu")
Block = tuple[np.ndarray, ...]


class LossSuite(Suite):
    """Laws of a loss: `class TestMine(LossSuite): loss = MyLoss()`.

    Attributes
    ----------
    loss
        The loss to check. Its reduction should be "sum"; the others are derived from it.
    coupled
        Do rows of a block interact? Then splitting a block changes the loss.
    tolerance
        Relative, of derivatives against finite differences.
    features
        Columns of the data.

    Examples
    --------
    >>> import auqadmm as aq
    >>> class TestLeastSquares(aq.testing.LossSuite):
    ...     loss = aq.LeastSquares()
    >>> TestLeastSquares().failures()
    {}
    """

    loss: Loss | None = None
    coupled: bool = False
    tolerance: float = 1e-5
    features: int = 4

    # ------------------------------------------------------------------ data; a subclass may override it
    def targets(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        """Targets that the loss is defined for: by its `target_kind`, real ones not negative."""
        kind = self.under_test("loss").target_kind
        if kind == "real":
            return rng.gamma(2.0, 1.0, size=rows)
        return rng.integers(2 if kind == "binary" else 3, size=rows)

    def blocks(self, weighted: bool = True) -> list[Block]:
        """Uneven blocks: one without rows, one with a single row, one with weights of which some are zero."""
        rng = np.random.default_rng(5)
        blocks: list[Block] = []
        for rows in (12, 9, 0, 15, 1, 6):
            blocks.append((0.7 * rng.normal(size=(rows, self.features)), self.targets(rng, rows)))
        if weighted:
            weights = rng.uniform(0.5, 2.0, size=9)
            weights[[2, 5]] = 0.0
            blocks[1] = (*blocks[1], weights)
        return blocks

    def problem(self, blocks: list[Block] | None = None, loss: Loss | None = None) -> Problem:
        loss = self.under_test("loss") if loss is None else loss
        return Problem(loss, Zero(), self.blocks() if blocks is None else blocks)

    def shard(self, blocks: list[Block] | None = None, loss: Loss | None = None) -> Shard:
        return self.problem(blocks, loss).shard(torch.float64, CPU)

    def draw(self, shape: Sequence[int], seed: int, scale: float = 0.5) -> Tensor:
        return scale * torch.from_numpy(np.random.default_rng(seed).normal(size=tuple(shape)))

    def at(self, shard: Shard, seed: int = 1) -> Point:
        return shard.linearize(self.draw(shard.shape, seed))

    # ------------------------------------------------------------------ derivatives
    def test_shapes_and_kinds(self) -> None:
        shard = self.shard()
        point = self.at(shard)
        for name, x, shape in (
            ("value", point.value, shard.shape[:1]),
            ("grad", point.grad, shard.shape),
            ("hvp", point.hvp(point.u), shard.shape),
            ("hessian_diagonal", point.hessian_diagonal(), shard.shape),
        ):
            need(tuple(x.shape) == tuple(shape), f"{name} has shape {tuple(x.shape)} instead of {tuple(shape)}")
            need(x.dtype == torch.float64, f"{name} is {x.dtype} where the blocks are float64")
            need(bool(x.isfinite().all()), f"{name} is not finite")

    def test_gradient_is_the_slope_of_the_value(self) -> None:
        shard = self.shard()
        point = self.at(shard)
        for seed in range(3):
            P = self.draw(shard.shape, 10 + seed, 1.0)
            slopes = []
            for h in (STEP, STEP / 2):
                ahead, behind = (shard.linearize(point.u + t * P).value for t in (h, -h))
                slopes.append((ahead - behind) / (2 * h))
            there = (4 * slopes[1] - slopes[0]) / 3
            scale = float(point.grad.norm() * P.norm()) + 1e-3 * float(point.value.abs().max())
            close("⟨grad, P⟩", (point.grad * P).flatten(1).sum(1), there, self.tolerance, scale)

    def test_hessian_is_the_slope_of_the_gradient(self) -> None:
        shard = self.shard()
        point = self.at(shard)
        for seed in range(3):
            P = self.draw(shard.shape, 20 + seed, 1.0)
            ahead, behind = (shard.linearize(point.u + t * P).grad for t in (STEP, -STEP))
            there = (ahead - behind) / (2 * STEP)
            close("hvp", point.hvp(P), there, 10 * self.tolerance, float(there.norm() + 1e-3 * point.grad.norm()))

    def test_hessian_is_symmetric_and_not_negative(self) -> None:
        shard = self.shard()
        point = self.at(shard)
        for seed in range(5):
            P, Q = self.draw(shard.shape, 30 + seed, 1.0), self.draw(shard.shape, 40 + seed, 1.0)
            HP, HQ = point.hvp(P), point.hvp(Q)
            scale = float(HP.norm() * Q.norm())
            close("⟨Q, HP⟩", (Q * HP).flatten(1).sum(1), (P * HQ).flatten(1).sum(1), SAME_NUMBER, scale)
            least = float((P * HP).flatten(1).sum(1).min())
            need(least >= -SAME_NUMBER * scale, f"⟨P, HP⟩ is {least:.1e}: the loss is not convex")

    def test_several_right_hand_sides_at_once(self) -> None:
        shard = self.shard()
        point = self.at(shard)
        P = self.draw((*shard.shape, 3), 50)
        one_by_one = torch.stack([point.hvp(P[..., k].clone()) for k in range(3)], -1)
        close("hvp of (B, m, C, k)", point.hvp(P), one_by_one, SAME_NUMBER)
        close("hessian.hvp", point.hessian.hvp(P[..., 0]), one_by_one[..., 0], SAME_NUMBER)

    def test_hessian_diagonal(self) -> None:
        shard = self.shard()
        point = self.at(shard)
        B, m, C = shard.shape
        units = torch.eye(m * C, dtype=torch.float64).reshape(m, C, m * C).expand(B, m, C, m * C)
        whole = point.hvp(units.clone()).reshape(B, m * C, m * C)
        close(
            "hessian_diagonal", point.hessian_diagonal(), whole.diagonal(dim1=1, dim2=2).reshape(B, m, C), SAME_NUMBER
        )

    def test_nothing_is_written_into_what_is_given(self) -> None:
        shard = self.shard()
        u, P = self.draw(shard.shape, 1), self.draw(shard.shape, 2)
        kept = u.clone(), P.clone(), shard.target.clone(), shard.row_weight.clone()
        point = shard.linearize(u)
        first = point.value.clone(), point.grad.clone(), point.hvp(P).clone()
        _ = point.line(P).at(torch.ones(shard.blocks, dtype=torch.float64)).grad, point.hessian_diagonal()
        for x, y in zip((u, P, shard.target, shard.row_weight), kept, strict=True):
            need(torch.equal(x, y), "an argument has changed")
        for x, y in zip((point.value, point.grad, point.hvp(P)), first, strict=True):
            need(torch.equal(x, y), "a point that was asked twice gave two answers")

    # ------------------------------------------------------------------ convexity
    def test_convex_along_a_line(self) -> None:
        shard = self.shard()
        u, w = self.draw(shard.shape, 60, 1.5), self.draw(shard.shape, 61, 1.5)
        t = torch.linspace(0, 1, 9, dtype=torch.float64)
        values = torch.stack([shard.linearize(u + x * (w - u)).value for x in t])
        bend = values[:-2] + values[2:] - 2 * values[1:-1]
        need(
            float(bend.min()) >= -SAME_NUMBER * float(values.abs().max()), f"second difference {float(bend.min()):.1e}"
        )
        point = shard.linearize(u)
        above = shard.linearize(w).value - point.value - (point.grad * (w - u)).flatten(1).sum(1)
        need(float(above.min()) >= -SAME_NUMBER * float(values.abs().max()), "the value falls below a tangent")

    def test_points_of_a_line(self) -> None:
        shard = self.shard()
        point, P = self.at(shard), self.draw(shard.shape, 70)
        t = torch.linspace(-0.5, 1.5, shard.blocks, dtype=torch.float64)
        ahead, there = point.line(P).at(t), shard.linearize(point.u + t[:, None, None] * P)
        close("u of a line", ahead.u, there.u, SAME_NUMBER)
        close("value of a line", ahead.value, there.value, 10 * SAME_NUMBER)
        close("grad of a line", ahead.grad, there.grad, 10 * SAME_NUMBER)
        close("hvp of a line", ahead.hvp(P), there.hvp(P), 10 * SAME_NUMBER)

    # ------------------------------------------------------------------ rows and blocks
    def test_blocks_do_not_depend_on_who_shares_their_process(self) -> None:
        whole, P = self.at(self.shard()), self.draw(self.shard().shape, 2)
        parts = (whole.value, whole.grad, whole.hvp(P), whole.hessian_diagonal())
        for count in (2, len(self.blocks())):
            first, alone = 0, []
            for shard in shards_of(self.problem(), count, torch.float64, CPU):
                some = slice(first, first := first + shard.blocks)
                point = shard.linearize(whole.u[some])
                alone.append((point.value, point.grad, point.hvp(P[some]), point.hessian_diagonal()))
            names = ("value", "grad", "hvp", "hessian_diagonal")
            for name, x, pieces in zip(names, parts, zip(*alone, strict=True), strict=True):
                close(f"{name} in {count} shards", torch.cat(pieces), x, SAME_NUMBER)

    def test_a_block_without_rows_is_zero(self) -> None:
        shard = self.shard()
        point, empty = self.at(shard), [len(b[1]) for b in self.blocks()].index(0)
        for name, x in (("value", point.value), ("grad", point.grad), ("hvp", point.hvp(point.u))):
            need(not bool(x[empty].any()), f"{name} of a block without rows is not zero")

    def test_rows_of_weight_zero_are_not_there(self) -> None:
        """Not even where their loss is infinite."""
        X, y, w = self.blocks()[1]
        far = np.where(w[:, None] == 0, 1e6, X)
        with_them, without = [(far, y, w)], [(X[w > 0], y[w > 0], w[w > 0])]
        others: list[Block] = self.blocks()[3:4]  # all classes occur in either case
        a, b = self.at(self.shard(with_them + others)), self.at(self.shard(without + others))
        close("value", a.value, b.value, SAME_NUMBER)
        close("grad", a.grad, b.grad, SAME_NUMBER)
        close("hvp", a.hvp(a.u), b.hvp(b.u), SAME_NUMBER)

    def test_a_row_of_weight_two_counts_twice(self) -> None:
        X, y = self.blocks()[3][:2]
        twice = np.r_[np.arange(15), [0, 4, 7]]
        weights = np.ones(15)
        weights[[0, 4, 7]] = 2.0
        a, b = self.at(self.shard([(X, y, weights)])), self.at(self.shard([(X[twice], y[twice])]))
        close("value", a.value, b.value, SAME_NUMBER)
        close("grad", a.grad, b.grad, SAME_NUMBER)
        close("hvp", a.hvp(a.u), b.hvp(b.u), SAME_NUMBER)

    def test_blocks_add_up_to_the_loss_of_all_rows(self) -> None:
        """However rows are split; not where rows of a block interact."""
        if self.coupled:
            return
        blocks = self.blocks(weighted=False)
        X, y = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        for name in ("sum", "pooled"):
            loss = replace(self.under_test("loss"), reduction=name)
            split, whole = self.shard(blocks, loss), self.shard([(X, y)], loss)
            v, P = self.draw(whole.shape[1:], 3), self.draw(whole.shape[1:], 4)
            many, one = split.linearize(split.expand(v)), whole.linearize(whole.expand(v))
            close(f"value, {name}", many.value.sum(), one.value[0], SAME_NUMBER)
            close(f"grad, {name}", many.grad.sum(0), one.grad[0], SAME_NUMBER)
            hvps = many.hvp(split.expand(P).clone()).sum(0), one.hvp(whole.expand(P).clone())[0]
            close(f"hvp, {name}", *hvps, SAME_NUMBER)

    def test_reductions_are_multiples_of_the_sum(self) -> None:
        if self.coupled:
            return
        loss, blocks = self.under_test("loss"), self.blocks()
        totals = [float(b[2].sum()) if len(b) > 2 else float(len(b[1])) for b in blocks]
        summed = self.at(self.shard(blocks, replace(loss, reduction="sum")))
        for name, divisor in (("mean", totals), ("pooled", [sum(totals)] * len(totals))):
            point = self.at(self.shard(blocks, replace(loss, reduction=name)))
            scale = torch.tensor([1 / t if t > 0 else 1.0 for t in divisor], dtype=torch.float64)
            close(f"value, {name}", point.value, scale * summed.value, SAME_NUMBER)
            close(f"grad, {name}", point.grad, scale[:, None, None] * summed.grad, SAME_NUMBER)

    def test_single_precision_is_kept(self) -> None:
        shard, wide = self.problem().shard(torch.float32, CPU), self.at(self.shard())
        point = shard.linearize(wide.u.float())
        for name, x, y in (
            ("value", point.value, wide.value),
            ("grad", point.grad, wide.grad),
            ("hvp", point.hvp(point.u), wide.hvp(wide.u)),
        ):
            need(x.dtype == torch.float32, f"{name} is {x.dtype} where the blocks are float32")
            close(f"{name} in float32", x.double(), y, 1e-3 if name == "hvp" else 1e-4)

    # ------------------------------------------------------------------ declared properties
    def test_conjugate_belongs_to_the_loss(self) -> None:
        """Fenchel: equality at the slopes themselves, an inequality elsewhere. Nothing to check without one."""
        shard = self.shard()
        point = self.at(shard)
        offered = point.conjugate(1.0)
        counts = shard.design.sum_rows(shard.row_weight) > 0
        if offered is None or not bool(offered[counts].isfinite().any()):
            return
        linear = (point.grad * point.u).flatten(1).sum(1)
        scale = float((point.value.abs() + linear.abs()).max())
        close("f + f* at the slopes", point.value + offered, linear, 1e-8, scale)
        for seed, share in enumerate((0.0, 0.3, 0.9, 1.0)):
            bound = point.conjugate(share)
            assert bound is not None
            need(not bool(bound.isnan().any()), f"the conjugate at {share} times the slopes is NaN")
            there = self.at(shard, 80 + seed)
            least = share * (point.grad * there.u).flatten(1).sum(1) - there.value
            need(bool((bound >= least - 1e-8 * scale).all()), f"the conjugate at {share} times the slopes is too small")

    def test_claims_about_curvature(self) -> None:
        """quadratic, concordance, bend: along a line that moves logits by at most `reach`."""
        shard, loss = self.shard(), self.under_test("loss")
        point, P = self.at(shard), self.draw(shard.shape, 90, 1.0)
        far = shard.linearize(point.u + P)
        H0, H1 = ((P * x.hvp(P)).flatten(1).sum(1) for x in (point, far))
        if loss.quadratic:
            close("the Hessian of a quadratic loss elsewhere", far.hvp(P), point.hvp(P), SAME_NUMBER)
        XP = shard.design.forward(P)
        if math.isfinite(loss.concordance):
            reach = float(XP.norm(dim=1).max())
            most = math.exp(min(loss.concordance * reach, 500.0))
            slack = SAME_NUMBER * float(H0.max())
            need(bool((most * H0 + slack >= H1).all() and (most * H1 + slack >= H0).all()), "concordance is too small")
            near = min(1.0, 0.1 / max(loss.concordance * reach, 1e-300))  # where the bound is close to 1
            close_by = shard.linearize(point.u + near * P)
            H1, most = (P * close_by.hvp(P)).flatten(1).sum(1), math.exp(loss.concordance * near * reach)
            need(bool((most * H0 + slack >= H1).all() and (most * H1 + slack >= H0).all()), "concordance is too small")
        if math.isfinite(loss.bend):
            squares = shard.design.sum_rows(shard.row_weight * XP.square().sum(1))
            need(bool((loss.bend * squares * (1 + 1e-9) >= H0).all()), f"curvature exceeds bend = {loss.bend}")

    def test_claims_about_values(self) -> None:
        """row_infimum and gauge."""
        shard, loss = self.shard(), self.under_test("loss")
        y = shard.target if shard.target.dtype == torch.int64 else shard.target.double()
        infimum = loss.row_infimum(y)
        need(
            infimum.shape == y.shape[:1],
            f"row_infimum has shape {tuple(infimum.shape)}, one number per row is asked for",
        )
        if not self.coupled:
            least = shard.design.sum_rows(shard.row_weight * infimum)
            for seed in range(4):
                value = self.at(shard, 100 + seed).value
                need(bool((value >= least - 1e-9 * (1 + least.abs())).all()), "a value lies below row_infimum")
        if loss.gauge:
            point = self.at(shard)
            moved = shard.linearize(point.u + self.draw((*shard.shape[:2], 1), 110))
            close("the value after a change of gauge", moved.value, point.value, 1e-9)

    # ------------------------------------------------------------------ in a run
    def test_a_run_finds_the_optimum(self) -> None:
        """Of the loss and a ridge, against scipy's L-BFGS."""
        loss, blocks = self.under_test("loss"), self.blocks()
        shard = self.shard()

        def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
            v = torch.from_numpy(x).reshape(shard.shape[1:])
            point = shard.linearize(shard.expand(v))
            return float(point.value.sum() + v.square().sum() / 2), (point.grad.sum(0) + v).numpy().ravel()

        start = np.zeros(math.prod(shard.shape[1:]))
        oracle = minimize(objective, start, jac=True, method="L-BFGS-B", options={"gtol": 1e-9, "maxiter": 5000})
        for method in ("c-admm", "auto"):
            result = solve(Problem(loss, L2(1.0), blocks), method, certificate_tol=1e-9, max_iter=2000)
            need(str(result.status) in ("converged", "rounding"), f"{method}: {result.message}")
            off = abs(result.objective - oracle.fun) / max(1.0, abs(oracle.fun))
            need(off < 1e-6, f"{method}: the objective is {result.objective:.9g}, scipy finds {oracle.fun:.9g}")
