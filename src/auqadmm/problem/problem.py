"""What is solved: minimise over u  Σ_j f_j(u) + g(u), worker j holding its own rows (S1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from auqadmm.core.stopping import whole_number
from auqadmm.problem.ingest import (
    InputError,
    RawBlock,
    agree_on_classes,
    encode,
    labels_of,
    read_blocks,
    read_reals,
)
from auqadmm.problem.regularizers import Regularizer, Zero
from auqadmm.problem.rows import Loss
from auqadmm.problem.shard import Census, Shard, build_shard
from auqadmm.problem.wrappers import FreeIntercept


@dataclass(frozen=True, eq=False)
class Problem:
    """A loss, a regularizer and one block of rows per worker.

    Parameters
    ----------
    loss
        The smooth part, e.g. `Multinomial(reduction="sum")`.
    regularizer
        The proximable part g, e.g. `ElasticNet(l1, l2)`; `Zero()` for none.
    blocks
        One tuple `(X, y)` or `(X, y, sample_weight)` per worker. X may be numpy, torch, scipy.sparse or a data
        frame; blocks may have any number of rows, none included. Labels of a classification may be of any kind.
    intercept
        Add one unpenalised row to the unknown: the constant term.
    image
        (height, width) or (channels, height, width) if the features are the pixels of an image, in this order.
        Nothing is assumed of features otherwise; the answer is the same either way, "auq-lr" may need fewer rounds.
    """

    loss: Loss
    regularizer: Regularizer
    blocks: Any = field(repr=False)
    intercept: bool = False
    image: tuple[int, ...] | None = None
    census: Census = field(init=False, repr=False)
    _targets: tuple[np.ndarray, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.loss, Loss):
            raise InputError(f"loss must be one of auqadmm's losses or a CustomLoss, got {type(self.loss).__name__}.")
        if self.regularizer is None:
            object.__setattr__(self, "regularizer", Zero())
        if not isinstance(self.regularizer, Regularizer):
            raise InputError(
                "regularizer must be one of auqadmm's regularizers or a CustomRegularizer, "
                f"got {type(self.regularizer).__name__}."
            )
        if not isinstance(self.intercept, bool | np.bool_):
            raise InputError(f"intercept must be True or False, got {self.intercept!r}.")
        blocks = read_blocks(self.blocks)
        features = int(blocks[0].X.shape[1])
        self.regularizer.check(features)
        if self.image is not None:
            object.__setattr__(self, "image", _image(self.image, features))
        classes = self._classes(blocks)
        targets = tuple(self._target(b, classes) for b in blocks)
        census = Census(
            blocks=len(blocks),
            features=features + int(self.intercept),
            columns=self.loss.columns_for(0 if classes is None else len(classes)),
            intercept=bool(self.intercept),
            rows=tuple(b.rows for b in blocks),
            weight_total=float(sum(b.weight.sum() for b in blocks)),
            classes=classes,
        )
        object.__setattr__(self, "blocks", blocks)
        object.__setattr__(self, "census", census)
        object.__setattr__(self, "_targets", targets)

    @property
    def g(self) -> Regularizer:
        """The regularizer as it acts on the whole unknown: an intercept row is left alone."""
        return FreeIntercept(self.regularizer) if self.intercept else self.regularizer

    @property
    def classes(self) -> np.ndarray | None:
        """The labels in the order of the model's columns (two-class losses: negative, positive)."""
        return self.census.classes

    def shard(self, dtype: torch.dtype, device: torch.device) -> Shard:
        """All blocks, placed on one device."""
        index = range(self.census.blocks)
        return build_shard(self.blocks, self._targets, self.loss, self.census, index, dtype, device)

    def _classes(self, blocks: tuple[RawBlock, ...]) -> np.ndarray | None:
        if self.loss.target_kind == "real":
            return None
        classes = agree_on_classes([labels_of(b) for b in blocks])
        if len(classes) < 2:
            raise InputError(
                f"All labels are {classes.tolist()[0]!r}: {type(self.loss).__name__} needs at least two classes over "
                "all blocks."
            )
        if self.loss.target_kind == "binary" and len(classes) > 2:
            shown = ", ".join(repr(c) for c in classes[:5].tolist())
            raise InputError(
                f"{type(self.loss).__name__} separates two classes but the blocks hold {len(classes)} ({shown}…); "
                "use Multinomial or select two of them."
            )
        return classes

    def _target(self, block: RawBlock, classes: np.ndarray | None) -> np.ndarray:
        if classes is None:
            y = read_reals(block.name, block.y)
            self.loss.check_target(block.name, y)
            return y
        codes = encode(block, classes)
        return 2.0 * codes - 1.0 if self.loss.target_kind == "binary" else codes


def _image(shape: Any, features: int) -> tuple[int, ...]:
    try:
        found = tuple(whole_number("image", length, least=1) for length in shape)
    except (TypeError, ValueError):
        found = ()
    if len(found) not in (2, 3):
        raise InputError(f"image must be (height, width) or (channels, height, width), got {shape!r}.")
    if math.prod(found) != features:
        raise InputError(
            f"image={found} has {math.prod(found)} pixels but the blocks have {features} features; "
            "give (height, width) or (channels, height, width)."
        )
    return found
