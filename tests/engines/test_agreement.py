"""What processes must agree on, with threads in their place: names, classes, checks, and one sentence for all."""

from __future__ import annotations

import threading

import numpy as np
import pandas as pd
import pytest
import torch

import auqadmm as aq
from auqadmm.problem.agreement import Tally, together

X = np.random.default_rng(0).normal(size=(6, 3))
Y = np.arange(6.0)


def everywhere(world, work):
    """`work(rank, exchange)` in every thread: what each returned or raised."""
    texts, barrier, found = [""] * world, threading.Barrier(world, timeout=20), [None] * world

    def exchange(rank):
        def tell(text):
            texts[rank] = text
            barrier.wait()
            everyone = list(texts)
            barrier.wait()
            return everyone

        return tell

    def target(rank):
        try:
            found[rank] = work(rank, exchange(rank))
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=target, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def placed(made, loss=None, **options):
    """The problem of each of as many processes as there are lists of blocks."""
    problem = aq.Problem(loss or aq.LeastSquares(), aq.L2(1.0), lambda rank, world: made[rank], **options)
    return everywhere(len(made), lambda rank, exchange: problem.placed(rank, len(made), exchange))


def test_blocks_are_numbered_through_and_the_census_is_the_same_everywhere():
    found = placed([[(X, Y)], [], [(X[:2], Y[:2]), (X[:0], Y[:0])]], intercept=True)
    for problem in found:
        assert problem.census.names == ("block 0", "block 1", "block 2")
        assert problem.census.rows == (6, 2, 0)
        assert problem.census.weight_total == 8
        assert problem.census.features == 4
    shards = [problem.shard(torch.float64, torch.device("cpu")) for problem in found]
    assert [shard.index for shard in shards] == [(0,), (0,), (1, 2)]
    assert shards[1].design.rows == 0, "a process without blocks holds one without rows"


@pytest.mark.parametrize(
    "labels",
    [
        [["no"], ["yes", "no"], ["maybe"]],
        [[3], [1, 2], [3]],
        [[0.5], [1.5], [2.5]],
        [
            np.array(["2020-01-01"], dtype="M8[D]"),
            np.array(["2021-01-01"], dtype="M8[D]"),
            [np.datetime64("2022-02-02")],
        ],
        [[b"a"], [b"bcd"], [b"a"]],
        [[True], [False], [True]],
    ],
    ids=["text", "whole", "real", "dates", "bytes", "truth"],
)
def test_classes_of_any_kind_are_agreed(labels):
    blocks = [[(X[: len(y)], np.asarray(y))] for y in labels]
    one = aq.Problem(aq.Multinomial(), aq.L2(1.0), [b for own in blocks for b in own])
    for k, problem in enumerate(placed(blocks, aq.Multinomial())):
        np.testing.assert_array_equal(problem.classes, one.classes)
        assert problem.classes.dtype == one.classes.dtype
        np.testing.assert_array_equal(problem._targets[0], one._targets[k])


def test_blocks_that_were_read_before_are_a_part_too():
    """A plain list makes a problem of its own; with an engine of many processes it is this process's part."""
    parts = [aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X, Y)] * n) for n in (1, 2)]
    found = everywhere(2, lambda rank, exchange: parts[rank].placed(rank, 2, exchange))
    assert [b.name for problem in found for b in problem.blocks] == ["block 0", "block 1", "block 2"]
    assert found[0].census.blocks == found[1].census.blocks == 3
    assert parts[1].census.blocks == 2, "the problem itself stays as it was"


@pytest.mark.parametrize(
    ("made", "loss", "words"),
    [
        ([[(X, Y)], [(X[:, :2], Y)]], None, "block 1 has 2 features but block 0 has 3"),
        ([[(X, Y)], [(X, Y), (X * np.inf, Y)]], None, "rank 1: block 2: X[row 0, column 0] is"),
        ([[(X, Y)], [(X, Y * np.nan)]], None, "rank 1: block 1: y[0] is nan"),
        ([[(X, Y)], 7], None, "rank 1: blocks must be a list"),
        ([[], []], None, "There are no blocks"),
        ([[(X[:0], Y[:0])], []], None, "Every block is empty"),
        ([[(X, Y, 0 * Y)], [(X, Y, 0 * Y)]], None, "Every sample weight is zero"),
        ([[(X, 0 * Y)], [(X, 0 * Y)]], aq.Multinomial(), "All labels are 0.0"),
        ([[(X, Y)], [(X, np.full(6, "a"))]], aq.Multinomial(), "Some blocks have"),
        ([[(X, Y % 2)], [(X, Y % 3)]], aq.Logistic(), "separates two classes but the blocks hold 3"),
        ([[(X, Y)], [(X, -Y)]], aq.Poisson(), "rank 1: block 1"),
        (
            [[(pd.DataFrame(X, columns=list("abc")), Y)], [(pd.DataFrame(X, columns=list("acb")), Y)]],
            None,
            "block 1 has 'c' where block 0 has 'b' (column 1)",
        ),
    ],
)
def test_one_sentence_in_all_processes(made, loss, words):
    found = placed(made, loss)
    assert all(isinstance(error, aq.InputError) for error in found), found
    assert words in str(found[0])
    assert str(found[0]) == str(found[1])


def test_a_regularizer_that_does_not_fit_and_settings_that_differ():
    groups = aq.Problem(aq.LeastSquares(), aq.GroupLasso(1.0, [0, 0, 1, 1]), lambda rank, world: [(X, Y)])
    found = everywhere(2, lambda rank, exchange: groups.placed(rank, 2, exchange))
    assert str(found[0]) == str(found[1])
    assert isinstance(found[0], ValueError)
    two = [aq.Problem(aq.Huber(d), aq.L2(1.0), lambda rank, world: [(X, Y)]) for d in (1.0, 2.0)]
    found = everywhere(2, lambda rank, exchange: two[rank].placed(rank, 2, exchange))
    assert "rank 1 was given loss Huber(" in str(found[0])
    assert str(found[0]) == str(found[1])


def test_all_who_failed_are_counted():
    def work(rank, exchange):
        def fail():
            raise OSError("gone" if rank else "")

        return together(exchange, fail if rank != 1 else lambda: (1, None))

    found = everywhere(3, work)
    assert {str(error) for error in found} == {"rank 0: OSError (Ranks 2 failed as well.)"}


def test_a_problem_whose_blocks_are_elsewhere_says_so():
    problem = aq.Problem.part(aq.LeastSquares(), aq.L2(1.0), [(X, Y)])
    with pytest.raises(aq.InputError, match="not known yet"):
        _ = problem.census
    with pytest.raises(AttributeError):
        _ = problem.nothing
    assert aq.solve(problem).v.shape == (3, 1)


def test_a_tally_survives_the_journey():
    blocks = aq.Problem(aq.Multinomial(), aq.L2(1.0), [(X, Y % 3, Y / 7), (X[:0], Y[:0])]).blocks
    tally = Tally.of(blocks, aq.Multinomial())
    back = Tally.read(tally.message())
    assert back.weights == tally.weights
    assert all(np.array_equal(a, b) for a, b in zip(back.labels, tally.labels, strict=True))
