"""AUQ-LR: it reaches the optimum for every loss and regularizer, and keeps its promises on the way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.optimize import minimize

import auqadmm as aq
from auqadmm.core.acceleration import Anderson, D
from auqadmm.core.lowrank import LowRank
from tests.problems import class_blocks, least_squares, multinomial, regression_blocks, svm

LR = aq.methods.AUQLR
TIGHT = {"certificate_tol": 1e-9, "abs_tol": 1e-7, "rel_tol": 1e-7, "max_iter": 400}

LOSSES = {
    "least-squares": (aq.LeastSquares(), "real"),
    "huber": (aq.Huber(0.5), "real"),
    "poisson": (aq.Poisson(), "count"),
    "logistic": (aq.Logistic(), "class"),
    "hinge": (aq.SmoothedHinge(0.05), "class"),
    "multinomial": (aq.Multinomial(), "class"),
    "custom": (aq.CustomLoss(lambda u, X, y: torch.nn.functional.softplus(y - X @ u) + 0.1 * (X @ u - y) ** 2), "real"),
}
PENALTIES = {
    "l2": aq.L2(0.5),
    "elastic-net": aq.ElasticNet(0.5, 0.3),
    "l1": aq.L1(0.5),
    "group": aq.GroupLasso(0.5, groups=[0, 0, 1, 1, 2]),
    "non-negative": aq.NonNegative(),
    "box": aq.Box(-0.2, 0.3),
}


def make(loss, penalty, intercept=False):
    loss, kind = LOSSES[loss]
    blocks = class_blocks(classes=3 if isinstance(loss, aq.Multinomial) else 2, per_block=14)
    X, y = blocks[0]
    blocks.append((X[:3] + 0.1, y[:3]))  # uneven, and too few rows for a direction
    blocks.append((X[:0], y[:0]))
    if kind != "class":
        blocks = [(X, np.floor(2 * np.abs(X[:, 0])) if kind == "count" else X[:, 0] - X[:, 1] + y) for X, y in blocks]
    return aq.Problem(loss, PENALTIES[penalty], blocks, intercept=intercept)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_and_regularizer(loss, penalty):
    problem = make(loss, penalty)
    run = aq.solve(problem, "auq-lr", **TIGHT)
    assert run.status == "converged", run.message
    other = aq.solve(problem, "fista", stop="certificate", certificate_tol=1e-8, max_iter=20_000)
    assert run.objective == pytest.approx(other.objective, rel=1e-6)
    assert run.n_iter <= 100


@pytest.mark.parametrize("loss", ["least-squares", "logistic", "multinomial"])
def test_an_intercept_stays_free(loss):
    problem = make(loss, "l2", intercept=True)
    run = aq.solve(problem, "auq-lr", **TIGHT)
    other = aq.solve(problem, "lbfgs", stop="certificate", certificate_tol=1e-10, max_iter=2000)
    assert run.status == "converged"
    assert run.objective == pytest.approx(other.objective, rel=1e-8)


@pytest.mark.parametrize("model", [least_squares, multinomial, svm])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_far_fewer_rounds_than_the_papers_methods(model, reduction):
    problem = model(reduction=reduction)
    best = aq.solve(problem, "auq-lr", **TIGHT).objective

    def rounds(method):
        run = aq.solve(
            problem,
            method,
            max_iter=300,
            certificate_tol=0,
            callbacks=[lambda event: event.row.objective <= best + 1e-6 * abs(best)],
        )
        return run.n_iter

    ours = rounds("auq-lr")
    assert ours <= 20
    assert ours <= min(rounds("c-admm"), rounds("auq-admm"))


# ------------------------------------------------------------------ the metric
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
    assert {k + 1 for k in changes} <= {2, 4, 8, 16, 32}
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
        (w, *_) = recorded(aq.Problem(aq.Multinomial(), aq.L2(1e-2), [(X, y)]), LR(), steps=1)
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


def test_a_run_that_lasts_buys_directions():
    """They are sent when a quarter of the rounds so far pays for them, and the answer stays."""
    rng = np.random.default_rng(0)
    scales = np.exp(-np.arange(60) / 6)
    blocks = [(rng.normal(size=(400, 60)) * scales, np.arange(400) % 2 == j % 2) for j in range(3)]
    problem = aq.Problem(aq.Logistic(), aq.L2(1e-3), blocks)
    seen = recorded(problem, LR(), steps=70)
    ranks = [int((w.U.norm(dim=1) > 0.5).sum(1).max()) for w in seen]
    assert ranks[0] <= ranks[29] == ranks[1]
    assert ranks[31] > ranks[29]
    run = aq.solve(problem, LR(), **TIGHT)
    other = aq.solve(problem, "lbfgs", stop="certificate", certificate_tol=1e-10, max_iter=5000)
    assert run.objective == pytest.approx(other.objective, rel=1e-8)


def test_the_posterior_without_l2_gives_an_empty_block_some_weight():
    blocks = [*regression_blocks(), (np.zeros((0, 6)), np.zeros(0))]
    problem = least_squares(blocks, regularizer=aq.L1(0.05))
    (w, *_) = recorded(problem, LR(), steps=2)
    assert (w.phi > 0).all()
    assert aq.solve(problem, "auq-lr", **TIGHT).status == "converged"


# ------------------------------------------------------------------ acceleration
def test_acceleration_pays():
    problem = multinomial(class_blocks(classes=4, per_block=30), reduction="sum", regularizer=aq.L2(0.01))
    fast = aq.solve(problem, LR(), certificate_tol=1e-8, max_iter=500)
    plain = aq.solve(problem, LR(memory=0), certificate_tol=1e-8, max_iter=500)
    assert fast.status == plain.status == "converged"
    assert fast.n_iter <= plain.n_iter
    assert fast.objective == pytest.approx(plain.objective, rel=1e-7)


def test_a_step_too_far_is_refused():
    """A nearly singular memory asks for an absurd step: the test on its size says no."""
    anderson = Anderson.empty(3, torch.zeros(1, 1, dtype=torch.float64)).measured(1.0)
    tiny, one = torch.tensor([1e-16], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64)
    huge = anderson.extended(tiny, one, torch.ones(1, 1, dtype=torch.float64))
    assert huge.coefficients(torch.tensor([1e-4], dtype=torch.float64)) is None
    fine = anderson.extended(one, one, torch.ones(1, 1, dtype=torch.float64))
    assert fine.coefficients(torch.tensor([0.5], dtype=torch.float64)) == pytest.approx(0.5)
    assert fine.allowance == pytest.approx(D)


def test_relaxation_changes_once_and_memory_starts_anew():
    """α = 1.8 becomes 1.6 in iteration 24; the differences of the old map are forgotten on both sides."""
    seen = []

    def watch(event):
        server, blocks = event.state.shared.memory, event.state.blocks.memory
        seen.append((server.directive.relaxation, server.anderson.used, blocks.get("dR")))

    problem = least_squares(reduction="sum")
    aq.solve(problem, LR(rank=1), max_iter=40, certificate_tol=0, abs_tol=0, rel_tol=0, callbacks=[watch])
    assert [alpha for alpha, _, _ in seen] == 22 * [1.8] + 18 * [1.6]  # the first row tells of iteration 2
    assert seen[22][1] == 0
    assert seen[22][2] is None
    assert seen[25][1] == seen[25][2].shape[-1] - 1  # the newest column is on its way


def test_memory_forgets_the_oldest_column():
    anderson = Anderson.empty(2, torch.zeros(2, 1, dtype=torch.float64)).measured(1.0)
    full = torch.tensor([[4.0, 1, 0], [1, 5, 2], [0, 2, 6]], dtype=torch.float64)
    for k in range(3):
        row = full[k, : k + 1]
        anderson = anderson.extended(row, row, torch.full((2, 1), float(k), dtype=torch.float64))
    assert torch.equal(anderson.gram, full[1:, 1:])
    assert anderson.columns[0, 0].tolist() == [1.0, 2.0]


def test_acceleration_that_misleads_is_taken_back(monkeypatch):
    """Coefficients made wrong on purpose: the run goes back to plain steps and still arrives."""
    honest = Anderson.coefficients

    def wrong(self, against):
        return honest(self, -3.0 * against)

    monkeypatch.setattr(Anderson, "coefficients", wrong)
    went_back = []

    def watch(event):
        went_back.append(event.state.shared.memory.directive.action == 3)

    problem = multinomial(reduction="sum")
    run = aq.solve(problem, LR(), certificate_tol=1e-6, max_iter=600, callbacks=[watch])
    assert any(went_back)
    assert run.status == "converged", run.message


def test_nan_among_the_scalars_means_a_plain_step():
    anderson = Anderson.empty(2, torch.zeros(1, 1, dtype=torch.float64)).measured(1.0)
    nan = torch.tensor([float("nan")], dtype=torch.float64)
    column = torch.ones(1, 1, dtype=torch.float64)
    assert anderson.extended(nan, nan, column).coefficients(nan) is None


# ------------------------------------------------------------------ the rest of the contract
@pytest.mark.parametrize("model", [least_squares, multinomial, svm])
def test_started_at_its_own_solution(model):
    problem = model()
    first = aq.solve(problem, "auq-lr", **TIGHT)
    again = aq.solve(problem, "auq-lr", warm_start=first, **TIGHT)
    assert again.n_iter <= 2
    assert again.objective == pytest.approx(first.objective, rel=1e-8)


def test_gradient_rounds_reach_the_same_optimum_without_hessian_products():
    problem = multinomial()
    run = aq.solve(problem, LR(local=False), **TIGHT)
    assert run.status == "converged"
    assert run.history[-1].hvps == 0
    assert run.objective == pytest.approx(aq.solve(problem, "auq-lr", **TIGHT).objective, rel=1e-8)


def test_bytes_are_counted_and_the_directions_travel_once():
    problem = multinomial(reduction="sum")
    rows = aq.solve(problem, LR(rank=3), certificate_tol=0, abs_tol=0, rel_tol=0, max_iter=12).history.rows
    m, C, r = 5, 3, 3
    n, weights = m * C, r * (r + 1) // 2 + m + C * (C + 1) // 2 + 1
    up = [b.bytes_up // 8 - a.bytes_up // 8 for a, b in itertools.pairwise(rows)]
    scalars = 8
    # the first message holds the directions and the weights besides Tz, Σλ and the scalars
    assert rows[0].bytes_up // 8 == n + scalars + m * r + 1 + weights + n + 1
    assert min(up) == n + scalars + (0 if up[0] == n + scalars else 3)
    assert max(up) <= n + scalars + weights + 1 + 3 * 9
    assert all(b.rounds - a.rounds == 1 for a, b in itertools.pairwise(rows))


@pytest.mark.parametrize("image", [(1, 5), (5, 1), (1, 5, 1)])
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


def test_what_cannot_work_is_refused():
    for options, words in (
        ({"rank": -1}, "rank must be a whole number ≥ 0"),
        ({"memory": 1.5}, "memory must be a whole number ≥ 0"),
        ({"relaxation": 2.0}, r"relaxation must lie in \[1, 2\)"),
        ({"refresh": (0,)}, "refresh must be a whole number ≥ 1"),
        ({"refresh": 5}, "refresh must be a tuple of iterations, got 5"),
        ({"skip": -1}, "skip must be a number ≥ 0"),
    ):
        with pytest.raises(ValueError, match=words):
            LR(**options)
    (X, y), *_ = regression_blocks()
    with pytest.raises(ValueError, match=r"image=\(2, 2\) has 4 pixels but the blocks have 6 features"):
        aq.Problem(aq.LeastSquares(), aq.Zero(), [(X, y)], image=(2, 2))
    for image in (6, (6,), (2.5, 3), (0, 6), "ab", (1, 1, 2, 3)):
        with pytest.raises(ValueError, match=r"image must be \(height, width\) or"):
            aq.Problem(aq.LeastSquares(), aq.Zero(), [(X, y)], image=image)


def test_against_scipy_on_weakly_regularised_sums():
    """One class per worker, hardly any regularisation: the local problems are nearly separable."""
    blocks = class_blocks(classes=3, per_block=15)
    problem = multinomial(blocks, reduction="sum", regularizer=aq.L2(1e-3))
    X = np.concatenate([b[0] for b in blocks])
    Y = np.eye(3)[np.concatenate([b[1] for b in blocks])]

    def objective(flat):
        u = flat.reshape(5, 3)
        Z = X @ u
        Z = Z - Z.max(1, keepdims=True)
        P = np.exp(Z) / np.exp(Z).sum(1, keepdims=True)
        value = -np.sum(Y * (Z - np.log(np.exp(Z).sum(1, keepdims=True)))) + 0.5e-3 * np.sum(u * u)
        return value, (X.T @ (P - Y) + 1e-3 * u).ravel()

    best = minimize(objective, np.zeros(15), jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000}).fun
    run = aq.solve(problem, "auq-lr", certificate_tol=1e-8, max_iter=500)
    assert run.objective == pytest.approx(best, rel=1e-6)
    assert run.n_iter <= 120


def test_auto_says_what_it_chose():
    run = aq.solve(least_squares())
    assert run.method == "auq-lr"
    assert "auto chose auq-lr" in run.message
    method, why = aq.methods.choose(blocks=10_000, features=100_000)
    assert method.rank == "auto"
    assert "10000 blocks leave no room" in why


def test_float32_blocks():
    exact = aq.solve(multinomial(), "auq-lr", **TIGHT)
    single = aq.solve(multinomial(), "auq-lr", dtype="float32", certificate_tol=1e-6, max_iter=100)
    assert single.status == "converged"
    assert single.objective == pytest.approx(exact.objective, rel=1e-5)


def test_a_warm_start_along_a_path_saves_rounds():
    """The neighbour's multipliers are a start, not a solution: the first round teaches nothing of the map."""
    blocks = regression_blocks(sizes=(40, 40, 40))
    strengths = np.geomspace(30, 0.3, 12)

    def rounds(warm):
        total, before = 0, None
        for strength in strengths:
            problem = least_squares(blocks, reduction="sum", regularizer=aq.ElasticNet(strength, strength))
            before = aq.solve(
                problem, LR(rank=2), certificate_tol=1e-8, stop="certificate", warm_start=before if warm else None
            )
            assert before.status == "converged"
            total += before.n_iter
        return total

    assert rounds(warm=True) < rounds(warm=False)


def test_an_image_basis_takes_sparse_blocks():
    blocks = [(X * (X > 0), y) for X, y in class_to_real()]
    dense, sparse = (
        aq.solve(aq.Problem(aq.Huber(0.3), aq.L2(1e-3), found, image=(1, 5)), LR(rank=0), **TIGHT)
        for found in (blocks, [(scipy.sparse.csr_matrix(X), y) for X, y in blocks])
    )
    torch.testing.assert_close(sparse.v, dense.v, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(sparse.weights.d, dense.weights.d, rtol=1e-6, atol=1e-9)
