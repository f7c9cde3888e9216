"""How well predictions fit, in units of the likelihood."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike

from auqadmm.blocks.rows import RowLoss
from auqadmm.estimators import checks
from auqadmm.estimators.types import PerRow


def explained(loss: RowLoss, logits: np.ndarray, y: ArrayLike, sample_weight: PerRow) -> float:
    """1 less the share of the best constant's deviance that is left."""
    target, z = np.asarray(y, dtype=np.float64).ravel(), torch.from_numpy(logits.astype(np.float64))
    t = torch.from_numpy(2 * target - 1 if loss.target_kind == "binary" else target)
    w = torch.from_numpy(checks.weights_of(sample_weight, len(t)))
    null = loss.null_logits((w * t).sum()[None] / w.sum(), 1).expand(len(t), 1)
    least = loss.row_infimum(t)
    left, whole = (float((w * (loss.row_value(x, t) - least)).sum()) for x in (z, null))
    return 1 - left / whole if whole > 0 else 0.0
