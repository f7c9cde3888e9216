"""Coefficients of `auqadmm fit` are those of scikit-learn on all rows in one place."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.impute import SimpleImputer
from sklearn.linear_model import ElasticNet, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import auqadmm
from tests.cli import files
from tests.cli.files import people, split

aq = files.aq  # fixture
TOLERANCE = {"rtol": 1e-8, "atol": 1e-8}


def frame_of(loaded):
    """With random order: what a data set is sorted by must not be what it is split by."""
    frame = pd.DataFrame(loaded.data, columns=[f"c{k}" for k in range(loaded.data.shape[1])]).assign(y=loaded.target)
    return frame.sample(frac=1, random_state=0).reset_index(drop=True)


def fitted(aq, folder, paths, *arguments):
    ran = aq("fit", *paths, *arguments, "--quiet", "--out", folder)
    assert ran.code == 0, ran.err
    return auqadmm.load(folder)


@pytest.mark.parametrize(("suffix", "how"), [(".csv", "thirds"), (".parquet", "sorted"), (".npz", "unequal")])
def test_logistic_of_two_classes(aq, tmp_path, suffix, how):
    frame = frame_of(load_breast_cancer())
    target = ["--target", "y"] if suffix != ".npz" else []
    model = fitted(
        aq, tmp_path / "out", split(frame, tmp_path, suffix, how), "--model", "logistic", *target, "--l2", "0.01"
    )
    X = StandardScaler().fit_transform(frame.drop(columns="y").to_numpy())
    C = 1 / (0.01 * len(frame))
    oracle = LogisticRegression(C=C, tol=1e-12, max_iter=1000, solver="newton-cholesky").fit(X, frame["y"])
    np.testing.assert_allclose(model.coef_, oracle.coef_, **TOLERANCE)
    np.testing.assert_allclose(model.intercept_, oracle.intercept_, **TOLERANCE)
    np.testing.assert_allclose(model.predict_proba(frame), oracle.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("how", ["thirds", "sorted"])
def test_elastic_net(aq, tmp_path, how):
    frame = frame_of(load_diabetes())
    arguments = ("--model", "elastic-net", "--target", "y", "--l1", "0.5", "--l2", "0.1")
    model = fitted(aq, tmp_path / "out", split(frame, tmp_path, ".csv", how), *arguments)
    X = StandardScaler().fit_transform(frame.drop(columns="y").to_numpy())
    oracle = ElasticNet(alpha=0.6, l1_ratio=0.5 / 0.6, tol=1e-12, max_iter=100000).fit(X, frame["y"])
    np.testing.assert_allclose(model.coef_, oracle.coef_, **TOLERANCE)
    np.testing.assert_allclose(model.intercept_, oracle.intercept_, **TOLERANCE)
    assert ((model.coef_ == 0) == (oracle.coef_ == 0)).all()


def test_logistic_of_ten_classes_in_sparse_files(aq, tmp_path):
    frame = frame_of(load_digits()).iloc[:600]
    # the default, an objective right to 1e-16 of itself, leaves intercepts of so many classes right to 1e-7
    exact = ("--model", "logistic", "--l2", "0.05", "--tol", "1e-20")
    model = fitted(aq, tmp_path / "out", split(frame, tmp_path, ".svm"), *exact)
    assert model.encoding_.sparse
    X = StandardScaler(with_mean=False).fit_transform(frame.drop(columns="y").to_numpy())
    C = 1 / (0.05 * len(frame))
    oracle = LogisticRegression(C=C, tol=1e-13, max_iter=500, solver="newton-cholesky").fit(X, frame["y"])
    used = model.feature_names_in_.astype(int) - 1  # the last pixels are zero in every image, and in no file
    np.testing.assert_allclose(model.coef_, oracle.coef_[:, used], **TOLERANCE)
    np.testing.assert_allclose(
        model.intercept_ - model.intercept_.mean(), oracle.intercept_ - oracle.intercept_.mean(), **TOLERANCE
    )


def hinge(w, X, signs, l2, eps=0.1):
    t = 1 - signs * (X @ w[:-1] + w[-1])
    root = np.sqrt(t**2 + eps**2)
    slope = -signs * (t + root) / (2 * root) / len(X)
    value = ((t + root) / 2).mean() + l2 / 2 * w[:-1] @ w[:-1]
    return value, np.append(X.T @ slope + l2 * w[:-1], slope.sum())


@pytest.mark.parametrize("classes", [2, 3])
def test_svm_is_the_minimiser_of_its_objective_for_each_class(aq, tmp_path, classes):
    frame = frame_of(load_digits()).query(f"y < {classes}")
    model = fitted(
        aq, tmp_path / "out", split(frame, tmp_path, ".csv", "sorted"), "--model", "svm", "--target", "y", "--l2", "0.1"
    )
    X = StandardScaler().fit_transform(frame.drop(columns="y").to_numpy())
    for k in range(classes) if classes > 2 else [1]:
        signs = np.where(frame["y"] == k, 1.0, -1.0)
        options = {"gtol": 1e-9, "ftol": 1e-15, "maxiter": 5000}
        found = minimize(hinge, np.zeros(X.shape[1] + 1), (X, signs, 0.1), "L-BFGS-B", jac=True, options=options)
        row = k if classes > 2 else 0
        np.testing.assert_allclose(model.coef_[row], found.x[:-1], atol=2e-5)
    assert (model.predict(frame) == frame["y"]).mean() > 0.95


@pytest.mark.parametrize("sites", [False, True])
def test_categories_missing_values_and_weights(aq, tmp_path, sites):
    """One file with sites, or files of different size that do not all hold every category."""
    frame = people(90).sort_values("colour", kind="stable").reset_index(drop=True)
    rng = np.random.default_rng(1)
    frame["weight"] = 1.0
    frame.loc[rng.choice(90, 9, replace=False), "dose"] = np.nan
    frame.loc[rng.choice(90, 7, replace=False), "ward"] = None
    paths = [files.write(frame, tmp_path / "all.csv")] if sites else split(frame, tmp_path, ".csv", "unequal")
    arguments = ("--model", "elastic-net", "--target", "days", "--id", "id", "--drop", "sick", "--weight", "weight")
    more = ("--site", "colour") if sites else ()
    model = fitted(aq, tmp_path / "out", paths, *arguments, "--impute", "mean", "--l2", "0.01", "--l1", "0.001", *more)
    texts = ["ward"] if sites else ["colour", "ward"]
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    words = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(sparse_output=False))
    encoder = ColumnTransformer([("n", numbers, ["age", "dose"]), ("w", words, texts)])
    X = encoder.fit_transform(frame.astype({"ward": object, "colour": object}))
    oracle = ElasticNet(alpha=0.011, l1_ratio=1 / 11, tol=1e-13, max_iter=100000).fit(X, frame["days"])
    np.testing.assert_allclose(model.coef_, oracle.coef_, **TOLERANCE)
    np.testing.assert_allclose(model.intercept_, oracle.intercept_, **TOLERANCE)
    assert len(files.summary(tmp_path / "out")["blocks"]) == 3


def test_a_row_of_weight_two_counts_twice(aq, tmp_path):
    frame = people(40)
    frame["w"] = np.arange(40) % 3
    repeated = frame.loc[frame.index.repeat(frame["w"])]
    common = ("--model", "logistic", "--target", "sick", "--features", "age,dose,colour")
    one = fitted(aq, tmp_path / "one", split(frame, tmp_path, ".csv"), *common, "--weight", "w")
    two = fitted(aq, tmp_path / "two", [files.write(repeated, tmp_path / "twice.csv")], *common)
    np.testing.assert_allclose(one.coef_, two.coef_, **TOLERANCE)


@pytest.mark.parametrize("flags", [("--no-standardize",), ("--no-intercept",), ("--drop-first",)])
def test_switches(aq, tmp_path, flags):
    frame = people(60)
    common = ("--model", "elastic-net", "--target", "days", "--features", "age,colour", "--l2", "0.2", "--tol", "1e-10")
    model = fitted(aq, tmp_path / "out", split(frame, tmp_path, ".parquet"), *common, *flags)
    numbers = "passthrough" if "--no-standardize" in flags else StandardScaler()
    words = OneHotEncoder(drop="first" if "--drop-first" in flags else None, sparse_output=False)
    X = ColumnTransformer([("n", numbers, ["age"]), ("w", words, ["colour"])]).fit_transform(frame)
    with_constant = "--no-intercept" not in flags
    if with_constant:
        center, shift = X - X.mean(0), frame["days"] - frame["days"].mean()
    else:
        center, shift = X, frame["days"]
    coef = np.linalg.solve(center.T @ center / 60 + 0.2 * np.eye(X.shape[1]), center.T @ shift / 60)
    np.testing.assert_allclose(model.coef_, coef, **TOLERANCE)
    assert (model.intercept_ != 0) == with_constant
