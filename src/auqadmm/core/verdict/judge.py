"""The rule that decides `converged`, for every method, loss, regularizer and engine (docs/theory.md).

    δ(v)      the predicted decrease of one proximal Newton step, exactly (`model`) or bounded from above (`large`)
    proved    gap ≤ δ·2(x + (1−x)ln(1−x))/x², x = R√(2δ) < 1, R = M·max_i ‖x_i‖ in the norm of (H + l2)⁻¹;
              or a duality gap that is small enough by itself
    estimated x ≥ 1, but a second look at v + d finds the model true: δ(v + d) ≤ δ/4, and F fell by δ, give or take half
    rounding  δ is below what the rounding of logits makes of it: no arithmetic of this precision gets further
    none      singular to rounding, no bound at hand, or the model does not hold

What rounds it takes is counted like any other round, and apart.

Shapes: m features, C columns; v, G (m, C).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from auqadmm.core.certificate import Certificate, score
from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Setup
from auqadmm.core.triangles import unpacked
from auqadmm.core.verdict import large
from auqadmm.core.verdict.asks import Conjugate, DiagonalReach, Null, Reach, Sketch, Triangle, moments
from auqadmm.core.verdict.columns import Columns
from auqadmm.core.verdict.duality import full_gap, lifted
from auqadmm.core.verdict.model import CONSTANT, EPS, HOME, Model

MOST = 4096  # unknowns whose triangle is formed at most
ALWAYS = 2**17  # numbers of a triangle that are never too many; beyond, as many as the data have
POWER = 16
UNTOLD = 8.0  # roundings of F that a duality gap is added up from
OWN = 512  # unknowns of a loss of the user's own, whose Hessian takes a product for each
SHARE = 1 / 8  # of the data, where products would do as well
FAN, SEARCHES = 33, 4  # constants that are tried at once, and how often, closer each time
MARGIN = 4.0  # on an estimate: two points are not all
EXPLAINED = 1e-4  # of F: the least that counts as explained


@dataclass(frozen=True)
class Verdict:
    """A certificate, and what the next question may be judged by: the model it came from and the step it found."""

    certificate: Certificate
    model: Model | None = None
    preconditioner: Any = None
    inflation: float = 1.0
    floor: float = 0.0


def inflation(x: float) -> float:
    """gap ≤ inflation(x)·δ where x = R√(2δ) < 1; at most 2, infinite beyond."""
    if not x < 1:
        return math.inf
    return 1.0 + x / 3 if x < 1e-4 else 2 * (x + (1 - x) * math.log1p(-x)) / x**2


class Judge:
    """Asks the blocks, and says what is known of v. Remembers what round 0 found and the null model."""

    def __init__(self, reduce: Reduce, setup: Setup) -> None:
        self.reduce, self.setup, self.g = reduce, setup, setup.regularizer
        self.loss = setup.loss
        self.columns: Columns | None = None
        self.null: float | None = None
        self.constant: tuple[int, ...] = ()
        self.gram: Tensor | None = None  # the triangle of a loss whose Hessian is the same everywhere

    def begin(self) -> None:
        """Round 0."""
        if self.columns is None:
            sums = self.reduce.judging(moments, None)
            self.columns = Columns.of(sums, self.setup.intercept, self.loss, self.setup.columns)

    # ------------------------------------------------------------------ what costs nothing
    def cheap(self, v: Tensor, sums: Any) -> Certificate:
        """From Σf, Σ∇f and Σ‖∇f‖ at v: objective, KKT residual, and a duality gap that needs no conjugate."""
        G, g = sums["G"], self.g
        parts = [sums["f"], sums["norms"], g.value(v), g.subgradient_distance(v, G)]
        dual = g.dual_scale(-G) == 1.0
        if dual:
            parts += [(G * v).sum(), g.conjugate(-G)]
        f, norms, penalty, distance, *more = torch.stack([x.double() for x in parts]).tolist()  # one look
        objective = f + penalty
        scale = norms + (0.0 if self.columns is None else self.columns.steepness)
        # all gradients vanish (e.g. a zero data matrix): only the distance itself can speak
        kkt = distance / scale if scale > 0 else distance
        gap = lifted([penalty, *more], self.setup.precision) if dual and math.isfinite(objective) else None
        found = Certificate(objective, kkt, gap, notes=self._notes())
        if gap is None or self.columns is None:
            return found
        scale = self.scale(objective)
        return replace(found, gap_bound=gap, relative=over(gap, scale), evidence="proved", scale=scale)

    def scale(self, objective: float, least: bool = True) -> float:
        """What gaps are relative to; the least it can be as long as the null model is not known, or the most."""
        assert self.columns is not None
        F = objective - self.columns.infimum
        F = abs(objective) if F < 0 else F  # a loss of the user's own that falls below its infimum
        if self.null is None:
            return EXPLAINED * F if least else F
        return min(F, max(self.null - objective, EXPLAINED * F))

    def ask_null(self) -> None:
        """One round of one number."""
        assert self.columns is not None
        if self.null is None:
            self._know_null(self.reduce.judging(Null(self.columns.null), None))

    def score(self, v: Tensor) -> Any:
        """The sums of a cheap certificate, where they did not travel with an iteration."""
        return self.reduce.judging(score, v, (v,))

    # ------------------------------------------------------------------ the whole verdict
    def full(self, v: Tensor, tol: float, known: Certificate | None = None) -> Verdict:
        """The verdict at v; `known` is the cheap certificate there."""
        self.begin()
        assert self.columns is not None
        inside = self.columns.inside(v)
        if not bool(inside.isfinite().all()):
            return Verdict(replace(known or Certificate(math.nan), evidence="none", reason="v is not finite."))
        way = self._dense if self.fits_triangle else self._large
        return way(inside, tol, known or Certificate(math.nan))

    @property
    def fits_triangle(self) -> bool:
        """Is the triangle of H cheap against the data?"""
        assert self.columns is not None
        m, C = self.setup.features, self.setup.columns
        own = not hasattr(self.loss, "row_value")
        apart = not own and not self.loss.gauge and C > 1  # columns that do not interact
        p, groups = (m, 1 if self.loss.quadratic else C) if apart else (m * C, 1)
        if own:
            return p <= OWN
        numbers = groups * p * (p + 1) / 2
        share = SHARE if self.g.quadratic else 1.0
        return p <= MOST and numbers <= max(ALWAYS, share * self.columns.held)

    # ------------------------------------------------------------------ with the triangle
    def _dense(self, v: Tensor, tol: float, known: Certificate) -> Verdict:
        columns, M = self.columns, self.loss.concordance
        assert columns is not None
        spread = columns.spread if 0 < M < math.inf else None
        null = columns.null if self.null is None else None
        if self.gram is None:
            sums = self.reduce.judging(Triangle(columns.centre, spread, null), v, (v,))
        else:
            ask = Sketch(columns.centre, score=True, null=null)
            sums = self.reduce.judging(ask, (v, None), (v,)) | {"H": self.gram}
        self._know_null(sums)
        at = self._at(v, sums, known)
        if isinstance(at, Verdict):
            return at
        if self.loss.quadratic:
            self.gram = sums["H"]
        model = self._model(at, sums)
        at = replace(at, known=replace(at.known, notes=self._notes()))
        v, G = at.v, at.G
        freed, reason = None, ""
        if model.singular:
            reason = self._collinear(model)
            found = self._dual_ahead(at, model.lifted().step(self.g, G, v, 0.01 * tol * at.scale).d)
            if found is not None and found.passes(tol):
                return Verdict(found, floor=at.floor)
            if found is not None and at.untold(found.gap_bound):
                return Verdict(at.rounding(found, found.gap_bound), floor=at.floor)
            freed = self._freed(at, sums) if found is None else None
            if freed is None:
                return Verdict(replace(found or at.known, reason=reason), floor=at.floor)
            model = freed
        step = model.step(self.g, G, v, 0.01 * tol * at.scale) if freed is None else model.newton(G, v)
        delta = at.rounded(model.slack * step.delta)
        # the rows' reach in a diagonal metric came along; the exact one is another round
        x = 0.0 if M == 0 else math.inf
        if spread is not None:
            x = M * _root(sums["reach"]) * math.sqrt(model.reach(spread.to(v)) * 2 * delta)
        bound = inflation(x) * delta if delta > 0 else 0.0
        if bound > tol * at.scale >= delta and math.isfinite(M):
            roots = model.roots()
            reach = self.reduce.judging(Reach(columns.centre), roots.to(self.setup.device), (roots,))
            x = M * _root(reach["reach"]) * math.sqrt(2 * delta)
            bound = inflation(x) * delta
        found = at.judged(delta, bound)
        verdict = Verdict(found, model, None, _foreseen(x, delta, tol * at.scale), at.floor)
        if found.passes(tol):
            return verdict
        found = replace(found, reason=reason)
        if delta <= tol * at.scale and not math.isfinite(bound):
            dual = self._dual_ahead(at, step.d)
            if dual is not None and dual.passes(tol):
                return replace(verdict, certificate=replace(dual, delta=delta))
        if step.delta <= at.floor:
            return replace(verdict, certificate=at.rounding(found))
        if delta > tol * at.scale or math.isfinite(bound):
            return replace(verdict, certificate=found)
        return replace(verdict, certificate=self._second_look(at, step.d, delta, tol, found))

    def _second_look(self, at: _At, d: Tensor, delta: float, tol: float, found: Certificate) -> Certificate:
        """No proof: does the model hold where it leads?"""
        assert self.columns is not None
        there = at.v + d
        sums = self.reduce.judging(Triangle(self.columns.centre, None, None), there.to(self.setup.device), (there,))
        F = float(sums["f"]) + float(self.g.value(there))
        small, fell, after = 0.01 * tol * at.scale, at.F - F, math.inf
        if math.isfinite(F) and bool(sums["G"].isfinite().all()):
            model = self._model(replace(at, v=there), sums)
            if not model.singular:
                after = model.step(self.g, sums["G"].to(there), there, small).delta
        return self._agrees(at, delta, fell, after, small, found)

    def _agrees(
        self, at: _At, delta: float, fell: float, after: float, small: float, found: Certificate
    ) -> Certificate:
        true = after <= max(0.25 * delta, small) and abs(fell - delta) <= max(0.5 * delta, small) + 4 * at.noise
        if not true:
            return replace(found, reason="The quadratic model does not hold where it leads: run on.")
        bound = MARGIN * (max(delta, fell) + 2 * after)
        return replace(found, gap_bound=bound, relative=over(bound, at.scale), evidence="estimated")

    def _freed(self, at: _At, sums: Any) -> Model | None:
        """The model without g, where classes may be shifted together and g forbids it: where v minimises g, F without g
        can fall no less far. None elsewhere, or where that is singular too."""
        g, zero = self.g, torch.zeros_like(at.v)
        least = float(g.value(at.v)) + float(g.conjugate(zero)) == 0
        if not self.loss.gauge or not least or bool(g.convexity(at.v).any()):
            return None
        model = self._model(at, sums, free=True)
        return None if model.singular else model

    def _model(self, at: _At, sums: Any, free: bool = False) -> Model:
        columns = self.columns
        assert columns is not None
        H = unpacked(sums["H"]).to(at.v)
        m, C = at.v.shape
        l2 = self.g.convexity(at.v)
        diagonal = H.diagonal(dim1=1, dim2=2)
        coupled = H.shape[-1] == m * C
        size = diagonal[0].reshape(m, C) if coupled else diagonal.mT.expand(m, C)
        absent = columns.empty.to(l2.device)[:, None].expand(m, C)
        if columns.centre is not None:  # a constant beside the intercept: what centring leaves is rounding
            left = (CONSTANT * EPS * columns.centre.to(l2)).square()[:, None] * size[-1]
            constant = (size <= left) & (columns.centre.to(l2) != 0)[:, None]
            absent = absent | constant
            self.constant = tuple((constant & ~columns.empty.to(l2.device)[:, None]).all(1).nonzero()[:, 0].tolist())
        gauge = None
        if self.loss.gauge and C > 1:
            free = free or self.g.quadratic
            gauge = (l2 == 0).all(1) if free else torch.zeros(m, dtype=torch.bool, device=l2.device)
            if self.setup.intercept:
                gauge[-1] = True
            gauge = gauge & ~absent.all(1)
        return Model.of(H, l2, absent, gauge)

    def _dual_ahead(self, at: _At, d: Tensor) -> Certificate | None:
        """The duality gap with the slopes of v + d, which are nearer to the optimal ones: two rounds."""
        columns, there = self.columns, at.v + d
        assert columns is not None
        inner = self.g.inner if self.setup.intercept else self.g
        G = at.G[:-1] if self.setup.intercept else at.G
        if not hasattr(self.loss, "row_value") or inner.dual_scale(-G) is None:
            return at.known if at.known.duality_gap is not None else None
        here = there.to(self.setup.device)
        E = self._intercept_directions(here)
        sums = self.reduce.judging(Sketch(columns.centre, score=True), (here, E), (here,))
        F = float(sums["f"]) + float(self.g.value(here))
        if not math.isfinite(F) or not bool(sums["G"].isfinite().all()):
            return at.known if at.known.duality_gap is not None else None
        ahead = replace(at, v=here, G=sums["G"], F=F, f=sums["f"], known=replace(at.known, duality_gap=None))
        found = self._dual(ahead, sums.get("HP"))
        known = at.known
        if found is None or found.duality_gap is None:
            return known if known.duality_gap is not None else None
        gap = max(at.F - F, 0.0) + found.duality_gap + at.noise
        if known.duality_gap is not None and known.duality_gap <= gap:
            return known
        return replace(known, duality_gap=gap, gap_bound=gap, relative=over(gap, at.scale), evidence="proved")

    def _intercept_directions(self, v: Tensor) -> Tensor | None:
        """The intercept's unknowns as directions (m, C, C)."""
        if not self.setup.intercept:
            return None
        E = torch.zeros(*v.shape, v.shape[1], dtype=v.dtype, device=v.device)
        E[-1] = torch.eye(v.shape[1], dtype=v.dtype, device=v.device)
        return E

    # ------------------------------------------------------------------ without it
    def _large(self, v: Tensor, tol: float, known: Certificate) -> Verdict:
        columns, C = self.columns, self.setup.columns
        assert columns is not None
        intercept, l2 = self.setup.intercept, self.g.convexity(v)
        kept = torch.ones_like(v, dtype=torch.bool)
        if intercept:
            kept[-1] = False
        bounded = self.g.quadratic and bool((l2[kept] > 0).all())
        directions = E = self._intercept_directions(v)
        if bounded:
            O = large.signs(v, min(large.DIRECTIONS, v.numel()), intercept)
            directions = O if E is None else torch.cat([O, E], 2)
        null = columns.null if self.null is None else None
        ask = Sketch(columns.centre, diagonal=bounded, score=True, null=null)
        sums = self.reduce.judging(ask, (v, directions), (v,))  # directions are seeded, and known to all
        self._know_null(sums)
        at = self._at(v, sums, known)
        if isinstance(at, Verdict):
            return at
        B = sums["HP"][:, :, -C:] if intercept else None
        dual = self._dual(at, B)
        found = dual or at.known
        if found.passes(tol) or not bounded:
            if not found.passes(tol) and found.evidence == "none":
                found = replace(found, reason=self._unbounded_reason())
            elif not found.passes(tol) and at.untold(found.gap_bound):
                found = at.rounding(found, found.gap_bound)
            return Verdict(found, floor=at.floor)
        out = large.Eliminated.of(B, v)
        if not bool(out.inverse.isfinite().all()):
            return Verdict(replace(found, reason="The intercept hardly bends the objective any more."), floor=at.floor)
        HO = out.products(sums["HP"] if B is None else sums["HP"][:, :, :-C])
        Q = large.orthogonal(HO)
        HQ = self._products(v, Q)
        P = large.Preconditioner.of(out.products(HQ), Q, out.diagonal(sums["diagonal"]), l2, kept)
        slopes, base, step = out.slopes(at.G)
        enough = tol * at.scale

        def multiply(p: Tensor) -> Tensor:
            return out.products(self._products(v, p[:, :, None]))[:, :, 0] + torch.where(kept, l2 * p, 0.0)

        r = torch.where(kept, slopes + l2 * v, 0.0)
        of = large.bounds(multiply, P, r, base, enough / 1.3)
        of = replace(of, upper=at.rounded(of.upper))
        M = self.loss.concordance
        x = 0.0 if M == 0 else math.inf
        if 0 < M < math.inf and of.upper <= enough:
            alpha, beta, gamma = large.diagonal_reach(P, out, (v.shape[0], v.shape[1]))
            reach = self.reduce.judging(DiagonalReach(columns.centre, gamma), (alpha, beta), (alpha, beta))
            x = M * math.sqrt(float(reach["reach"]) ** (2 / POWER)) * math.sqrt(2 * of.upper)
        bound = inflation(x) * of.upper
        judged = at.judged(of.upper, bound)
        if dual is not None and dual.gap_bound < judged.gap_bound:
            judged = replace(dual, delta=of.upper)
        asked = of.upper <= enough or M == 0
        verdict = Verdict(judged, None, P, _foreseen(x, of.upper, enough) if asked else 1.0, at.floor)
        if judged.passes(tol):
            return verdict
        if of.upper <= 4 * at.floor:
            return replace(verdict, certificate=at.rounding(judged))
        if of.upper <= enough and not math.isfinite(bound):
            d = of.d.clone()
            if intercept:
                d[-1] = step - out.back(of.d)
            there = v + d
            sums = self.reduce.judging(Sketch(columns.centre, score=True), (there, None), (there,))
            F, G = float(sums["f"]) + float(self.g.value(there)), sums["G"]
            after = math.inf
            if math.isfinite(F):
                slopes, base, _ = out.slopes(G)
                r = torch.where(kept, slopes + l2 * there, 0.0)
                after = base + 0.5 * float((r * P.solve(r)).sum())
            return replace(verdict, certificate=self._agrees(at, of.upper, at.F - F, after, 0.01 * enough, judged))
        if of.lower <= enough < of.upper and not judged.reason:
            more = f"{of.products} Hessian products leave the gap between {over(of.lower, at.scale):.1e} and "
            judged = replace(judged, reason=f"{more}{over(of.upper, at.scale):.1e} of the optimum.")
        return replace(verdict, certificate=judged)

    def _products(self, v: Tensor, P: Tensor) -> Tensor:
        """H P, one counted round: directions go down, products come up."""
        assert self.columns is not None
        return self.reduce.judging(Sketch(self.columns.centre), (v, P), (P,))["HP"]

    def _unbounded_reason(self) -> str:
        n = self.setup.unknowns
        if not self.g.quadratic:
            return (
                f"{n} unknowns are too many for the Hessian itself, and there is no duality gap for this loss and "
                "regularizer: nothing can be proved."
            )
        return (
            f"{n} unknowns are too many for the Hessian itself, and without an L2 term there is no other bound: add "
            "one, however small."
        )

    # ------------------------------------------------------------------ shared
    def _at(self, v: Tensor, sums: Any, known: Certificate) -> _At | Verdict:
        F = float(sums["f"]) + float(self.g.value(v))
        if not math.isfinite(F) or not bool(sums["G"].isfinite().all()):
            return Verdict(replace(known, objective=F, evidence="none", reason=self._infinite(v)))
        scale, floor = self.scale(F), float(sums["floor"])
        home = torch.device("cpu") if self.fits_triangle and self.setup.unknowns <= HOME else v.device
        gap = known.duality_gap
        known = replace(known, objective=F, scale=scale, gap_bound=math.inf, relative=math.inf, evidence="none")
        if gap is not None:
            known = replace(known, gap_bound=gap, relative=over(gap, scale), evidence="proved")
        at = _At(v.to(home), sums["G"].to(home), F, scale, floor, float(sums["noise"]), known, sums["f"])
        assert self.columns is not None
        left = F - self.columns.infimum
        if 0 <= left < floor:
            return Verdict(at.rounding(known), floor=floor)
        return at

    def _dual(self, at: _At, B: Tensor | None) -> Certificate | None:
        """The certificate with the duality gap, at one round where conjugates are needed; None where there is none."""
        assert self.columns is not None
        centre, v = self.columns.centre, at.v
        if at.known.duality_gap is not None:
            return at.known
        if not hasattr(self.loss, "row_value"):
            return None

        def conjugate(scale: float, shift: Tensor | None) -> float:
            here = v.to(self.setup.device)
            return float(self.reduce.judging(Conjugate(centre, scale, shift), here, (here,))["conjugate"])

        B = None if B is None else B.to(v)
        gap = full_gap(self.g, v, float(at.f), at.G, B, conjugate, EPS, at.noise)
        if gap is None:
            return None
        return replace(at.known, duality_gap=gap, gap_bound=gap, relative=over(gap, at.scale), evidence="proved")

    def _know_null(self, sums: Any) -> None:
        if self.null is None and "null" in sums:
            columns = self.columns
            assert columns is not None
            zero = torch.zeros(self.setup.features, self.setup.columns, dtype=torch.float64)
            least = float(sums["null"].min())
            if self.loss.null_searched and self.setup.intercept and columns.target_spread > 0:
                least = min(least, self._searched(columns))
            value = least + float(self.g.value(zero.to(self.setup.device)))
            self.null = value if math.isfinite(value) else math.inf

    def _searched(self, columns: Columns) -> float:
        """The best constant model where it does not follow from means: a few rounds of a fan of constants each."""
        centre, width = columns.null, 4 * columns.target_spread
        best = math.inf
        for _ in range(SEARCHES):
            fan = centre + width * torch.linspace(-1, 1, FAN, dtype=torch.float64, device=centre.device)[:, None]
            values = self.reduce.judging(Null(fan), None, (fan,))["null"]
            best = min(best, float(values.min()))
            centre, width = fan[int(values.argmin())][None], 2 * width / (FAN - 1)
        return best

    def _collinear(self, model: Model) -> str:
        weights = model.weakest()
        names = [self._named(k) for k in (weights > 0.1 * weights.max()).nonzero()[:, 0].tolist()]
        if len(names) <= 1:
            return (
                f"{_listed(names) or 'A column'} hardly bends the objective any more: rows are saturated, or the "
                "column is nearly empty. Nothing can be proved; add an L2 term."
            )
        return (
            f"{_listed(names)} are collinear to rounding: nothing can be proved about that direction. Drop one of "
            "them, or add an L2 term."
        )

    def _notes(self) -> str:
        """Which columns have no say; as far as is known, constants from the first triangle on."""
        if self.columns is None:
            return ""
        empty = self.columns.empty.nonzero()[:, 0].tolist()
        said = []
        for which, one, many in (
            (empty, "is zero in every row: its coefficient has", "are zero in every row: their coefficients have"),
            (self.constant, "is constant beside an intercept: it has", "are constant beside an intercept: they have"),
        ):
            if which:
                said.append(f"{_listed([self._named(k) for k in which])} {one if len(which) == 1 else many} no say.")
        return " ".join(said)

    def _named(self, k: int) -> str:
        if self.setup.intercept and k == self.setup.features - 1:
            return "the intercept"
        names = self.setup.names
        return f"column {k}" if names is None else f"column {names[k]!r}"

    def infinite(self, v: Tensor) -> str:
        """Which block and row make the objective infinite at v."""
        self.begin()
        assert self.columns is not None
        return self._infinite(self.columns.inside(v))

    def _infinite(self, v: Tensor) -> str:
        assert self.columns is not None
        rows = self.reduce.gather(_BadRow(self.columns.centre, v), None)
        bad = (rows != -1).nonzero()[:, 0].tolist()
        if not bad:
            return "The objective is not finite: rescale the features or the targets."
        name, row = self.reduce.engine.names[bad[0]], int(rows[bad[0]])
        where = name if row < 0 else f"{name}, row {row},"
        return f"The loss of {where} is not finite at this model: rescale its features or targets, or start elsewhere."


@dataclass(frozen=True)
class _At:
    """A point that is judged: v and G where the model is computed, F, scale, rounding, and what is known already."""

    v: Tensor
    G: Tensor
    F: float
    scale: float
    floor: float
    noise: float
    known: Certificate
    f: Any

    def rounded(self, delta: float) -> float:
        """What δ may be if every logit is off by its rounding: (√δ + √floor)²."""
        return (math.sqrt(max(delta, 0.0)) + math.sqrt(self.floor)) ** 2

    def judged(self, delta: float, bound: float) -> Certificate:
        gap = self.known.duality_gap
        known = replace(self.known, delta=delta)
        if math.isfinite(bound) and (gap is None or bound <= gap):
            return replace(known, gap_bound=bound, relative=over(bound, self.scale), evidence="proved")
        return known

    def untold(self, gap: float) -> bool:
        """Is a duality gap, a difference of sums, no more than their rounding?"""
        return gap <= UNTOLD * (self.noise + EPS * abs(self.F))

    def rounding(self, found: Certificate, floor: float | None = None) -> Certificate:
        reach = over(self.floor if floor is None else floor, self.scale)
        return replace(
            found,
            evidence="rounding",
            reason=f"Float64 sums of these rows tell objectives apart to about {reach:.0e} of the scale, no further.",
        )


@dataclass(frozen=True)
class _BadRow:
    """Of every block, the first row whose loss is not finite at v in centred columns; −1: none. (B,)"""

    centre: Tensor | None
    v: Tensor

    def __call__(self, shard: Any, blocks: Any) -> Tensor:
        return shard.exact(self.centre).bad_rows(self.v.to(shard.device))


def over(gap: float, scale: float) -> float:
    """gap / scale; nothing is nothing of anything."""
    if gap == 0:
        return 0.0
    return gap / scale if scale > 0 else math.inf


def _root(total: Tensor) -> float:
    return float(total) ** (1 / POWER)


def _foreseen(x: float, delta: float, enough: float) -> float:
    """What a bound will be above δ where δ is just enough: by the theorem, or where that fails, an estimate's."""
    if not delta > 0:
        return 1.0
    there = inflation(x * math.sqrt(enough / delta)) if math.isfinite(x) else math.inf
    return there if math.isfinite(there) else MARGIN


def _listed(names: list[str]) -> str:
    shown = names if len(names) <= 6 else [*names[:5], f"{len(names) - 5} more"]
    text = shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + f" and {shown[-1]}" if shown else ""
    return text[:1].upper() + text[1:]
