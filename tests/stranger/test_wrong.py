"""A suite that nothing fails proves nothing: each of these parts is wrong in one way, and a suite says which."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

import auqadmm as aq
from auqadmm.testing import EngineSuite, EngineTests, LossSuite, MethodSuite, RegularizerSuite
from tests.stranger.stranger_parts.coupled_loss import Within, WithinPoint
from tests.stranger.stranger_parts.engine import Opened, Threads
from tests.stranger.stranger_parts.method import Jacobi
from tests.stranger.stranger_parts.regularizer import Lopsided
from tests.stranger.stranger_parts.row_loss import LogCosh


def fails(suite, law, **attributes):
    """Does this law of the suite notice?"""
    made = type("Wrong", (suite,), attributes)()
    check = made.checks()[law]
    with pytest.raises((AssertionError, ValueError)):
        check()


# ---------------------------------------------------------------------- losses of rows
class Slope(LogCosh):
    def row_slope(self, s, y):
        return 1.01 * super().row_slope(s, y)


class Curved(LogCosh):
    def row_curvature(self, s, y):
        return aq.losses.DiagonalCurvature(torch.ones_like(s))


class Conjugate(LogCosh):
    def row_conjugate(self, a, y):
        return 0.9 * super().row_conjugate(a, y)


class Concave(LogCosh):
    def row_value(self, z, y):
        return -super().row_value(z, y)

    def row_slope(self, s, y):
        return -super().row_slope(s, y)

    def row_curvature(self, s, y):
        return aq.losses.DiagonalCurvature(-super().row_curvature(s, y).diagonal())


class Calm(LogCosh):
    @property
    def concordance(self):
        return 0.1


class Flat(LogCosh):
    @property
    def bend(self):
        return 0.2


class Square(LogCosh):
    quadratic: ClassVar[bool] = True


class Above(LogCosh):
    def row_infimum(self, y):
        return torch.full((len(y),), 3.0, dtype=torch.float64)


class Wide(LogCosh):
    def row_value(self, z, y):
        return super().row_value(z, y).double()


@pytest.mark.parametrize(
    ("loss", "law"),
    [
        (Slope, "gradient is the slope of the value"),
        (Curved, "hessian is the slope of the gradient"),
        (Concave, "hessian is symmetric and not negative"),
        (Concave, "convex along a line"),
        (Conjugate, "conjugate belongs to the loss"),
        (Calm, "claims about curvature"),
        (Flat, "claims about curvature"),
        (Square, "claims about curvature"),
        (Above, "claims about values"),
        (Wide, "single precision is kept"),
    ],
)
def test_wrong_losses_of_rows(loss, law):
    fails(LossSuite, law, loss=loss())


# ---------------------------------------------------------------------- coupled losses
def coupled(**changes):
    """`Within` with some methods of its points replaced."""
    point = type("WrongPoint", (WithinPoint,), changes)

    @dataclass(frozen=True)
    class Wrong(Within):
        def linearize(self, shard, u):
            return point(shard, u)

    return Wrong()


def unweighted(self, z):
    design = self.shard.design
    counts = design.sum_rows(torch.ones_like(z))
    return z - (design.sum_rows(z) / counts.clamp(min=1))[design.block_of_row]


def across_blocks(self, z):
    c = self.shard.row_weight.reshape(-1, *[1] * (z.ndim - 1))
    return c * (z - (c * z).sum(0) / c.sum(0))  # the mean of the process, not of the block


def tilted(self, P):
    HP = WithinPoint.hvp(self, P)
    return HP + 0.01 * torch.roll(P, 1, dims=1)


class Lagging(aq.losses.Line):
    def __init__(self, point, P):
        self.point, self.P = point, P

    def at(self, t):
        return self.point.shard.linearize(self.point.u + 0.99 * t[:, None, None] * self.P)


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"centred": unweighted}, "rows of weight zero are not there"),
        ({"centred": unweighted}, "a row of weight two counts twice"),
        ({"centred": unweighted}, "blocks do not depend on who shares their process"),
        ({"centred": across_blocks}, "blocks do not depend on who shares their process"),
        ({"hvp": tilted}, "hessian is symmetric and not negative"),
        ({"hvp": lambda self, P: WithinPoint.hvp(self, P[..., :1])}, "several right hand sides at once"),
        ({"hessian_diagonal": lambda self: torch.ones_like(self.u)}, "hessian diagonal"),
        ({"line": lambda self, P: Lagging(self, P)}, "points of a line"),
        ({"grad": property(lambda self: 2 * WithinPoint.grad.fget(self))}, "gradient is the slope of the value"),
    ],
)
def test_wrong_coupled_losses(changes, law):
    fails(LossSuite, law, loss=coupled(**changes), coupled=True)


def test_a_coupled_loss_is_not_its_rows():
    fails(LossSuite, "blocks add up to the loss of all rows", loss=Within())


# ---------------------------------------------------------------------- regularizers
class Factor(Lopsided):
    def prox(self, s, K):
        return 1.02 * super().prox(s, K)


class Unscaled(Lopsided):
    def prox(self, s, K):
        return super().prox(s, 1.0) / torch.as_tensor(K).mean()


class Expansive(Lopsided):
    def prox(self, s, K):
        return -super().prox(s, K)


class Nonconvex(Lopsided):
    def value(self, v):
        return v.abs().sqrt().sum()


class OddDistance(Lopsided):
    def subgradient_distance(self, v, grad):
        return super().subgradient_distance(v, grad) + 0.1


class HalfConjugate(aq.L2):
    def conjugate(self, w):
        return 0.5 * super().conjugate(w)


class FarScale(Lopsided):
    def dual_scale(self, w):
        return 1.0


class Strong(Lopsided):
    strong_convexity: ClassVar[float] = 0.5


class Rotated(aq.GroupLasso):
    separable: ClassVar[bool] = True


class Steep(aq.L1):
    def prox_slope(self, s, K):
        return 1.1 * super().prox_slope(s, K)


class Linear(Lopsided):
    quadratic: ClassVar[bool] = True


class Rests(aq.L1):
    def at_rest(self, w, radius):
        return w.abs() < 2 * self.strength


class Writes(Lopsided):
    def prox(self, s, K):
        v = super().prox(s, K)
        s.zero_()
        return v


@pytest.mark.parametrize(
    ("g", "law"),
    [
        (Factor(0.4, 0.7), "prox is optimal"),
        (Unscaled(0.4, 0.7), "prox is optimal"),
        (Expansive(0.4, 0.7), "prox is nonexpansive"),
        (Nonconvex(0.4, 0.7), "value is convex"),
        (OddDistance(0.4, 0.7), "subgradient distance"),
        (HalfConjugate(0.7), "conjugate belongs to the value"),
        (FarScale(0.4, 0.7), "dual scale ends at the domain of the conjugate"),
        (Strong(0.4, 0.7), "strong convexity"),
        (Rotated(0.5), "separable means entry by entry"),
        (Steep(0.5), "separable means entry by entry"),
        (Linear(0.4, 0.7), "quadratic means a linear map"),
        (Rests(0.5), "unknowns at rest are zero"),
        (Writes(0.4, 0.7), "nothing is written into what is given"),
        (Factor(0.4, 0.7), "consensus step in a metric with low rank"),
    ],
)
def test_wrong_regularizers(g, law):
    fails(RegularizerSuite, law, regularizer=g)


# ---------------------------------------------------------------------- methods
class Multiplier(Jacobi):
    """λ loses a tenth in every iteration, and blocks never agree."""

    def dual(self, shard, blocks, shared):
        new, sums = super().dual(shard, blocks, shared)
        return replace(new, lam=0.9 * new.lam), sums


class Placed(Jacobi):
    """Weights that depend on who shares the process."""

    def first_weights(self, shard, blocks, shared):
        chosen = super().first_weights(shard, blocks, shared)
        return replace(chosen, W=aq.weights.Diagonal(chosen.W.d.mean(0).expand_as(chosen.W.d)))


class Random(Jacobi):
    def first_weights(self, shard, blocks, shared):
        chosen = super().first_weights(shard, blocks, shared)
        return replace(chosen, W=aq.weights.Diagonal(chosen.W.d * (1 + torch.rand(1, dtype=torch.float64))))


class Forgets(Jacobi):
    """Counts in the object what belongs to the state."""

    def weights_due(self, shared):
        vars(self)["seen"] = vars(self).get("seen", 0) + 1
        return self.seen in (2, 6)


class Hidden(Jacobi):
    """Writes into the multipliers that it was given."""

    def dual(self, shard, blocks, shared):
        new, sums = super().dual(shard, blocks, shared)
        blocks.lam.copy_(new.lam)
        return new, sums


class Talkative(Jacobi):
    def separate(self, shared):
        return True


@pytest.mark.parametrize(
    ("method", "law"),
    [
        (Multiplier, "reaches the optimum"),
        (Placed, "the same iterates however blocks are placed"),
        (Random, "deterministic"),
        (Forgets, "a run goes on from its checkpoint"),
        (Hidden, "states are frozen"),
        (Talkative, "rounds per iteration are as declared"),
    ],
)
def test_wrong_methods(method, law):
    fails(MethodSuite, law, method=method(), max_iter=60)


# ---------------------------------------------------------------------- engines
class LosesABlock(Opened):
    def map_sum(self, fn, blocks, shared):
        new, sums = zip(*self.mapped(fn, blocks, shared), strict=True)
        return None if new[0] is None else new, {k: sum(s[k].double() for s in sums[:-1]) for k in sums[0]}


class Disordered(Opened):
    def gather(self, fn, blocks):
        return torch.cat(self.mapped(fn, blocks)[::-1])


class Narrow(Opened):
    def map_minmax(self, fn, blocks, shared):
        new, found = self.mapped(fn, blocks, shared)[0]
        return [new] * len(self.shards), found


def wrong(opened):
    class Place(Threads):
        def place(self, problem, dtype, device):
            return opened(super().place(problem, dtype, device).shards)

    return Place


@pytest.mark.parametrize(
    ("opened", "law"),
    [
        (LosesABlock, "iterates c-admm multinomial"),
        (LosesABlock, "answer elastic-net"),
        (LosesABlock, "primitives"),
        (Disordered, "primitives"),
        (Disordered, "checkpoint rb-admm"),
        (Narrow, "primitives"),
    ],
)
def test_wrong_engines(opened, law):
    fails(EngineTests, law.replace("-", " "), engine=wrong(opened))
    with pytest.raises((AssertionError, ValueError)):
        EngineSuite(wrong(opened)).checks()[law]()


# ---------------------------------------------------------------------- what a suite says
def test_a_suite_without_its_part_says_what_is_missing():
    with pytest.raises(TypeError, match="TestIt must set `loss`"):
        type("TestIt", (LossSuite,), {})().checks()["shapes and kinds"]()


def test_verify_names_every_law_that_fails():
    with pytest.raises(AssertionError, match="prox is optimal: AssertionError: a point lies"):
        type("TestIt", (RegularizerSuite,), {"regularizer": Factor(0.4, 0.7)})().verify()
