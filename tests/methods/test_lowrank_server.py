"""What AUQ-LR's server decides between two rounds, decision by decision."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.curvature.posterior import Posterior
from auqadmm.local import Direct
from auqadmm.methods.auq_lr.blocks import Action, Directive
from auqadmm.methods.auq_lr.server import (
    Anderson,
    RoundSums,
    Schedule,
    ServerState,
    first_z,
    next_z,
    tolerance,
    watch_objective,
)
from tests.problems import regression_blocks


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


class Doubling:
    """K = 2I; g is nothing."""

    def apply(self, v):
        return 2 * v

    def solve(self, g, z, guess, tol):
        return SimpleNamespace(v=z / 2, residual=0.0)


def server(action=Action.PLAIN, norm=1.0, dual=1.0, refresh=False, **changes):
    directive = Directive(Posterior(1, 1.0, 2), relaxation=1.8, action=action, refresh=refresh)
    heard = RoundSums(Tz=column(3.0, 4.0), r=column(1.0, 1.0), norm=norm, dual=dual, gram=None, heft=None, against=None,
                  stale=False)  # fmt: skip
    anderson = Anderson.empty(4, column(0.0, 0.0))
    return replace(ServerState(anderson, directive, column(2.0, 3.0), heard), **changes)


# ------------------------------------------------------------------ a run that loses its way
def seen(state, F, v=None):
    sums = {"f": torch.tensor(F), "G": column(0.5, -0.5)}
    return watch_objective(state, Doubling(), aq.Zero(), column(1.0, 1.0) if v is None else v, sums)


def test_twice_in_a_row_a_hundredth_above_its_best_it_goes_home():
    state = seen(server(), 1.0, column(7.0, 8.0))
    once = seen(state, 1.02)
    assert (once.strayed, once.directive.home) == (1, None)
    assert seen(once, 1.005).strayed == 0  # less than a hundredth
    assert pytest.approx(0.9) == seen(once, 0.9).best.F
    home = seen(once, 1.02)
    assert torch.equal(home.directive.home, column(7.0, 8.0))
    assert (home.directive.relaxation, home.directive.action, home.best) == (1.0, Action.KEEP, None)
    assert torch.equal(home.z, column(13.5, 16.5))  # K v − G at its best v
    assert seen(home, 100.0) is home, "once is enough"


def test_without_scores_nothing_is_watched():
    state = server()
    assert watch_objective(state, Doubling(), aq.Zero(), column(1.0, 1.0), None) is state


# ------------------------------------------------------------------ the first step
def test_a_start_whose_v_belongs_to_its_z_is_a_step_like_any_other():
    state = first_z(server(), Doubling(), aq.Zero(), column(1.0, 1.5))
    assert state.directive.action == Action.PLAIN
    assert torch.equal(state.z, column(3.0, 4.0))


@pytest.mark.parametrize(("v", "dual"), [((1.0, 1.6), 1.0), ((1.0, 1.5), 1e-7)], ids=["other v", "a solution"])
def test_a_start_that_says_nothing_of_the_map_keeps_its_z(v, dual):
    state = first_z(server(dual=dual), Doubling(), aq.Zero(), column(*v))
    assert state.directive.action == Action.KEEP
    assert torch.equal(state.z, column(2.0, 3.0))
    assert state.anderson.first is None


# ------------------------------------------------------------------ acceleration
@pytest.mark.parametrize(
    ("action", "refresh", "norm", "back"),
    [
        (Action.ACCELERATE, False, 2.1, True),
        (Action.ACCELERATE, False, 1.9, False),
        (Action.PLAIN, False, 2.1, False),
        (Action.ACCELERATE, True, 2.1, False),  # new weights measure r in another norm
    ],
)
def test_an_accelerated_step_that_doubled_the_residual_is_taken_back(action, refresh, norm, back):
    state = server(action, norm, refresh=refresh, plain=column(9.0, 9.0), before=(column(0.0, 0.0), column(0.0, 0.0)))
    state = replace(state, anderson=state.anderson.measured(1.0))
    new = next_z(state)
    assert (new.directive.action == Action.BACK) == back
    assert torch.equal(new.z, column(9.0, 9.0) if back else column(3.0, 4.0))
    assert new.anderson.last == (1.0 if back else norm)
    assert (new.before is None) == back


def test_a_column_is_the_difference_of_two_rounds():
    """r − r_old + z − z_old, and z⁺ = Tz − γ times it."""
    one = torch.ones(1, dtype=torch.float64)
    sums = replace(server().sums, gram=4 * one, heft=one, against=2 * one)
    before = (column(1.0, 1.0), column(0.5, 2.0))
    new = next_z(replace(server(), sums=sums, before=before))
    assert new.directive.action == Action.ACCELERATE
    assert new.directive.gamma.tolist() == pytest.approx([0.5], rel=1e-8)
    assert new.z.flatten().tolist() == pytest.approx([3.0 - 0.5 * 1.5, 4.0 - 0.5 * 1.0], rel=1e-8)
    assert torch.equal(new.plain, column(3.0, 4.0))
    assert new.anderson.accelerated == 1


# ------------------------------------------------------------------ renewals, tolerances, what is promised
def test_weights_are_renewed_where_the_round_before_found_them_stale():
    schedule = Schedule((2, 4, 7))
    for k in range(1, 9):
        for stale in (True, False):
            state = server(sums=replace(server().sums, stale=stale))
            directive = schedule.directed(state, k).directive
            assert directive.refresh == (stale and k + 1 in (2, 4, 7)), k
            assert directive.look_ahead == (k + 2 in (2, 4, 7)), k


def test_the_v_step_is_solved_far_below_the_residual():
    scale = float(column(2.0, 3.0).norm())
    for dual, tol in ((1.0, 1e-9 * scale), (1e-5, 1e-10), (1e-12, 1e-13 * scale)):
        assert tolerance(server(dual=dual)) == pytest.approx(tol, rel=1e-9)


@pytest.mark.parametrize("alpha", [1.0, 1.8])
def test_what_the_blocks_models_promise(alpha):
    """½ Σ_j ‖u_j − v‖² in the metric W_j, whatever the relaxation."""
    problem = aq.Problem(aq.LeastSquares(), aq.L2(0.1), regression_blocks(noise=1.0))
    found = []

    def look(event):
        blocks, shared = event.state.blocks, event.state.shared
        d = (blocks.u - shared.v).numpy()[..., 0]
        found.append((shared.predicted, 0.5 * np.einsum("bi,bij,bj->", d, blocks.W.dense().numpy(), d)))

    method = aq.methods.AUQLR(rank=1, relaxation=alpha, columns="raw")
    aq.solve(problem, method, local=Direct(tol=1e-15), max_iter=3, callbacks=[look], certificate_tol=1e-14)
    assert found
    for promised, expected in found:
        assert promised == pytest.approx(expected, rel=1e-6)
