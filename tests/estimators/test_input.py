"""What fit accepts, and the sentence for what it does not."""

from __future__ import annotations

import sys
import types

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import auqadmm as aq
from tests.estimators.conftest import far

MODELS = [aq.ConsensusElasticNet(0.05), aq.ConsensusLogisticRegression(0.1), aq.ConsensusLinearSVC(0.1)]
each_model = pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)


@pytest.fixture
def wine(data):
    X, y = data("wine")
    rows = np.arange(0, 178, 2)
    return (X[rows] - X.mean(0)) / X.std(0), (y[rows] > 0).astype(int)


@each_model
def test_lists_sites_and_shares_are_the_same_model(model, wine):
    X, y = wine
    sites = np.arange(len(y)) % 3
    exact = model.fit(X, y).coef_
    assert far(model.fit(X, y, sites=sites).coef_, exact) < 1e-6
    assert far(model.fit(X, y, sites=[f"site {s}" for s in sites]).coef_, exact) < 1e-6
    assert far(model.fit(X, y, sites=pd.Series(sites)).coef_, exact) < 1e-6
    lists = [X[sites == j] for j in range(3)], [y[sites == j] for j in range(3)]
    assert far(model.fit(*lists).coef_, exact) < 1e-6
    weights = [np.full(len(part), 2.0) for part in lists[1]]
    assert model.fit(*lists, sample_weight=weights).n_features_in_ == X.shape[1]
    assert far(model.set_params(n_blocks=500).fit(X, y).coef_, exact) < 1e-6  # more than there are rows
    model.set_params(n_blocks=1)


@each_model
@pytest.mark.parametrize("kind", [scipy.sparse.csr_matrix, scipy.sparse.csc_array, scipy.sparse.coo_array])
def test_sparse_is_dense(model, wine, kind):
    X, y = wine
    X = np.where(np.abs(X) > 1, X, 0.0)
    sites = np.arange(len(y)) % 4
    exact = model.fit(X, y, sites=sites)
    coef, scores = exact.coef_, exact.predict(X)
    found = model.fit(kind(X), y, sites=sites)
    assert far(found.coef_, coef) < 1e-6
    np.testing.assert_allclose(found.predict(kind(X)), scores, atol=1e-6)


@each_model
def test_data_frames_keep_their_names(model, wine):
    X, y = wine
    frame = pd.DataFrame(X, columns=[f"feature {k}" for k in range(X.shape[1])])
    model.fit(frame, pd.Series(y))
    assert model.feature_names_in_.tolist() == frame.columns.tolist()
    model.fit([frame[:40], frame[40:]], [y[:40], y[40:]])
    assert model.feature_names_in_.tolist() == frame.columns.tolist()
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[frame.columns[::-1]])


def test_labels_of_any_kind(wine):
    X, y = wine
    names = np.array(["no", "yes"])[y]
    model = aq.ConsensusLogisticRegression().fit(X, names, sites=names)
    assert model.classes_.tolist() == ["no", "yes"]
    assert set(model.predict(X)) == {"no", "yes"}
    empty_first = aq.ConsensusLogisticRegression().fit([X[:0], X], [names[:0].astype(float), names])
    assert far(empty_first.coef_, model.coef_) < 1e-6


def bad(X, y, row, col, value):
    X = X.copy()
    X[row, col] = value
    return X, y


@each_model
def test_missing_and_infinite_values_are_named(model, wine):
    X, y = wine
    with pytest.raises(ValueError, match="X contains NaN in row 3, column 5; remove the row or impute"):
        model.fit(*bad(X, y, 3, 5, np.nan))
    with pytest.raises(ValueError, match=r"infinity \(inf\) in row 0, column 12 \('12'\)"):
        model.fit(pd.DataFrame(bad(X, y, 0, 12, np.inf)[0], columns=[str(k) for k in range(13)]), y)
    with pytest.raises(ValueError, match="NaN in row 7, column 2"):
        model.fit(scipy.sparse.csr_matrix(bad(X, y, 7, 2, np.nan)[0]), y)
    with pytest.raises(ValueError, match="block 1: X contains NaN in row 1, column 0"):
        model.fit([X, bad(X, y, 1, 0, np.nan)[0]], [y, y])
    model.fit(X, y)
    with pytest.raises(ValueError, match="NaN in row 3, column 5"):
        model.predict(bad(X, y, 3, 5, np.nan)[0])


@each_model
def test_sites_that_do_not_fit(model, wine):
    X, y = wine
    with pytest.raises(ValueError, match="sites has 5 labels but X has 89 rows"):
        model.fit(X, y, sites=[0, 1, 2, 3, 4])
    with pytest.raises(ValueError, match="one label per row; got an array of shape"):
        model.fit(X, y, sites=np.zeros((89, 2)))
    with pytest.raises(ValueError, match=r"sites\[2\] is missing"):
        model.fit(X, y, sites=["a", "b", None] + ["a"] * 86)
    with pytest.raises(ValueError, match=r"sites\[88\] is missing"):
        model.fit(X, y, sites=np.append(np.zeros(88), np.nan))
    with pytest.raises(ValueError, match="mixes int and str"):
        model.fit(X, y, sites=["a", 1] + ["a"] * 87)
    with pytest.raises(ValueError, match="every entry is a worker"):
        model.fit([X], [y], sites=np.zeros(89))


@each_model
def test_lists_that_do_not_fit(model, wine):
    X, y = wine
    with pytest.raises(ValueError, match="y must be a list of 2 too; got ndarray"):
        model.fit([X, X], y)
    with pytest.raises(ValueError, match="sample_weight must be a list of 2 too; got 1 entries"):
        model.fit([X, X], [y, y], sample_weight=[np.ones(89)])
    with pytest.raises(ValueError, match="block 1 has 12 features but block 0 has 13"):
        model.fit([X, X[:, 1:]], [y, y])
    with pytest.raises(ValueError, match="block 1: X has 89 rows but y has 3 values"):
        model.fit([X, X], [y, y[:3]])
    with pytest.raises(ValueError, match="Every block is empty"):
        model.fit([X[:0]], [y[:0]])
    with pytest.raises(ValueError, match=r"block 0: sample_weight\[1\] is -1.0"):
        model.fit([X], [y], sample_weight=[np.where(np.arange(89) == 1, -1.0, 1.0)])


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (aq.ConsensusElasticNet(-1.0), "alpha must be a finite number ≥ 0, got -1.0"),
        (aq.ConsensusElasticNet("much"), "alpha must be a finite number ≥ 0, got 'much'"),
        (aq.ConsensusElasticNet(l1_ratio=1.5), "l1_ratio must be a number between 0 and 1, got 1.5"),
        (aq.ConsensusElasticNet(max_iter=0), "max_iter must be a whole number ≥ 1, got 0"),
        (aq.ConsensusElasticNet(tol=0.0), "tol must be a finite number > 0, got 0.0"),
        (aq.ConsensusElasticNet(n_blocks=0), "n_blocks must be a whole number ≥ 1, got 0"),
        (aq.ConsensusElasticNet(fit_intercept="no"), "fit_intercept must be True or False, got 'no'"),
        (aq.ConsensusElasticNet(warm_start=1), "warm_start must be True or False, got 1"),
        (aq.ConsensusElasticNet(verbose=-1), "verbose must be a whole number ≥ 0, got -1"),
        (aq.ConsensusElasticNet(verbose="loud"), "verbose must be a whole number ≥ 0, got 'loud'"),
        (aq.ConsensusElasticNet(method="magic"), "magic"),
        (aq.ConsensusElasticNet(engine="moon"), "moon"),
        (aq.ConsensusLogisticRegression(0.0), "C must be a number > 0, got 0.0"),
        (aq.ConsensusLogisticRegression(class_weight={7: 2.0}), "class_weight names 7, which is not a class of y"),
        (aq.ConsensusLogisticRegression(class_weight="fair"), "class_weight must be None, 'balanced' or a dict"),
        (aq.ConsensusLogisticRegression(class_weight={0: -1}), r"class_weight\[0\] must be a finite number ≥ 0"),
        (aq.ConsensusLinearSVC(np.inf), "C must be a finite number > 0, got inf"),
        (aq.ConsensusLinearSVC(smoothing=0), "smoothing must be a finite number > 0, got 0"),
        (aq.ConsensusElasticNetCV(alphas=[]), "alphas is empty"),
        (aq.ConsensusElasticNetCV(alphas=[-1.0]), "alphas must be a finite number ≥ 0"),
        (aq.ConsensusElasticNetCV(l1_ratio=0.0), "With l1_ratio=0 no strength leaves all coefficients 0"),
        (aq.ConsensusElasticNetCV(cv=1), "cv must be at least 2"),
        (aq.ConsensusElasticNetCV(cv=1000), "cannot be split into cv=1000 folds"),
    ],
)
def test_parameters_that_mean_nothing(model, sentence, wine):
    with pytest.raises(ValueError, match=sentence):
        model.fit(*wine)


def test_targets_and_weights_that_mean_nothing(wine):
    X, y = wine
    for model in (aq.ConsensusLogisticRegression(), aq.ConsensusLinearSVC()):
        with pytest.raises(ValueError, match=r"All rows have the label .*: one class is not enough"):
            model.fit(X, np.zeros(89, dtype=int))
        with pytest.raises(ValueError, match="All rows of weight > 0 have the label"):
            model.fit(X, y, sample_weight=y)
        with pytest.raises(ValueError, match="Unknown label type"):
            model.fit(X, X[:, 0])
        with pytest.raises(ValueError, match="Some blocks have numbers and others text"):
            model.fit([X, X], [y, np.array(["no", "yes"])[y]])
    net = aq.ConsensusElasticNet()
    with pytest.raises(ValueError, match="Every sample weight is zero"):
        net.fit(X, y, sample_weight=np.zeros(89))
    with pytest.raises(ValueError, match=r"sample_weight\[4\] is nan"):
        net.fit(X, y, sample_weight=np.where(np.arange(89) == 4, np.nan, 1.0))
    with pytest.raises(ValueError, match="one value per row, shape"):
        net.fit(X, y, sample_weight=np.ones(3))
    with pytest.raises(ValueError, match="sample_weight must hold numbers"):
        net.fit(X, y, sample_weight=["heavy"] * 89)
    with pytest.raises(ValueError, match=r"block 0: y\[0\] is nan"):
        net.fit([X], [np.where(np.arange(89) == 0, np.nan, 1.0)])
    with pytest.raises(ValueError, match="block 0: y must hold numbers"):
        net.fit([X], [np.array(["a"] * 89)])


# ---------------------------------------------------------------------- dask, or something that looks like it
def as_dask(monkeypatch):
    """dask.array where it is installed, else the little of it that is asked for."""
    try:
        import dask.array

        return dask.array.from_array
    except ImportError:
        module = types.ModuleType("dask")

    class Array:
        __module__ = "dask.array.core"

        def __init__(self, x, chunks):
            self.x, self.size, self.ndim = x, chunks if np.isscalar(chunks) else chunks[0], x.ndim
            self.starts = list(range(0, len(x), self.size))
            self.numblocks, self.chunks = (len(self.starts), 1)[: x.ndim], ()
            self.blocks = (
                [type(self)(x[s : s + self.size], self.size) for s in self.starts] if len(x) > self.size else [self]
            )

        def compute(self):
            return self.x

    monkeypatch.setitem(sys.modules, "dask", module)
    return lambda x, chunks: Array(x, chunks)


@each_model
def test_every_chunk_of_a_dask_array_is_a_block(model, wine, monkeypatch):
    X, y = wine
    dask = as_dask(monkeypatch)
    exact = model.fit(X, y).coef_
    assert far(model.fit(dask(X, (30, 13)), dask(y, 40)).coef_, exact) < 1e-6
    assert far(model.fit(dask(X, (30, 13)), y, sample_weight=np.ones(89)).coef_, exact) < 1e-6
    with pytest.raises(ValueError, match="X has 89 rows but y has 5 values"):
        model.fit(dask(X, (30, 13)), y[:5])
    with pytest.raises(ValueError, match="every entry is a worker"):
        model.fit(dask(X, (30, 13)), y, sites=y)
