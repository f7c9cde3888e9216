"""What a run is expected to cost, method by method: rounds × round_cost + numbers that one worker sends.

`round_cost` is what a round costs beside the numbers it carries, in numbers: how many a link carries during one
round trip. Rounds to a gap of 10⁻⁶ are estimated from measurements on tables and images (results/rounds); a run that
proves them wrong switches its method (`method`).

The sums of round 0 say how hard a problem is.

Shapes: m features, C columns, n = mC unknowns, N blocks; G, l2 (m, C), spread (m,).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from auqadmm.core.state import ROUND_COST, Setup
from auqadmm.methods.auq_lr.method import FEWEST_COUPLED, MOST_DIRECTIONS, coupled_directions
from auqadmm.methods.newton.method import HESSIAN_ROOM
from auqadmm.methods.newton.working_set import affordable, full_hessian_numbers, numbers, some_rest

if TYPE_CHECKING:
    from auqadmm.blocks.loss import Loss
    from auqadmm.problem.regularizers import Regularizer

__all__ = ["ROUND_COST", "CostEstimate", "Facts", "estimates"]

# Rounds of Newton's method: squares, smooth losses, and what corners add for every factor e; with a working set, and
# what it adds on squares whenever it has to double
NEWTON_SQUARES, NEWTON_SMOOTH, NEWTON_CORNERS, NEWTON_ACTIVE, NEWTON_DOUBLED = 2.0, 7.0, 4.0, 8.0, 2.0
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
LR_HINGED = 2.0  # times n: numbers of a round in all, of a hinge
# where classes are coupled: how often weights are sent, in all and a round; from which directions on rounds fall by
# which power of them; rounds after which a verdict by products is run in any case, and its numbers, times n
LR_RENEWALS, LR_COUPLED_FROM, LR_COUPLED_POWER, LR_VERDICT = (4.5, 0.25), 55, 0.3, (16, 40.0)
LR_NEAR, LR_FARTHER = 1e2, 0.15  # how far logits may have to move; beyond, rounds grow with this power
# of L-BFGS, and of FISTA where g has kinks
GRADIENT, PROXIMAL = 300.0, 3000.0
LBFGS_LEAST = 8.0  # of L-BFGS, however easy
GRADIENT_MOST = 4.0, 0.4  # times this power of the stiffness, however hard
# of L-BFGS with the weights of AUQ-LR: not known, one column, several, and where those of AUQ-LR would couple classes
# (times this power of the features)
W_UNKNOWN, W_SMOOTH, W_CLASSES, W_UNCOUPLED = 60.0, 2.2, 1.8, (0.4, 0.3)
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
    them. Infinite: not known, or no l2. `spread`: of the target. `coupled`: directions in which weights of AUQ-LR
    couple the classes, 0: none.
    `rows`: of all blocks, 0 where they are not known; `empty`: features that are zero in every row."""

    blocks: int
    features: int
    columns: int
    loss: Loss
    g: Regularizer
    movers: int | None = None
    stiff: float = math.inf
    far: float = math.inf
    spread: float = 1.0
    coupled: int = 0
    rows: int = 0
    empty: int = 0

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
    if loss.cornered and math.isfinite(facts.far):  # logits that hardly move
        rounds = min(rounds, 6 + 2 * math.log(max(facts.far, 1.0)))
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
    if full_hessian_numbers(loss, shape) > HESSIAN_ROOM:
        return None
    size = full_hessian_numbers(loss, (facts.features - facts.empty, facts.columns))
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
        rounds *= (max(facts.coupled, LR_COUPLED_FROM) / LR_COUPLED_FROM) ** -LR_COUPLED_POWER
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
        sent = rounds + (_coupled(facts, rounds) if facts.coupled else weights)
    return CostEstimate("auq-lr", rounds, sent * n, "curvature weights need the fewest rounds for their size")


def _coupled(facts: Facts, rounds: float) -> float:
    """Numbers of weights that couple classes, and of the verdict of a long run, over n."""
    r, C = facts.coupled, facts.columns
    renewal = C * (C - 1) // 2 * numbers(r) + facts.features * r + facts.unknowns
    sent = min(LR_RENEWALS[0], LR_RENEWALS[1] * rounds) * renewal
    return sent / facts.unknowns + (LR_VERDICT[1] if rounds > LR_VERDICT[0] else 0.0)


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
    if facts.coupled:
        rounds *= max(1.0, W_UNCOUPLED[0] * facts.features ** W_UNCOUPLED[1])
    rounds = max(rounds, W_AFTER * _lowrank(facts, round_cost).rounds)
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


# ---------------------------------------------------------------------- facts, from the sums of round 0


def facts_of(setup: Setup) -> Facts:
    """The facts that the choice depends on."""
    known = (setup.blocks, setup.features, setup.columns, setup.loss, setup.regularizer)
    stiff, far = hardness(setup)
    coupled = coupled_directions(setup, setup.round_cost)
    coupled = min(coupled, MOST_DIRECTIONS, setup.features) if coupled >= FEWEST_COUPLED else 0
    empty = 0 if setup.seen is None else int(setup.seen.empty.sum())
    return Facts(*known, would_move(setup), stiff, far, spread_of(setup), coupled, setup.rows, empty)


def spread_of(setup: Setup) -> float:
    """The scale for widths of corners: the spread of the target, about zero where there is no intercept."""
    if setup.seen is None:
        return 1.0
    return setup.seen.target_spread if setup.intercept else setup.seen.target_size


def hardness(setup: Setup) -> tuple[float, float]:
    """`Facts.stiff` and `Facts.far`, from the squares of columns and the gradient at zero."""
    seen, loss = setup.seen, setup.loss
    if seen is None or not hasattr(loss, "row_value") or not seen.weight > 0:
        return math.inf, math.inf
    some = slice(None, -1) if setup.intercept else slice(None)
    G = seen.slopes(seen.start)
    filled = ~seen.empty[some]
    l2 = setup.regularizer.convexity(torch.zeros_like(G))[some][filled]
    least = float(l2.min()) if l2.numel() else 0.0
    if not least > 0:
        return math.inf, math.inf
    trace = float(seen.spread[some][filled].sum())
    far = math.sqrt(trace / seen.weight) * float(G[some].norm()) / least
    spread = spread_of(setup)
    if loss.dispersed and spread > 0:  # few rows have curvature at a time; and logits move in units of the target
        loss, far = loss.eased(loss.easing(spread)), far / spread
    return bend_at_zero(loss, setup.columns) * trace / least, far


def bend_at_zero(loss: object, columns: int) -> float:
    """The largest curvature of a row whose logits are zero, and its target too if that is a real number."""
    kind = loss.target_kind  # type: ignore[attr-defined]
    y = torch.ones(1, dtype=torch.float64) if kind == "binary" else torch.zeros(1, dtype=torch.float64)
    y = y.long() if kind == "classes" else y
    z = torch.zeros(1, columns, dtype=torch.float64)
    return float(loss.row_curvature(loss.prepare(z), y).diagonal().max())  # type: ignore[attr-defined]


def would_move(setup: Setup) -> int | None:
    """How many unknowns leave zero by their own prox step, from the gradient of round 0."""
    seen = setup.seen
    if seen is None or not setup.regularizer.separable:
        return None
    G = seen.slopes(seen.start)
    D = seen.spread[:, None].expand(G.shape)
    zero = torch.zeros_like(G)
    return int((setup.regularizer.prox(-G, D) != setup.regularizer.prox(zero, D)).sum())
