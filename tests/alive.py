"""Bytes of tensors that are alive at the same time, on a CPU."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Alive(TorchDispatchMode):
    """`peak`: the most bytes that tensors made in this context took together; small ones are left out."""

    def __init__(self, least: int = 1024) -> None:
        super().__init__()
        self.least, self.peak = least, 0
        self.held: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        made = [x.untyped_storage() for x in tree_leaves(out) if isinstance(x, Tensor)]
        new = {x._cdata: x for x in made if x._cdata not in given and x.nbytes() >= self.least}
        if new:
            self.held = {key: x for key, x in self.held.items() if not x[0].expired()}
            self.held |= {key: (StorageWeakRef(x), x.nbytes()) for key, x in new.items()}
            self.peak = max(self.peak, sum(size for _, size in self.held.values()))
        return out
