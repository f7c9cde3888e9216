"""The rule that decides `converged`, for every method, loss, regularizer and engine (docs/theory.md).

    δ(v)      the predicted decrease of one proximal Newton step, exactly (`model`) or bounded from above (`products`)
    proved    gap ≤ δ·2(x + (1−x)ln(1−x))/x², x = R√(2δ) < 1, R = M·max_i ‖x_i‖ in the norm of (H + l2)⁻¹;
              or a duality gap that is small enough by itself
    estimated x ≥ 1, but evaluating v + d confirms the model: δ(v + d) ≤ δ/4, and F fell by δ, give or take half
    rounding  δ is below its rounding error, from that of the logits: this precision allows no further progress
    none      singular to rounding, no bound available, or the model does not hold

Its rounds count like any other, and also separately.

Shapes: m features, C columns; v, G (m, C).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from auqadmm.core.reduce import Reduce, Sums, score
from auqadmm.core.state import Setup
from auqadmm.core.stopping import Certificate
from auqadmm.verdict.delta import DIRECTIONS, by_products, by_triangle
from auqadmm.verdict.duality import at_least_rounding
from auqadmm.verdict.model import HOST_FAST_UNKNOWNS
from auqadmm.verdict.point import JudgedPoint, Verdict, infinite, notes, relative_to
from auqadmm.verdict.queries import ColumnMoments, NullQuery, moments

# Chosen, not measured one by one; numbers that verdicts send with them: results/verdict.
TRIANGLE_UNKNOWNS = 4096  # unknowns whose triangle is formed at most
TRIANGLE_NUMBERS = 2**17  # numbers of a triangle that are always affordable; beyond, as many as the data have
CUSTOM_LOSS_UNKNOWNS = 512  # unknowns of a user-defined loss, whose Hessian takes a product for each
TRIANGLE_SHARE = 1 / 8  # of the data, where products would do as well
NULL_GRID, NULL_REFINEMENTS = 33, 4  # constants that are tried at once, and how often, on a finer grid each time
NULL_SHIFTS = 12  # how often the grid moves outward before that
HOST_UNKNOWNS = 2**17  # unknowns of a GPU problem up to which the host does the arithmetic
LEAST_EXPLAINED = 1e-4  # of F: the least that counts as explained


class Judge:
    """Queries the blocks, and returns what is known of v. Keeps the result of round 0 and the null model."""

    def __init__(self, reduce: Reduce, setup: Setup) -> None:
        self.reduce, self.setup, self.g = reduce, setup, setup.regularizer
        self.loss = setup.loss
        self.columns: ColumnMoments | None = None
        self.null: float | None = None
        self.constant: tuple[int, ...] = ()
        self.gram: Tensor | None = None  # the triangle of a loss whose Hessian is the same everywhere

    def begin(self) -> None:
        """Round 0."""
        if self.columns is None:
            sums = self.reduce.once(moments)
            self.columns = ColumnMoments.of(sums, self.setup.intercept, self.loss, self.setup.columns)

    # ------------------------------------------------------------------ what costs nothing
    def cheap(self, v: Tensor, sums: Mapping[str, Tensor]) -> Certificate:
        """From Σf, Σ∇f and Σ‖∇f‖ at v: objective, KKT residual, and a duality gap that needs no conjugate, or that the
        method knows."""
        g = self.g
        v, G, f, norms = _near(v, sums["G"], sums["f"], sums["norms"])
        parts = [f, norms, g.value(v), g.subgradient_distance(v, G)]
        dual = g.dual_scale(-G) == 1.0
        if dual:
            parts += [(G * v).sum(), g.conjugate(-G)]
        value, sizes, penalty, distance, *more = torch.stack([x.double() for x in parts]).tolist()  # one transfer
        objective = value + penalty
        scale = sizes + (0.0 if self.columns is None else self.columns.steepness)
        # all gradients vanish (e.g. a zero data matrix): only the distance itself is meaningful
        kkt = distance / scale if scale > 0 else distance
        gap = at_least_rounding([penalty, *more], self.setup.precision) if dual and math.isfinite(objective) else None
        if gap is None and "gap" in sums:
            gap = float(sums["gap"])
        if not self.loss.null_searched:  # else it takes rounds
            self.know_null(sums)
        certificate = Certificate(objective, kkt, gap, notes=notes(self))
        if gap is None or self.columns is None:
            return certificate
        scale = self.scale(objective)
        return replace(certificate, gap_bound=gap, relative=relative_to(gap, scale), evidence="proved", scale=scale)

    def scale(self, objective: float, least: bool = True) -> float:
        """What gaps are relative to; as long as the null model is not known, its lower or upper bound."""
        assert self.columns is not None
        F = objective - self.columns.infimum
        F = abs(objective) if F < 0 else F  # a user-defined loss that falls below its infimum
        if self.null is None:
            return LEAST_EXPLAINED * F if least else F
        return min(F, max(self.null - objective, LEAST_EXPLAINED * F))

    def ask_null(self) -> None:
        """One round of one number."""
        assert self.columns is not None
        if self.null is None:
            self.know_null(self.reduce.judging(NullQuery(self.columns.null), None))

    def score(self, v: Tensor) -> Sums:
        """The sums of a cheap certificate, where an iteration did not include them."""
        return self.reduce.judging(score, v, (v,))

    # ------------------------------------------------------------------ the whole verdict
    def full(
        self, v: Tensor, tol: float, known: Certificate | None = None, sums: Mapping[str, Tensor] | None = None
    ) -> Verdict:
        """The verdict at v; `known` is the cheap certificate there, `sums` the sums of a round at v, if known."""
        self.begin()
        assert self.columns is not None
        inside = self.columns.inside(v)
        if not bool(inside.isfinite().all()):
            return Verdict(replace(known or Certificate(math.nan), evidence="none", reason="v is not finite."))
        known = known or Certificate(math.nan)
        if sums is not None and "H" not in sums and self.fits_triangle and self.g.dual_scale(-sums["G"]) is None:
            sums = None  # only a working set is known, and no duality gap can replace the rest
        if self.fits_triangle if sums is None else "H" in sums:
            return by_triangle(self, inside, tol, known, sums)
        return by_products(self, inside, tol, known, sums)

    @property
    def fits_triangle(self) -> bool:
        """Is the triangle of H cheap compared with the data?"""
        assert self.columns is not None
        p, numbers = self._triangle
        if not hasattr(self.loss, "row_value"):
            return p <= CUSTOM_LOSS_UNKNOWNS
        share = TRIANGLE_SHARE if self.g.quadratic else 1.0
        return p <= TRIANGLE_UNKNOWNS and numbers <= max(TRIANGLE_NUMBERS, share * self.columns.values)

    @property
    def _triangle(self) -> tuple[int, float]:
        """Unknowns that share a Hessian, and numbers of all triangles."""
        m, C = self.setup.features, self.setup.columns
        apart = hasattr(self.loss, "row_value") and not self.loss.gauge and C > 1  # columns that do not interact
        p, groups = (m, 1 if self.loss.quadratic else C) if apart else (m * C, 1)
        return p, groups * p * (p + 1) / 2

    @property
    def price(self) -> float:
        """The estimated cost of a verdict in numbers, without rounds."""
        if not self.fits_triangle:
            return 2.0 * DIRECTIONS * self.setup.unknowns if self.g.quadratic else 0.0
        return 0.0 if self.gram is not None else self._triangle[1]

    @property
    def spent(self) -> float:
        """What the run has cost so far, in numbers."""
        return self.reduce.traffic.rounds * self.setup.round_cost + self.reduce.traffic.up / 8

    # ------------------------------------------------------------------ shared
    def at(self, v: Tensor, sums: Mapping[str, Tensor], known: Certificate) -> JudgedPoint | Verdict:
        F = float(sums["f"]) + float(self.g.value(v))
        if not math.isfinite(F) or not bool(sums["G"].isfinite().all()):
            return Verdict(replace(known, objective=F, evidence="none", reason=infinite(self, v)))
        scale, floor = self.scale(F), float(sums["floor"])
        home = torch.device("cpu") if self.fits_triangle and self.setup.unknowns <= HOST_FAST_UNKNOWNS else v.device
        gap = known.duality_gap
        known = replace(known, objective=F, scale=scale, gap_bound=math.inf, relative=math.inf, evidence="none")
        if gap is not None:
            known = replace(known, gap_bound=gap, relative=relative_to(gap, scale), evidence="proved")
        at = JudgedPoint(v.to(home), sums["G"].to(home), F, scale, floor, float(sums["noise"]), known, sums["f"])
        assert self.columns is not None
        left = F - self.columns.infimum
        if 0 <= left < floor:
            return Verdict(at.rounding(known), floor=floor)
        return at

    def know_null(self, sums: Mapping[str, Tensor]) -> None:
        if self.null is None and "null" in sums:
            columns = self.columns
            assert columns is not None
            zero = torch.zeros(self.setup.features, self.setup.columns, dtype=torch.float64)
            least = float(sums["null"].min())
            if self.loss.null_searched and self.setup.intercept and columns.target_spread > 0:
                least = min(least, self._searched(columns))
            value = least + float(self.g.value(zero.to(self.setup.device)))
            self.null = value if math.isfinite(value) else math.inf

    def _searched(self, columns: ColumnMoments) -> float:
        """The best constant model where it does not follow from means: a few rounds of a fan of constants each. Where
        an end of the fan is best, as for an extreme quantile, the next one begins there and is twice as wide."""
        centre, width = columns.null, 4 * columns.target_spread
        best, closer, moves = math.inf, 0, 0
        while closer < NULL_REFINEMENTS:
            fan = centre + width * torch.linspace(-1, 1, NULL_GRID, dtype=torch.float64, device=centre.device)[:, None]
            values = self.reduce.judging(NullQuery(fan), None, (fan,))["null"]
            best, k = min(best, float(values.min())), int(values.argmin())
            out = closer == 0 and k in (0, NULL_GRID - 1) and moves < NULL_SHIFTS
            closer, moves = (closer, moves + 1) if out else (closer + 1, moves)
            centre, width = fan[k][None], 2 * width if out else 2 * width / (NULL_GRID - 1)
        return best

    def infinite(self, v: Tensor) -> str:
        """The block and row that make the objective infinite at v."""
        self.begin()
        assert self.columns is not None
        return infinite(self, self.columns.inside(v))


def _near(*tensors: Tensor) -> list[Tensor]:
    """Small GPU tensors moved to the host in one transfer: dozens of small operations are faster there."""
    if tensors[0].device.type == "cpu" or tensors[0].numel() > HOST_UNKNOWNS:
        return list(tensors)
    whole = torch.cat([x.double().reshape(-1) for x in tensors]).cpu()
    parts = whole.split([x.numel() for x in tensors])
    return [part.reshape(x.shape) for part, x in zip(parts, tensors, strict=True)]
