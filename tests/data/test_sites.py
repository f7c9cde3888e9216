"""Splits by a column and by classes per worker: laws, and one sentence for what cannot be split."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from auqadmm.paper.data import by_column, classes_per_worker, sites
from tests.data.test_partitions import check_once, held, rows


# ---------------------------------------------------------------------- by column
@given(values=st.one_of(st.lists(st.integers(-3, 3), min_size=1), st.lists(st.sampled_from(["ab", "xyz"]), min_size=1)))
def test_one_block_per_value_in_order(values):
    X, y = rows(len(values))
    for column in (values, np.array(values), pd.Series(values), np.array(values, dtype=object)):
        blocks = by_column(X, y, column)
        check_once(blocks, X, y)
        names = sorted(set(values))
        assert sites(column) == names
        assert held(blocks) == [[i for i, v in enumerate(values) if v == name] for name in names]


@given(values=st.lists(st.integers(0, 4), min_size=1, max_size=30), seed=st.integers(0, 2**32))
def test_the_order_of_rows_does_not_matter(values, seed):
    X, y = rows(len(values))
    order = np.random.default_rng(seed).permutation(len(values))
    shuffled = by_column(X[order], y[order], np.array(values)[order])
    assert [sorted(block) for block in held(shuffled)] == held(by_column(X, y, values))


@pytest.mark.parametrize("missing", [None, float("nan"), np.nan, "", "  ", pd.NA, pd.NaT])
def test_a_missing_value_names_its_row(missing):
    X, y = rows(4)
    with pytest.raises(ValueError, match="row 2 has no value"):
        by_column(X, y, ["a", "b", missing, "a"])
    with pytest.raises(ValueError, match=r"row 1 \(and 2 more\) has no value"):
        sites(["a", missing, missing, missing])


def test_missing_values_in_typed_columns():
    for column in (
        np.array([1.0, np.nan]),
        np.array(["a", " "]),
        np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
        pd.array([1, None], dtype="Int64"),
        pd.Series(["a", None]),
        pd.Categorical(["a", None]),
    ):
        with pytest.raises(ValueError, match="row 1 has no value"):
            sites(column)


def test_columns_that_do_not_fit():
    X, y = rows(4)
    with pytest.raises(ValueError, match="3 values, there are 4 rows"):
        by_column(X, y, [1, 2, 3])
    with pytest.raises(ValueError, match=r"shape \(4, 1\)"):
        by_column(X, y, np.ones((4, 1)))
    with pytest.raises(ValueError, match="int and str, which have no order"):
        by_column(X, y, [1, "a", 2, "b"])


# ---------------------------------------------------------------------- classes per worker
@given(
    n=st.integers(1, 120),
    classes=st.integers(1, 8),
    blocks=st.integers(1, 12),
    k=st.integers(1, 8),
    seed=st.integers(0, 2**32),
)
def test_every_worker_holds_k_classes(n, classes, blocks, k, seed):
    X, y = rows(n, classes)
    _, counts = np.unique(y, return_counts=True)
    room = np.minimum(counts, blocks).sum()
    assume(blocks <= n and k <= len(counts))
    if blocks * k < len(counts) or room < blocks * k:
        with pytest.raises(ValueError, match="classes each"):
            classes_per_worker(X, y, blocks, k, seed)
        return
    made = classes_per_worker(X, y, blocks, k, seed)
    assert len(made) == blocks
    check_once(made, X, y)
    assert held(made) == held(classes_per_worker(X, y, blocks, k, seed))
    assert all(len(np.unique(yj)) == k for _, yj in made)
    for label, count in zip(*np.unique(y, return_counts=True), strict=True):
        shares = [int((yj == label).sum()) for _, yj in made]
        shares = [share for share in shares if share]
        assert max(shares) - min(shares) <= 1
        assert sum(shares) == count


@given(blocks=st.integers(1, 30), k=st.integers(1, 10), seed=st.integers(0, 2**32))
def test_classes_are_held_by_equally_many(blocks, k, seed):
    assume(blocks * k >= 10)
    y = np.repeat(np.arange(10), 30)
    made = classes_per_worker(np.arange(300)[:, None], y, blocks, k, seed)
    holders = [sum(label in yj for _, yj in made) for label in range(10)]
    assert max(holders) - min(holders) <= 1
    assert sum(holders) == blocks * k


def test_a_rare_class_is_held_by_as_many_as_it_has_rows():
    y = np.array([0] * 2 + [1] * 50 + [2] * 50)
    made = classes_per_worker(np.arange(102)[:, None], y, 10, 2, seed=0)
    assert sum(0 in yj for _, yj in made) == 2
    assert all(len(set(yj.tolist())) == 2 for _, yj in made)


def test_the_extremes_are_the_splits_they_look_like():
    y = np.repeat(np.arange(5), 20)
    X = np.arange(100)[:, None]
    one = sorted(held(classes_per_worker(X, y, 5, 1, seed=3)))
    assert one == [list(range(20 * c, 20 * c + 20)) for c in range(5)]
    every = classes_per_worker(X, y, 4, 5, seed=3)
    assert all(np.bincount(yj).tolist() == [5] * 5 for _, yj in every)


def test_another_seed_is_another_split():
    X, y = rows(60)
    assert held(classes_per_worker(X, y, 6, 2, seed=0)) != held(classes_per_worker(X, y, 6, 2, seed=1))


@pytest.mark.parametrize(
    ("blocks", "k", "words"),
    [
        (2, 1, "hold 2 at most, there are 4 classes; k must be at least 2, or blocks at least 4"),
        (3, 5, "There are 4 classes, a worker cannot hold 5"),
        (60, 4, "need 240 rows of the right classes, there are 60"),
        (61, 1, "60 rows cannot be shared by 61 blocks"),
        (3, 0, "k must be a whole number"),
        (3, 1.5, "k must be a whole number"),
    ],
)
def test_what_cannot_be_split(blocks, k, words):
    X, y = rows(60)
    with pytest.raises(ValueError, match=words):
        classes_per_worker(X, y, blocks, k, seed=0)
