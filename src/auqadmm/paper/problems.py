"""From specs to problems and methods. Only here do experiments read data.

A pack contains the rows of a data set that experiments use, in one small file that can be sent to another machine.

Methods of a comparison have names; so do the controls that any gain of AUQ-ADMM must beat (S11):

    c-admm-a        C-ADMM at ρ = a_1: the penalty that AUQ's interval shrinks to, without any uncertainty
    auq-permuted    AUQ with the entries of each W_j shuffled: the same numbers in the wrong places
    auq-mean        AUQ with each W_j replaced by its mean: the same size, no structure

Shapes: n images of m pixels, c colours, h × w pixels; X (n, m), one block (X, y) per worker; B blocks, C columns;
W (B, m, C).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from auqadmm.core.consensus import Chosen
from auqadmm.core.state import Blocks, Consensus
from auqadmm.methods import AC, AUQ, AUQLR, RB, UQ, C
from auqadmm.metrics.weights import Diagonal, Scalar
from auqadmm.paper.data import DataError, Images, by_class, load
from auqadmm.paper.spec import INTERVAL, ProblemSpec
from auqadmm.problem import L2, ElasticNet, LeastSquares, Multinomial, Problem, SmoothedHinge

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard
    from auqadmm.core.solve import Method

# ---------------------------------------------------------------------- problems
# images with a smaller share of nonzero pixels are sparse matrices on a CPU: five times as fast for MNIST
SPARSE = 0.3

RowBlocks = list[tuple[np.ndarray, np.ndarray]]


@lru_cache(maxsize=4)
def images(name: str, data: Path | None = None) -> Images:
    """Training images of a data set; a pack `<name>.npz` comes first, then what `auqadmm.paper.data.load` finds.

    Downloads nothing: several processes may call this at once.
    """
    for root in (data, os.environ.get("AUQADMM_DATA")):
        if root is not None and (pack := Path(root) / f"{name}.npz").is_file():
            return read_pack(pack, name)
    try:
        return load(name, data, download=False)
    except ImportError:
        raise DataError("No data for digits: they come with scikit-learn, or as a pack digits.npz.") from None


def make_problem(spec: ProblemSpec, data: Path | None = None, sparse: bool = False) -> Problem:
    """Read the data and build the problem; `DataError` where the data are missing.

    `sparse` allows sparse matrices where they are faster; least squares is solved by factorisation and stays dense.
    """
    data_set = images(spec.data, data)
    blocks, shape = split(data_set, spec), data_set.shape
    scaled: list[tuple[Any, np.ndarray]] = (
        zscored(blocks, shape) if spec.pixels == "zscored" else unit(blocks, data_set.white)
    )
    if sparse and spec.model != "elastic" and np.mean([np.mean(X != 0) for X, _ in scaled]) < SPARSE:
        scaled = [(scipy.sparse.csr_matrix(X), y) for X, y in scaled]
    match spec.model:
        case "elastic":
            numbers = [(X, y.astype(float)) for X, y in scaled]
            return Problem(LeastSquares(reduction=spec.reduction), ElasticNet(1e-2, 1e-2), numbers, image=shape)
        case "multinomial":
            return Problem(Multinomial(reduction=spec.reduction), L2(1.0), scaled, image=shape)
        case "svm":
            return Problem(SmoothedHinge(eps=1 / 5000, reduction=spec.reduction), L2(1.0), scaled, image=shape)
        case other:
            raise ValueError(f"There is no model {other!r}; there are elastic, multinomial and svm.")


def split(data_set: Images, spec: ProblemSpec) -> RowBlocks:
    """The rows of each worker, as bytes: its classes one after the other."""
    by_label = by_class(data_set.X, data_set.y, spec.per_class, spec.classes)
    share, rest = divmod(len(by_label), spec.blocks)
    if rest:
        raise ValueError(f"{len(by_label)} classes cannot be dealt out evenly to {spec.blocks} workers.")
    groups = [by_label[j * share : (j + 1) * share] for j in range(spec.blocks)]
    return [(np.concatenate([X for X, _ in group]), np.concatenate([y for _, y in group])) for group in groups]


def unit(blocks: RowBlocks, white: int) -> RowBlocks:
    """Pixels in [0, 1]."""
    return [(X / float(white), y) for X, y in blocks]


def zscored(blocks: RowBlocks, shape: tuple[int, ...]) -> RowBlocks:
    """Mean 0 and deviation 1 over all rows of all blocks, one mean and deviation per colour."""
    colours = shape[0] if len(shape) == 3 else 1
    pixels = np.concatenate([X for X, _ in blocks]).reshape(-1, colours, int(np.prod(shape)) // colours)
    # integer sums are exact: the same rows in another order give the same bits
    mean = pixels.mean((0, 2), dtype=np.float64)
    deviation = np.sqrt(np.maximum((pixels.astype(np.float64) ** 2).mean((0, 2)) - mean**2, 0.0))
    deviation[deviation == 0] = 1.0  # constant colour: nothing to scale
    centre, scale = (np.repeat(x, pixels.shape[2]) for x in (mean, deviation))
    return [((X - centre) / scale, y) for X, y in blocks]


def write_pack(path: Path, images: Images, rows: dict[int, int | None]) -> None:
    """Keep the first rows[k] rows of each class k, in file order, so that "the first n" means the same in a pack."""
    kept = np.concatenate([np.flatnonzero(images.y == k)[:count] for k, count in rows.items()])
    kept.sort()
    X = images.X[kept].reshape(-1, *images.shape)
    np.savez_compressed(path, X=_differences(X), y=images.y[kept].astype(np.uint8))


def read_pack(path: Path, name: str) -> Images:
    """What `write_pack` wrote."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            coded, y = archive["X"], archive["y"]
        if coded.dtype != np.uint8 or coded.ndim not in (3, 4) or y.shape != coded.shape[:1]:
            raise ValueError(f"X {coded.dtype} {coded.shape}, y {y.shape}")
    except Exception as error:  # zipfile and numpy raise many kinds of errors
        raise DataError(f"{path}: is no pack of images ({type(error).__name__}: {error}); write it again.") from None
    X = _sums(coded)
    white = 16 if name == "digits" else 255
    return Images(X.reshape(len(X), -1), y.astype(np.int64), X.shape[1:], name, white)


def _differences(X: np.ndarray) -> np.ndarray:
    """Colour images (n, 3, h, w) as differences from green and from the pixels above and left, modulo 256.

    Photographs deflate to half; grey images (n, h, w), mostly exact zeros, are left unchanged.
    """
    if X.ndim == 3:
        return X
    D = X.copy()
    D[:, ::2] -= X[:, 1:2]
    D[:, :, 1:] -= D[:, :, :-1].copy()
    D[..., 1:] -= D[..., :-1].copy()
    return D


def _sums(D: np.ndarray) -> np.ndarray:
    """The inverse of `_differences`."""
    if D.ndim == 3:
        return D
    X = D.cumsum(3, dtype=np.uint8).cumsum(2, dtype=np.uint8)
    X[:, ::2] += X[:, 1:2]
    return X


# ---------------------------------------------------------------------- methods
@dataclass(frozen=True)
class PermutedAUQ(AUQ):
    """AUQ whose weights are permuted within each block, by one seeded permutation per block for the whole run."""

    name: ClassVar[str] = "auq-permuted"

    def next_weights(self, shard: Shard, blocks: Blocks, shared: Consensus) -> Chosen:
        chosen = super().next_weights(shard, blocks, shared)
        W = chosen.W.diagonal()
        # seeded by the block's own number: where a block is placed must not matter
        shuffled = [_shuffled(w, shared.setup.seed, j) for w, j in zip(W, shard.index, strict=True)]
        return replace(chosen, W=Diagonal(torch.stack(shuffled)))


@dataclass(frozen=True)
class MeanAUQ(AUQ):
    """AUQ whose W_j is one number, the mean of the weights that AUQ would use."""

    name: ClassVar[str] = "auq-mean"

    def next_weights(self, shard: Shard, blocks: Blocks, shared: Consensus) -> Chosen:
        chosen = super().next_weights(shard, blocks, shared)
        _, m, columns = shard.shape
        return replace(chosen, W=Scalar(chosen.W.diagonal().mean((1, 2)), m, columns))


def make_method(name: str, rank: int = 5) -> Method:
    """The method of a `RunSpec`."""
    if name.startswith("auq-rank-"):
        return AUQ(interval=INTERVAL, rank=int(name.removeprefix("auq-rank-")))
    known: dict[str, Callable[[], Method]] = {
        "c-admm": lambda: C(rho=1.0),
        "rb-admm": lambda: RB(rho=1.0),
        # as printed, with the dual residual without weights (S5)
        "rb-admm-paper": lambda: RB(rho=1.0, residuals="paper"),
        "ac-admm": lambda: AC(rho=1.0),
        "uq-admm": lambda: UQ(interval=INTERVAL, rank=rank),
        "auq-admm": lambda: AUQ(interval=INTERVAL, rank=rank),
        "auq-lr": lambda: AUQLR(),
        "c-admm-a": lambda: C(rho=INTERVAL[0]),
        "auq-permuted": lambda: PermutedAUQ(interval=INTERVAL, rank=rank),
        "auq-mean": lambda: MeanAUQ(interval=INTERVAL, rank=rank),
    }
    if name not in known:
        raise ValueError(f"There is no method {name!r}; there are {', '.join(known)} and auq-rank-R.")
    return known[name]()


def _shuffled(w: Tensor, seed: int, block: int) -> Tensor:
    order = _permutation(w.numel(), seed, block).to(w.device)
    return w.flatten()[order].reshape(w.shape)


@lru_cache(maxsize=256)
def _permutation(count: int, seed: int, block: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + block)
    return torch.randperm(count, generator=generator)
