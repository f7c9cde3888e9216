"""Names and objects."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from auqadmm.curvature import Estimate, Exact, Hutchinson, Lanczos, resolve


def test_names():
    assert resolve("lanczos", rank=7, seed=3) == Lanczos(rank=7, seed=3)
    assert resolve("lanczos", rank=np.int64(7), seed=3) == Lanczos(rank=7, seed=3)
    assert resolve("exact", rank=7, seed=3) == Exact()
    assert resolve("hutchinson", rank=7, seed=3) == Hutchinson(seed=3)


def test_objects_pass_through():
    own = Lanczos(rank=2, seed=9, start="rademacher")
    assert resolve(own, rank=7, seed=3) is own

    class Mine:
        def diagonal(self, point):
            return Estimate(torch.ones_like(point.u), hvps=0)

    mine = Mine()
    assert resolve(mine, rank=5, seed=0) is mine


@pytest.mark.parametrize("unknown", ["nystrom", "", None, 3, Lanczos, object()])
def test_unknown_lists_the_known(unknown):
    with pytest.raises(ValueError, match=r"Unknown curvature .*'exact', 'lanczos', 'hutchinson'"):
        resolve(unknown, rank=5, seed=0)


def test_wrong_rank_is_said_at_once():
    with pytest.raises(ValueError, match="rank must be an integer of at least 1, got 0"):
        resolve("lanczos", rank=0, seed=0)


def test_exact_takes_the_closed_form(dense_point):
    entries = torch.arange(12.0, dtype=torch.float64).reshape(2, 3, 2)
    point = dense_point(torch.diag_embed(entries.flatten(1)), columns=2)
    estimate = Exact().diagonal(point)
    assert torch.equal(estimate.diagonal, entries)
    assert estimate.hvps == 0
    assert point.calls == []
