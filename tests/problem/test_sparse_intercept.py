"""A column of ones beside sparse rows, and columns scaled: as dense arithmetic says, however the rows are stored."""

import numpy as np
import pytest
import scipy.sparse

from auqadmm.blocks.shard import _with_ones
from auqadmm.estimators.fitting import Scaling, _squares


def stored(kind):
    """Rows in order, out of order, with places named twice, with a row and a column without numbers."""
    rng = np.random.default_rng(0)
    X = scipy.sparse.random(7, 5, density=0.5, random_state=rng, format="csr")
    if kind == "unsorted":
        X = scipy.sparse.csr_matrix((X.data[::-1].copy(), X.indices[::-1].copy(), X.indptr[-1] - X.indptr[::-1]))
    if kind == "twice":
        X = scipy.sparse.csr_matrix(
            (np.concatenate([[2.0, 3.0], X.data]), np.concatenate([[1, 1], X.indices]), np.r_[0, X.indptr[1:] + 2]),
            shape=X.shape,
        )
    if kind == "empty":
        X = scipy.sparse.csr_matrix((3, 4))
    return X


@pytest.mark.parametrize("kind", ["sorted", "unsorted", "twice", "empty"])
def test_ones_come_last(kind):
    X = stored(kind)
    before = X.copy()
    found = _with_ones(X, True)
    assert np.array_equal(found.toarray(), np.hstack([before.toarray(), np.ones((X.shape[0], 1))]))
    assert found.has_canonical_format
    assert (before != X).nnz == 0
    assert X.nnz == before.nnz  # what was given is left alone


@pytest.mark.parametrize("kind", ["sorted", "unsorted", "twice", "empty"])
def test_columns_are_scaled_as_dense_ones_are(kind):
    X = stored(kind)
    scale, weight = np.arange(1.0, X.shape[1] + 1), np.linspace(1, 2, X.shape[0])
    found = Scaling(np.zeros(X.shape[1]), scale, False).apply(X)
    np.testing.assert_allclose(found.toarray(), X.toarray() / scale, rtol=1e-15)
    np.testing.assert_allclose(_squares(X, weight, scale * 0), weight @ np.square(X.toarray()), rtol=1e-14)
