"""Workers that carry out messages: what Ray and Dask bring to the driver engine, and the settings they share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from auqadmm.core.stopping import is_number, whole_number
from auqadmm.errors import InputError
from auqadmm.problem.sources import Readers, Source, share


class Pool(Protocol):
    """Workers that each run a `Holder`; `names` say in words who they are."""

    names: Sequence[str]

    def deal(self, blocks: object) -> Sequence[Any]:
        """Where each worker finds its blocks: `Problem.blocks` of its own, or `BROUGHT`. Settles how many there are."""
        ...

    def call(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes | str]:
        """The answers of workers by their numbers. Of one that is lost: why, in a text; others may be missing."""
        ...

    def close(self) -> None:
        """End what was started. Lost workers are not waited for."""
        ...


def check(timeout: float, workers: int | None) -> None:
    """The settings that engines of this kind share."""
    if not (is_number(timeout) and 0 < timeout < math.inf):
        raise InputError(f"timeout must be a positive number of seconds, got {timeout!r}.")
    if workers is not None:
        whole_number("workers", workers, least=1)


def missing(package: str) -> ImportError:
    """An engine whose package is not installed."""
    return ImportError(f'engine="{package}" needs {package}, which is not installed: pip install "auqadmm[{package}]".')


def dealt(blocks: object, workers: int) -> list[Any]:
    """Where each worker finds its blocks: consecutive ones of a list; a function is the same for all."""
    if isinstance(blocks, tuple):
        blocks = Readers(blocks)
    if not isinstance(blocks, Readers):
        return [blocks] * workers
    return [Whole(blocks.part(share(len(blocks.functions), r, workers))) for r in range(workers)]


def most_workers(blocks: object, workers: int) -> int:
    """No more workers than blocks."""
    known = blocks if isinstance(blocks, tuple) else getattr(blocks, "functions", None)
    return workers if known is None else max(1, min(len(known), workers))


@dataclass(frozen=True)
class Whole:
    """All blocks of a source, whoever asks."""

    source: Source

    def __call__(self, rank: int, world: int) -> Sequence[object]:
        return self.source(0, 1)


def cpu_only(engine: str, device: torch.device) -> None:
    if device.type != "cpu":
        raise InputError(
            f"engine={engine!r} computes on CPUs, got device={str(device)!r}; use engine='torch' for GPUs."
        )
