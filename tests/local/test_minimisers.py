"""Every solver finds the minimisers that a naive loop over blocks finds, whatever loss, block sizes and weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import auqadmm as aq
from auqadmm.local import LBFGS, Direct, LocalProblem, NewtonCG, Released
from auqadmm.metrics.weights import Diagonal, Scalar
from tests.local.cases import (
    CPU,
    EVEN,
    LOSSES,
    UNEVEN,
    WEIGHTS,
    alone,
    gradient,
    local_problem,
    oracle,
    problem_of,
    shard_of,
    sparse,
    start_of,
    weights_of,
)

TIGHT = {
    "direct": Direct(tol=1e-9),
    "newton-cg": NewtonCG(tol=1e-9, max_iter=200),
    "lbfgs": LBFGS(tol=1e-9, max_iter=2000),
}
ITERATIVE = ["newton-cg", "lbfgs"]
CASES = [(s, loss) for s in TIGHT for loss in LOSSES if s != "direct" or loss == "LeastSquares"]


def one_block(W, j):
    """The weights of block j alone."""
    if isinstance(W, Scalar):
        return Scalar(W.rho[j : j + 1], W.features, W.columns)
    if isinstance(W, Diagonal):
        return Diagonal(W.d[j : j + 1])
    return type(W)(W.M[j : j + 1], W.features, W.columns)


@pytest.mark.thin(3)
@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("sizes", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize(("name", "loss"), CASES)
def test_reaches_the_minimiser_of_the_naive_loop(name, loss, sizes, kind):
    shard = shard_of(loss, sizes)
    local = local_problem(shard, kind)
    found = TIGHT[name].solve(local, start_of(shard), None, None)
    assert found.converged.all()
    torch.testing.assert_close(found.u, oracle(loss, sizes, kind), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(gradient(local, found.u), found.grad_norm, rtol=1e-3, atol=1e-10)


@pytest.mark.thin(3)
@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("loss", ["LeastSquares", "Multinomial", "SmoothedHinge"])
@pytest.mark.parametrize("name", ITERATIVE)
def test_all_blocks_at_once_equals_one_by_one(name, loss, kind):
    problem = problem_of(loss, UNEVEN)
    local = local_problem(problem.shard(torch.float64, CPU), kind)
    u0 = start_of(local.shard)
    together = TIGHT[name].solve(local, u0, None, None)
    for j in range(local.shard.blocks):
        rows = slice(j, j + 1)
        single = LocalProblem(alone(problem, j), one_block(local.W, j), local.v[rows], local.lam[rows])
        apart = TIGHT[name].solve(single, u0[rows], None, None)
        torch.testing.assert_close(together.u[rows], apart.u, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("loss", ["LeastSquares", "Multinomial", "SmoothedHinge"])
@pytest.mark.parametrize("name", [*ITERATIVE, "released"])
def test_sparse_blocks_give_the_same_models(name, loss):
    solver = Released() if name == "released" else TIGHT[name]
    problem = problem_of(loss, UNEVEN)
    dense = local_problem(problem.shard(torch.float64, CPU), "diagonal")
    thin = local_problem(sparse(problem).shard(torch.float64, CPU), "diagonal")
    u0 = start_of(dense.shard)
    torch.testing.assert_close(
        solver.solve(thin, u0, None, None).u, solver.solve(dense, u0, None, None).u, rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("name", TIGHT)
def test_an_empty_block_steps_by_the_multiplier(name, kind):
    local = local_problem(shard_of("LeastSquares", UNEVEN), kind)
    found = TIGHT[name].solve(local, start_of(local.shard), None, None)
    expected = local.v + local.W.solve(local.lam)
    j = UNEVEN.index(0)
    torch.testing.assert_close(found.u[j], expected[j], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("name", "loss"), CASES)
def test_single_precision_reaches_its_own_limit(name, loss):
    shard = shard_of(loss, UNEVEN, dtype=torch.float32)
    local = local_problem(shard, "dense")
    found = TIGHT[name].solve(local, start_of(shard), None, None)
    assert found.u.dtype == torch.float32
    assert found.converged.all()  # 1e-9 is out of reach: at the limit of rounding counts
    torch.testing.assert_close(found.u.double(), oracle(loss, UNEVEN, "dense"), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", ITERATIVE)
def test_a_loss_written_by_the_user(name):
    def huber_like(u, X, y):
        return torch.sqrt(1 + (X @ u - y) ** 2)

    rng = np.random.default_rng(0)
    blocks = [(rng.normal(size=(n, 4)), rng.normal(size=n)) for n in (9, 4, 9)]
    shard = aq.Problem(aq.CustomLoss(huber_like), aq.Zero(), blocks).shard(torch.float64, CPU)
    local = local_problem(shard, "dense")
    found = TIGHT[name].solve(local, start_of(shard), None, None)
    assert found.converged.all()
    assert (gradient(local, found.u) <= 1.1e-9).all()


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any),
    features=st.integers(1, 12),
    kind=st.sampled_from(WEIGHTS),
    size=st.sampled_from([1e-3, 1.0, 1e3]),
)
@pytest.mark.parametrize("name", TIGHT)
def test_any_sizes_and_scales_end_where_the_gradient_vanishes(name, sizes, features, kind, size):
    shard = shard_of("LeastSquares", tuple(sizes), features=features)
    local = local_problem(shard, kind)
    local = LocalProblem(shard, local.W, local.v, size * local.lam)
    found = TIGHT[name].solve(local, size * start_of(shard), None, None)
    assert found.converged.all()
    assert (gradient(local, found.u) <= 2e-9 + 1e-13 * size).all()


@pytest.mark.parametrize("name", [*TIGHT, "released"])
def test_nothing_that_was_handed_over_changes(name):
    solver = Released() if name == "released" else TIGHT[name]
    shard = shard_of("LeastSquares", UNEVEN)
    local = local_problem(shard, "diagonal")
    u0 = start_of(shard)
    given_ = [u0, local.v, local.lam, local.W.d, shard.target, shard.row_weight, *(p.X for p in shard.design.pieces)]
    before = [x.clone() for x in given_]
    first = solver.solve(local, u0, 0.1, None)
    kept = first.u.clone()
    solver.solve(local_problem(shard, "scalar"), first.u, 0.1, first.memory)
    assert all(torch.equal(x, y) for x, y in zip([*given_, first.u], [*before, kept], strict=True))


@pytest.mark.parametrize("name", [*TIGHT, "released"])
def test_the_same_call_gives_the_same_bits(name):
    solver = Released() if name == "released" else TIGHT[name]
    shard = shard_of("LeastSquares", UNEVEN)
    local, u0 = local_problem(shard, "dense"), start_of(shard)
    assert torch.equal(solver.solve(local, u0, None, None).u, solver.solve(local, u0, None, None).u)


def test_separable_data_have_a_minimiser_thanks_to_the_weights():
    """One class per block: f_j alone has none. A tiny W_j puts it far away, at logits where p is 1 to rounding."""
    shard = shard_of("Multinomial", EVEN)
    W = Scalar(torch.full((3,), 1e-4, dtype=torch.float64), *shard.shape[1:])
    local = LocalProblem(shard, W, shard.zeros(), shard.zeros())
    found = NewtonCG(tol=1e-10).solve(local, shard.zeros(), None, None)
    assert found.converged.all()
    assert (gradient(local, found.u) <= 1.1e-10).all()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_sharp_hinge_is_solved_from_afar(reduction):
    """ε = 1/5000: the Hessian is a spike that Newton's model sees only from within."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 30))
    y = np.where(X[:, 0] + 0.5 * rng.normal(size=400) > 0, 1, -1)
    blocks = [(X[:200], y[:200]), (X[200:], y[200:])]
    shard = aq.Problem(aq.SmoothedHinge(reduction=reduction), aq.Zero(), blocks).shard(torch.float64, CPU)
    local = LocalProblem(shard, weights_of("diagonal", shard.shape), shard.zeros(), shard.zeros())
    found = NewtonCG(tol=1e-8).solve(local, 10 * start_of(shard), None, None)
    assert found.converged.all()
    assert found.iterations.max() <= 50
