"""L-BFGS on top of AUQ-LR's weights: the optimum for every smooth loss, fewer rounds, and what they carry."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.baselines import LBFGS, PreconditionedLBFGS
from auqadmm.local.lbfgs import Pairs
from tests.baselines.driving import objective, reduction, setup_of, states
from tests.methods.test_lowrank import LOSSES, make
from tests.problems import least_squares, multinomial, regression_blocks

TIGHT = {"stop": "certificate", "certificate_tol": 1e-10, "max_iter": 500}


@pytest.mark.thin(4)
# ------------------------------------------------------------------ the optimum
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_with_uneven_and_empty_blocks(loss, intercept):
    problem = make(loss, "l2", intercept)
    found = aq.solve(problem, "lbfgs-w", **TIGHT)
    plain = aq.solve(problem, "lbfgs", **TIGHT)
    assert found.status == "converged", found.message
    assert found.objective == pytest.approx(plain.objective, rel=1e-9)


@pytest.mark.parametrize("rank", [0, 2, "auto"])
def test_any_rank_and_no_regularizer(rank):
    """Without l2 only the floor keeps K positive on the block that has no rows."""
    blocks = [*regression_blocks(), (np.empty((0, 6)), np.empty(0))]
    problem = aq.Problem(aq.Huber(0.5), aq.Zero(), blocks)
    found = aq.solve(problem, PreconditionedLBFGS(rank=rank), **TIGHT)
    assert found.status == "converged", found.message
    assert found.objective == pytest.approx(aq.solve(problem, LBFGS(), **TIGHT).objective, rel=1e-9)


def test_a_quadratic_that_the_weights_know_takes_one_step():
    """Two directions for two features: W_j is ∇²f_j up to l2 and the floor, and the first step is Newton's."""
    problem = least_squares(regression_blocks(features=2), regularizer=aq.L2(1e-6))
    method = PreconditionedLBFGS(rank=2)
    *_, first = states(method, problem, 1)
    best = aq.solve(problem, LBFGS(), **TIGHT)
    assert torch.allclose(first.shared.v, best.v, rtol=1e-4)


def test_a_result_starts_admm_at_the_solution():
    problem = multinomial()
    found = aq.solve(problem, "lbfgs-w", **TIGHT)
    assert torch.allclose(found.lam.sum(0), -0.1 * found.v, atol=1e-5)
    assert aq.solve(problem, "auq-lr", warm_start=found, certificate_tol=1e-8).n_iter <= 3


# ------------------------------------------------------------------ rounds
def ill_conditioned():
    rng = np.random.default_rng(0)
    scale = np.logspace(-1, 0.5, 30)
    truth = rng.normal(size=30) / scale
    X = [rng.normal(size=(60, 30)) * scale for _ in range(4)]
    return aq.Problem(aq.Logistic(reduction="sum"), aq.L2(0.1), [(x, (x @ truth > 0).astype(int)) for x in X])


def test_fewer_rounds_than_lbfgs_where_columns_differ_in_scale():
    problem = ill_conditioned()
    best = aq.solve(problem, "lbfgs", stop="certificate", certificate_tol=1e-10, max_iter=5000).objective

    def rounds(method):
        for state in states(method, problem, 1000):
            if objective(problem, state.shared.v) <= best * (1 + 1e-6):
                return state.shared.cost.rounds
        return math.inf

    assert 2 * rounds(PreconditionedLBFGS()) <= rounds(LBFGS())


# ------------------------------------------------------------------ bytes
def test_bytes_are_gradients_and_weights_when_they_are_due():
    problem, r = multinomial(), 2
    m, C = problem.census.features, problem.census.columns
    reduce = reduction(problem)
    often = PreconditionedLBFGS(rank=r, refresh=(2, 4, 5), skip=0.0)
    spent = [(reduce.traffic.rounds, reduce.traffic.up, reduce.traffic.down) for _ in states(often, problem, 7, reduce)]
    assert reduce.traffic.rounds == reduce.engine.calls
    gradient = m * C + 1
    weights = r * (r + 1) // 2 + m + C * (C + 1) // 2 + 1  # M, d, S, φ
    # with the evaluation at v_0, v_1, …; one more number where a look is due, two iterations before new weights
    more = [1 + (1 + r * m) + weights, weights, 1, weights + 1, weights, 0, 0, 0]
    rounds, up = 0, 0
    for (all_rounds, all_up, all_down), extra in zip(spent, more, strict=True):
        up += (all_rounds - rounds) * 8 * (gradient + extra)
        rounds = all_rounds
        assert all_up == up
        assert all_down == 8 * m * C * rounds


def test_weights_that_hardly_change_are_not_sent():
    problem = multinomial()
    traffic = []
    for skip in (0.0, 1e9):
        reduce = reduction(problem)
        found = list(states(PreconditionedLBFGS(rank=2, refresh=(4,), skip=skip), problem, 5, reduce))
        traffic.append(found[3].shared.memory.initial is found[0].shared.memory.initial)
    assert traffic == [False, True]


def test_a_quadratic_loss_never_renews():
    problem = least_squares(regularizer=aq.L2(1e-3))
    found = list(states(PreconditionedLBFGS(rank=1), problem, 9))
    assert all(b.shared.memory.initial is a.shared.memory.initial for a, b in itertools.pairwise(found))


def test_without_l2_the_typical_curvature_takes_a_round():
    problem = multinomial(regularizer=aq.Zero())
    reduce = reduction(problem)
    PreconditionedLBFGS().init(setup_of(problem), reduce)
    assert reduce.traffic.rounds == reduce.engine.calls == 2


# ------------------------------------------------------------------ weights and pairs
def test_new_weights_leave_the_pairs():
    *_, before, after = states(PreconditionedLBFGS(rank=2, refresh=(4,), skip=0.0), multinomial(), 3)
    old, new = before.shared.memory, after.shared.memory
    assert old.initial is not new.initial
    assert torch.equal(old.pairs.S[:, 1:], new.pairs.S[:, :-1])
    assert int((new.pairs.rho != 0).sum()) == 3


def smooth_images(side=6, per_block=40):
    """Neighbouring pixels are alike: cosines fit better than pixels."""
    rng = np.random.default_rng(0)
    t = np.arange(side)
    near = np.exp(-0.5 * (t[:, None] - t) ** 2)
    half = np.linalg.cholesky(np.kron(near, near) + 1e-6 * np.eye(side**2))
    blocks = []
    for _ in range(3):
        X = rng.normal(size=(per_block, side**2)) @ half.T
        blocks.append((X, (X[:, 0] + rng.normal(size=per_block) > 0).astype(int)))
    return aq.Problem(aq.Logistic(reduction="sum"), aq.L2(0.1), blocks, image=(side, side))


def test_images_turn_to_cosines_with_the_second_iteration():
    bases = []
    problem = smooth_images()
    found = aq.solve(
        problem,
        PreconditionedLBFGS(rank=1),
        callbacks=[lambda event: bases.append(event.state.shared.memory.initial.metric.parts.F) and False],
        **TIGHT,
    )
    assert bases[0] is not None
    assert found.status == "converged"
    assert found.objective == pytest.approx(aq.solve(problem, LBFGS(), **TIGHT).objective, rel=1e-9)


def test_the_two_loops_with_a_matrix_are_bfgs_from_that_matrix():
    rng = np.random.default_rng(0)
    n = 5
    A, H = (torch.from_numpy(x @ x.T + np.eye(n)) for x in rng.normal(size=(2, n, n)))
    pairs = Pairs.none(4, torch.ones(1, dtype=A.dtype), torch.zeros(1, n, 1, dtype=A.dtype))
    start = H.clone()
    eye = torch.eye(n, dtype=A.dtype)
    for s in torch.from_numpy(rng.normal(size=(3, n, 1))):
        y = A @ s
        pairs = pairs.push(s[None], y[None], torch.ones(1, dtype=torch.bool))
        rho = 1 / (s * y).sum()
        H = (eye - rho * s @ y.mT) @ H @ (eye - rho * y @ s.mT) + rho * s @ s.mT
    g = torch.from_numpy(rng.normal(size=(1, n, 1)))
    assert torch.allclose(pairs.apply(g, lambda q: start @ q)[0], H @ g[0])
