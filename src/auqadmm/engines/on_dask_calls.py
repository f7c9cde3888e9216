"""Functions that run on Dask workers, each on one and once, outside of the tasks that Dask may run again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client

LOOK = 1.0  # seconds after which to look whether the scheduler still knows those that do not answer


async def asked(client: Client, calls: Mapping[Any, tuple[Any, ...]], timeout: float) -> dict[Any, Any]:
    """The results of (function, arguments, worker) by key; where a worker is lost, a text that says why."""
    end = time.monotonic() + timeout
    tasks = {
        asyncio.ensure_future(client.run(fn, *args, workers=[a], on_error="return")): (key, a)
        for key, (fn, *args, a) in calls.items()
    }
    waiting, found = set(tasks), {}
    try:
        while waiting:
            left = max(0.0, end - time.monotonic())
            done, waiting = await asyncio.wait(waiting, timeout=min(left, LOOK), return_when="FIRST_COMPLETED")
            for key, address, result in [(*tasks[t], t.result()) for t in done]:
                found[key] = result[address]
                if isinstance(found[key], Exception):
                    return {key: _brief(found[key])}
            if not done:
                known = (await client.scheduler.identity(n_workers=-1))["workers"]  # type: ignore[union-attr]
                gone = {tasks[t][0]: "its process ended" for t in waiting if tasks[t][1] not in known}
                if gone or left == 0:
                    return gone or {tasks[t][0]: f"no answer within {timeout:g} s" for t in waiting}
        return found
    except OSError:
        return dict.fromkeys(calls, "the scheduler cannot be reached")
    finally:
        for task in waiting:
            task.cancel()


def _brief(error: Exception) -> str:
    if isinstance(error, OSError):  # of the connection
        return "its process ended"
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
