"""Runs that end where nothing can be proved: collinear columns without a penalty, classes that are separable."""

from __future__ import annotations

import numpy as np
import pytest

import auqadmm as aq


def split(X, y, parts=3):
    return [(X[j::parts], y[j::parts]) for j in range(parts)]


def collinear(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(300, 6))
    X[:, 5] = X[:, 0] + X[:, 1]
    return X, X @ rng.normal(size=6) + rng.normal(size=300), rng


KINDS = {
    "squares": (aq.LeastSquares(), lambda z, rng: z),
    "logistic": (aq.Logistic(), lambda z, rng: np.sign(z)),
    "counts": (aq.Poisson(), lambda z, rng: rng.poisson(np.exp(0.3 * z)).astype(float)),
    "knee": (aq.Huber(0.5), lambda z, rng: z),
    "quantile": (aq.Quantile(0.3), lambda z, rng: z),
    "hinge": (aq.SmoothedHinge(), lambda z, rng: np.sign(z)),
    "classes": (aq.Multinomial(), lambda z, rng: np.digitize(z, [-1, 1])),
}


@pytest.mark.parametrize("method", ["newton", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_collinear_columns_end_a_run_that_has_arrived(kind, method):
    """As low as with one of them dropped, which has a minimiser; and the columns are named."""
    loss, target = KINDS[kind]
    X, z, rng = collinear()
    y = target(z, rng)
    run = aq.solve(aq.Problem(loss, aq.Zero(), split(X, y), intercept=True), method, max_iter=200)
    assert run.status == "undecided"
    assert run.n_iter <= 25
    for name in ("olumn 0", "column 1", "column 5", "collinear"):
        assert name in run.message
    dropped = aq.solve(
        aq.Problem(loss, aq.Zero(), split(X[:, :5], y), intercept=True), "newton", certificate_tol=1e-10, max_iter=200
    )
    assert run.certificate.objective == pytest.approx(dropped.certificate.objective, rel=1e-8)


def test_nearly_collinear_columns_do_too():
    X, z, rng = collinear()
    X[:, 5] = X[:, 0] + 1e-9 * rng.normal(size=300)
    run = aq.solve(aq.Problem(aq.Logistic(), aq.Zero(), split(X, np.sign(z)), intercept=True), "newton", max_iter=200)
    assert run.status == "undecided"
    assert run.n_iter <= 15
    assert "collinear" in run.message


def test_a_small_ridge_decides():
    X, z, _ = collinear()
    run = aq.solve(aq.Problem(aq.Logistic(), aq.L2(1e-3), split(X, np.sign(z)), intercept=True), "newton")
    assert run.status == "converged"


@pytest.mark.parametrize("spare", [0, 1], ids=["", "collinear"])
@pytest.mark.parametrize("loss", [aq.Logistic(), aq.SmoothedHinge(), aq.Multinomial()], ids=lambda x: type(x).__name__)
def test_separable_classes_end_a_run(loss, spare):
    X, _, _ = collinear()
    X = X[:, : 5 + spare]
    y = np.digitize(X[:, 0], [-0.5, 0.5]) if isinstance(loss, aq.Multinomial) else np.sign(X[:, 0] + 0.1)
    run = aq.solve(aq.Problem(loss, aq.Zero(), split(X, y), intercept=True), "newton", max_iter=400)
    assert run.status == "undecided"
    assert run.n_iter <= 120
    assert "separable" in run.message
    assert "column 0" in run.message


def test_other_tolerances_go_on_from_a_saved_run(tmp_path):
    X, z, _ = collinear()
    problem = aq.Problem(aq.Logistic(), aq.Zero(), split(X, np.sign(z)), intercept=True)
    first = aq.solve(problem, "newton", checkpoint=str(tmp_path / "run"))
    again = aq.solve(problem, "newton", checkpoint=str(tmp_path / "run"))
    assert first.status == again.status == "undecided"
    assert again.n_iter == first.n_iter
    assert again.message == first.message
