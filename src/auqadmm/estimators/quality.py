"""How good a fitted estimator is on rows that are given to it: `quality` of every estimator.

Shapes: n rows, m features, C columns; X (n, m), y, weight, offset (n,), coef (C, m), intercept (C,).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from auqadmm.blocks.rows import Loss
from auqadmm.blocks.shard import Census, RawBlock, build_shard
from auqadmm.core.reduce import Reduce
from auqadmm.engines.local import LocalEngine
from auqadmm.estimators import checks
from auqadmm.estimators.blocks import is_block_list, rows_of_sites
from auqadmm.estimators.types import MatrixLike, PerRow
from auqadmm.problem import Cox, InputError
from auqadmm.problem.ingest import read_reals
from auqadmm.quality.evaluate import quality_at
from auqadmm.quality.quality import Quality


def quality_of(
    estimator: BaseEstimator,
    loss: Loss,
    X: MatrixLike,
    y: PerRow,
    sites: PerRow,
    sample_weight: PerRow,
    offset: np.ndarray | None = None,
) -> Quality:
    """Of `coef_` and `intercept_` on these rows, which are in this process; with `loss` as it was fitted."""
    names = getattr(X, "columns", None)
    matrix = checks.validated(estimator, X, reset=False)
    checks.refuse_not_finite(matrix, names)
    n = matrix.shape[0]
    classes = getattr(estimator, "classes_", None)
    if classes is None and loss.target_kind == "binary":
        classes = np.array([0.0, 1.0])
    target = _target(y, n, classes, loss)
    weight = checks.weights_of(sample_weight, n)
    owned = [np.arange(n)] if sites is None else rows_of_sites(sites, n)
    labels = ["all rows"] if sites is None else [str(label) for label in np.unique(np.asarray(sites))]
    parts = [
        RawBlock(name, matrix[i], target[i], weight[i], True, offset=None if offset is None else offset[i])
        for name, i in zip(labels, owned, strict=True)
    ]
    coef = np.atleast_2d(estimator.coef_).astype(np.float64)
    v = coef.T.copy()
    if loss.takes_intercept:
        v = np.vstack([v, np.broadcast_to(np.atleast_1d(estimator.intercept_), (1, len(coef)))])
    census = Census(
        blocks=len(parts),
        features=len(v),
        columns=v.shape[1],
        intercept=loss.takes_intercept,
        rows=tuple(b.rows for b in parts),
        weight_total=float(weight.sum()),
        classes=classes,
        names=tuple(labels),
        dense=not scipy.sparse.issparse(matrix),
        offset=offset is not None,
    )
    where = torch.device("cpu")
    shard = build_shard(parts, [b.y for b in parts], loss, census, range(len(parts)), torch.float64, where)
    return quality_at(Reduce(LocalEngine(shard)), loss, census, torch.from_numpy(v))


def _target(given: PerRow, rows: int, classes: np.ndarray | None, loss: Loss) -> np.ndarray:
    """Numbers, signs or classes, as the loss takes them; of Cox's an array of times and events."""
    y = np.asarray(given) if isinstance(loss, Cox) else np.asarray(given).reshape(-1)
    if len(y) != rows:
        raise InputError(f"X has {rows} rows but y has {len(y)} values.")
    if isinstance(loss, Cox):
        return loss.arranged("y", y)
    if classes is None:
        y = read_reals("quality", y)
        loss.check_target("quality", y)
        return y
    known = np.isin(y, classes)
    if not known.all():
        row = int(np.flatnonzero(~known)[0])
        shown = ", ".join(map(repr, classes.tolist()[:10]))
        raise InputError(f"y[{row}] is {y[row]!r}, which the model does not know (its classes: {shown}).")
    codes = np.searchsorted(classes, y.astype(classes.dtype)).astype(np.int64)
    return 2.0 * codes - 1.0 if loss.target_kind == "binary" else codes


def joined(X: MatrixLike, *columns: PerRow) -> tuple[MatrixLike, list[PerRow], PerRow]:
    """A list of blocks as one matrix, what belongs to their rows, and the number of each row's block."""
    if not is_block_list(X):
        return X, list(columns), None
    sizes = [b.shape[0] for b in X]
    if any(scipy.sparse.issparse(b) for b in X):
        whole = scipy.sparse.vstack([scipy.sparse.csr_matrix(b) for b in X], format="csr")
    elif all(hasattr(b, "columns") for b in X):
        import pandas

        whole = pandas.concat(list(X))
    else:
        whole = np.vstack([np.asarray(b) for b in X])
    flat: list[PerRow] = [
        None if c is None else np.concatenate([np.asarray(part) for part in _parts(c)]) for c in columns
    ]
    return whole, flat, np.repeat(np.arange(len(sizes)), sizes)


def _parts(column: PerRow) -> Sequence[ArrayLike]:
    if not isinstance(column, list | tuple):
        raise InputError(f"X is a list of blocks, so y and weights must be lists too; got {type(column).__name__}.")
    return column
