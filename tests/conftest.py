"""Shared set-up: deterministic hypothesis, small problems, one thread."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import settings

settings.register_profile("laws", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("laws")
torch.set_num_threads(1)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
