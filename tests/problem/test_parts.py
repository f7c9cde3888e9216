"""Some blocks as a shard of their own: the same numbers, and no copies of the data where none are needed."""

from __future__ import annotations

import pytest
import scipy.sparse
import torch

import auqadmm as aq
from auqadmm.blocks import parts
from auqadmm.blocks.parts import groups, part
from tests.local.cases import CPU, data, shard_of, sparse, start_of
from tests.local.cases import problem_of as posed

SIZES = (11, 3, 0, 7, 10, 12, 9)


@pytest.mark.parametrize("loss", ["Multinomial", "Huber"])
@pytest.mark.parametrize("keep", [(0,), (2,), (0, 1, 4), (1, 3, 5, 6), range(7)], ids=str)
def test_a_part_computes_what_the_whole_does(keep, loss):
    shard = shard_of(loss, SIZES)
    some = part(shard, keep)
    u = start_of(shard)
    whole, own = shard.linearize(u), some.shard.linearize(u[some.blocks])
    P = start_of(shard, seed=5)
    for known in (whole.take(some), own):
        torch.testing.assert_close(known.value, whole.value[some.blocks])
        torch.testing.assert_close(known.grad, whole.grad[some.blocks])
        torch.testing.assert_close(known.hvp(P[some.blocks]), whole.hvp(P)[some.blocks])
        torch.testing.assert_close(known.hessian_diagonal(), whole.hessian_diagonal()[some.blocks])
    assert some.shard.names == tuple(shard.names[j] for j in keep)
    assert some.shard.index == tuple(shard.index[j] for j in keep)


def test_neighbours_are_not_copied():
    shard = shard_of("Huber", (8,) * 12)
    X = shard.design.pieces[0].X
    some = part(shard, (2, 3, 4, 8))
    assert [p.X.data_ptr() for p in some.shard.design.pieces] == [X[2].data_ptr(), X[8].data_ptr()]
    scattered = (0, 2, 4, 6, 8, 10)
    assert part(shard, scattered, copies=False) is None
    assert len(part(shard, scattered).shard.design.pieces) == 1


def test_sparse_blocks_stay_together():
    shard = sparse(posed("Huber", SIZES)).shard(torch.float64, CPU)
    assert part(shard, (0, 1)) is None
    assert part(shard, range(len(SIZES))).shard.blocks == len(SIZES)
    assert groups(shard) == ()


def test_sparse_beside_dense():
    blocks = data("Huber", (9, 9, 9))
    blocks[1] = (scipy.sparse.csr_matrix(blocks[1][0]), blocks[1][1])
    shard = aq.Problem(aq.Huber(), aq.Zero(), blocks).shard(torch.float64, CPU)
    u = start_of(shard)
    for keep in ((0, 2), (1,), (1, 2)):
        some = part(shard, keep)
        torch.testing.assert_close(some.shard.linearize(u[some.blocks]).grad, shard.linearize(u).grad[some.blocks])


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((9, 9, 9), []),
        ((9, 5, 3), []),
        ((100, 4, 5, 3), [[0], [1, 2, 3]]),
        ((4, 1000, 5, 30, 900), [[1, 4], [0, 2, 3]]),
        ((0, 40, 40), [[1, 2], [0]]),
    ],
)
def test_groups_are_of_similar_height(sizes, expected):
    shard = shard_of("Huber", sizes)
    assert [g.blocks.tolist() for g in groups(shard)] == expected
    assert [g.blocks.tolist() for g in shard.groups] == expected


def test_groups_copy_nothing():
    shard = shard_of("Huber", (100, 4, 5, 3))
    held = {p.X.data_ptr() for p in shard.design.pieces}
    assert {p.X.data_ptr() for g in groups(shard) for p in g.shard.design.pieces} == held


def test_heights_within_the_factor_wait_for_each_other(monkeypatch):
    monkeypatch.setattr(parts, "APART", 1.5)
    assert [g.blocks.tolist() for g in groups(shard_of("Huber", (9, 5, 3)))] == [[0], [1], [2]]
