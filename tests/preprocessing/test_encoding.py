"""One encoding for all workers: that of scikit-learn on all rows in one place, from summaries alone."""

import json

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from auqadmm import InputError
from auqadmm.files.encoding import Column, Encoding
from auqadmm.files.preprocessing import Settings, Summary, merge, summarize
from auqadmm.files.tabular import Coded, Sheet


def sheet_of(X, texts=None, weight=None, source="a"):
    X = np.asarray(X, dtype=float)
    coded = {}
    for name, column in (texts or {}).items():
        levels = tuple(dict.fromkeys(v for v in column if v is not None))
        coded[name] = Coded(np.array([-1 if v is None else levels.index(v) for v in column], dtype=int), levels)
    kinds = {f"x{k}": "number" for k in range(X.shape[1])} | dict.fromkeys(coded, "text")
    return Sheet(source, len(X), kinds, X, coded, np.zeros(len(X)), weight=weight)


PLAIN = Settings()


def agreed(sheets, settings=PLAIN):
    """Through text, as processes tell each other."""
    told = [json.dumps(summarize(sheet, settings).message()) for sheet in sheets]
    return merge([Summary.read(json.loads(text)) for text in told], settings)


@given(
    parts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
    shift=st.sampled_from([0.0, 1.0, 1e6]),
    weighted=st.booleans(),
)
def test_moments_do_not_depend_on_the_split(parts, seed, shift, weighted):
    rng = np.random.default_rng(seed)
    X = rng.normal(shift, [1.0, 100.0, 1e-3], size=(sum(parts), 3))
    X[:, 2] = shift  # a constant column
    w = rng.integers(1, 4, len(X)).astype(float) if weighted else np.ones(len(X))
    cuts = np.cumsum(parts)[:-1]
    sheets = [sheet_of(x, weight=v) for x, v in zip(np.split(X, cuts), np.split(w, cuts), strict=True)]
    found = agreed(sheets).encoding
    oracle = StandardScaler().fit(X, sample_weight=w)
    np.testing.assert_allclose(found.mean, oracle.mean_, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.scale, oracle.scale_, rtol=1e-8)
    whole = np.vstack([found.matrix(sheet) for sheet in sheets])
    np.testing.assert_allclose(whole, oracle.transform(X), atol=1e-7)


@given(seed=st.integers(0, 1000), workers=st.integers(1, 4))
def test_sparse_moments_are_the_dense_ones(seed, workers):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(12, 5)) * (rng.random((12, 5)) < 0.4)
    sheets = []
    for part in np.array_split(X, workers):
        width = max(1, int(np.flatnonzero(part.any(0)).max(initial=0)) + 1)  # a file ends with its last feature
        sparse = scipy.sparse.csr_matrix(part[:, :width])
        kinds = {str(k): "number" for k in range(width)}
        sheets.append(Sheet("a", len(part), kinds, sparse, target=np.zeros(len(part)), named=False))
    found = agreed(sheets).encoding
    first, last = int(found.names[0]), int(found.names[-1])
    assert not X[:, last + 1 :].any()
    assert not X[:, :first].any()
    oracle = StandardScaler(with_mean=False).fit(X[:, first : last + 1])
    np.testing.assert_allclose(found.scale, oracle.scale_, rtol=1e-10)
    whole = scipy.sparse.vstack([found.matrix(sheet) for sheet in sheets]).toarray()
    np.testing.assert_allclose(whole, oracle.transform(X[:, first : last + 1]), atol=1e-12)


@pytest.mark.parametrize("levels", [3, 40])
def test_categories_are_the_sorted_union_of_all_workers(levels):
    rng = np.random.default_rng(0)
    words = np.array([f"w{k:02d}" for k in range(levels)])
    column = np.concatenate([words, rng.choice(words, 60)])
    parts = np.array_split(column, 3)
    sheets = [sheet_of(np.arange(float(len(p)))[:, None], {"g": p.tolist()}) for p in parts]
    encoding = agreed(sheets, Settings(standardize=False)).encoding
    assert encoding.categories[0].levels == tuple(words)
    made = [encoding.matrix(sheet) for sheet in sheets]
    assert all(scipy.sparse.issparse(X) == (levels == 40) for X in made)  # mostly zeros stay sparse
    whole = np.vstack([X.toarray() if scipy.sparse.issparse(X) else X for X in made])
    oracle = OneHotEncoder(sparse_output=False).fit_transform(column[:, None])
    np.testing.assert_array_equal(whole[:, 1:], oracle)


def test_counts_are_told_only_where_they_are_needed():
    sheet = sheet_of([[1.0], [2.0]], {"g": ["a", "a"]})
    assert summarize(sheet, Settings()).levels == {"g": {"a": 0.0}}
    assert summarize(sheet, Settings(impute="mean")).levels == {"g": {"a": 2.0}}


def test_missing_values_are_filled_with_what_all_workers_say():
    one = sheet_of([[1.0], [np.nan]], {"g": ["a", None]})
    two = sheet_of([[5.0], [6.0]], {"g": ["b", "b"]})
    encoding = agreed([one, two], Settings(impute="mean", standardize=False)).encoding
    np.testing.assert_allclose(encoding.matrix(one), [[1, 1, 0], [4, 0, 1]])


def test_a_column_that_is_empty_at_one_worker():
    one, two = sheet_of([[1.0], [3.0]]), Sheet("b", 2, {"x0": "empty"}, np.zeros((2, 0)), target=np.zeros(2))
    encoding = agreed([one, two], Settings(impute="mean", standardize=False)).encoding
    np.testing.assert_allclose(encoding.matrix(two), [[2.0], [2.0]])
    with pytest.raises(InputError, match="b: row 1, column 'x0' is missing"):
        agreed([one, two])


def test_the_first_level_may_be_left_out():
    sheet = sheet_of(np.zeros((3, 0)), {"g": ["a", "b", "c"]})
    encoding = agreed([sheet], Settings(drop_first=True)).encoding
    assert encoding.features == ("g=b", "g=c")
    np.testing.assert_array_equal(encoding.matrix(sheet), [[0, 0], [1, 0], [0, 1]])


def test_an_encoding_survives_the_round_trip():
    columns = (Column("x"), Column("g", ("a", "b"), "b"))
    held = Encoding(columns, np.array([0.1]), np.array([3.0]), np.array([0.1]), drop_first=True)
    again = Encoding.read(json.loads(json.dumps(held.message())), held.arrays())
    assert again.message() == held.message()
    assert again.columns == held.columns
    assert again.fill == held.fill


def test_labels_of_all_workers_make_the_classes():
    def labelled(levels, source="a"):
        codes = np.arange(len(levels))
        return Sheet(source, len(levels), {"x": "number"}, np.zeros((len(levels), 1)), target=Coded(codes, levels))

    assert agreed([labelled((3, 1)), labelled((2.0, 3.0))]).classes == (1, 2, 3)
    assert agreed([labelled((3, 1)), labelled((2.5,))]).classes == (1, 2.5, 3)
    assert agreed([labelled((True,)), labelled((False,))]).classes == (False, True)
    with pytest.raises(InputError, match="The target holds truth values in b but numbers in a"):
        agreed([labelled((0, 1)), labelled((True,), "b")])
