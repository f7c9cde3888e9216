"""What travels: one reduction per evaluation, n + 1 numbers up, trial points included."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.optimize
import torch

import auqadmm as aq
from auqadmm.baselines import FISTA, LBFGS, OWLQN, PreconditionedLBFGS
from auqadmm.baselines.objective import Objective, elastic
from auqadmm.comparison import digits_blocks
from tests.baselines.driving import CPU, Watched, certifier, objective, reduction, states
from tests.problems import multinomial

METHODS = [LBFGS(), OWLQN(), FISTA()]
NAMES = [m.name for m in METHODS]
ALL = [*METHODS, PreconditionedLBFGS()]


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_rounds_are_reductions_and_bytes_are_what_they_carry(method):
    problem = multinomial()
    reduce = reduction(problem)
    for _ in states(method, problem, 12, reduce):
        pass
    rounds, n = reduce.traffic.rounds, problem.census.unknowns
    assert rounds == reduce.engine.calls
    if method.name == "fista":  # the start and the probe; then f(x) goes up with f(y) and ∇f(y), and β comes down
        assert reduce.traffic.up == 8 * (2 * (n + 1) + (rounds - 2) * (n + 2))
        assert reduce.traffic.down == 8 * (2 * n + (rounds - 2) * (n + 1))
    else:
        assert reduce.traffic.up == 8 * (n + 1) * rounds
        assert reduce.traffic.down == 8 * n * rounds


@pytest.mark.parametrize("method", ALL, ids=[m.name for m in ALL])
def test_an_iterate_costs_what_had_travelled_when_it_was_formed(method):
    problem = multinomial()
    reduce = reduction(problem)
    for k, state in enumerate(states(method, problem, 12, reduce)):
        before = 0 if k == 0 else reduce.traffic.rounds - 1  # all but the reduction at the iterate itself
        assert state.shared.cost.rounds == before
        assert state.shared.iteration == k
        assert state.shared.hvps == 0
        assert state.shared.residuals is None


def test_the_history_counts_them_and_the_verdicts():
    problem = multinomial()
    engine = Watched(problem.shard(torch.float64, CPU))
    result = aq.solve(problem, LBFGS(), engine, certificate_tol=1e-8)
    rounds, last = result.history.column("rounds"), result.history[-1]
    assert rounds[0] == 2  # the columns, and the gradient at the start
    assert all(b >= a + 1 for a, b in itertools.pairwise(rounds))  # a trial; what tells when to ask comes along
    assert last.rounds == engine.calls
    assert 2 <= last.rounds_verdict <= 6  # of which the last one said yes
    assert last.rounds_verdict <= rounds[-1] - rounds[-2]


@pytest.mark.parametrize("method", ALL, ids=[m.name for m in ALL])
def test_what_tells_when_to_ask_takes_no_round_of_its_own(method):
    problem, steps, seen = multinomial(), 12, []
    plain = [state.shared for state in states(method, problem, steps, reduction(problem))][1:]
    watch = [lambda event: seen.append(event.row) and False]
    aq.solve(problem, method, certificate_tol=1e-300, max_iter=steps, callbacks=watch)
    assert [row.rounds for row in seen] == [1 + shared.cost.rounds for shared in plain]  # 1: the columns
    assert {row.rounds_verdict for row in seen} == {1}
    # ‖∇f_j‖ goes up with the gradient; FISTA's gradient belongs to another point, and all of it goes up
    n = problem.census.unknowns
    moments = 8 * sum(x.numel() for x in problem.shard(torch.float64, CPU).exact().moments().values())
    for row, shared in zip(seen, plain, strict=True):
        more = shared.cost.rounds
        if method.name == "fista":  # the start, the probe, and then one point after the other
            more = 1 + (shared.cost.rounds - 2) * (n + 1)
        assert row.bytes_up == moments + shared.cost.up + 8 * more
        assert row.bytes_down == shared.cost.down
    free = certifier(problem)
    for row, shared in zip(seen, plain, strict=True):
        assert row.kkt == pytest.approx(free.certify(shared.v).kkt, rel=1e-12)
        assert row.objective == pytest.approx(free.certify(shared.v).objective, rel=1e-12)


def test_a_steady_fista_takes_one_round_per_iteration():
    reduce = reduction(multinomial())
    for _ in states(FISTA(restart=False), multinomial(), 100, reduce):
        pass
    assert reduce.traffic.rounds <= 115


@pytest.mark.parametrize("l2", [1.0, 1e-2])
def test_lbfgs_needs_about_as_many_evaluations_as_scipy(l2):
    problem = aq.Problem(aq.Multinomial(reduction="mean"), aq.L2(l2), digits_blocks())
    reduce = reduction(problem)
    zero = torch.zeros(problem.census.features, problem.census.columns, dtype=torch.float64)
    F = Objective(reduce, problem.g, elastic(problem.g, zero))
    values = []

    def fun(x):
        point = F.at(torch.from_numpy(x.reshape(zero.shape)))
        values.append(point.value)
        return point.value, point.grad.numpy().ravel()

    options = {"maxcor": 10, "maxiter": 2000, "maxfun": 4000, "ftol": 1e-15, "gtol": 1e-10}
    optimum = scipy.optimize.minimize(fun, zero.numpy().ravel(), jac=True, method="L-BFGS-B", options=options).fun
    target = optimum + 1e-8 * abs(optimum)
    theirs = 1 + int(np.argmax(np.array(values) <= target))
    reduce = reduction(problem)
    for state in states(LBFGS(history=10), problem, 2 * theirs, reduce):
        if objective(problem, state.shared.v) <= target:
            break
    assert objective(problem, state.shared.v) <= target
    assert reduce.traffic.rounds <= 1.5 * theirs
