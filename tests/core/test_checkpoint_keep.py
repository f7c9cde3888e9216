"""How many checkpoints stay, and how much memory one may ask for."""

from __future__ import annotations

import pytest
import torch

import auqadmm as aq
from auqadmm.checkpoint.codec import CheckpointError, Reader, Registry
from tests.core.checkpoints import names, no_waiting
from tests.problems import least_squares

__all__ = ["no_waiting"]  # a fixture


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_stay(tmp_path, keep):
    """The start, iterations 2, 4 and 6, and the end: five are written."""
    settings = aq.Checkpoint(tmp_path, every=2, keep=keep)
    aq.solve(least_squares(), "c-admm", max_iter=7, checkpoint=settings, certificate_tol=1e-18)
    assert names(tmp_path) == [f"checkpoint-{number:06d}" for number in range(6 - keep, 6)]
    again = aq.solve(least_squares(), "c-admm", max_iter=8, checkpoint=settings, certificate_tol=1e-18)
    assert again.n_iter == 8
    assert len(names(tmp_path)) == keep


@pytest.mark.parametrize(("stride", "fits"), [(1, True), (15, True), (16, False), (10**9, False), (0, False)])
def test_strides_may_take_eight_times_the_memory_of_their_numbers(stride, fits):
    """A file of a few bytes must not ask for gigabytes."""
    arrays = {"x": torch.tensor([3.0, 4.0], dtype=torch.float64)}
    reader = Reader(Registry({}), {}, torch.device("cpu"), arrays)
    entry = {"tensor": "x", "shape": [2], "stride": [stride]}
    if not fits:
        with pytest.raises(CheckpointError):
            reader.decode(entry)
        return
    found = reader.decode(entry)
    assert (found.tolist(), found.stride()) == ([3.0, 4.0], (stride,))
