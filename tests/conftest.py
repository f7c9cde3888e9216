"""Shared set-up: deterministic hypothesis, small problems, one thread."""

from __future__ import annotations

import signal
import threading
from functools import cache
from typing import Any

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


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`thin(n)`: one of n combinations of the parameters runs by default, the others in the campaign.

    Those whose numbers add up to a multiple of n: of three parameters with n values and more, every pair of values.
    """
    for item in items:
        if (mark := item.get_closest_marker("thin")) is None:
            continue
        if sum(_number(item, given) for given in item.iter_markers("parametrize")) % mark.args[0]:
            item.add_marker("campaign")


def _number(item: pytest.Item, given: pytest.Mark) -> int:
    """Which of the values of one `parametrize` this is."""
    names, values = given.args
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    held = [item.callspec.params[name] for name in names]  # type: ignore[attr-defined]
    several = (value if len(names) > 1 else (value,) for value in values)
    return next(k for k, value in enumerate(several) if all(x is y for x, y in zip(held, value, strict=True)))


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadgroup`: a file that sets something up for all its tests is the work of one worker; the marks
    `xdist_group` of xdist 3.8 are lost with pytest 9, without a word."""
    from xdist.scheduler import LoadScopeScheduling

    @cache
    def shares(file: str) -> bool:
        text = (config.rootpath / file).read_text(encoding="utf-8")
        return 'scope="module"' in text or "from tests.report.browser import" in text

    class OneWorkerPerSetUp(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            return file if shares(file) else nodeid

    return OneWorkerPerSetUp(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
