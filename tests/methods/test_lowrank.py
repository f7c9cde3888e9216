"""AUQ-LR: it reaches the optimum for every loss and regularizer, and keeps its promises on the way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize

import auqadmm as aq
from tests.methods.cases import LOSSES, LR, PENALTIES, TIGHT, make
from tests.problems import class_blocks, least_squares, multinomial, regression_blocks, svm


@pytest.mark.thin(4)
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

    def rounds(method, most):
        run = aq.solve(
            problem,
            method,
            max_iter=most,
            certificate_tol=0,
            evaluate_every=1,
            callbacks=[lambda event: event.row.objective <= best + 1e-6 * abs(best)],
        )
        return run.n_iter

    ours = rounds("auq-lr", 300)
    assert ours <= 20
    assert ours == rounds("c-admm", ours) == rounds("auq-admm", ours)  # they had not arrived before


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
    run = aq.solve(problem, LR(rank=3, columns="raw"), certificate_tol=0, max_iter=13)
    rows = run.history.rows[:-1]  # the last one holds what came after it too
    m, C, r = 5, 3, 3
    n, weights = m * C, r * (r + 1) // 2 + m + C * (C + 1) // 2 + 1
    up = [b.bytes_up // 8 - a.bytes_up // 8 for a, b in itertools.pairwise(rows)]
    scalars = 8
    # the first message holds the directions and the weights besides Tz, Σλ and the scalars
    assert rows[0].bytes_up // 8 == n + scalars + m * r + 1 + weights + n + 1
    assert min(up) == n + scalars + (0 if up[0] == n + scalars else 3)
    assert max(up) <= n + scalars + weights + 1 + 3 * 9
    assert all(b.rounds - a.rounds == 1 for a, b in itertools.pairwise(rows))


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
    assert run.method == "newton"
    assert "auto chose newton" in run.message


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
