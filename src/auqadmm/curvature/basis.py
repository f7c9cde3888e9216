"""An orthonormal basis in which neighbouring features of an image are nearly uncorrelated (S12).

The discrete cosine transform of each axis, channels included: their mean is brightness, the rest is colour. An
intercept, the last row, is unchanged.
"""

from __future__ import annotations

import numpy as np
import scipy.fft
import torch

from auqadmm.metrics.kronecker import Kronecker


def cosine_basis(shape: tuple[int, ...], intercept: bool) -> Kronecker:
    """F, rows are the basis vectors, for images of `shape` (height, width) or (channels, height, width)."""
    axes = tuple(torch.from_numpy(scipy.fft.dct(np.eye(length), axis=0, norm="ortho")) for length in shape)
    return Kronecker(axes, intercept)
