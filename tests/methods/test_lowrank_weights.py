"""The weights of AUQ-LR: which directions they keep, when they change, and in which basis the rest is diagonal."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch

import auqadmm as aq
from auqadmm.metrics.lowrank import LowRank
from tests.methods.cases import LR, TIGHT
from tests.problems import class_blocks, least_squares, multinomial, regression_blocks


def test_w_equal_to_h_is_newtons_method():
    """Full rank, no floor to speak of, α near 2: a quadratic is solved in a handful of rounds."""
    blocks = regression_blocks(sizes=(40, 40, 40), features=4)
    problem = least_squares(blocks, reduction="sum", regularizer=aq.L2(1e-6))
    run = aq.solve(problem, LR(rank=4, relaxation=1.99), certificate_tol=1e-8, max_iter=30)
    assert run.status == "converged"
    assert run.n_iter <= 4


def recorded(problem, method, steps=40):
    seen = []
    aq.solve(
        problem,
        method,
        max_iter=steps,
        certificate_tol=0,
        abs_tol=0,
        rel_tol=0,
        callbacks=[lambda event: seen.append(event.state.blocks.W) and False],
    )
    return seen


def test_weights_change_finitely_often_and_only_when_announced():
    W = recorded(multinomial(reduction="sum"), LR())
    changes = [k + 2 for k in range(len(W) - 1) if W[k + 1] is not W[k]]  # W[k] is used in iteration k + 2
    assert 0 < len(changes) <= 5
    assert {k + 1 for k in changes} <= {2, 4, 7, 11, 16, 24}
    fixed = recorded(least_squares(), LR(rank=3))
    assert all(w is fixed[0] for w in fixed), "the Hessian of least squares does not change"


def test_rank_zero_is_a_diagonal_weight():
    for w in recorded(least_squares(), LR(rank=0), steps=3):
        dense = w.dense()
        torch.testing.assert_close(dense, torch.diag_embed(dense.diagonal(dim1=1, dim2=2)))
    run = aq.solve(least_squares(), LR(rank=0), **TIGHT)
    assert run.status == "converged"


def test_blocks_with_the_same_data_get_the_same_weights():
    X, y = class_blocks(classes=2, per_block=20, one_class=False)[0]
    blocks = [(X, y), (X + 0.5, 1 - y), (X, y)]
    for w in recorded(aq.Problem(aq.Logistic(), aq.L2(0.1), blocks), LR(rank=3), steps=6):
        torch.testing.assert_close(w.dense()[0], w.dense()[2], rtol=1e-9, atol=1e-12)


def test_directions_are_at_most_a_quarter_of_the_rows():
    blocks = regression_blocks(sizes=(3, 9, 40), features=6)
    (w, *_) = recorded(least_squares(blocks), LR(rank=20), steps=2)
    assert isinstance(w, LowRank)
    used = (w.U.norm(dim=1) > 0.5).sum(1)
    assert used.tolist() == [1, 3, 6]


def test_the_number_of_directions_follows_from_the_data():
    """A block whose rows lie in a plane keeps two directions; one with a flat spectrum and strong l2 needs none."""
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(400, 30))
    plane = rng.normal(size=(400, 2)) @ rng.normal(size=(2, 30)) * 10 + 1e-4 * flat
    blocks = [(X, X[:, 0]) for X in (plane, flat, plane[:5])]
    (w, *_) = recorded(aq.Problem(aq.LeastSquares(), aq.L2(1e4), blocks), LR(), steps=2)
    assert (w.U.norm(dim=1) > 0.5).sum(1).tolist() == [2, 0, 2]
    assert w.U.shape[2] == 2, "no room is taken for directions that nobody keeps"


def test_more_columns_pay_for_more_directions():
    """A direction costs as much whatever C is, a round costs C times more."""
    X = np.random.default_rng(0).normal(size=(3000, 200)) / np.arange(1, 201)
    found = []
    for C in (2, 40):
        y = np.arange(3000) % C
        (w, *_) = recorded(aq.Problem(aq.Multinomial(), aq.L2(1e-2), [(X, y)]), LR(round_cost=4000), steps=1)
        found.append(w.U.shape[2])
    assert found[0] < found[1]


def test_blocks_may_keep_different_numbers_of_directions():
    """What the server puts together from the parts is the sum of what the blocks hold."""
    rng = np.random.default_rng(1)
    X = [rng.normal(size=(n, 8)) / np.arange(1, 9) ** p for n, p in ((60, 0), (9, 1), (60, 3), (0, 0))]
    problem = aq.Problem(aq.LeastSquares(), aq.L2(0.1), [(x, x.sum(1)) for x in X])
    seen = []
    aq.solve(problem, LR(), max_iter=2, certificate_tol=0, callbacks=[lambda e: seen.append(e.state) and False])
    W, K = seen[-1].blocks.W, seen[-1].shared.metric
    assert len(set((W.U.norm(dim=1) > 0.5).sum(1).tolist())) > 1
    v = torch.from_numpy(rng.normal(size=(8, 1)))
    torch.testing.assert_close(K.apply(v), W.apply(v.expand(4, 8, 1)).sum(0))


def test_the_posterior_without_l2_gives_an_empty_block_some_weight():
    blocks = [*regression_blocks(), (np.zeros((0, 6)), np.zeros(0))]
    problem = least_squares(blocks, regularizer=aq.L1(0.05))
    (w, *_) = recorded(problem, LR(), steps=2)
    assert (w.phi > 0).all()
    assert aq.solve(problem, "auq-lr", **TIGHT).status == "converged"


# ------------------------------------------------------------------ the image basis


@pytest.mark.parametrize("image", [(1, 5), (5, 1), (1, 5, 1)])
@pytest.mark.thin(2)
def test_an_image_basis_keeps_the_answer(image):
    blocks, g = class_to_real(), aq.ElasticNet(0.1, 1e-3)
    for loss in (aq.LeastSquares(), aq.Huber(0.3)):
        for intercept in (False, True):
            plain = aq.solve(aq.Problem(loss, g, blocks, intercept), LR(rank=0), **TIGHT)
            run = aq.solve(aq.Problem(loss, g, blocks, intercept, image), LR(rank=0), **TIGHT)
            assert run.status == "converged"
            assert run.weights.F is not None
            assert plain.weights.F is None
            assert run.objective == pytest.approx(plain.objective, rel=1e-8)


def test_an_image_basis_saves_rounds_where_pixels_are_alike():
    blocks = [(X, X[:, 0]) for X, _ in class_to_real(12)]
    rounds = [
        aq.solve(aq.Problem(aq.LeastSquares(), aq.L2(1e-3), blocks, image=image), LR(rank=0), **TIGHT).n_iter
        for image in (None, (3, 4))
    ]
    assert rounds[1] < rounds[0]


def test_pixels_that_are_not_alike_keep_their_own_basis():
    rng = np.random.default_rng(0)
    scales = np.array([10.0, 0.1, 3.0, 0.01, 1.0, 0.3])
    blocks = [(rng.normal(size=(50, 6)) * scales, rng.normal(size=50)) for _ in range(3)]
    run = aq.solve(aq.Problem(aq.LeastSquares(), aq.L2(0.1), blocks, image=(2, 3)), "auq-lr")
    assert run.weights.F is None


def class_to_real(features=5):
    """Neighbouring features that are alike, as pixels are: the cosine basis has something to find."""
    rng = np.random.default_rng(0)
    mix = np.exp(-0.5 * np.subtract.outer(np.arange(features), np.arange(features)) ** 2)
    return [(X @ mix, X[:, 0]) for X in rng.normal(size=(3, 30, features))]


def test_an_image_basis_takes_sparse_blocks():
    blocks = [(X * (X > 0), y) for X, y in class_to_real()]
    dense, sparse = (
        aq.solve(aq.Problem(aq.Huber(0.3), aq.L2(1e-3), found, image=(1, 5)), LR(rank=0), **TIGHT)
        for found in (blocks, [(scipy.sparse.csr_matrix(X), y) for X, y in blocks])
    )
    torch.testing.assert_close(sparse.v, dense.v, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(sparse.weights.d, dense.weights.d, rtol=1e-6, atol=1e-9)
