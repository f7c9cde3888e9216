"""Newton on sums: against a dense twin and exact optima, whatever the split, the scale of columns, the working set."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.optimize import linprog
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression

import auqadmm as aq
from tests.verdict.cases import RANDOM, TABLE, draw

TIGHT = {"certificate_tol": 1e-12, "max_iter": 200}


def cancer(parts=4, columns=slice(None)):
    X, y = load_breast_cancer(return_X_y=True)
    X, y = X[:, columns], 2.0 * y - 1
    return [(X[j::parts], y[j::parts]) for j in range(parts)]


def sparse_table(kind="squares", rows=300, columns=1500, seed=0):
    rng = np.random.default_rng(seed)
    X = scipy.sparse.random(rows, columns, density=0.02, format="csr", random_state=seed, data_rvs=rng.standard_normal)
    w = np.zeros(columns)
    w[rng.choice(columns, 12, replace=False)] = rng.normal(0, 3, 12)
    z = X @ w + 0.1 * rng.normal(size=rows)
    return X, (z if kind == "squares" else np.sign(z + 1e-9))


def twin(blocks, l2, steps):
    """Newton on pooled rows, logistic loss, no intercept; a step is doubled where twice the last was clearly better."""
    X, y = np.concatenate([b[0] for b in blocks]), np.concatenate([b[1] for b in blocks])
    v, found, stretch = np.zeros(X.shape[1]), [], 1.0

    def F(v):
        return np.logaddexp(0, -y * (X @ v)).sum() + 0.5 * l2 * v @ v

    for _ in range(steps):
        q = 1 / (1 + np.exp(y * (X @ v)))
        G, H = -X.T @ (y * q) + l2 * v, X.T @ ((q * (1 - q))[:, None] * X) + l2 * np.eye(len(v))
        d = -stretch * np.linalg.solve(H, G)
        stretch = 2.0 if F(v + 2 * d) < F(v + d) - 0.1 * (F(v) - F(v + d)) and stretch == 1 else 1.0
        v = v + d
        found.append(v)
    return found


def test_its_iterates_are_those_of_a_dense_twin():
    blocks = [(X / X.std(0), y) for X, y in cancer(columns=slice(0, 6))]
    seen = []
    problem = aq.Problem(aq.Logistic(), aq.L2(5.0), blocks)
    aq.solve(problem, "newton", callbacks=[lambda e: seen.append(e.state.shared.v[:, 0].numpy().copy())], **TIGHT)
    for ours, theirs in zip(seen, twin(blocks, 5.0, len(seen)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("l2", [1.0, 1e-2, 1e-4])
def test_raw_tables_take_few_rounds(l2):
    """Columns from 0.05 to 4000: what took other methods hundreds of rounds, or all of them."""
    run = aq.solve(aq.Problem(aq.Logistic(), aq.L2(l2), cancer(), intercept=True), "newton", certificate_tol=1e-6)
    assert run.status == "converged"
    assert run.certificate.evidence == "proved"
    assert run.history[-1].rounds <= 16
    if l2 == 1.0:
        X, y = load_breast_cancer(return_X_y=True)
        oracle = LogisticRegression(C=1.0, tol=1e-12, max_iter=1000, solver="newton-cholesky").fit(X, y)
        np.testing.assert_allclose(run.coef, oracle.coef_[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "case", [c for c in (*TABLE, *RANDOM) if c.has_minimiser and c.start is None], ids=lambda c: c.name
)
@pytest.mark.thin(2)
def test_it_arrives_wherever_there_is_somewhere_to_arrive(case):
    """Means, scales, offsets, weights, collinear and sparse columns, every loss and regularizer; oracles in extended
    precision. What is singular to rounding may remain undecided, and says so."""
    run = aq.solve(case.problem(), "newton", max_iter=60)
    if case.singular and run.status in ("max_iter", "undecided"):
        assert run.certificate.reason
        return
    assert run.status in ("converged", "rounding"), run.message
    if run.status == "converged":
        assert case.oracle.relative(run.v.numpy()) <= 10 * run.certificate.relative + 1e-12


@pytest.mark.parametrize("parts", [1, 3, 10])
def test_the_split_of_rows_does_not_matter(parts):
    whole = aq.solve(aq.Problem(aq.Logistic(), aq.L2(0.1), cancer(1), intercept=True), "newton")
    run = aq.solve(aq.Problem(aq.Logistic(), aq.L2(0.1), cancer(parts), intercept=True), "newton")
    assert run.history.column("rounds") == whole.history.column("rounds")
    np.testing.assert_allclose(run.coef, whole.coef, rtol=1e-6, atol=1e-10)


def test_scales_and_means_of_columns_do_not_matter():
    """Without a penalty F is the same function of moved and scaled columns: so are the iterations."""
    rng = np.random.default_rng(0)
    X, s = rng.normal(size=(200, 5)), 2.0 ** np.array([-20, -3, 0, 5, 20])
    y = np.sign(X @ rng.normal(size=5) + rng.normal(size=200))
    runs = []
    for Z in (X, X * s + 3 * s, X * s + 1000 * s):
        blocks = [(Z[j::3], y[j::3]) for j in range(3)]
        runs.append(aq.solve(aq.Problem(aq.Logistic(), aq.Zero(), blocks, intercept=True), "newton"))
    assert len({run.history[-1].rounds for run in runs}) == 1
    for run in runs[1:]:
        np.testing.assert_allclose(run.coef * s, runs[0].coef, rtol=1e-6)


# ---------------------------------------------------------------------- working sets
@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["squares", "logistic"])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.thin(2)
def test_sparse_tables_with_l1(kind, intercept):
    X, y = sparse_table(kind)
    loss = aq.LeastSquares() if kind == "squares" else aq.Logistic()
    l1 = 0.1 * float(np.abs(X.T @ (y if kind == "squares" else 0.5 * y)).max())
    rows = [slice(j, None, 4) for j in range(4)]
    problem = aq.Problem(loss, aq.L1(l1), [(X[r], y[r]) for r in rows], intercept=intercept)
    run = aq.solve(problem, aq.methods.Newton(round_cost=500), certificate_tol=1e-9)
    assert run.status == "converged"
    assert run.history[-1].rounds <= 25
    dense = aq.Problem(loss, aq.L1(l1), [(X[r].toarray(), y[r]) for r in rows], intercept=intercept)
    same = aq.solve(dense, aq.methods.Newton(round_cost=1e7), certificate_tol=1e-9)
    assert same.objective == pytest.approx(run.objective, rel=1e-8)
    assert run.history[-1].bytes_up < same.history[-1].bytes_up / 2
    if kind == "squares":
        oracle = Lasso(l1 / len(y), fit_intercept=intercept, tol=1e-12, max_iter=100_000).fit(X.toarray(), y)
    else:
        oracle = LogisticRegression(
            C=1 / l1, l1_ratio=1.0, solver="saga" if intercept else "liblinear", fit_intercept=intercept, tol=1e-8,
            max_iter=20_000,
        ).fit(X, y)  # fmt: skip
    np.testing.assert_allclose(run.coef, oracle.coef_.ravel(), atol=2e-3)


def test_squares_send_each_product_once():
    X, y = sparse_table()
    l1 = 0.02 * float(np.abs(X.T @ y).max())
    problem = aq.Problem(aq.LeastSquares(), aq.L1(l1), [(X[:150], y[:150]), (X[150:], y[150:])])
    sizes = []
    run = aq.solve(
        problem, aq.methods.Newton(round_cost=200), callbacks=[lambda e: sizes.append(len(e.state.shared.memory.index))]
    )
    p, m = max(sizes), 1500
    rounds = run.history[-1].rounds
    assert run.status == "converged"
    assert run.history[-1].bytes_up / 8 <= p * (p + 1) / 2 + p * p / 2 + (rounds + 6) * (m + 30)


@pytest.mark.parametrize(
    "regularizer", [aq.GroupLasso(2.0, [i // 5 for i in range(300)]), aq.NonNegative(), aq.Box(-0.2, 0.3)]
)
@pytest.mark.thin(3)
def test_groups_and_bounds(regularizer):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(150, 300))
    y = X[:, :10] @ rng.normal(size=10) + rng.normal(size=150)
    problem = aq.Problem(aq.LeastSquares(), regularizer, [(X[:70], y[:70]), (X[70:], y[70:])])
    run = aq.solve(problem, aq.methods.Newton(round_cost=800), certificate_tol=1e-7, max_iter=60)
    other = aq.solve(problem, "fista", certificate_tol=1e-8, max_iter=3000)
    assert run.objective <= other.objective * (1 + 1e-6)


@pytest.mark.parametrize("loss", ["squares", "logistic", "multinomial", "poisson"])
@pytest.mark.parametrize("seed", [7, 49, 63])
def test_a_working_set_under_bounds_is_proved_where_no_duality_gap_exists(loss, seed):
    case = draw(loss, "nonnegative", 77_000_000 + seed)
    run = aq.solve(case.problem(), aq.methods.Newton(round_cost=8), max_iter=60)
    if not case.singular:
        assert run.status in ("converged", "rounding"), run.message
        assert case.oracle.relative(run.v.numpy()) <= max(10 * run.certificate.relative, 1e-11)


def test_several_classes_with_l1_run_over_columns_and_classes():
    X, y = load_digits(return_X_y=True)
    blocks = [(X[j::3] / 16, y[j::3]) for j in range(3)]
    problem = aq.Problem(aq.Multinomial(), aq.L1(3.0), blocks)
    few = aq.solve(problem, aq.methods.Newton(round_cost=3000), certificate_tol=1e-6)
    oracle = aq.solve(problem, "owl-qn", certificate_tol=1e-7, max_iter=3000)
    assert few.status == "converged"
    assert few.objective == pytest.approx(oracle.objective, rel=1e-5)


# ---------------------------------------------------------------------- corners
@pytest.mark.parametrize("l2", [1.0, 1e-3])
def test_corners_are_eased_and_the_split_does_not_matter(l2):
    X, y = load_digits(return_X_y=True)
    X, y = X[y < 2] / 16, 2.0 * y[y < 2] - 1
    found = []
    for parts in (2, 20):
        blocks = [(X[j::parts], y[j::parts]) for j in range(parts)]
        problem = aq.Problem(aq.SmoothedHinge(reduction="pooled"), aq.L2(l2), blocks)
        found.append(aq.solve(problem, "newton", max_iter=80))
        assert found[-1].status == "converged"
    assert found[0].history[-1].rounds == found[1].history[-1].rounds <= 45


def test_a_small_knee():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(300, 8)) * 10.0 ** rng.integers(-3, 4, 8) + 5
    y = X @ (rng.normal(size=8) / X.std(0)) + 1e3 + rng.standard_t(1.5, 300)
    problem = aq.Problem(aq.Huber(delta=1e-3), aq.Zero(), [(X[j::3], y[j::3]) for j in range(3)], intercept=True)
    run = aq.solve(problem, "newton", max_iter=100)
    assert run.status in ("converged", "rounding")
    Z = np.column_stack([(X - X.mean(0)) / X.std(0), np.ones(300)])  # least absolute residuals, by linear programming
    cost, free = np.r_[np.zeros(9), np.full(600, 1e-3)], [(None, None)] * 9 + [(0, None)] * 600
    best = linprog(cost, A_eq=np.c_[Z, np.eye(300), -np.eye(300)], b_eq=y, bounds=free)
    assert best.fun - 300 * 1e-3**2 / 2 <= run.objective <= best.fun


# ---------------------------------------------------------------------- corner cases of use
def test_more_columns_than_rows_one_unknown_one_class_no_rows():
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(20, 60)), rng.normal(size=20)
    wide = aq.solve(aq.Problem(aq.LeastSquares(), aq.ElasticNet(0.5, 0.1), [(X, y)]), "newton", certificate_tol=1e-10)
    oracle = ElasticNet(0.6 / 20, l1_ratio=0.5 / 0.6, fit_intercept=False, tol=1e-14, max_iter=10**6).fit(X, y)
    np.testing.assert_allclose(wide.coef, oracle.coef_, atol=1e-6)
    one = aq.solve(aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:, :1], y)]), "newton")
    assert one.coef[0] == pytest.approx(X[:, 0] @ y / (X[:, 0] @ X[:, 0] + 1))
    signs = np.sign(y)
    blocks = [(X[signs > 0, :5], signs[signs > 0]), (X[signs < 0, :5], signs[signs < 0]), (X[:0, :5], signs[:0])]
    apart = aq.solve(aq.Problem(aq.Logistic(), aq.L2(0.1), blocks, intercept=True), "newton")
    mixed = aq.solve(aq.Problem(aq.Logistic(), aq.L2(0.1), [(X[:, :5], signs)], intercept=True), "newton")
    assert apart.objective == pytest.approx(mixed.objective, rel=1e-9)


def test_single_precision_and_weights():
    blocks = [(X, y, np.linspace(0.5, 2, len(y))) for X, y in cancer()]
    problem = aq.Problem(aq.Logistic(), aq.L2(0.1), blocks, intercept=True)
    double, single = aq.solve(problem, "newton"), aq.solve(problem, "newton", dtype="float32")
    assert single.status == "converged"
    assert single.objective == pytest.approx(double.objective, rel=1e-3)  # the columns themselves are rounded


def test_a_warm_start_is_one_step_from_home():
    problem = aq.Problem(aq.Logistic(), aq.L2(0.1), cancer(), intercept=True)
    first = aq.solve(problem, "newton")
    again = aq.solve(problem, "newton", warm_start=first)
    assert again.n_iter == 1
    assert aq.solve(problem, "auq-lr", warm_start=first).status == "converged"


def test_an_own_loss_is_differentiated_where_it_is():
    X, y = np.random.default_rng(4).normal(size=(40, 3)), np.ones(40)
    loss = aq.CustomLoss(lambda u, X, y: torch.cosh(X @ u - y))
    run = aq.solve(aq.Problem(loss, aq.L2(0.1), [(X[:20], y[:20]), (X[20:], y[20:])]), "newton")
    assert run.status == "converged"


def test_an_own_loss_with_a_column_of_zeros_and_several_columns():
    rng = np.random.default_rng(6)
    X, y = rng.normal(size=(60, 4)), rng.integers(0, 3, 60)
    X[:, 2] = 0
    blocks = [(X[j::2], y[j::2]) for j in range(2)]
    loss = aq.CustomLoss(
        lambda u, X, y: torch.logsumexp(X @ u, 1) - ((X @ u) * (y[:, None] == torch.arange(3))).sum(1), columns=3
    )
    own = aq.solve(aq.Problem(loss, aq.L2(0.3), blocks), "newton")
    known = aq.solve(aq.Problem(aq.Multinomial(), aq.L2(0.3), blocks), "newton")
    assert own.status == "converged"
    np.testing.assert_allclose(own.coef, known.coef, atol=1e-3)


def test_too_many_unknowns_are_refused_in_one_sentence():
    X = scipy.sparse.random(30, 30_000, density=0.001, format="csr", random_state=0)
    problem = aq.Problem(aq.Logistic(), aq.L2(1.0), [(X, np.sign(np.arange(30) - 14.5))])
    with pytest.raises(ValueError, match=r"'newton' would send .* for 30000 unknowns, .* use 'auq-lr' or 'lbfgs'"):
        aq.solve(problem, "newton")
    with pytest.raises(ValueError, match="round_cost must be a number ≥ 0, got -1"):
        aq.methods.Newton(round_cost=-1)


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    X, y = sparse_table("logistic")
    problem = aq.Problem(aq.Logistic(), aq.L1(0.5), [(X[:150], y[:150]), (X[150:], y[150:])], intercept=True)
    method = aq.methods.Newton(round_cost=500)
    whole = aq.solve(problem, method, certificate_tol=1e-8)
    aq.solve(problem, method, certificate_tol=1e-8, max_iter=3, checkpoint=tmp_path)
    rest = aq.solve(problem, method, certificate_tol=1e-8, checkpoint=tmp_path)
    assert torch.equal(rest.v, whole.v)
    assert rest.history.column("rounds") == whole.history.column("rounds")


def test_a_start_that_was_far_away_after_all():
    """A warm start is not eased, since it may be the optimum; where it is not, that is made up for."""
    X, y = load_digits(return_X_y=True)
    some = (y == 3) | (y == 8)
    blocks = [(X[some][j::2] / 16, np.where(y[some] == 8, 1.0, -1.0)[j::2]) for j in range(2)]
    problem = aq.Problem(aq.SmoothedHinge(reduction="pooled"), aq.L2(1e-4), blocks)
    cold = aq.solve(problem, "newton")
    far = np.random.default_rng(5).normal(size=(64, 1))
    warm = aq.solve(problem, "newton", warm_start=far)
    assert cold.status == warm.status == "converged"
    assert warm.history[-1].rounds <= 2 * cold.history[-1].rounds
    assert aq.solve(problem, "newton", warm_start=cold).n_iter <= 2
