"""In the process of a Dask worker: the slots with its holders, and how blocks and messages reach them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from auqadmm.engines.holder import Holder

if TYPE_CHECKING:
    from distributed import Worker


@dataclass
class WorkerSlot:
    """Holders of one run in one worker, and the one thread in which they answer."""

    holders: dict[int, Holder] = field(default_factory=dict)
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))


_seats: dict[tuple[str, str], WorkerSlot] = {}  # by run and worker: several workers may share a process


async def sit(run: str, deaf: bool, dask_worker: Worker | None = None) -> int:
    """`deaf`: ignore Ctrl-C, sent by terminals to all processes: the driver handles it, and still needs its workers."""
    if deaf and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert dask_worker is not None  # Dask fills it in
    _seats[run, dask_worker.address] = WorkerSlot()
    return os.getpid()


async def answer(run: str, rank: int, message: bytes, dask_worker: Worker | None = None) -> bytes | None:
    """None: this process does not know the run."""
    assert dask_worker is not None
    slot = _seats.get((run, dask_worker.address))
    if slot is None:
        return None
    holder = slot.holders.setdefault(rank, Holder())
    return await asyncio.get_running_loop().run_in_executor(slot.thread, holder, message)


async def leave(run: str, dask_worker: Worker | None = None) -> None:
    assert dask_worker is not None
    _leave(run, dask_worker.address)


def _leave(run: str, address: str) -> None:
    slot = _seats.pop((run, address), None)
    if slot is not None:
        slot.thread.shutdown(wait=False, cancel_futures=True)


def bring(run: str, rank: int, blocks: list[object]) -> None:
    """A task: take over blocks stored on this worker."""
    from distributed import get_worker

    _seats[run, get_worker().address].holders[rank] = Holder(list(blocks))


class Lease:
    """An actor that ends with its client, however that ends; then the slot is freed."""

    def __init__(self, run: str) -> None:
        from distributed import get_worker

        self.seat = (run, get_worker().address)

    def __del__(self) -> None:
        _leave(*self.seat)
