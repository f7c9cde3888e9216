"""Processes meet under a new name each time, in a store that remembers those before; with threads in their place."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from auqadmm.engines import world
from auqadmm.engines.world import AlarmBoard, agreed


def meet(store, size, order, seconds=10.0):
    with ThreadPoolExecutor(size) as pool:
        found = [pool.submit(agreed, store, rank, size, timedelta(seconds=seconds)) for rank in order]
        return [future.result() for future in found]


def test_all_hear_the_same_name_and_never_an_old_one():
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=10))
    names = []
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]):
        names.append(set(meet(store, 3, order)))
    assert all(len(found) == 1 for found in names)
    assert len(set().union(*names)) == 4
    assert meet(store, 1, [0]) != meet(store, 1, [0])


def test_one_that_does_not_come():
    """Another called here before, and is gone: its call is answered, and nobody takes it for the one who is missing."""
    store = dist.HashStore()
    store.set("hello/1", "a call of long ago")
    with pytest.raises(RuntimeError, match="no sign of rank 1, 2"):
        agreed(store, 0, 3, timedelta(seconds=0.1))


class Slow(AlarmBoard):
    """Takes its time to read what the others wrote."""

    def _sentences(self):
        time.sleep(0.6)
        return super()._sentences()


def test_the_process_that_may_serve_the_store_leaves_last():
    """Processes that still read would find it gone, and could not tell who failed."""
    store, left = dist.HashStore(), []

    def fail(board):
        board.raise_alarm("a process failed", "the disk is on fire" if board.rank == 0 else "")
        sentences, missing = board.others()
        left.append(board.rank)
        return sentences, missing

    boards = [kind(store, rank, 3) for rank, kind in enumerate((AlarmBoard, Slow, AlarmBoard))]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(fail, boards))
    assert found == [({0: "the disk is on fire"}, [])] * 3
    assert left[-1] == 0


def test_a_process_that_dies_while_it_reads_is_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr(world, "BOARD_PATIENCE", 0.3)
    store = dist.HashStore()
    AlarmBoard(store, 1, 2).raise_alarm("a process failed")  # and never reads
    assert AlarmBoard(store, 0, 2).others() == ({}, [])
