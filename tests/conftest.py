"""Shared set-up: deterministic hypothesis, small problems, one thread."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest
import torch
from hypothesis import settings

settings.register_profile("laws", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("laws")
torch.set_num_threads(1)
# Whatever starts the tests in the background tells them to ignore Ctrl-C, and so would the programs they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
