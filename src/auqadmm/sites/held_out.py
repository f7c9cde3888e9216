"""Rows that a site holds out: cut into folds by a secret of the site's, once and for all.

Whoever chose the folds could choose sets of rows that differ by one, and sums over them would differ by that row. So
the number of folds is the site's (`folds` in its policy), a row's fold depends on the site's key, the name of the data
set and the file, and on nothing that the coordinator says: whatever is fitted, sums over rows that were
held out are sums over these folds, each of at least `min_rows` rows. In every fold classes, categories, values of
binary columns and events are as many as the policy asks for of all rows.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse

from auqadmm.columns import InFrame
from auqadmm.problem.ingest import RawBlock
from auqadmm.quality.rows import Folds, Training
from auqadmm.sites.designs import check_leverage
from auqadmm.sites.policy import LEAVING_SITES, Policy, PolicyError, check_binary, check_cells

NOT_SELECTED = "rows are not selected by others"


@dataclass(frozen=True, eq=False)
class OwnFolds(Folds):
    """`fold`: of every row that is used."""

    fold: np.ndarray | None = None

    def of_block(self, number: int, rows: int) -> np.ndarray:
        if self.fold is None:  # sites are left out as a whole
            return super().of_block(number, rows)
        if len(self.fold) != rows:
            raise PolicyError(NOT_SELECTED)
        return self.fold


def cut(policy: Policy, secret: bytes, data: str, kept: np.ndarray, alike: Sequence[np.ndarray] = ()) -> OwnFolds:
    """The folds of the rows that are kept, of all rows of a data set. `alike`: codes of columns of few values, whose
    rows are dealt out evenly, the first of them most of all."""
    digest = hmac.new(secret, f"folds {policy.folds} {len(kept)} {data}".encode(), hashlib.sha256).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "big"))
    order = np.lexsort((rng.random(len(kept)), *reversed(alike)))
    every = np.empty(len(kept), dtype=int)
    every[order] = np.arange(len(kept)) % policy.folds
    return OwnFolds(policy.folds, fold=rng.permutation(policy.folds)[every][kept])


def check_folds(policy: Policy, folds: OwnFolds, block: RawBlock, formula: bool) -> None:
    """Every fold by itself is as large as a data set has to be."""
    X = block.X.toarray() if scipy.sparse.issparse(block.X) else np.asarray(block.X)
    y = np.asarray(block.y)
    for k in range(folds.count):
        rows = np.flatnonzero(folds.of_block(0, block.rows) == k)
        if len(rows) < policy.min_rows:
            raise PolicyError(f"a fold of {policy.folds} would have fewer than {policy.min_rows} rows")
        check_binary(policy, block.columns or [f"x{j}" for j in range(X.shape[1])], X[rows], " in a fold")
        if y.dtype.kind in "iu":
            check_cells(policy, "the target in a fold", np.unique(y[rows], return_counts=True)[1].tolist())
        elif y.ndim == 2 and int((y[rows, 1] > 0).sum()) < policy.min_events:
            raise PolicyError(f"a fold would have fewer than {policy.min_events} events")
        if formula:
            check_leverage(policy, X[rows])


def own_training(keep: object, cv: str, folds: OwnFolds | None) -> Training:
    """The site's folds in place of those that were asked for."""
    if not isinstance(keep, Training):
        raise PolicyError(NOT_SELECTED)
    return Training(_own(keep.folds, cv, folds), keep.fold)


def own_folds(fn: Any, cv: str, folds: OwnFolds | None) -> Any:
    """An operation, with the site's folds in place of those that were asked for."""
    if isinstance(fn, InFrame):
        return replace(fn, fn=own_folds(fn.fn, cv, folds))
    models = getattr(fn, "models", None)
    if models is not None and getattr(models, "folds", None) is not None:
        return replace(fn, models=replace(models, folds=_own(models.folds, cv, folds)))
    if isinstance(getattr(fn, "folds", None), Folds):
        return replace(fn, folds=_own(fn.folds, cv, folds))
    return fn


def _own(asked: Folds, cv: str, folds: OwnFolds | None) -> OwnFolds:
    if cv == LEAVING_SITES and asked.sites:
        return OwnFolds(asked.count, sites=True)
    if folds is None or asked.sites or asked.count != folds.count:
        raise PolicyError(NOT_SELECTED)
    return folds
