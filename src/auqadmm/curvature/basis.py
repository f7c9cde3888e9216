"""An orthonormal basis in which neighbouring features of an image are nearly uncorrelated (S12).

The discrete cosine transform of each axis, channels included: their mean is brightness, the rest is colour. An
intercept, the last row, stays as it is.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.fft
import torch
from torch import Tensor


def cosine_basis(shape: tuple[int, ...], features: int, intercept: bool) -> Tensor:
    """F (features, features), rows are the basis vectors, for images of `shape` (h, w) or (channels, h, w)."""
    pixels = math.prod(shape)
    if pixels + int(intercept) != features:
        raise ValueError(
            f"image={shape} has {pixels} pixels but the problem has {features - int(intercept)} features; "
            "give (height, width) or (channels, height, width)."
        )
    F = np.eye(1)
    for length in shape:
        F = np.kron(F, scipy.fft.dct(np.eye(length), axis=0, norm="ortho"))
    if intercept:
        F = np.pad(F, (0, 1))
        F[-1, -1] = 1.0
    return torch.from_numpy(F)
