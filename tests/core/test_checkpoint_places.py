"""Checkpoints of methods of one's own, and the folders they go to."""

from __future__ import annotations

import os

import pytest
import torch

import auqadmm as aq
from tests.core.checkpoints import TIGHT, assert_same, names, no_waiting
from tests.problems import class_blocks, least_squares, multinomial

__all__ = ["no_waiting"]  # a fixture


def test_two_runs_in_one_folder(tmp_path):
    def second(event):
        with pytest.raises(aq.CheckpointError, match="in use by another run"):
            aq.solve(least_squares(), "auq-lr", checkpoint=tmp_path)
        return True

    assert aq.solve(least_squares(), "auq-lr", checkpoint=tmp_path, callbacks=[second]).status == "interrupted"
    assert aq.solve(least_squares(), "auq-lr", checkpoint=tmp_path).status == "converged"


def test_a_folder_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(aq.CheckpointError, match="cannot be used"):
            aq.solve(least_squares(), "auq-lr", checkpoint=place)


def test_a_method_of_ones_own_needs_nothing_but_tensors(tmp_path):
    class Halving(aq.methods.C):
        name = "halving"

        def observe(self, shard, blocks, shared):
            return {"seen": blocks.u}

    plain = aq.solve(least_squares(), Halving(), max_iter=12, **TIGHT)
    aq.solve(least_squares(), Halving(), max_iter=5, checkpoint=tmp_path, **TIGHT)
    assert_same(aq.solve(least_squares(), Halving(), max_iter=12, checkpoint=tmp_path, **TIGHT), plain)


@pytest.mark.parametrize(
    ("memory", "words"),
    [({"x": object()}, "object at .*memory.x cannot be saved"), ({"x": torch.zeros(2)}, "'x' .* is not per block")],
)
def test_a_state_that_cannot_be_saved_is_refused_before_the_first_iteration(tmp_path, memory, words):
    class Odd(aq.methods.C):
        def first_weights(self, shard, blocks, shared):
            chosen = super().first_weights(shard, blocks, shared)
            return type(chosen)(chosen.W, memory)

    seen = []
    with pytest.raises(aq.CheckpointError, match=words):
        aq.solve(multinomial(class_blocks()), Odd(), checkpoint=tmp_path, callbacks=[seen.append])
    assert not seen
    assert names(tmp_path) == []


def test_paths_of_any_kind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    aq.solve(least_squares(), "auq-lr", max_iter=2, checkpoint=os.path.join("a b", "ü"))
    assert aq.solve(least_squares(), "auq-lr", max_iter=4, checkpoint=tmp_path / "a b" / "ü").n_iter == 4
