"""One run on Ray actors: the pool of the driver engine."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from auqadmm.engines.holder import BROUGHT
from auqadmm.engines.on_ray_worker import RayDataset
from auqadmm.engines.pool import dealt
from auqadmm.problem import InputError
from auqadmm.problem.sources import share

if TYPE_CHECKING:
    from auqadmm.engines.on_ray import RayWorkers

LARGE = 100_000  # bytes from which a message for all is stored once, and fetched from there


class RayPool:
    """One run on the workers."""

    def __init__(self, workers: RayWorkers, last: bool) -> None:
        self.workers, self.last, self.run = workers, last, uuid.uuid4().hex
        about = sorted(workers.about.items())
        self.names: Sequence[str] = [f"worker {r}, process {pid} on {host}" for r, (pid, host) in about]

    def deal(self, blocks: object) -> list[Any]:
        if not isinstance(blocks, RayDataset):
            return dealt(blocks, len(self.names))
        refs, count = blocks.refs(), len(self.names)
        source = RayDataset(None, blocks.target, blocks.weight)
        parts = [[refs[j] for j in share(len(refs), r, count)] for r in range(count)]
        actors = self.workers.actors
        found = self.workers.answers({r: actors[r].bring.remote(self.run, source, parts[r]) for r in range(count)})
        for r, problem in sorted(found.items()):
            if problem:
                raise InputError(f"{self.names[r]}: {problem}")
        return [BROUGHT] * count

    def call(self, messages: Mapping[int, bytes]) -> dict[int, Any]:
        actors, put = self.workers.actors, self.workers.ray.put
        large = {id(m): m for m in messages.values() if len(m) > LARGE}
        stored = {key: put(m) for key, m in large.items()}  # once, for all that fetch it
        return self.workers.answers(
            {r: actors[r].answer.remote(self.run, stored.get(id(m), m)) for r, m in messages.items()}
        )

    def close(self) -> None:
        if self.last:
            self.workers.close()
        for actor in self.workers.actors.values():
            actor.forget.remote(self.run)
