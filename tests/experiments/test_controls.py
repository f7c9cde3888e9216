"""Controls do what they say."""

import pytest
import torch

import auqadmm as aq
from auqadmm.methods import AUQ, C
from auqadmm.paper import problems
from auqadmm.paper.problems import MeanAUQ, PermutedAUQ, make_method
from auqadmm.paper.spec import CONTROLS, INTERVAL, METHODS, OURS, ProblemSpec

PROBLEM = problems.make_problem(ProblemSpec("digits", "multinomial"))


def weights_of(method, iterations=2, seed=3):
    """The diagonals of the weights of iterations 1, 2, …"""
    found = []

    class Watched:
        name = method.name

        def init(self, setup, reduce):
            state = method.init(setup, reduce)
            found.append(state.blocks.W.diagonal().clone())
            return state

        def step(self, state, reduce):
            new = method.step(state, reduce)
            found.append(new.blocks.W.diagonal().clone())
            return new

    rule = {"stop": "residuals", "abs_tol": 0.0, "rel_tol": 0.0}
    aq.solve(PROBLEM, Watched(), max_iter=iterations, seed=seed, start="random", **rule)
    return found


def test_permuted_weights_are_a_permutation_of_each_blocks_own():
    plain, permuted = weights_of(AUQ(), 0)[0], weights_of(PermutedAUQ(), 0)[0]
    assert not torch.equal(plain, permuted)
    for w, p in zip(plain, permuted, strict=True):
        assert torch.equal(w.flatten().sort().values, p.flatten().sort().values)


def test_the_permutation_is_seeded_fixed_over_iterations_and_differs_between_blocks():
    once, again, other = (weights_of(PermutedAUQ(), 0, seed)[0] for seed in (3, 3, 4))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    from auqadmm.paper.problems import _permutation

    assert not torch.equal(_permutation(640, 3, 0), _permutation(640, 3, 1))


def test_mean_weights_are_the_means_of_each_block():
    plain, mean = weights_of(AUQ(), 0)[0], weights_of(MeanAUQ(), 0)[0]
    assert torch.allclose(mean, plain.mean((1, 2), keepdim=True).expand_as(mean), rtol=1e-14)


def test_controls_stay_in_the_interval():
    for method in (PermutedAUQ(), MeanAUQ()):
        for k, W in enumerate(weights_of(method), start=1):
            a, b = method.interval_at(k)
            assert a * (1 - 1e-12) <= float(W.min())
            assert float(W.max()) <= b * (1 + 1e-12)


def test_controls_are_c_admm_when_the_interval_is_a_point():
    rule = {"max_iter": 3, "stop": "residuals", "abs_tol": 0.0, "rel_tol": 0.0}
    plain = aq.solve(PROBLEM, C(rho=0.3), **rule)
    for method in (PermutedAUQ(interval=(0.3, 0.3)), MeanAUQ(interval=(0.3, 0.3))):
        assert torch.allclose(aq.solve(PROBLEM, method, **rule).v, plain.v, rtol=1e-12, atol=1e-14)


def test_every_name_makes_its_method():
    for name in (*METHODS, *OURS, *CONTROLS, "auq-rank-1", "auq-rank-100"):
        assert hasattr(make_method(name), "init")
    assert make_method("c-admm-a").rho == INTERVAL[0]
    assert make_method("rb-admm-paper").residuals == "paper"
    assert make_method("auq-rank-100").rank == 100
    assert make_method("auq-admm", rank=10).rank == 10
    with pytest.raises(ValueError, match="no method 'x'"):
        make_method("x")
