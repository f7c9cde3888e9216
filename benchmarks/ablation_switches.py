"""The heuristics of AUQ-LR and of the local solvers, each of them off: what `ablation.py` runs, in this order.

Line counts are those of the code that would go with a heuristic, comments included, counted by hand. Names that begin
with "c:" switch off what only weights without directions use, in C-ADMM.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from ablation_patch import Hit, Patch, Switch, around, instead, returns

AUQLR, METRICS, LOCAL = "auqadmm.methods.auq_lr", "auqadmm.metrics", "auqadmm.local"
CURVATURE = "auqadmm.curvature"
ROUND, SERVER = f"{AUQLR}.blocks", f"{AUQLR}.server"
SCHEDULE = ANDERSON = f"{AUQLR}.server"
POSTERIOR, NEWTON = f"{CURVATURE}.posterior", f"{LOCAL}.newton_cg"
SMOOTH, HINGE, SQUARES = ("multinomial",), ("svm",), ("elastic",)
TABLES = ("table-squares-far", "table-logistic-far")
HARD = ("table-logistic-hard",)
EARLY = (2, 4, 7, 11, 16)
ALL_ROUNDS = tuple(range(2, 2001))


# ---------------------------------------------------------------------- replacements
def _started(closer: float | None, hinge: bool) -> Any:
    """Local solves start at v + closer·(u − v of before), or at u (None); on smooth losses, or on a hinge."""

    def solve(old: Any, hit: Hit, self: Any, shard: Any, W: Any, v: Any, lam: Any, blocks: Any, shared: Any) -> Any:
        if shared.v_prev is None or shard.loss.expects != hinge:
            return old(self, shard, W, v, lam, blocks, shared)
        hit()
        start = blocks.u if closer is None else v + closer * (blocks.u - shard.expand(shared.v_prev))
        return old(self, shard, W, v, lam, replace(blocks, u=start), replace(shared, v_prev=None))

    return around(solve, always=False)


def _kept(old: Any, hit: Hit, self: Any, server: Any, k: int) -> Any:
    """Anderson's memory outlives a renewal of weights."""
    new = old(self, server, k)
    if not new.directive.forget:
        return new
    hit()
    return replace(new, directive=replace(new.directive, forget=False), anderson=server.anderson)


def _with_columns(old: Any, hit: Hit, self: Any, shard: Any, W: Any, v: Any, lam: Any, memory: Any, *rest: Any) -> Any:
    weights, new = old(self, shard, W, v, lam, memory, *rest)
    return weights, {name: memory[name] for name in ("dR", "dS") if name in memory} | new


def _weighed(change: Any) -> Any:
    return around(lambda old, hit, *args: change(old(*args)))


def _no_coupling(W: Any) -> Any:
    C = W.S.shape[-1]
    return replace(W, S=(torch.eye(C, dtype=W.S.dtype, device=W.S.device) / C).expand_as(W.S).contiguous())


def _same_rows(old: Any, hit: Hit, self: Any, shard: Any, point: Any, weights: Any) -> Any:
    if shard.loss.expects:
        hit()
    return point.row_model(None)


def _tolerance(share: float) -> Any:
    return returns(lambda server: share * float(server.z.norm()))


def _both(name: str, make: Any) -> tuple[Patch, ...]:
    return Patch(f"{AUQLR}.method:{name}", make), Patch(f"{SERVER}:{name}", make)


def _next(old: Any, hit: Hit, server: Any, *rest: Any) -> Any:
    from auqadmm.methods.auq_lr.server import next_z

    return next_z(server)


def _unwatched(old: Any, hit: Hit, server: Any, *rest: Any) -> Any:
    if old(server, *rest).directive.home is not None:
        hit()
        return server
    return old(server, *rest)


def _newton_only(old: Any, hit: Hit, self: Any, problem: Any, u0: Any, reference: Any, memory: Any) -> Any:
    from auqadmm.local import hinge, mixed
    from auqadmm.local.newton_cg import NewtonCG

    shard = problem.shard
    small = sum(shard.census.rows) * shard.census.unknowns < mixed.SMALL_PRODUCT
    if not (problem.curved or shard.programs.active or small or hinge.is_applicable(problem)):
        hit()
    return NewtonCG(self.factor, self.tol).solve(problem, u0, reference, memory)


def _forgets(self: Any, problem: Any, memory: Any) -> Any:
    from auqadmm.local.descent import RecalledState
    from auqadmm.local.newton_cg import NewtonCGState

    return RecalledState(NewtonCGState())


def _where(value: Any, counts: Any) -> Any:
    """`value` in place of what is returned; counts where that was something else."""

    def new(old: Any, hit: Hit, *args: Any) -> Any:
        if counts(old(*args)):
            hit()
        return value(*args) if callable(value) else value

    return around(new, always=False)


def _there(x: Any) -> bool:
    return x is not None


def _all_open(problem: Any, open_: Any) -> Any:
    return () if bool(open_.any()) else None


def _rough(old: Any, hit: Hit, shard: Any, u: Any) -> Any:
    if shard.single_precision:
        hit()
    return shard.linearize(u)


def _plain_prox(problem: Any, guess: Any, tol: float) -> Any:
    from auqadmm.metrics.composite import accelerated
    from auqadmm.metrics.vstep import MAX_STEPS

    return accelerated(problem, guess, tol, MAX_STEPS)


NO_CORNERS = (
    Patch(f"{NEWTON}:hinge_applies", _where(False, bool)),
    Patch(f"{LOCAL}.hinge:is_applicable", _where(False, bool)),
)
NO_SECANT = (Patch(f"{NEWTON}:averaged", returns(lambda point, last, width=None: point)),)
NO_DIRECT = (Patch(f"{LOCAL}:direct_suits", _where(False, bool)),)
NO_LIGHT = (Patch("auqadmm.blocks.single_precision:is_applicable", _where(False, bool)),)
DIRECTIONS, WEIGHTS = f"{POSTERIOR}:Posterior.directions", f"{POSTERIOR}:Posterior.weights"
SOLVE, TOLD = f"{ROUND}:BlockRound._solve", f"{SCHEDULE}:Schedule.directed"
IMAGE = ("image",)
INSIDE = "columns.py, blocks/parts.py, wrappers.py"

# ---------------------------------------------------------------------- the catalogue
S = Switch
SWITCHES = (
    # the iteration
    S("alpha-1.6", "α = 1.8: 1.6", "method.py", 0,
      {"relaxation": 1.6}),
    S("alpha-1", "over-relaxation: α = 1", "schedule.py, blocks.py", 12, {"relaxation": 1.0}),
    S("memory-0", "Anderson acceleration", "server.py, blocks.py, …", 205, {"memory": 0}),
    S("memory-8", "16 columns of Anderson's memory: 8", "method.py", 0, {"memory": 8}),
    S("no-step-back", "a step that doubled ‖r‖ is taken back", "server.py, …", 14,
      patches=(Patch(f"{ANDERSON}:Anderson.worse", _where(False, bool)),)),
    S("no-allowance", "accelerated steps stay within a summable distance of plain ones", "server.py", 15,
      patches=(Patch(f"{ANDERSON}:Anderson.allowance", returns(lambda self: torch.inf)),)),
    S("no-ridge", "the ridge 1e-9 on Anderson's Gram matrix", "server.py", 2,
      patches=(Patch(f"{ANDERSON}:ANDERSON_RIDGE", instead(0.0)),), probes=(f"{ANDERSON}:Anderson.coefficients",)),
    S("keep-at-renewal", "Anderson forgets when weights are renewed", "schedule.py, blocks.py", 5,
      patches=(Patch(TOLD, around(_kept, always=False)),
               Patch(f"{ROUND}:BlockRound._renew", around(_with_columns, always=False)))),
    S("no-first-look", "a start whose v does not come from its z is kept for a round", "server.py", 13,
      patches=(Patch(f"{AUQLR}.method:first_z", around(_next)),)),
    # renewals
    S("renew-never", "weights are renewed: those of the start stay", "lowrank_change.py, blocks.py, …", 130,
      {"refresh": ()}),
    S("renew-once", "renewals after the first one (iteration 2)", "schedule.py", 1, {"refresh": (2,)}),
    S("renew-early", "renewals after iteration 16", "method.py", 1, {"refresh": EARLY}),
    S("renew-every", "a schedule: any round may renew", "schedule.py, method.py", 4, {"refresh": ALL_ROUNDS}),
    S("skip-0", "weights that changed by less than a tenth are kept", "lowrank_change.py, blocks.py", 115,
      {"skip": 0.0}),
    S("never-home", "a run whose F has risen goes back to its best v", "server.py, blocks.py", 45,
      patches=(Patch(f"{AUQLR}.method:watch_objective", around(_unwatched, always=False)),)),
    # local solves
    S("start-at-u", "local solves start closer to v: at the last u", "blocks.py", 5,
      patches=(Patch(SOLVE, _started(None, False)),), models=SMOOTH),
    S("start-carried", "the half: v + (u − v of before)", "blocks.py", 1,
      patches=(Patch(SOLVE, _started(1.0, False)),), models=SMOOTH),
    S("start-at-v", "the same: at v", "blocks.py", 3,
      patches=(Patch(SOLVE, _started(0.0, False)),), models=SMOOTH),
    S("start-closer-hinge", "hinges start at the last u", "blocks.py", 1,
      patches=(Patch(SOLVE, _started(0.5, True)),), models=HINGE),
    *(
        S(f"accuracy-{x:g}", f"local solves to 0.07 of ‖r‖: to {0.01 * x:g}", "blocks.py", 3,
          patches=(Patch(f"{ROUND}:ACCURACY", instead(x)),), probes=(SOLVE,), models=SMOOTH + HINGE)
        for x in (1.0, 0.1, 30.0)
    ),
    S("no-summable", "the summable bound on local errors", "method.py", 5,
      patches=(Patch(f"{AUQLR}.method:D", instead(torch.inf)),), probes=(SOLVE,)),
    S("products-any", "a block's local solve takes at most 100 products", "method.py, local/descent.py, base.py", 40,
      {"products": None}, models=SMOOTH + HINGE),
    S("starts-are-ends", "local solves go beyond a start that is good enough", "local/descent.py", 12,
      patches=(Patch(f"{LOCAL}.descent:Tolerance.beyond", returns(lambda self, start: self)),),
      models=SMOOTH + HINGE),
    S("nearly-half", "linear systems of local solves to 0.9 of the goal: to 0.5", "local/newton_cg.py", 2,
      patches=(Patch(f"{NEWTON}:CG_SHARE", instead(0.5)),), probes=(f"{NEWTON}:_newton_system",), models=SMOOTH),
    S("forcing-0.1", "linear systems more exact as gradients shrink: always to 0.1", "local/newton_cg.py", 5,
      patches=(Patch(f"{NEWTON}:_forcing_term", returns(lambda here: torch.full_like(here.grad_norm, 0.1))),),
      models=SMOOTH + HINGE),
    S("no-direct", "factorisations for squares: Newton-CG", "local/direct.py", 346,
      patches=NO_DIRECT, models=SQUARES),
    S("no-secant", "curvature of a hinge averaged over the last step", "local/cg.py", 72, patches=NO_SECANT,
      models=HINGE),
    # what weights are made of
    S("rank-5", "blocks choose how many directions to send: 5", "posterior.py", 45,
      {"rank": 5}),
    S("rank-20", "the same: 20", "posterior.py", 45, {"rank": 20}),
    S("rank-50", "the same: 50", "posterior.py", 45, {"rank": 50}),
    S("no-cap", "at most 140 directions from the start", "method.py", 3,
      patches=(Patch(f"{AUQLR}.method:MOST_DIRECTIONS", instead(10**6)),), probes=(DIRECTIONS,)),
    S("lanczos-to-end", "the search for directions ends when enough are found", "posterior.py, lanczos.py", 18,
      patches=(Patch(f"{CURVATURE}.lanczos:KRYLOV_STEPS", instead(10**9)),), probes=(f"{POSTERIOR}:krylov",)),
    S("lanczos-one-step", "directions in four steps of Lanczos: all at a time", "posterior.py", 2,
      patches=(Patch(f"{POSTERIOR}:LANCZOS_STEPS", instead(1)),), probes=(DIRECTIONS,)),
    S("first-whole", "first weights take a share of the curvature at zero: all of it", "posterior.py, method.py", 20,
      patches=tuple(Patch(f"{AUQLR}.method:{name}", instead(1.0)) for name in ("FIRST_SHARE", "FIRST_SHARE_COUPLED")),
      probes=(WEIGHTS,), models=SMOOTH + HINGE),
    S("no-floor", "the floor φ of 1e-5 of the mean curvature (l2/N stays)", "posterior.py", 4,
      patches=(Patch(f"{POSTERIOR}:PHI_FLOOR", instead(0.0)),), probes=(f"{POSTERIOR}:Posterior._floor",)),
    S("no-row-uncertainty", "curvature of a hinge seen through the uncertainty of its logits",
      "posterior.py, rows.py, losses.py", 50,
      patches=(Patch(f"{POSTERIOR}:Posterior._rows", around(_same_rows, always=False)),), models=HINGE),
    S("no-coupling", "columns coupled by S_j: S_j = I/C", "lowrank.py, kronecker_sum.py", 60,
      patches=(Patch(WEIGHTS, _weighed(_no_coupling)),), models=SMOOTH),
    S("classes-alike", "classes stay coupled in the first directions: one Kronecker product", "coupled.py, …", 330,
      patches=(Patch(f"{AUQLR}.method:coupled_directions", _where(0, bool)),), models=SMOOTH),
    S("flat-rest", "the rest's diagonal d_j: its mean", "posterior.py", 3,
      patches=(Patch(WEIGHTS, _weighed(lambda W: replace(W, d=W.d.mean(1, keepdim=True).expand_as(W.d).clone()))),)),
    S("share-1", "directions at most a quarter of a block's rows (a privacy rule: report only)", "posterior.py", 4,
      patches=(Patch(f"{POSTERIOR}:DIRECTION_SHARE", instead(1.0)),), probes=(DIRECTIONS,)),
    # images
    S("image-never", "the rest in cosines where that fits better (the problem says: image)",
      "metrics/lowrank.py, curvature/posterior.py, …", 150,
      patches=(Patch(f"{AUQLR}.method:second_wins", _where(False, bool)),), priors=IMAGE),
    S("image-always", "the contest of bases: cosines always", "posterior.py, blocks.py, schedule.py", 25,
      patches=(Patch(f"{AUQLR}.method:second_wins", _where(True, lambda won: not won)),), priors=IMAGE),
    # the server
    S("vstep-1e-13", "the v-step's tolerance follows the residual: 1e-13 of ‖z‖", "server.py", 3,
      patches=_both("tolerance", _tolerance(1e-13))),
    S("vstep-1e-9", "the same: 1e-9 of ‖z‖", "server.py", 3, patches=_both("tolerance", _tolerance(1e-9))),
    S("no-pivot", "block pivoting for l1: accelerated proximal gradient", "metrics/composite.py", 182,
      patches=(Patch(f"{METRICS}.vstep:pivot", returns(_plain_prox)),), models=SQUARES),
    # columns
    S("raw-columns", "columns centred and scaled inside", INSIDE, 480, {"columns": "raw"}, only=TABLES,
      models=("table",)),
    # machines
    S("no-graphs", "CUDA graphs and unit steps taken unseen", "runtime.py, newton_cg.py", 400,
      environment={"AUQADMM_GRAPHS": "0"}, probes=(SOLVE,), device="cuda"),
    S("no-light", "single precision between anchors", "blocks/single_precision.py, single.py, local/descent.py", 310,
      patches=NO_LIGHT, device="cpu"),
    S("no-rough", "weights from products in single precision", "single_precision.py, posterior.py", 6,
      patches=(Patch(f"{POSTERIOR}:linearize_single", around(_rough, always=False)),), device="cpu"),
    S("no-anchor-kept", "an anchor outlives the u-step", "local/newton_cg.py", 8,
      patches=(Patch(f"{NEWTON}:NewtonCG.remember", _where(None, _there)),), models=SMOOTH, device="cpu"),
    S("no-corners", "steps of a hinge over the rows that bend", "local/hinge.py, newton_cg.py", 323,
      patches=NO_CORNERS, models=HINGE, device="cpu"),
    S("parabolas", "rows of a hinge keep their loss in a step: parabolas", "local/hinge.py", 45,
      patches=(Patch(f"{LOCAL}.hinge:_solved", returns(lambda bends, G, delta, s, *rest: s)),), models=HINGE,
      device="cpu"),
    S("no-leaving", "blocks that are solved leave the batch", "local/descent.py, blocks/parts.py", 60,
      patches=(Patch(f"{LOCAL}.descent:blocks_to_keep", _where(None, _there)),), models=SMOOTH + HINGE, device="cpu"),
    S("read-all", "only blocks whose system is open are read", "local/cg.py, blocks/design.py", 35,
      patches=(Patch(f"{NEWTON}:open_runs", _where(_all_open, bool)),),
      models=SMOOTH + HINGE, device="cpu"),
    # C-ADMM: what weights without directions use
    S("c:no-trail", "u-steps start where the last ones lead", "local/descent.py", 45, method="c-admm",
      patches=(Patch(f"{LOCAL}.descent:Extrapolation.ahead", returns(lambda self, u, *rest: u)),),
      models=SMOOTH + HINGE),
    S("c:new-diagonal", "the diagonal preconditioner is kept for 2, 4, 8, … solves", "descent.py, …", 10,
      method="c-admm", models=SMOOTH,
      patches=(Patch(f"{LOCAL}.descent:Extrapolation.renew", returns(lambda self: True)),)),
    S("c:no-memory", "Newton-CG remembers anything", "local/newton_cg.py, cg.py, …", 230, method="c-admm",
      patches=(Patch(f"{NEWTON}:NewtonCG.recall", returns(_forgets)),), models=SMOOTH + HINGE),
    S("c:no-factor", "a kept factor for hard blocks", "local/cg.py, newton_cg.py", 145, method="c-admm",
      patches=(Patch(f"{NEWTON}:factor_is_applicable", _where(False, bool)),
               Patch(f"{LOCAL}.mixed:factor_is_applicable", _where(False, bool))), only=HARD, models=("table",)),
    S("c:no-direct", "factorisations for squares: Newton-CG", "local/direct.py", 346,
      method="c-admm", patches=NO_DIRECT, models=SQUARES),
    S("c:no-secant", "curvature of a hinge averaged over the last step", "local/cg.py", 72, method="c-admm",
      patches=NO_SECANT, models=HINGE),
    S("c:no-lbfgs", "L-BFGS in place of Newton-CG on a CPU", "local/lbfgs.py, …, mixed.py", 480,
      method="c-admm", patches=(Patch(f"{LOCAL}.mixed:Mixed._together", around(_newton_only, always=False)),),
      models=SMOOTH, device="cpu"),
    S("c:no-model", "L-BFGS upon a model with directions: upon the diagonal", "lbfgs.py", 100, method="c-admm",
      patches=(Patch(f"{LOCAL}.lbfgs:_rank", _where(0, bool)),), models=SMOOTH, device="cpu"),
    S("c:no-corners", "steps of a hinge over the rows that bend", "local/hinge.py, …", 323,
      method="c-admm", patches=NO_CORNERS, models=HINGE, device="cpu"),
    S("c:no-light", "single precision between anchors", "blocks/single_precision.py, single.py, local/descent.py", 310,
      method="c-admm", patches=NO_LIGHT, device="cpu"),
)  # fmt: skip
