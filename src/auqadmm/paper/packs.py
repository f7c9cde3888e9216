"""Packs: the rows of a data set that experiments use, in one small file that can be sent to another machine.

Shapes: n images, c colours, h × w pixels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from auqadmm.paper.data import DataError, Images


def write_pack(path: Path, images: Images, rows: dict[int, int | None]) -> None:
    """Keep the first rows[k] rows of each class k, in file order, so that "the first n" means the same in a pack."""
    kept = np.concatenate([np.flatnonzero(images.y == k)[:count] for k, count in rows.items()])
    kept.sort()
    X = images.X[kept].reshape(-1, *images.shape)
    np.savez_compressed(path, X=_differences(X), y=images.y[kept].astype(np.uint8))


def read_pack(path: Path, name: str) -> Images:
    """What `write_pack` wrote."""
    try:
        with np.load(path, allow_pickle=False) as held:
            coded, y = held["X"], held["y"]
        if coded.dtype != np.uint8 or coded.ndim not in (3, 4) or y.shape != coded.shape[:1]:
            raise ValueError(f"X {coded.dtype} {coded.shape}, y {y.shape}")
    except Exception as error:  # zipfile and numpy have many ways to say it
        raise DataError(f"{path}: is no pack of images ({type(error).__name__}: {error}); write it again.") from None
    X = _sums(coded)
    white = 16 if name == "digits" else 255
    return Images(X.reshape(len(X), -1), y.astype(np.int64), X.shape[1:], name, white)


def _differences(X: np.ndarray) -> np.ndarray:
    """Colour images (n, 3, h, w) as differences from green and from the pixels above and left, modulo 256.

    Photographs deflate to half; grey images (n, h, w), mostly exact zeros, are left as they are.
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
