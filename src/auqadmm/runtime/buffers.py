"""The memory that recorded programs read from and write to (cuda_graphs.py)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable

import torch
from torch import Tensor


class Buffers:
    """Memory that recordings read from and write to, by form; each takes as many of a form as it needs."""

    def __init__(self) -> None:
        self.made: dict[Hashable, list[Tensor]] = {}
        self.holds: dict[int, Callable[[], Tensor | None]] = {}  # what was last copied there

    def like(self, tensors: list[Tensor], use: str) -> list[Tensor]:
        out: list[Tensor] = []
        taken: dict[Hashable, int] = {}
        for x in tensors:
            form = (use, form_of(x))
            made, i = self.made.setdefault(form, []), taken.get(form, 0)
            if i == len(made):
                made.append(torch.empty_like(x, memory_format=torch.preserve_format))
            out.append(made[i])
            taken[form] = i + 1
        return out

    def fill(self, buffers: list[Tensor], tensors: list[Tensor]) -> None:
        """Copy; tensors are never written to, so what lies there already need not be copied again."""
        news = [i for i, x in enumerate(tensors) if self.holds.get(id(buffers[i]), _nothing)() is not x]
        copy([buffers[i] for i in news], [dense(tensors[i]) for i in news])
        for i in news:
            self.holds[id(buffers[i])] = weakref.ref(tensors[i])

    def spoiled(self, buffers: list[Tensor]) -> None:
        for x in buffers:
            self.holds.pop(id(x), None)


def _nothing() -> None:
    return None


def form_of(x: Tensor) -> Hashable:
    """Shape, strides and kind of numbers, kept with the tensor: asking for them takes longer than comparing them."""
    known = getattr(x, "_auqadmm_form", None)
    if known is None:
        known = (x.shape, x.stride(), x.dtype, x.device)
        x._auqadmm_form = known  # type: ignore[attr-defined]
    return known


def dense(x: Tensor) -> Tensor:
    """x without its expanded axes: every number once."""
    if 0 not in x.stride():
        return x
    return x.as_strided([1 if s == 0 else n for n, s in zip(x.shape, x.stride(), strict=True)], x.stride())


def copy(to: list[Tensor], source: list[Tensor]) -> None:
    """Many copies in few launches, one per dtype."""
    for dtype in {x.dtype for x in to}:
        pairs = [(a, b) for a, b in zip(to, source, strict=True) if a.dtype == dtype]
        torch._foreach_copy_([a for a, _ in pairs], [b for _, b in pairs])
