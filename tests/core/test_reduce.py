"""What a reduction counts, call by call, on an engine that only answers."""

from __future__ import annotations

import pytest
import torch

from auqadmm.core.reduce import Reduce


class Answers:
    """Three workers; every call is answered with the same arrays."""

    names = ("a", "b", "c")
    census = None

    def __init__(self, **answers):
        self.answers, self.calls = answers, []

    def _told(self, what, fn, blocks):
        self.calls.append(what)
        return self.answers

    def map_sum(self, fn, blocks, shared):
        return ("new", shared), self._told("sum", fn, blocks)

    def map_minmax(self, fn, blocks, shared):
        return ("new", shared), self._told("minmax", fn, blocks)

    def map_concat(self, fn, blocks):
        return self._told("concat", fn, blocks)

    def gather(self, fn, blocks):
        return self._told("gather", fn, blocks)["x"]


def counted(reduce):
    t = reduce.traffic
    return {"rounds": t.rounds, "up": t.up, "down": t.down, "verdict": t.verdict, "reductions": t.reductions}


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.float64)


def test_a_reduction_is_a_round_and_eight_bytes_a_number():
    reduce = Reduce(Answers(x=zeros(4, 3), y=zeros(())))
    blocks, sums = reduce(print, None, "shared", down=(zeros(5, 2), zeros(3)))
    assert blocks == ("new", "shared")
    assert set(sums) == {"x", "y"}
    assert counted(reduce) == {"rounds": 1, "up": 8 * 13, "down": 8 * 13, "verdict": 0, "reductions": 1}


def test_a_question_of_a_verdict_is_a_round_that_is_counted_apart():
    reduce = Reduce(Answers(x=zeros(2)))
    reduce.judging(print, None, (zeros(7),))
    assert counted(reduce) == {"rounds": 1, "up": 16, "down": 56, "verdict": 1, "reductions": 1}


def test_what_does_not_change_is_asked_once():
    reduce = Reduce(Answers(x=zeros(2)))
    assert reduce.once(print) is reduce.once(print)
    assert reduce.engine.calls == ["sum"]
    reduce.once(repr)
    assert counted(reduce) == {"rounds": 2, "up": 32, "down": 0, "verdict": 2, "reductions": 2}


def test_extremes_go_up_and_come_back():
    reduce = Reduce(Answers(x=zeros(2, 3)))
    reduce.minmax(print, None, None)
    assert counted(reduce) == {"rounds": 1, "up": 48, "down": 48, "verdict": 0, "reductions": 1}


@pytest.mark.parametrize(("numbers", "mean"), [(6, 16), (7, 19), (8, 22)])
def test_parts_side_by_side_and_gathers_are_bytes_and_no_round(numbers, mean):
    """8 bytes a number over three workers, rounded up."""
    for call in ("concat", "gather"):
        reduce = Reduce(Answers(x=zeros(numbers)))
        getattr(reduce, call)(print, None)
        assert counted(reduce) == {"rounds": 0, "up": mean, "down": 0, "verdict": 0, "reductions": 1}


def test_scoring_is_a_reduction_and_nothing_else_and_placing_is_nothing():
    reduce = Reduce(Answers(x=zeros(2)))
    reduce.free(print, None, None)
    assert reduce.place(print, None, "shared") == ("new", "shared")
    assert counted(reduce) == {"rounds": 0, "up": 0, "down": 0, "verdict": 0, "reductions": 1}


@pytest.mark.parametrize(("least", "most", "answer"), [(0.0, 0.0, False), (0.0, 1.0, False), (1.0, 1.0, True)])
def test_every_means_all_of_them(least, most, answer):
    """One process whose blocks suit is not enough."""
    reduce = Reduce(Answers(flag=torch.tensor([least, most], dtype=torch.float64)))
    assert reduce.every(bool) is answer
    assert counted(reduce) == dict.fromkeys(("rounds", "up", "down", "verdict", "reductions"), 0)
