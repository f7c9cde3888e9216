"""Products with X in single precision, between points where the gradient is known in double precision.

    anchor   u_a, with z_a = Xu_a, φ'(z_a) and ∇f(u_a) in double precision
    nearby   z(u) = z_a + X̃(u − u_a)
             ∇f(u) ≈ ∇f(u_a) + X̃ᵀ c(φ'(z) − φ'(z_a))             X̃: X rounded to single precision

is the exact gradient of f at z(u) plus a linear function, so a line search works as usual. Its error is
rounding of the *change* of the gradient since the anchor, a ten-millionth of it: a local solve whose tolerance is above
a ten-thousandth of that change may rely on it, and below that it moves the anchor (`local/descent.py`). On a
CPU such products take less than half the time, and the copy of X adds half of the data's size. On a GPU bytes are
not the bottleneck.

Reference: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., chapter 12, for refinement in mixed
precision.

Shapes: B blocks, R flat rows, m features, C columns; u, ∇f (B, m, C), z (R, C).
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.blocks.loss import Point
from auqadmm.blocks.parts import runs
from auqadmm.blocks.rows import RowLoss, RowPoint

if TYPE_CHECKING:
    from auqadmm.blocks.parts import Part
    from auqadmm.blocks.shard import Shard

# numbers in X, of all processes together, below which products do not dominate the time
SMALL_DATA = 2**21
# the share of the machine's memory that the copy may take
COPY_MEMORY = 1 / 16
# the smallest share of the gradient's change since the anchor that is accurate enough
TRUST = 1e-4


def is_applicable(shard: Shard) -> bool:
    """Is it faster, and can the data be rounded?"""
    design = shard.design
    if os.environ.get("AUQADMM_LIGHT") == "0" or shard.device.type != "cpu" or shard.dtype != torch.float64:
        return False
    if not isinstance(shard.loss, RowLoss) or not shard.census.dense:
        return False
    if (
        sum(shard.census.rows) * design.features < SMALL_DATA
        or 4 * design.rows * design.features > COPY_MEMORY * memory()
    ):
        return False
    return design.coarse is None or not bool(design.coarse.all())


def memory() -> int:
    """Bytes of memory of this machine, or of its container; a default where unknown."""
    pages = {"SC_PHYS_PAGES", "SC_PAGE_SIZE"}
    whole = math.prod(map(os.sysconf, pages)) if pages <= set(getattr(os, "sysconf_names", ())) else 2**33
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else ""
    return min(whole, int(text)) if text.isdigit() else whole


def anchored(shard: Shard, u: Tensor) -> RowPoint:
    """f_j at u in double precision, its own anchor. The last one is cached: a solve may start near another's start."""
    kept = shard.design.cache.get("anchor")
    if kept is not None and kept[0] is u:
        return kept[1]
    assert isinstance(shard.loss, RowLoss)
    # the first anchor is mostly at zero
    exact = shard.loss.linearize(shard, u) if u.any() else RowPoint(shard.loss, shard, u, _no_logits(shard))
    point = RowPoint(exact.loss, shard, u, exact.z, exact)
    vars(point).update(grad=exact.grad, slope=exact.slope, _prepared=vars(exact)["_prepared"])  # same values
    shard.design.cache["anchor"] = (u, point)
    return point


def reanchored(point: RowPoint, some: Tensor) -> RowPoint:
    """The same point, its own anchor in some blocks (B,): their data are read in double precision."""
    shard, old, loss = point.shard, point.anchor, point.loss
    assert old is not None
    if bool(some.all()):
        return anchored(shard, point.u)
    left, design, own = some.tolist(), shard.design, some[:, None, None]
    only = tuple(slice(a, b) for a, b in runs([j for j, is_left in enumerate(left) if is_left]))
    rows = some[design.block_of_row, None]
    z = torch.where(rows, shard.logits(torch.where(own, point.u, 0.0), only=only), old.z)
    exact = RowPoint(loss, shard, torch.where(own, point.u, old.u), z)
    pulled = design.adjoint(torch.where(rows, exact._weigh(exact.slope), 0.0), only=only)
    grad = torch.where(own, pulled, old.grad)
    vars(exact)["grad"] = grad
    anchor = RowPoint(loss, shard, exact.u, z, exact)
    vars(anchor).update(grad=grad, slope=exact.slope, _prepared=vars(exact)["_prepared"])
    design.cache["anchor"] = (exact.u, anchor)
    moved = RowPoint(loss, shard, point.u, torch.where(rows, z, point.z), exact)
    vars(moved).update(grad=torch.where(own, grad, point.grad), slope=torch.where(rows, exact.slope, point.slope))
    return moved


def gathered(point: Point, some: Part) -> Tensor | None:
    """u at the anchors (B, m, C), after some blocks continued alone and moved theirs; None without an anchor."""
    if not isinstance(point, RowPoint) or point.anchor is None:
        return None
    own, moved = point.anchor, some.shard.design.cache.get("anchor")
    if moved is None:
        return own.u
    new = moved[1]
    exact = RowPoint(
        own.loss, own.shard, own.u.index_copy(0, some.blocks, new.u), own.z.index_copy(0, some.rows, new.z)
    )
    vars(exact)["grad"] = own.grad.index_copy(0, some.blocks, new.grad)
    anchor = RowPoint(exact.loss, exact.shard, exact.u, exact.z, exact)
    vars(anchor).update(grad=exact.grad, slope=exact.slope, _prepared=vars(exact)["_prepared"])
    own.shard.design.cache["anchor"] = (exact.u, anchor)
    return exact.u


def _no_logits(shard: Shard) -> Tensor:
    rows, columns = shard.design.rows, shard.shape[2]
    zero = torch.zeros(rows, columns, dtype=shard.dtype)
    return zero if shard.offset is None else zero + shard.offset[:, None]


def nearby(shard: Shard, u: Tensor, anchor: Tensor) -> RowPoint:
    """f_j at u, relative to the anchor of another point."""
    there = anchored(shard, anchor).anchor
    assert there is not None
    z = there.z + shard.design.forward(u - there.u, single_precision=True)
    return RowPoint(there.loss, shard, u, z, there)


def linearize_single(shard: Shard, u: Tensor) -> Point:
    """f_j at u where a few digits of curvature are enough: logits in single precision where possible."""
    if not shard.single_precision:
        return shard.linearize(u)
    assert isinstance(shard.loss, RowLoss)
    return RowPoint(shard.loss, shard, u, shard.logits(u, single_precision=True))


def change(point: object) -> Tensor | None:
    """‖∇f_j(u) − ∇f_j(u_a)‖, (B,), 0 where the products are exact; None for a point without an anchor."""
    if not isinstance(point, RowPoint) or point.anchor is None:
        return None
    coarse = point.shard.design.coarse
    return point.moved if coarse is None else point.moved.masked_fill(coarse, 0.0)
