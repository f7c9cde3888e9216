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


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses, and before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        _thin(item)
        _keep_together(item)


def _thin(item: pytest.Item) -> None:
    """`thin(n)`: one of n combinations of the parameters runs by default, the others in the campaign.

    Those whose numbers add up to a multiple of n: of three parameters with n values and more, every pair of values.
    """
    if (mark := item.get_closest_marker("thin")) is None:
        return
    numbers = dict(item.callspec.indices)  # type: ignore[attr-defined]
    for several in item.iter_markers("parametrize"):  # names that one list of tuples fills count once
        names = several.args[0].split(",") if isinstance(several.args[0], str) else several.args[0]
        for name in names[1:]:
            numbers.pop(name.strip(), None)
    if sum(numbers.values()) % mark.args[0]:
        item.add_marker("campaign")


def _keep_together(item: pytest.Item) -> None:
    """What a module sets up once is set up by one worker: its tests go there."""
    if item.get_closest_marker("xdist_group") is None and isinstance(item, pytest.Function):
        shared = (f for f in item._fixtureinfo.name2fixturedefs.values() if f[-1].scope == "module" and f[-1].baseid)
        if next(shared, None):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
