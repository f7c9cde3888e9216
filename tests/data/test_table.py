"""Rows per class and worker: complete, in order, for empty blocks and classes that nobody has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auqadmm.paper.data import PartitionTable, dirichlet, partition_table
from tests.data.test_partitions import rows


def table(*labels, **more) -> PartitionTable:
    return partition_table([(np.zeros((len(y), 1)), np.array(y)) for y in labels], **more)


@given(n=st.integers(1, 80), blocks=st.integers(1, 10), seed=st.integers(0, 2**32))
def test_counts_add_up(n, blocks, seed):
    X, y = rows(n)
    split = dirichlet(X, y, min(blocks, n), 0.1, seed)
    made = partition_table(split)
    labels, counts = np.unique(y, return_counts=True)
    assert made.classes == tuple(map(str, labels))
    assert made.class_totals == tuple(counts)
    assert made.totals == tuple(len(yj) for _, yj in split)
    assert made.counts == tuple(tuple(int((yj == label).sum()) for label in labels) for _, yj in split)


def test_empty_blocks_and_classes_nobody_has():
    made = table([1, 1, 0], [], classes=[2, 1, 0])
    assert made == PartitionTable(("0", "1"), ("2", "1", "0"), ((0, 2, 1), (0, 0, 0)))
    assert made.header() == ("worker", "2", "1", "0", "rows")
    assert made.rows() == (("0", "–", "2", "1", "3"), ("1", "–", "–", "–", "–"), ("all", "–", "2", "1", "3"))


def test_every_row_has_the_cells_of_the_header():
    for made in (table([]), table(), table([], classes=[1]), table(["a", "b"], ["b"], workers=["Basel", "Oslo"])):
        assert {len(cells) for cells in made.rows()} == {len(made.header())}


def test_names():
    made = table([1.0, -1.0], [0.5], workers=("Basel", 7))
    assert made.workers == ("Basel", "7")
    assert made.classes == ("-1", "0.5", "1")
    assert table(["cat"], ["dog"]).classes == ("cat", "dog")
    assert table([True], [False]).classes == ("False", "True")


def test_what_does_not_fit():
    with pytest.raises(ValueError, match="2 blocks and 1 names"):
        table([0], [1], workers=["only"])
    with pytest.raises(ValueError, match=r"rows of the class 3, which is not one of \[0, 1\]"):
        table([0], [3], classes=range(2))


def test_a_table_is_a_value():
    assert table([0, 1]) == table([1, 0])
    assert hash(table([0, 1])) == hash(table([1, 0]))
