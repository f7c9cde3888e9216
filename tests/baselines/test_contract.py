"""What every baseline promises the loop: warm starts, frozen states, clear refusals, an end."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm import baselines
from auqadmm.baselines import FISTA, KNOWN, LBFGS, OWLQN, PreconditionedLBFGS
from tests.baselines.driving import CPU, Watched, objective, reduction, states, tensors
from tests.problems import least_squares, multinomial, regression_blocks, svm

METHODS = [LBFGS(), PreconditionedLBFGS(), OWLQN(), FISTA()]
every = pytest.mark.parametrize("method", METHODS, ids=[m.name for m in METHODS])


# ------------------------------------------------------------------ names and parameters
def test_names():
    expected = {"lbfgs": LBFGS, "lbfgs-w": PreconditionedLBFGS, "owl-qn": OWLQN, "fista": FISTA}
    assert expected == KNOWN
    assert baselines.resolve("OWL-QN") == OWLQN()
    with pytest.raises(ValueError, match="'adam'; known baselines are 'lbfgs', 'lbfgs-w', 'owl-qn', 'fista'"):
        baselines.resolve("adam")


def test_parameters_that_cannot_work():
    for make in (
        lambda: LBFGS(history=0),
        lambda: OWLQN(history=1.5),
        lambda: FISTA(lipschitz=0.0),
        lambda: PreconditionedLBFGS(history=0),
        lambda: PreconditionedLBFGS(rank=-1),
        lambda: PreconditionedLBFGS(refresh=(0,)),
        lambda: PreconditionedLBFGS(skip=-0.1),
    ):
        with pytest.raises(ValueError, match="must be"):
            make()


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(
    ("method", "regularizer", "words"),
    [
        (LBFGS(), aq.L1(0.1), "'lbfgs' needs a smooth regularizer.*got L1.*'owl-qn' or 'fista'"),
        (LBFGS(), aq.ElasticNet(0.1, 1.0), "got ElasticNet.*'owl-qn' or 'fista'"),
        (PreconditionedLBFGS(), aq.L1(0.1), "'lbfgs-w' needs a smooth regularizer.*got L1.*'owl-qn' or 'fista'"),
        (LBFGS(), aq.NonNegative(), "got NonNegative. Use 'fista'"),
        (OWLQN(), aq.GroupLasso(0.1), "'owl-qn' needs Zero, L1, L2 or ElasticNet; got GroupLasso. Use 'fista'"),
    ],
)
def test_regularizers_that_a_method_cannot_handle(method, regularizer, words, intercept):
    problem = aq.Problem(aq.LeastSquares(), regularizer, regression_blocks(), intercept=intercept)
    with pytest.raises(ValueError, match=words):
        aq.solve(problem, method)


@pytest.mark.parametrize("regularizer", [aq.Zero(), aq.L2(0.3), aq.ElasticNet(0.0, 0.3), aq.L1(0.0)])
@pytest.mark.parametrize("method", [LBFGS(), PreconditionedLBFGS()], ids=["lbfgs", "lbfgs-w"])
def test_regularizers_without_an_l1_term_are_smooth(regularizer, method):
    result = aq.solve(least_squares(regularizer=regularizer), method, certificate_tol=1e-9)
    assert result.status == "converged"


# ------------------------------------------------------------------ start and end
@every
def test_a_warm_start_at_the_optimum_stops_at_once(method):
    problem = multinomial()
    first = aq.solve(problem, method, stop="certificate", certificate_tol=1e-8)
    again = aq.solve(problem, method, stop="certificate", certificate_tol=2e-8, warm_start=first)
    assert again.status == "converged"
    assert again.n_iter <= 2
    assert again.objective <= first.objective * (1 + 1e-12)


@every
def test_a_start_where_the_loss_overflows_is_called_diverged(method):
    X = np.eye(3)
    problem = aq.Problem(aq.Poisson(), aq.L2(1.0), [(X, np.ones(3)), (X, np.ones(3))])
    result = aq.solve(problem, method, warm_start=np.full(3, 1e4))
    assert result.status == "diverged"
    assert np.array_equal(result.coef, np.full(3, 1e4))


@pytest.mark.thin(2)
@every
@pytest.mark.parametrize("make", [svm, multinomial], ids=["svm", "multinomial"])
def test_at_the_limit_of_rounding_nothing_gets_worse(method, make):
    problem = make(reduction="sum")
    reduce = reduction(problem)
    found = [state.shared.v for state in states(method, problem, 150, reduce)]
    values = [objective(problem, v) for v in found[100:]]
    assert max(values) - min(values) <= 1e-13 * abs(values[0])
    assert reduce.traffic.rounds <= 150 * 50


class Blind(LBFGS):
    """Finds nothing, ever."""

    def search(self, F, here, memory):
        F.at(here.v)
        return None  # noqa: RET501  (the type says so)


def test_a_search_that_finds_nothing_is_repeated_without_pairs_and_then_ends():
    problem = multinomial()
    reduce = reduction(problem)
    *_, learned = states(LBFGS(), problem, 5, reduce)
    assert not learned.shared.memory.fresh
    rounds = reduce.traffic.rounds
    stuck = Blind().step(learned, reduce)
    assert reduce.traffic.rounds == rounds + 2  # with pairs, and along the steepest descent
    assert stuck.shared.memory.stalled
    assert stuck.shared.memory.fresh
    assert torch.equal(stuck.shared.v, learned.shared.v)
    later = Blind().step(stuck, reduce)
    assert reduce.traffic.rounds == rounds + 2
    assert later.shared.iteration == learned.shared.iteration + 2


# ------------------------------------------------------------------ frozen states
@every
def test_a_step_writes_into_no_old_state(method):
    problem = multinomial()
    reduce = reduction(problem)
    for state in states(method, problem, 14, reduce):
        kept = [x.clone() for x in tensors(state)]
        once = method.step(state, reduce)
        assert all(torch.equal(a, b) for a, b in zip(kept, tensors(state), strict=True))
        assert torch.equal(method.step(state, reduce).shared.v, once.shared.v), "a step is a function of its state"


@every
def test_an_interrupt_in_the_middle_of_a_step_returns_the_iterate_before(method):
    problem = multinomial()
    engine = Watched(problem.shard(torch.float64, CPU), interrupt_at=18)
    result = aq.solve(problem, method, engine, stop="certificate", certificate_tol=0)
    assert result.status == "interrupted"
    assert result.n_iter > 0
    whole = aq.solve(problem, method, stop="certificate", certificate_tol=0, max_iter=result.n_iter)
    assert torch.equal(result.v, whole.v)
