"""What a run is expected to cost, method by method: rounds × round_cost + numbers that one worker sends.

`round_cost` is what a round costs beside the numbers it carries, in numbers: how many a link carries during one
round trip. Rounds to a gap of 10⁻⁶ are estimated from measurements on tables and images (results/rounds); a run that
proves them wrong switches its method (`method`).

Shapes: m features, C columns, n = mC unknowns, N blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from auqadmm.core.state import ROUND_COST
from auqadmm.methods.auq_lr.method import MOST_DIRECTIONS
from auqadmm.methods.newton.method import HESSIAN_ROOM
from auqadmm.methods.newton.working_set import affordable, numbers, some_rest, whole

if TYPE_CHECKING:
    from auqadmm.blocks.rows import Loss
    from auqadmm.problem.regularizers import Regularizer

__all__ = ["ROUND_COST", "CostEstimate", "Facts", "estimates"]

# Rounds of Newton's method: squares, smooth losses, and what corners add for every factor e; with a working set, and
# what it adds on squares whenever it has to double
NEWTON_SQUARES, NEWTON_SMOOTH, NEWTON_CORNERS, NEWTON_ACTIVE, NEWTON_DOUBLED = 2.0, 7.0, 4.0, 8.0, 2.0
BENDS, BENDS_STIFF = 7.0, 0.9  # where active rows change one by one, with l2: for every factor e of the stiffness
STAY_ACTIVE = 0.7  # of the unknowns whose own prox step leaves zero: so many end up active
CROWD_FACTOR, CROWD_POWER = 4.0, 0.6  # without l2 they exclude each other: no more than 4·movers^0.6
# of AUQ-LR: squares, one column, several; corners by the number of blocks; kinks of g
LR_SQUARES, LR_SMOOTH, LR_CLASSES, LR_CORNERS, LR_SPLIT, LR_KINKS = 10.0, 14.0, 20.0, 14.0, 0.5, 3.0
# of squares with l2: rounds at a stiffness of 1e5, the power of it for 784 features and at most, what a dearer round
# saves of them, and the directions it buys
LR_EASY, LR_EASY_AT, LR_POWER, LR_POWER_MOST, LR_DEARER = 7.0, 1e5, 0.1, 0.45, 0.2
LR_DIRECTIONS, LR_BOUGHT = 110.0, 0.45
# at least so many, and more where a block has few rows to keep directions of, by the root of what is missing
LR_LEAST, LR_KEPT = 6.0, 250.0
LR_SPARSE, LR_MOVERS = 60.0, 300.0  # and where only kinks keep unknowns at zero, so many that they compete
LR_WEIGHTS = 12.0  # times n: numbers of the weights
LR_COUPLED, LR_HINGED = 4.2, 2.0  # times n: numbers of a round in all, where classes are coupled; of a hinge
LR_NEAR, LR_FARTHER = 1e2, 0.3  # how far logits may have to move; beyond, rounds grow with this power
# of L-BFGS, and of FISTA where g has kinks
GRADIENT, PROXIMAL = 300.0, 3000.0
LBFGS_LEAST = 8.0  # of L-BFGS, however easy
GRADIENT_MOST = 4.0, 0.4  # times this power of the stiffness, however hard
# of L-BFGS with the weights of AUQ-LR: not known, one column, several, and where those of AUQ-LR would couple classes
W_UNKNOWN, W_SMOOTH, W_CLASSES, W_UNCOUPLED = 60.0, 2.2, 1.8, 3.0
W_AFTER = 1.05  # times AUQ-LR: on a tie AUQ-LR goes first, since leaving it loses nothing
# and where logits need not move far: coupled classes (the more features, the less AUQ-LR's directions cover them;
# times the features squared), and hinges, with the numbers of their weights, times n
W_NEAR, W_NEAR_ROUNDS, W_NEAR_POWER, W_NEAR_WEIGHTS = 0.05, 3.0, 0.2, 5.0
W_HINGE, W_HINGE_ROUNDS, W_HINGE_WEIGHTS = 30.0, 2.3, 20.0
W_BENDS = 5.5, 0.3  # where active rows change one after another: times this power of the stiffness
# of squares: the power of the stiffness, that of features per row where there are more (the directions of one block
# then say little of the others), and the numbers of the weights, times n: at most, and times the directions of a block
W_SQUARES, W_WIDE, W_SQUARES_WEIGHTS, W_KEPT = 0.19, 1.3, 80.0, 2.0


@dataclass(frozen=True)
class Facts:
    """What is known before the first iteration; `movers`: unknowns whose own prox step leaves zero; `stiff`: the
    trace of the curvature at zero over the least l2; `far`: by how much logits would move if only l2 opposed
    them. Infinite: not known, or no l2. `spread`: of the target. `coupled`: weights of AUQ-LR couple the classes.
    `rows`: of all blocks, 0 where they are not known."""

    blocks: int
    features: int
    columns: int
    loss: Loss
    g: Regularizer
    movers: int | None = None
    stiff: float = math.inf
    far: float = math.inf
    spread: float = 1.0
    coupled: bool = False
    rows: int = 0

    @property
    def kept(self) -> float:
        """Directions that a block can keep: a quarter of its rows."""
        return max(self.rows / (4 * self.blocks), 1.0) if self.rows else math.inf

    @property
    def unknowns(self) -> int:
        return self.features * self.columns

    def by_stiffness(self, otherwise: float, least: float, factor: float, power: float) -> float:
        """Rounds that grow with a power of it."""
        return least + factor * max(self.stiff, 1.0) ** power if math.isfinite(self.stiff) else otherwise


@dataclass(frozen=True)
class CostEstimate:
    """Of one method: rounds, numbers that one worker sends in all, and why it is considered."""

    method: str
    rounds: float
    numbers: float
    why: str

    def cost(self, round_cost: float) -> float:
        return self.rounds * round_cost + self.numbers


def estimates(facts: Facts, round_cost: float) -> tuple[CostEstimate, ...]:
    """Of every method that can solve the problem, the cheapest first."""
    every = (_newton(facts, round_cost), _lowrank(facts, round_cost), _weighted(facts, round_cost), _gradient(facts))
    known = [e for e in every if e is not None]
    return tuple(sorted(known, key=lambda e: e.cost(round_cost)))


def _newton(facts: Facts, round_cost: float) -> CostEstimate | None:
    n, shape, loss = facts.unknowns, (facts.features, facts.columns), facts.loss
    easing = loss.sharpness(facts.spread)
    rounds = NEWTON_SQUARES if loss.quadratic else NEWTON_SMOOTH
    if not loss.quadratic and math.isfinite(facts.stiff):
        least, factor = (3, 0.5) if facts.columns == 1 else (1, 1.5)
        rounds = least + factor * math.log10(max(facts.stiff, 1.0))
    if easing > 1:
        rounds = NEWTON_CORNERS + math.log(easing)
        if loss.dispersed and math.isfinite(facts.stiff):
            rounds = BENDS + BENDS_STIFF * math.log(max(facts.stiff, 1.0))
    if loss.cornered and math.isfinite(facts.far):
        rounds = 6 + 2 * math.log(max(facts.far, 1.0))
    if some_rest(facts.g, loss, shape, round_cost):
        stay = STAY_ACTIVE * (facts.movers or 0)
        if math.isinf(facts.stiff):
            stay = min(stay, CROWD_FACTOR * (facts.movers or 0) ** CROWD_POWER)
        active = max(affordable(round_cost), int(stay))
        active = n if 2 * active >= n else active
        if loss.quadratic:
            rounds += NEWTON_DOUBLED * math.log2(max(active / affordable(round_cost), 1.0))
        else:
            rounds = max(rounds, NEWTON_ACTIVE)
        triangles = 1.0 if loss.quadratic else rounds
        why = "few unknowns will be active" if active < n else "it needs the fewest rounds"
        return CostEstimate("newton", rounds, triangles * numbers(active) + rounds * n, why)
    size = whole(loss, shape)
    if size > HESSIAN_ROOM:
        return None
    triangles = 1.0 if loss.quadratic else rounds - 1
    return CostEstimate("newton", rounds, triangles * size + rounds * n, f"{n} unknowns make small Hessians")


def _lowrank(facts: Facts, round_cost: float) -> CostEstimate:
    n, N, loss = facts.unknowns, facts.blocks, facts.loss
    weights = LR_WEIGHTS
    if loss.quadratic and math.isfinite(facts.stiff):
        # many features have more stiff directions than weights keep; the dearer a round, the more they keep
        power = min(LR_POWER * max(facts.features / 784, 1.0), LR_POWER_MOST)
        dear = max(round_cost, 1.0) / ROUND_COST
        rounds = LR_EASY * (max(facts.stiff, 1.0) / LR_EASY_AT) ** power * dear**-LR_DEARER
        rounds = max(rounds, LR_LEAST) * math.sqrt(max(1.0, LR_KEPT / facts.kept))
        weights = min(LR_DIRECTIONS * dear**LR_BOUGHT, MOST_DIRECTIONS, facts.features)
    elif loss.quadratic:
        rounds = LR_SQUARES
    elif facts.columns == 1:
        rounds = facts.by_stiffness(LR_SMOOTH, 2, 1.8, 0.2)
    else:
        rounds = facts.by_stiffness(LR_CLASSES, 2, 0.9, 0.3)
    if loss.sharpness(facts.spread) > 4 or loss.cornered:
        rounds = LR_CORNERS * (max(N, 2) / 2) ** LR_SPLIT
        if math.isfinite(facts.far):
            rounds *= max(1.0, facts.far / LR_NEAR) ** LR_FARTHER
    if not facts.g.quadratic:
        rounds = rounds if loss.quadratic and math.isfinite(facts.stiff) else LR_KINKS * rounds
        if math.isinf(facts.stiff) and facts.movers is not None:
            rounds = max(rounds, LR_SPARSE * max(1.0, facts.movers / LR_MOVERS) ** 0.7)
    if loss.cornered:
        sent = LR_HINGED * rounds + W_HINGE_WEIGHTS
    else:
        sent = LR_COUPLED * rounds if facts.coupled else rounds + weights
    return CostEstimate("auq-lr", rounds, sent * n, "curvature weights need the fewest rounds for their size")


def _weighted(facts: Facts, round_cost: float) -> CostEstimate | None:
    """L-BFGS on the weights of AUQ-LR: no local solve that could diverge. For a hinge only near the optimum, for
    squares only with a ridge."""
    loss, n, far = facts.loss, facts.unknowns, facts.far
    why = "curvature weights serve it without local solves"
    if not facts.g.quadratic:
        return None
    if loss.quadratic:
        if math.isinf(facts.stiff):
            return None
        wide = max(1.0, facts.features / facts.rows) ** W_WIDE if facts.rows else 1.0
        rounds = wide * (2 + max(facts.stiff, 1.0) ** W_SQUARES)
        return CostEstimate("lbfgs-w", rounds, (rounds + min(W_KEPT * facts.kept, W_SQUARES_WEIGHTS)) * n, why)
    if loss.cornered or loss.sharpness(facts.spread) > 4:
        rounds = math.inf
        if not loss.cornered:
            rounds = facts.by_stiffness(math.inf, 0, *W_BENDS)
        elif far <= W_HINGE:
            rounds = 3 + W_HINGE_ROUNDS * math.sqrt(far)
        return CostEstimate("lbfgs-w", rounds, (rounds + W_HINGE_WEIGHTS) * n, why) if math.isfinite(rounds) else None
    if facts.coupled and far <= W_NEAR * facts.features**2:
        rounds = W_NEAR_ROUNDS * max(far, 1.0) ** W_NEAR_POWER
        return CostEstimate("lbfgs-w", rounds, (rounds + W_NEAR_WEIGHTS) * n, why)
    several = facts.columns > 1
    rounds = facts.by_stiffness(W_UNKNOWN, 2, *((W_CLASSES, 0.25) if several else (W_SMOOTH, 0.2)))
    rounds = max(rounds * (W_UNCOUPLED if facts.coupled else 1.0), W_AFTER * _lowrank(facts, round_cost).rounds)
    return CostEstimate("lbfgs-w", rounds, (rounds + LR_WEIGHTS) * n, why)


def _gradient(facts: Facts) -> CostEstimate:
    smooth = facts.g.quadratic
    name, rounds = ("lbfgs", GRADIENT) if smooth else ("fista", PROXIMAL)
    if smooth and facts.loss.cornered and math.isfinite(facts.far):
        rounds = 3 + 5 * math.sqrt(facts.far)
    elif smooth:
        most = max(rounds, facts.by_stiffness(rounds, 0, *GRADIENT_MOST))
        rounds = min(facts.by_stiffness(rounds, LBFGS_LEAST, 2.5, 0.5), most)
    return CostEstimate(name, rounds, rounds * facts.unknowns, "a gradient a round is all that this takes")
