"""Where processes find each other, under a name that no earlier meeting had.

The store that `torchrun` serves may outlive the processes: started again after a loss they would find what the dead
left there, their addresses and their alarm. So the first process makes up a name and tells it to everyone who calls:

    rank r    leaves a call of its own under hello/r, and waits for the answer to this very call
    rank 0    answers whatever call it finds under hello/r, old ones too, until rank r has heard
"""

from __future__ import annotations

import itertools
import time
from datetime import timedelta
from uuid import uuid4

import torch
import torch.distributed as dist

PAUSE = 0.01  # seconds between two looks
_met: list[tuple[dist.Store, int, int]] = []


def rendezvous(limit: timedelta) -> tuple[dist.Store, int, int]:
    """A store, rank and size; kept as long as this process lives, since the first one may serve the others."""
    if not _met:
        store, rank, size = next(itertools.islice(dist.rendezvous("env://", timeout=limit), 1))
        store.set_timeout(limit)
        _met.append((dist.PrefixStore(agreed(store, rank, size, limit), store), rank, size))
    return _met[0]


def agreed(store: dist.Store, rank: int, size: int, limit: timedelta) -> str:
    """The name of this meeting."""
    end, mine = time.monotonic() + limit.total_seconds(), uuid4().hex
    if rank > 0:
        store.set(f"hello/{rank}", mine)
        name: str = store.get(f"answer/{mine}").decode()  # waits as long as the store does
        store.set(f"heard/{name}/{rank}", "")
        return name
    missing = list(range(1, size))
    while missing:
        if time.monotonic() > end:
            raise RuntimeError(f"no sign of rank {', '.join(map(str, missing))}")
        for r in missing:
            if store.check([f"hello/{r}"]):
                store.set(f"answer/{store.get(f'hello/{r}').decode()}", mine)
        missing = [r for r in missing if not store.check([f"heard/{mine}/{r}"])]
        time.sleep(PAUSE if missing else 0)
    return mine


def named(group: dist.ProcessGroup | None) -> str:
    """A name for processes that are connected already."""
    code = torch.frombuffer(bytearray(uuid4().bytes), dtype=torch.uint8)
    dist.broadcast(code, 0, group=group)
    return code.numpy().tobytes().hex()
