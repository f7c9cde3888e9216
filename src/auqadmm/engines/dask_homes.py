"""Tasks go to their data: what is made of chunks in the memory of workers is made where these are, and nowhere else.

Left alone, Dask may copy a chunk to an idle worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from distributed import Client, Future


def at_home(client: Client, parts: Sequence[Delayed], addresses: Sequence[str]) -> list[Future]:
    """A future of each dask.delayed, on the worker that holds most of what it is made of; on any if none does."""
    needs = [_outside(p) for p in parts]
    held = client.who_has() if any(needs) else {}
    sizes = client.nbytes(summary=False) if any(needs) else {}
    futures = []
    for part, keys in zip(parts, needs, strict=True):
        mass = {a: sum(sizes.get(key, 0) for key in keys if a in held.get(key, ())) for a in addresses}
        home = max(mass, key=mass.__getitem__)
        workers = [home] if mass[home] else list(addresses)
        futures.append(client.compute(part, workers=workers, allow_other_workers=False, retries=0))
    return futures


def _outside(part: Delayed) -> set[object]:
    """The keys that a graph needs and does not make."""
    graph = dict(part.__dask_graph__())
    needed = {key for node in graph.values() for key in getattr(node, "dependencies", ())}
    return needed - set(graph)
