"""Columns that are centred and scaled inside, in one process and in two: the same models; begun here, ended there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from auqadmm.columns import EnterFrame, Frame, InFrame
from auqadmm.core.reduce import score
from auqadmm.engines.protocol import dumps
from tests.engines.processes import ended, ranks

SCALE = np.array([2000, 0.5, 3e6, 1, 1])[:, None]


def models(folder, mode, world):
    with ranks(world, "columns.py", mode, folder) as started:
        for process in started:
            said = ended(process, 120)
            assert process.returncode == 0, said[-3000:]
    with np.load(folder / f"{mode} {world}.npz") as found:
        return dict(found)


def close(some, others):
    assert some.keys() == others.keys()
    for name, x in some.items():
        by = 1 / SCALE if name.endswith("lam") else SCALE
        np.testing.assert_allclose(x * by, others[name] * by, rtol=1e-7, atol=1e-7, err_msg=name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return models(tmp_path_factory.mktemp("whole"), "whole", 1)


def test_two_processes_equal_one(tmp_path, whole):
    close(models(tmp_path, "whole", 2), whole)


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)])
def test_begun_by_some_and_ended_by_others(tmp_path, whole, first, second):
    """The frame is saved with the state: sums of other processes round differently, and a scale could be twice as
    large."""
    models(tmp_path, "begin", first)
    close(models(tmp_path, "go on", second), whole)


def test_the_frame_travels_once():
    """A worker of a driver is sent the columns once, and no more than a name in every round."""
    pytest.importorskip("cloudpickle")
    ones = torch.ones(5000, dtype=torch.float64)
    assert (
        len(dumps(EnterFrame(Frame(ones, ones, ones), "run"))) > 40_000
    )  # an array that occurs three times is sent once
    assert len(dumps(InFrame(score, "run"))) < 300
