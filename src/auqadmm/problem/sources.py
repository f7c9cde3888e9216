"""Blocks that are read by the workers: what `Problem(blocks=…)` takes besides a list of arrays.

    a function `blocks(rank, world)`                     the blocks of one process
    a list of functions, one per block                   `Readers`: a process calls those of its share
    (X, y), (X, y, sample_weight) or                     `Chunks`: every chunk of rows, every partition is a block
    (X, y, sample_weight, offset) of dask
    a list of dask.delayed, one per block                the same; each gives such a tuple

All of them become functions `blocks(rank, world)`, which any engine can call. An engine that can do better (Dask, which
knows where its chunks are) checks their type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from auqadmm.problem.ingest import InputError


def source_of(blocks: Any) -> Any:
    """`blocks` as a function of rank and world, or unchanged if they are in memory already."""
    parts = [b for k, b in enumerate(blocks) if k < 2 or b is not None] if isinstance(blocks, tuple) else []
    if parts and all(map(is_dask, parts)) and not any(map(_is_delayed, parts)):
        return Chunks.of(*blocks)
    if is_dask(blocks) and not _is_delayed(blocks):
        raise InputError(f"blocks is a {type(blocks).__name__} of dask; pass (X, y) or (X, y, sample_weight, offset).")
    if isinstance(blocks, list | tuple):
        if any(is_dask(b) or (isinstance(b, tuple | list) and any(map(is_dask, b))) for b in blocks):
            return Chunks.listed(blocks)
        if any(callable(b) for b in blocks):
            return Readers(tuple(blocks))
    return blocks


def share(count: int, rank: int, world: int) -> range:
    """The numbers of process `rank`: consecutive, and evenly split."""
    return range(count * rank // world, count * (rank + 1) // world)


def blamed(number: int, error: BaseException) -> InputError:
    """What is wrong with reading a block."""
    text = " ".join(str(error).split())
    return InputError(f"block {number} cannot be read: {type(error).__name__}: {text}".rstrip(": ") + ".")


@dataclass(frozen=True)
class Readers:
    """One function per block, called on the block's worker. Blocks already in memory may be among them."""

    functions: tuple[Any, ...]
    first: int = 0

    def __call__(self, rank: int, world: int) -> list[Any]:
        return [self._block(j) for j in share(len(self.functions), rank, world)]

    def part(self, numbers: range) -> Readers:
        """A subset; blocks keep their numbers."""
        return Readers(self.functions[numbers.start : numbers.stop], self.first + numbers.start)

    def _block(self, j: int) -> Any:
        given = self.functions[j]
        if not callable(given):
            return given
        try:
            return given()
        except Exception as error:
            raise blamed(self.first + j, error) from error


@dataclass(frozen=True)
class Chunks:
    """One dask.delayed per block. `alive`: references to their inputs, which Dask would release otherwise."""

    parts: tuple[Any, ...]
    alive: tuple[Any, ...] = ()

    @staticmethod
    def of(*collections: Any) -> Chunks:
        """X, y, sample_weight and offset, split into the same chunks of rows; the last two may be None."""
        if len(collections) not in (2, 3, 4):
            raise InputError(f"blocks must be (X, y[, sample_weight[, offset]]) of dask; got {len(collections)} parts.")
        X = collections[0]
        first = pieces(X, X)
        columns = [first, *([None] * len(first) if c is None else pieces(c, X) for c in collections[1:])]
        for name, column in zip(("y", "sample_weight", "offset"), columns[1:], strict=False):
            if len(column) != len(columns[0]):
                raise InputError(
                    f"X has {len(columns[0])} chunks of rows but {name} has {len(column)}; cut both alike (rechunk, "
                    "repartition)."
                )
        return Chunks.listed(list(zip(*columns, strict=True)), [c for c in collections if c is not None])

    @staticmethod
    def listed(blocks: Sequence[Any], alive: Sequence[Any] = ()) -> Chunks:
        from dask import delayed

        parts = tuple(b if _is_delayed(b) else delayed(_block, pure=False)(b) for b in blocks)
        return Chunks(parts, tuple(alive or blocks))

    def __call__(self, rank: int, world: int) -> list[Any]:
        return [self._computed(j) for j in share(len(self.parts), rank, world)]

    def _computed(self, j: int) -> Any:
        try:
            return self.parts[j].compute()
        except Exception as error:
            raise blamed(j, error) from error


def _block(parts: Any) -> tuple[Any, ...]:
    return tuple(parts)


def is_dask(x: object) -> bool:
    """Is it a dask collection? Checked without importing dask."""
    return type(x).__module__.split(".")[0].startswith("dask") and hasattr(x, "compute")


def _is_delayed(x: object) -> bool:
    return is_dask(x) and not hasattr(x, "to_delayed")


def pieces(x: Any, like: Any) -> list[Any]:
    """The chunks of rows of an array, the partitions of a data frame."""
    if not hasattr(x, "chunks"):
        return list(x.to_delayed())
    if x.ndim == 2 and x.numblocks[1] > 1:
        x = x.rechunk({1: -1})
    if hasattr(like, "chunks") and x.shape[0] == like.shape[0] and x.chunks[0] != like.chunks[0]:
        x = x.rechunk({0: like.chunks[0]})
    return list(x.to_delayed().ravel())


Source = Callable[[int, int], Sequence[Any]]
