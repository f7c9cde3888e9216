"""Several classes relative to one of them, against statsmodels' MNLogit on the pooled rows."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import statsmodels.api as sm

import auqadmm as aq


def rows(seed=0, classes=4, n=400):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) * [1.0, 20.0, 0.1] + [0.0, 50.0, 1.0]
    z = (X - [0.0, 50.0, 1.0]) / [1.0, 20.0, 0.1] @ rng.normal(size=(3, classes)) * 0.6
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    site = rng.choice(4, size=n, p=[0.5, 0.3, 0.15, 0.05])
    return X, y, site, rng.integers(1, 4, size=n).astype(float)


def solved(X, y, site, weight=None, **options):
    blocks = [(X[site == j], y[site == j], None if weight is None else weight[site == j]) for j in range(4)]
    problem = aq.Problem(aq.Multinomial(), aq.Zero(), blocks, intercept=True)
    return aq.solve(problem, certificate_tol=1e-18, max_iter=500, **options)


def truth(X, y, reference=0, **options):
    order = [reference, *(k for k in range(y.max() + 1) if k != reference)]
    codes = np.argsort(order)[y]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = sm.MNLogit(codes, np.column_stack([X, np.ones(len(y))]))
        start = model.fit(method="newton", maxiter=100, disp=0).params.ravel(order="F")
        return model.fit(start_params=start, method="newton", maxiter=100, disp=0, tol=1e-15, **options)


def same(ours, theirs, rel=1e-8):
    np.testing.assert_allclose(ours, theirs, rtol=rel, atol=0)


@pytest.mark.parametrize(("seed", "classes", "reference"), [(0, 4, None), (1, 3, 2), (2, 5, 1)])
def test_everything_is_that_of_mnlogit(seed, classes, reference):
    X, y, site, _ = rows(seed, classes)
    result, oracle = solved(X, y, site), truth(X, y, reference or 0)
    found = result.inference(reference=reference)
    same(found.coef, oracle.params.T.ravel())
    same(found.se, oracle.bse.T.ravel())
    same(found.p, oracle.pvalues.T.ravel())
    parts = (found.llf, found.aic, found.bic, found.pseudo_r2, found.df_resid)
    assert parts == pytest.approx((oracle.llf, oracle.aic, oracle.bic, oracle.prsquared, oracle.df_resid), rel=1e-8)
    assert found.names[0] == f"{1 if not reference else 0}: x0"
    assert len(found.names) == 4 * (classes - 1)
    same(result.inference("robust", reference=reference).se, truth(X, y, reference or 0, cov_type="HC0").bse.T.ravel())
    by_site = {"cov_type": "cluster", "cov_kwds": {"groups": site, "use_correction": False}}
    same(
        result.inference("cluster", reference=reference).se, truth(X, y, reference or 0, **by_site).bse.T.ravel(), 1e-7
    )
    assert found.rounds == 1
    assert "odds ratio" in result.inference(exponentiate=True).summary()


def test_two_classes_are_the_logistic_model():
    X, y, site, _ = rows(3, 2)
    one = aq.Problem(aq.Logistic(), aq.Zero(), [(X[site == j], y[site == j]) for j in range(4)], intercept=True)
    plain, found = aq.solve(one, certificate_tol=1e-18).inference(), solved(X, y, site).inference()
    same(found.se, plain.se)
    assert (found.deviance, found.null_deviance) == pytest.approx((plain.deviance, plain.null_deviance), rel=1e-10)
    assert found.heterogeneity.statistic == pytest.approx(plain.heterogeneity.statistic, rel=1e-7)
    assert found.heterogeneity.df == plain.heterogeneity.df


def test_rows_of_weight_three_are_three_rows_and_classes_have_names():
    X, y, site, w = rows(4, 3)
    many = np.repeat(np.arange(len(y)), w.astype(int))
    a = solved(X, np.array(["low", "mid", "top"])[y], site, w, inference=True)
    b = solved(X[many], y[many], site[many]).inference("robust", reference=1)
    found = a.inference("robust", reference="mid")
    same(found.se, b.se)
    assert (found.nobs, found.aic) == pytest.approx((b.nobs, b.aic))
    assert found.names[0] == "low: x0"
    assert a.inference().names[0] == "mid: x0"


def test_what_cannot_be_told():
    X, y, site, _ = rows(5, 3)
    result = solved(X, y, site)
    with pytest.raises(aq.InputError, match="reference 7 is no class; classes are 0, 1, 2"):
        result.inference(reference=7)
    with pytest.raises(aq.InputError, match="sites and columns are for models of one column"):
        result.inference(sites=True)
    with pytest.raises(aq.InputError, match="are collinear"):
        solved(np.column_stack([X, 2 * X[:, 0]]), y, site).inference()
    apart = np.where(X[:, 0] > 1.5, 2, np.where(y == 2, 0, y))
    with pytest.raises(aq.InputError, match=r"separate|hardly bends|away from the optimum|collinear"):
        solved(X, apart, site).inference()
    blocks = [(X[site == j], y[site == j]) for j in range(4)]
    ridge = aq.solve(aq.Problem(aq.Multinomial(), aq.L2(1.0), blocks, intercept=True))
    with pytest.raises(aq.InputError, match="is for fits without a penalty"):
        ridge.inference()
    least = aq.solve(aq.Problem(aq.LeastSquares(), aq.Zero(), blocks, intercept=True))
    with pytest.raises(aq.InputError, match="reference is a class of Multinomial"):
        least.inference(reference=0)
