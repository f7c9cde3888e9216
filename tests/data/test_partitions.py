"""Laws of splits: every row exactly once, the same seed the same split, rows in order inside a block."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auqadmm.paper.data import by_class, dirichlet, iid, sizes


def rows(n: int, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Row i of X is (i, i): blocks tell which rows they hold."""
    y = np.random.default_rng(n).integers(0, classes, n)
    return np.repeat(np.arange(n)[:, None], 2, axis=1), y


def held(blocks) -> list[list[int]]:
    return [X[:, 0].tolist() for X, _ in blocks]


def check_once(blocks, X, y):
    together = [i for block in held(blocks) for i in block]
    assert sorted(together) == list(range(len(y)))
    assert all(block == sorted(block) for block in held(blocks))
    for Xj, yj in blocks:
        np.testing.assert_array_equal(yj, y[Xj[:, 0]])


@given(n=st.integers(1, 80), blocks=st.integers(1, 12), seed=st.integers(0, 2**32), alpha=st.floats(0.01, 100))
def test_every_row_exactly_once(n, blocks, seed, alpha):
    X, y = rows(n)
    blocks = min(blocks, n)
    cut = np.bincount(np.random.default_rng(seed).integers(0, blocks, n), minlength=blocks)
    for split in (
        partial(iid, X, y, blocks),
        partial(dirichlet, X, y, blocks, alpha),
        partial(sizes, X, y, cut.tolist()),
    ):
        made = split(seed=seed)
        assert len(made) == blocks
        check_once(made, X, y)
        assert held(made) == held(split(seed=seed))
    assert [len(yj) for _, yj in sizes(X, y, cut.tolist(), seed)] == cut.tolist()
    lengths = [len(yj) for _, yj in iid(X, y, blocks, seed)]
    assert max(lengths) - min(lengths) <= 1


def test_another_seed_is_another_split():
    X, y = rows(60)
    for split in (partial(iid, X, y, 3), partial(dirichlet, X, y, 3, 0.5), partial(sizes, X, y, [10, 20, 30])):
        assert held(split(seed=0)) != held(split(seed=1))


def test_a_small_alpha_separates_classes_and_a_large_one_mixes_them():
    X, y = rows(4000)

    def share(alpha):  # of the largest class in a block, on average over blocks
        blocks = [yj for _, yj in dirichlet(X, y, 5, alpha, seed=0) if len(yj)]
        return np.mean([np.bincount(yj).max() / len(yj) for yj in blocks])

    assert share(0.05) > 0.6
    assert share(1000.0) < 0.3


def test_by_class_takes_the_first_rows_in_order():
    y = np.array([2, 0, 2, 1, 0, 2, 0])
    X = np.repeat(np.arange(7)[:, None], 2, axis=1)
    assert held(by_class(X, y)) == [[1, 4, 6], [3], [0, 2, 5]]
    assert held(by_class(X, y, per_class=2, classes=[2, 0])) == [[0, 2], [1, 4]]
    with pytest.raises(ValueError, match="Class 1 has 1 rows, 2 are asked for"):
        by_class(X, y, per_class=2)
    with pytest.raises(ValueError, match="Class 7 has 0 rows"):
        by_class(X, y, classes=[7])


def test_what_cannot_be_split():
    X, y = rows(5)
    with pytest.raises(ValueError, match="5 rows cannot be shared by 6 blocks"):
        iid(X, y, 6, 0)
    with pytest.raises(ValueError, match="whole number"):
        iid(X, y, 0, 0)
    with pytest.raises(ValueError, match="add up to the 5 rows"):
        sizes(X, y, [2, 2], 0)
    with pytest.raises(ValueError, match="alpha"):
        dirichlet(X, y, 2, 0.0, 0)
    with pytest.raises(ValueError, match="shapes"):
        iid(X, y[:4], 2, 0)
    with pytest.raises(ValueError, match="no rows"):
        iid(X[:0], y[:0], 1, 0)
