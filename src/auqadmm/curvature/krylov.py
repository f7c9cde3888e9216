"""Leading eigenvectors of A_j ⪰ 0 by block Lanczos: products with a few vectors at a time, all blocks at once (S12).

    Q_1 = orth(A·start),   Q_{k+1} = orth((I − QQᵀ) A Q_k),  Q = (Q_1 … Q_k)         T = QᵀAQ

The largest eigenvalues converge faster than with powers of A: the leading 64 of 96 vectors, from seven
products with 16 at a time, are as good as 64 vectors after five products with all of them.

An invariant subspace (few rows, equal rows, no rows) is continued at random: a little noise in every new
block, far below A's own part and far above rounding.

Reference: G. H. Golub, C. F. Van Loan, Matrix Computations, 4th ed., section 10.3.6.

Shapes: B blocks, n unknowns, b vectors at a time, k vectors in all; Q (B, n, k), T (B, k, k).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

KRYLOV_STEPS = 3  # steps before a block may stop


def krylov(
    apply: Callable[[Tensor], Tensor],
    random: Tensor,
    blocks: int,
    several: int,
    settled: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """An orthonormal basis Q for each of the blocks, as many vectors as `random` has, T = QᵀAQ, and how many of the
    vectors each block uses, (B,); T is zero in the others.

    Parameters
    ----------
    apply
        (B, n, b) -> (B, n, b), one symmetric operator per block.
    random
        (n, k), the same for all blocks: the first columns are the start, the others the noise of new blocks.
    several
        b, vectors at a time.
    settled
        T -> (B,): which blocks have converged. Each uses its vectors up to then, whatever its
        neighbours do; when all have, the iteration ends.
    """
    first, *others = (x.expand(blocks, -1, -1) for x in random.split(several, 1))
    new = apply(first)
    Q = torch.linalg.qr(new + _noise(first, new))[0]
    products = apply(Q)
    T = Q.mT @ products
    used = torch.full((blocks,), random.shape[1], device=random.device)
    for other in others:
        if settled is not None and Q.shape[2] >= KRYLOV_STEPS * several:
            used = torch.where(settled(0.5 * (T + T.mT)), used.clamp(max=Q.shape[2]), used)
            if bool((used <= Q.shape[2]).all()):
                break
        new = products[:, :, : other.shape[2]]
        new = new + _noise(other, new)
        for _ in range(2):  # twice is enough, with unit vectors in between
            new = torch.linalg.qr(new - Q @ (Q.mT @ new))[0]
        products = apply(new)
        beside, own = Q.mT @ products, new.mT @ products
        T = torch.cat([torch.cat([T, beside], 2), torch.cat([beside.mT, own], 2)], 1)
        Q = torch.cat([Q, new], 2)
    used = used.clamp(max=Q.shape[2])
    inside = torch.arange(Q.shape[2], device=T.device) < used[:, None]
    return Q, 0.5 * (T + T.mT) * (inside[:, :, None] & inside[:, None, :]), used


def _noise(random: Tensor, x: Tensor) -> Tensor:
    """Small beside x; where x is zero any size will do."""
    scale = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True) / torch.linalg.vector_norm(random[0])
    scale = torch.where(scale > 0, scale, 1.0)
    return torch.finfo(x.dtype).eps ** 0.75 * scale * random
