"""The second-order rivals against other people's solvers, and what they count; every reduction of a run is counted."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import ElasticNet, LogisticRegression

import auqadmm as aq

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))
import optima  # noqa: E402
import rivals  # noqa: E402
import rounds  # noqa: E402
import workloads  # noqa: E402

sys.path.remove(str(FOLDER))
TIGHT = ElasticNet(fit_intercept=False, tol=1e-15, max_iter=1_000_000)


def pooled(problem: aq.Problem) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.concatenate([getattr(b, name) for b in problem.blocks]) for name in ("X", "y"))


def solved(problem: aq.Problem, method, iterations: int = 60) -> aq.Result:
    return aq.solve(problem, rounds.LeftToCallback(method), max_iter=iterations, **rounds.NO_TEST)


def blocks(rng, targets, sizes=(30, 17, 40)):
    made = []
    for n in sizes:
        X = rng.normal(size=(n, 6)) * np.array([1, 2, 0.5, 1, 1, 3])
        made.append((X, targets(X)))
    return made


def signs(rng):
    return lambda X: np.where(X[:, 0] - X[:, 1] + rng.normal(size=len(X)) > 0, 1.0, -1.0)


# ---------------------------------------------------------------------- the same optimum
@pytest.mark.parametrize("method", [rivals.Newton(), rivals.Gram()])
def test_squares_are_solved_in_one_round(method):
    problem = workloads.WORKLOADS["digits-elastic-sum"].make()
    result = solved(problem, method, 3)
    X, y = pooled(problem)
    rows, m = X.shape
    # scikit-learn divides the sum by the rows
    model = TIGHT.set_params(alpha=0.02 / rows, l1_ratio=0.5).fit(X, y)
    best = 0.5 * ((X @ model.coef_ - y) ** 2).sum() + 0.01 * abs(model.coef_).sum() + 0.005 * (model.coef_**2).sum()
    row = result.history[0]
    assert row.objective == pytest.approx(best, rel=1e-9)
    np.testing.assert_allclose(result.v[:, 0], model.coef_, atol=1e-6)
    triangle = m * (m + 1) // 2
    numbers = triangle + m + (2 if method.name == "newton-plain" else 0)  # the value, and how sharp corners are
    assert (row.rounds, row.bytes_up) == (1, 8 * numbers)


@pytest.mark.campaign
def test_newton_finds_the_optimum_of_a_dense_newton():
    """Softmax regression of digits: the naive twin forms every Hessian by Kronecker products of rows."""
    problem = workloads.WORKLOADS["digits-multinomial-mean"].make()
    result = solved(problem, rivals.Newton(), 12)
    v, path = dense_newton(problem, steps=7)
    assert result.history[-1].objective == pytest.approx(path[-1], rel=1e-12)
    # full steps all along: the same iterates
    assert [row.objective for row in result.history][:6] == pytest.approx(path[1:7], rel=1e-12)
    np.testing.assert_allclose(result.v, v, atol=1e-9)


def dense_newton(problem: aq.Problem, steps: int) -> tuple[np.ndarray, list[float]]:
    """½‖v‖² + Σ_j mean of softmax losses of block j, in numpy."""
    v, path = np.zeros((64, 10)), []
    for _ in range(steps):
        F, G, H = 0.5 * (v**2).sum(), v.copy(), np.eye(640)
        for block in problem.blocks:
            X, y, n = block.X, block.y.astype(int), len(block.y)
            z = X @ v
            p = np.exp(z - np.logaddexp.reduce(z, axis=1)[:, None])
            F += (np.logaddexp.reduce(z, axis=1) - z[np.arange(n), y]).mean()
            G += X.T @ (p - np.eye(10)[y]) / n
            S = (np.einsum("ic,cd->icd", p, np.eye(10)) - np.einsum("ic,id->icd", p, p)) / n
            H += np.einsum("ia,icd,ib->acbd", X, S, X, optimize=True).reshape(640, 640)
        path.append(F)
        v = v - np.linalg.solve(H, G.ravel()).reshape(64, 10)
    return v, path


@pytest.mark.parametrize("l1", [0.0, 3.0])
def test_logistic_regression_is_that_of_scikit_learn(l1):
    rng = np.random.default_rng(3)
    made = blocks(rng, signs(rng))
    g = aq.ElasticNet(l1, 0.5) if l1 else aq.L2(0.5)
    problem = aq.Problem(aq.Logistic(), g, made, intercept=False)
    result = solved(problem, rivals.Newton(), 20)
    X, y = pooled(problem)

    def F(w):
        return np.logaddexp(0, -y * (X @ w)).sum() + l1 * abs(w).sum() + 0.25 * (w @ w)

    if l1:  # one strength C = 1/(l1 + l2), shared out
        share = {"l1_ratio": l1 / (l1 + 0.5), "C": 1 / (l1 + 0.5)}
        model = LogisticRegression(solver="saga", tol=1e-14, max_iter=200_000, fit_intercept=False, **share)
    else:
        model = LogisticRegression(C=2.0, solver="newton-cholesky", tol=1e-14, fit_intercept=False)
    w = model.fit(X, y).coef_[0]
    assert result.history[-1].objective == pytest.approx(F(w), rel=1e-9)
    np.testing.assert_allclose(result.v[:, 0], w, atol=1e-6)
    assert (result.v[w == 0] == 0).all()


# ---------------------------------------------------------------------- what is counted
def test_a_refused_step_costs_one_round_and_every_number_counts(monkeypatch):
    """Corners as narrow as they are from the start: full steps are refused."""
    monkeypatch.setattr(rivals, "WIDEST", 0.0)
    problem = workloads.WORKLOADS["digits-svm"].make()
    history = solved(problem, rivals.Newton(), 13).history
    rows = history.rows[:-1]  # the last one holds what ending the run took as well
    triangle, before = 64 * 65 // 2, 0
    for k, row in enumerate(rows):
        spent = row.rounds - before
        assert spent in (1, 2)
        # a full step is known before the round that tries it, a shorter one after it; how sharp corners are, once
        fans = k + (spent == 2)
        assert row.bytes_up == 8 * (1 + row.rounds * (triangle + 64 + 1) + fans * len(rivals.FAN))
        before = row.rounds
    assert rows[-1].rounds > len(rows)
    objectives = history.column("objective")
    assert objectives == sorted(objectives, reverse=True)


def test_corners_are_sharpened_on_the_way():
    workload = workloads.WORKLOADS["digits-svm"]
    problem, best = workload.make(), optima.optimum(workload).objective
    found = rounds.run(problem, rivals.Newton(), best, rounds.Budget(50, 20.0, "cpu"))
    assert found.status == "reached"
    assert found.hits[1e-6].rounds <= 15
    history = solved(problem, rivals.Newton(), 40).history
    assert abs(history[-1].objective - best) < 1e-9 * best
    # how sharp corners are, and in the second round: derivatives, and as the corner gets sharper a value for the full
    # step beside the others
    assert history[1].rounds == 2
    assert history[1].bytes_up == 8 * (1 + 2 * (64 * 65 // 2 + 64 + 1) + 1 + len(rivals.FAN))


class Counting:
    """The method; counts sums over workers, the loop's own included, and compares with what was reported."""

    def __init__(self, method):
        self.method, self.at_work, self.sums, self.numbers = method, False, 0, 0

    def __getattr__(self, name):
        return getattr(self.method, name)

    def init(self, setup, reduce):
        self.reduce, plain_sum, plain_concat = reduce, reduce.engine.map_sum, reduce.engine.map_concat

        def map_sum(*arguments):
            own, sums = plain_sum(*arguments)
            if self.at_work and sums:  # without sums it only places things
                self.sums += 1
                self.numbers += sum(x.numel() for x in sums.values())
            return own, sums

        def map_concat(*arguments):
            parts = plain_concat(*arguments)
            self.numbers += sum(x.numel() for x in parts.values()) / setup.blocks
            return parts

        reduce.engine.map_sum, reduce.engine.map_concat = map_sum, map_concat
        return self.watched(lambda: self.method.init(setup, reduce))

    def step(self, state, reduce):
        return self.watched(lambda: self.method.step(state, reduce))

    def watched(self, work):
        self.at_work = True
        try:
            return work()
        finally:
            self.at_work = False


@pytest.mark.parametrize(
    ("name", "model"),
    [
        *((name, "multinomial-mean") for name in ("auq-lr", "newton", "lbfgs", "lbfgs-50", "lbfgs-w", "c-admm")),
        *((name, "elastic-mean") for name in ("auq-lr", "newton", "gram", "owl-qn", "fista", "auq-admm")),
    ],
)
def test_every_reduction_counts_and_no_verdict_does(name, model):
    counting = Counting(rounds.resolve(name))
    seen = []

    def look(event):
        traffic = counting.reduce.traffic
        assert traffic.rounds == counting.sums
        assert traffic.up / 8 == pytest.approx(counting.numbers, abs=traffic.rounds)  # parts are rounded up
        assert event.row.rounds <= counting.sums
        # what was summed after the iterate before was known, and before this one was, is counted with this one
        assert not seen or event.row.rounds >= seen[-1]
        seen.append(event.row.rounds)

    problem = workloads.WORKLOADS[f"digits-{model}"].make()
    aq.solve(problem, rounds.LeftToCallback(counting), max_iter=5, callbacks=[look], **rounds.NO_TEST)
    assert len(seen) == 5
    assert counting.sums > 0


# ---------------------------------------------------------------------- refusals
def test_what_does_not_apply_is_refused_with_a_reason(monkeypatch):
    rng = np.random.default_rng(0)
    problem = aq.Problem(aq.Logistic(), aq.L2(1.0), blocks(rng, signs(rng)))
    budget = rounds.Budget(20, 20.0, "cpu")
    found = rounds.run(problem, rivals.Gram(), 1.0, budget)
    assert (found.status, found.message) == ("not applicable", "'gram' needs least squares on dense blocks.")
    monkeypatch.setattr(rivals, "LARGEST", 5)
    found = rounds.run(problem, rivals.Newton(), 1.0, budget)
    assert found.status == "not applicable"
    assert "at most 5 are allowed" in found.message
    monkeypatch.undo()
    free = aq.Problem(aq.LeastSquares(), aq.Zero(), [(np.ones((5, 2)), np.ones(5))], intercept=False)
    assert "singular" in rounds.run(free, rivals.Newton(), 1.0, budget).message
    other = aq.Problem(aq.Logistic(), aq.NonNegative(), blocks(rng, signs(rng)))
    assert "NonNegative" in rounds.run(other, rivals.Newton(), 1.0, budget).message


def test_multinomial_mnist_fits_and_cifar10_does_not():
    assert 784 * 10 <= rivals.LARGEST < 3072 * 10


def test_signs_are_settled_from_any_start():
    rng = np.random.default_rng(5)
    A = rng.normal(size=(40, 25))
    H = torch.tensor(A.T @ A + 0.1 * np.eye(25))
    b, l1 = torch.tensor(5 * rng.normal(size=25)), torch.full((25,), 4.0, dtype=torch.float64)
    starts = [torch.zeros(25, dtype=torch.float64), torch.tensor(rng.normal(size=25))]
    found = [rivals.minimiser(H, b, l1, start) for start in starts]
    torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=0)
    slope = H @ found[0] - b
    active = found[0] != 0
    assert 0 < int(active.sum()) < 25
    torch.testing.assert_close(slope[active], -l1[active] * found[0][active].sign(), atol=1e-10, rtol=0)
    assert bool((slope[~active].abs() <= l1[~active]).all())
