"""No numbers where there are none: a sentence that names the columns; and labels on those of penalised fits."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse

import auqadmm as aq
from auqadmm.testing import Shards
from tests.problem.family_cases import CASES, study


def table(seed=0, rows=120):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, 3)), rng


def split(X, y, parts=3):
    return [(X[i], y[i]) for i in np.array_split(np.arange(len(y)), parts)]


def fit(loss, X, y, g=None, method="auto", tol=1e-10, **options):
    problem = aq.Problem(loss, g or aq.Zero(), split(X, y), **({"intercept": True} | options))
    return aq.solve(problem, method, certificate_tol=tol, max_iter=400)


# ---------------------------------------------------------------------- no numbers
def test_collinear_columns_are_named():
    X, rng = table()
    X = np.column_stack([X, X[:, 0] - 2 * X[:, 2]])
    result = fit(aq.LeastSquares(), X, rng.normal(size=120))
    with pytest.raises(aq.InputError, match="Column 'x0', column 'x2' and column 'x3' are collinear"):
        result.inference()


def test_names_of_a_data_frame():
    pandas = pytest.importorskip("pandas")
    X, _ = table()
    frame = pandas.DataFrame({"age": X[:, 0], "height": X[:, 1], "stature": 2.54 * X[:, 1]})
    blocks = [(frame[:60], X[:60, 2]), (frame[60:], X[60:, 2])]
    result = aq.solve(aq.Problem(aq.LeastSquares(), aq.Zero(), blocks, intercept=True), max_iter=50)
    with pytest.raises(aq.InputError, match="Column 'height' and column 'stature' are collinear"):
        result.inference()
    blocks = [(frame[["age", "height"]][:60], X[:60, 2]), (frame[["age", "height"]][60:], X[60:, 2])]
    found = aq.solve(aq.Problem(aq.LeastSquares(), aq.Zero(), blocks, intercept=True)).inference()
    assert list(found.table.index) == ["age", "height", "intercept"]


@pytest.mark.parametrize(("value", "why"), [(0.0, "is zero in every row"), (3.7, "is constant, and so cannot be told")])
def test_columns_without_influence_are_named(value, why):
    X, rng = table()
    X[:, 1] = value
    result = fit(aq.Logistic(), X, rng.integers(2, size=120))
    with pytest.raises(aq.InputError, match=f"Column 'x1' {why}"):
        result.inference()


def test_a_column_of_sites_beside_site_intercepts_is_named():
    X, rng = table()
    X[:, 1] = np.repeat([1.3, 7.1, -2.6], 40)
    result = fit(aq.Poisson(), X, rng.poisson(1.0, size=120), aq.L2(1e-9), intercept=False, site_intercepts=True)
    free = aq.solve(
        aq.Problem(aq.Poisson(), aq.Zero(), split(X, rng.poisson(1.0, size=120)), site_intercepts=True),
        warm_start=result.v,
        max_iter=20,
    )
    with pytest.raises(aq.InputError, match="Column 'x1' does not vary within any site"):
        free.inference()


@pytest.mark.parametrize("loss", [aq.Logistic(), aq.Probit(), aq.CLogLog(), aq.Poisson(), aq.NegativeBinomial(2.0)])
@pytest.mark.parametrize("tol", [1e-5, 1e-9])
@pytest.mark.parametrize("method", ["newton", "lbfgs"])
def test_a_level_that_separates_is_named(loss, tol, method):
    """Quasi-complete: every row of one level has the same outcome."""
    X, rng = table(1, 200)
    X[:, 1] = rng.random(200) < 0.15
    y = rng.integers(2, size=200) if loss.target_kind == "binary" else rng.poisson(1.5, size=200).astype(float)
    y = np.where(X[:, 1] > 0, 0, y)
    result = fit(loss, X, y, method=method, tol=tol)
    with pytest.raises(
        aq.InputError, match=r"Column 'x1' (separates|hardly bends)|standard errors away from the optimum"
    ):
        result.inference()
    found = fit(loss, X, y, aq.L2(0.5), method="newton").inference()  # a ridge: labelled numbers
    assert found.p is None


@pytest.mark.parametrize("tol", [1e-5, 1e-9])
def test_classes_that_a_line_separates_have_no_numbers(tol):
    X, _ = table(2)
    y = (X @ [1.0, -1.0, 0.5] > 0).astype(int)
    result = fit(aq.Logistic(), X, y, tol=tol, method="newton")
    with pytest.raises(aq.InputError, match=r"separate|collinear|hardly bends|away from the optimum"):
        result.inference()


@pytest.mark.parametrize("seed", range(8))
def test_rare_outcomes_and_loose_tolerances_are_not_called_separated(seed):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=400), rng.random(400) < 0.1, rng.exponential(size=400) ** 2])
    y = rng.binomial(1, 1 / (1 + np.exp(3.0 - X[:, 0])))
    y[np.flatnonzero(X[:, 1])[:2]] = [0, 1]
    found = fit(aq.Logistic(), X, y, tol=1e-5).inference()
    assert np.isfinite(found.se).all()
    assert found.distance < 0.1


def test_a_model_that_is_not_at_its_optimum_has_no_numbers():
    X, rng = table()
    problem = aq.Problem(aq.LeastSquares(), aq.Zero(), split(X, X[:, 0] + rng.normal(size=120)), intercept=True)
    result = aq.solve(problem, "c-admm", max_iter=2)
    with pytest.raises(aq.InputError, match=r"The model is .* standard errors away from the optimum"):
        result.inference()


def test_more_parameters_than_rows():
    X, rng = table(0, 4)
    with pytest.raises(aq.InputError, match=r"collinear|There are 4 rows for 4 parameters"):
        fit(aq.LeastSquares(), X, rng.normal(size=4)).inference()


X, Y = np.random.default_rng(0).normal(size=(30, 2)), np.random.default_rng(1).integers(3, size=30)


@pytest.mark.parametrize(
    ("loss", "g", "options", "sentence"),
    [
        (aq.Multinomial(), aq.L2(1.0), {}, "inference of Multinomial is for fits without a penalty"),
        (
            aq.CustomLoss(lambda u, X, y: (X @ u - y) ** 2),
            aq.Zero(),
            {},
            "needs a loss of rows, and CustomLoss is none",
        ),
        (aq.Huber(), aq.Zero(), {}, "Huber is no likelihood that is known: ask for cov='robust'"),
        (aq.LeastSquares(reduction="mean"), aq.Zero(), {}, "every row to count alike"),
        (aq.Poisson(), aq.NonNegative(), {}, "not offered for models held by NonNegative"),
        (aq.Poisson(), aq.Zero(), {"cov": "hc3"}, "cov must be 'model', 'expected', 'robust' or 'cluster', got 'hc3'"),
        (aq.Poisson(), aq.Zero(), {"level": 95}, "level must be between 0 and 1, got 95"),
        (aq.Poisson(), aq.Zero(), {"weights": "both"}, "weights must be 'frequency' or 'precision', got 'both'"),
        (aq.Poisson(), aq.Zero(), {"dispersion": "x"}, "dispersion must be a number, 'pearson' or None, got 'x'"),
        (aq.Poisson(), aq.Zero(), {"dispersion": -1.0}, "dispersion must be above zero, got -1.0"),
        (aq.LeastSquares(), aq.Zero(), {"exponentiate": True}, r"exp\(coef\) of LeastSquares has no meaning"),
    ],
)
def test_what_cannot_be_told_is_a_sentence(loss, g, options, sentence):
    problem = aq.Problem(loss, g, [(X[:15], Y[:15]), (X[15:], Y[15:])], intercept=True)
    result = aq.solve(problem, max_iter=300)
    with pytest.raises(aq.InputError, match=sentence):
        result.inference(**options)


def test_one_site_is_no_cluster():
    result = aq.solve(aq.Problem(aq.Poisson(), aq.Zero(), [(X, Y)], intercept=True))
    with pytest.raises(aq.InputError, match="needs rows of at least two sites"):
        result.inference("cluster")
    assert result.inference().heterogeneity is None


# ---------------------------------------------------------------------- penalised
def test_a_ridge_is_labelled():
    case = CASES["logit"]
    data = study(case, 2)
    problem = aq.Problem(case.loss, aq.L2(2.0), data.blocks(), intercept=True)
    found = aq.solve(problem, certificate_tol=1e-14).inference()
    v, A = np.append(found.coef[:-1], found.coef[-1]), data.design
    p = 1 / (1 + np.exp(-A @ v))
    H = A.T @ ((p * (1 - p))[:, None] * A)
    inverse = np.linalg.inv(H + np.diag([2.0, 2.0, 2.0, 2.0, 0.0]))
    np.testing.assert_allclose(found.vcov, inverse @ H @ inverse, rtol=1e-8)
    assert found.df_model == pytest.approx(np.trace(inverse @ H), rel=1e-9)
    assert "biased" in found.label
    assert "biased" in found.summary()
    assert list(found.table.columns) == ["coef", "se"]
    assert (found.p, found.interval, found.heterogeneity) == (None, None, None)


def test_a_lasso_has_one_step_only():
    case = CASES["poisson"]
    data = study(case, 2)
    problem = aq.Problem(case.loss, aq.L1(8.0), data.blocks(), intercept=True)
    result = aq.solve(problem, certificate_tol=1e-14)
    found = result.inference()
    A, v = data.design, np.append(result.coef, result.intercept)
    mu = np.exp(A @ v)
    H, G = A.T @ (mu[:, None] * A), A.T @ (mu - data.y)
    np.testing.assert_allclose(found.one_step, v - np.linalg.solve(H, G), rtol=1e-7)
    np.testing.assert_allclose(found.se, np.sqrt(np.diag(np.linalg.inv(H))), rtol=1e-8)
    assert list(found.table.columns) == ["coef", "one_step", "se"]
    assert found.p is None
    assert "one_step" in found.label


@pytest.mark.parametrize("loss", [aq.Huber(1.0), aq.Quantile(0.5, eps=0.3)])
def test_losses_that_are_no_likelihood_have_robust_errors(loss):
    X, rng = table(3, 400)
    y = X @ [1.0, 2.0, 3.0] + rng.standard_t(3, size=400)
    found = fit(loss, X, y).inference("robust")
    assert found.llf is None
    assert ((found.se > 0.03) & (found.se < 0.12)).all()
    assert "without a likelihood" in found.summary()


# ---------------------------------------------------------------------- places
@pytest.mark.parametrize(
    "options", [{}, {"engine": Shards(3)}, {"inference": True}, {"stop": "residuals", "abs_tol": 1e-9}]
)
def test_the_same_numbers_wherever_blocks_are(options):
    case = CASES["gamma"]
    data = study(case, 4)
    problem = aq.Problem(case.loss, aq.Zero(), data.blocks(True, True), intercept=True)
    plain = aq.solve(problem, "newton", certificate_tol=1e-14).inference(sites=True)
    method = "rb-admm" if "stop" in options else "newton"
    rel = 1e-3 if "stop" in options else 1e-7
    result = aq.solve(problem, method, **({"certificate_tol": 1e-14, "rel_tol": 1e-9, "max_iter": 5000} | options))
    found = result.inference(sites=True)
    np.testing.assert_allclose(found.se, plain.se, rtol=rel)
    np.testing.assert_allclose(found.site_se, plain.site_se, rtol=10 * rel)
    assert found.heterogeneity.statistic == pytest.approx(plain.heterogeneity.statistic, rel=10 * rel)


def test_blocks_that_are_read_where_they_are_sparse_rows_and_float32():
    case = CASES["logit"]
    data = study(case, 5)
    blocks = data.blocks(True, True)
    sparse = [(scipy.sparse.csr_matrix(b[0]), *b[1:]) if j % 2 else b for j, b in enumerate(blocks)]
    make = lambda b: aq.Problem(case.loss, aq.Zero(), b, intercept=True)  # noqa: E731
    plain = aq.solve(make(blocks), certificate_tol=1e-12).inference()
    for other in (sparse, [lambda b=b: b for b in sparse]):
        np.testing.assert_allclose(aq.solve(make(other), certificate_tol=1e-12).inference().se, plain.se, rtol=1e-7)
    narrow = aq.solve(make(blocks), dtype="float32").inference()
    np.testing.assert_allclose(narrow.se, plain.se, rtol=1e-3)


def test_what_is_counted_and_kept():
    case = CASES["logit"]
    data = study(case, 5)
    problem = aq.Problem(case.loss, aq.Zero(), data.blocks(), intercept=True)
    plain, asked = aq.solve(problem, certificate_tol=1e-22), aq.solve(problem, certificate_tol=1e-22, inference=True)
    found = plain.inference()
    assert found.rounds == 1
    assert aq.solve(problem, certificate_tol=1e-9).inference().rounds == 2  # a last step, and the sums of it
    assert found.numbers == 3 * 15 + 3 * 5 + 14
    assert asked.statistics.rounds == 1
    assert asked.history[-1].rounds >= plain.history[-1].rounds
    assert plain.inference("robust").rounds == 1  # of the same reduction
    assert plain._measured("frequency", False) is plain._measured("frequency", False)
    for again in (pickle.loads(pickle.dumps(asked)), copy.deepcopy(asked)):
        assert again.source is None
        np.testing.assert_array_equal(again.inference().se, found.se)
    with pytest.raises(aq.InputError, match="does not know its problem any more"):
        pickle.loads(pickle.dumps(aq.solve(problem))).inference()


# ---------------------------------------------------------------------- on paper
def test_tables_on_paper():
    case = CASES["logit"]
    data = study(case, 5)
    problem = aq.Problem(case.loss, aq.Zero(), data.blocks(), intercept=True)
    result = aq.solve(problem, certificate_tol=1e-10)
    found = result.inference(exponentiate=True, level=0.9)
    frame = found.table
    assert list(frame.columns) == ["ratio", "se", "z", "p", "low", "high"]
    plain = result.inference(level=0.9)
    np.testing.assert_allclose(frame["ratio"], np.exp(plain.coef))
    np.testing.assert_allclose(frame[["low", "high"]], np.exp(plain.interval))
    np.testing.assert_allclose(frame["p"], plain.p)
    text = found.summary()
    assert all(len(line) <= 110 for line in text.splitlines())
    for part in (
        "Binomial model, link logit, 5 sites",
        "[0.05",
        "0.95]",
        "odds ratio",
        "Differences between sites",
        "x3",
    ):
        assert part in text
    assert repr(found) == text
    assert found.to_latex().count(r"\\") == 6
    assert "<td>" in found.to_html()
    assert "P&gt;|z|" in found.to_html()


def test_a_forest():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    case = CASES["logit"]
    problem = aq.Problem(case.loss, aq.Zero(), study(case, 5).blocks(), intercept=True)
    result = aq.solve(problem, certificate_tol=1e-10)
    ax = result.inference(sites=True, exponentiate=True).plot_forest("x1")
    assert [label.get_text() for label in ax.get_yticklabels()][-1] == "all sites"
    assert "odds ratio of x1" in ax.get_xlabel()
    assert result.inference(sites=True).plot_forest(0) is not None
    with pytest.raises(aq.InputError, match="There is no coefficient 'age'"):
        result.inference(sites=True).plot_forest("age")
    with pytest.raises(aq.InputError, match="were not asked for"):
        aq.solve(problem).inference().plot_forest()
