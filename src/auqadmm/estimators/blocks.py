"""Which worker owns which rows: from what `fit` is given to one block per worker.

    X an array, sparse or a data frame, `sites` one label per row        one block per label, in sorted order
    X the same, no `sites`                                               `n_blocks` shares of neighbouring rows
    X a list of arrays, y a list (sample_weight a list)                  one block per entry, which may have no rows
    X a dask array or data frame                                         one block per chunk of rows; with the engine
                                                                         "dask" chunks stay on their workers

With the engine "dask" only y, weights and sums over rows are fetched. `Rows.X` then has one dask.delayed per block in
place of a matrix. Chunks are kept in the workers' memory during a fit, since it passes over them three times: means,
mean squares, and the scaled blocks of the problem.

Shapes: block j has n_j rows; X_j (n_j, m), y_j and weight_j (n_j,).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import column_or_1d

from auqadmm.engines import Dask
from auqadmm.engines.on_dask import at_home
from auqadmm.estimators import checks
from auqadmm.estimators.checks import DaskCollection, EngineChoice, Matrix, MatrixLike, PerRow
from auqadmm.problem import InputError
from auqadmm.problem.ingest import is_dask, is_missing, pieces

if TYPE_CHECKING:
    import pandas as pd
    from dask.delayed import Delayed
    from distributed import Client as DaskClient


@dataclass(frozen=True)
class Rows:
    """The rows of every worker: X dense or CSR, y, weight; one entry per block each.

    `order` (n,) gives the user's position of each row, blocks one after another. Where X stays on workers, it
    has one dask.delayed per block, each of `width` features. `names` are those of a data frame's columns.
    """

    X: tuple[Matrix, ...]
    y: tuple[np.ndarray, ...]
    weight: tuple[np.ndarray, ...]
    order: np.ndarray
    width: int | None = None
    names: tuple[str, ...] | None = None

    @property
    def sizes(self) -> list[int]:
        return [len(y) for y in self.y]

    @property
    def features(self) -> int:
        return int(self.X[0].shape[1]) if self.width is None else self.width

    @property
    def sparse(self) -> bool:
        return any(scipy.sparse.issparse(X) for X in self.X)

    @property
    def total(self) -> float:
        """The weight of all rows."""
        return float(sum(w.sum() for w in self.weight))

    def with_target(self, y: np.ndarray) -> Rows:
        """Another target, given for the rows of all blocks one after another."""
        return replace(self, y=self._parts(y))

    def with_weight(self, weight: np.ndarray) -> Rows:
        return replace(self, weight=self._parts(weight))

    def take(self, keep: np.ndarray) -> Rows:
        """The rows where the mask, over all blocks one after another, is True; blocks may become empty."""
        masks = self._parts(keep)
        X, y, w = ([a[k] for a, k in zip(part, masks, strict=True)] for part in (self.X, self.y, self.weight))
        return Rows(tuple(X), tuple(y), tuple(w), self.order[keep], names=self.names)

    @property
    def site(self) -> np.ndarray:
        """The number of each row's block, (n,)."""
        return np.repeat(np.arange(len(self.y)), self.sizes)

    def _parts(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(np.split(x, np.cumsum(self.sizes)[:-1]))


def read(
    estimator: BaseEstimator,
    X: MatrixLike,
    y: ArrayLike,
    sites: PerRow,
    sample_weight: PerRow,
    *,
    numeric: bool,
) -> Rows:
    """The checked rows of every worker; sets `n_features_in_` and `feature_names_in_`."""
    rows = _read(estimator, X, y, sites, sample_weight, numeric)
    names = getattr(estimator, "feature_names_in_", None)
    return rows if names is None else replace(rows, names=tuple(map(str, names)))


def _read(
    estimator: BaseEstimator,
    X: MatrixLike,
    y: ArrayLike,
    sites: PerRow,
    sample_weight: PerRow,
    numeric: bool,
) -> Rows:
    if y is None:
        raise InputError(
            f"{type(estimator).__name__} requires y to be passed, but the target y is None; pass one value per row."
        )
    if chunks_stay(estimator, X):
        if sites is not None:
            raise InputError("sites has no place where X is made of chunks: every chunk is a worker.")
        return _read_chunks(estimator, cast(DaskCollection, X), y, sample_weight, numeric)
    if is_dask(X):
        X, y, sample_weight = dask_parts(cast(DaskCollection, X), y, sample_weight)
    if is_block_list(X):
        if sites is not None:
            raise InputError("sites has no place where X is a list of blocks (or chunks): every entry is a worker.")
        return _read_list(estimator, list(X), y, sample_weight, numeric)
    names = getattr(X, "columns", None)
    try:
        matrix, target = checks.validated(estimator, X, y, reset=True, y_numeric=numeric)
    except ValueError as error:
        told = checks.where_it_is(X, y, numeric)
        if told is None:
            raise
        raise InputError(told) from error
    checks.refuse_not_finite(matrix, names)
    n = matrix.shape[0]
    weight = checks.weights_of(sample_weight, n)
    if sites is None:
        owned = np.array_split(np.arange(n), min(checks.count("n_blocks", estimator.n_blocks), n))
    else:
        owned = rows_of_sites(sites, n)
    parts, targets, weights = (tuple(a[i] for i in owned) for a in (matrix, target, weight))
    return Rows(parts, targets, weights, np.concatenate(owned))


def rows_of_sites(sites: ArrayLike, rows: int, name: str = "sites") -> list[np.ndarray]:
    """The rows of each site, sites in sorted order; `name`: of what was given."""
    # without dtype=object a list such as ["a", None] would become strings
    values = np.asarray(sites) if hasattr(sites, "dtype") else np.asarray(sites, dtype=object)
    if values.ndim != 1:
        raise InputError(f"{name} must have one label per row; got an array of shape {values.shape}.")
    if len(values) != rows:
        raise InputError(f"{name} has {len(values)} labels but X has {rows} rows; give one label per row.")
    missing = np.array([is_missing(v) for v in values], dtype=bool)
    if missing.any():
        raise InputError(f"{name}[{np.flatnonzero(missing)[0]}] is missing; give every row a label.")
    try:
        codes = np.unique(values, return_inverse=True)[1]
    except TypeError:
        kinds = sorted({type(v).__name__ for v in values})
        raise InputError(f"{name} mixes {' and '.join(kinds)}; make all labels numbers or all texts.") from None
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.cumsum(np.bincount(codes))[:-1])


# ---------------------------------------------------------------------- a list, one entry per worker
def is_block_list(X: object) -> TypeGuard[Sequence[Matrix]]:
    """A list of matrices, not one matrix as nested lists."""
    return isinstance(X, list | tuple) and len(X) > 0 and all(len(getattr(b, "shape", ())) == 2 for b in X)


def _read_list(
    estimator: BaseEstimator,
    X: list[Matrix],
    y: ArrayLike,
    weight: PerRow,
    numeric: bool,
) -> Rows:
    for name, part in (("y", y), ("sample_weight", weight)):
        if part is None and name == "sample_weight":
            continue
        if not isinstance(part, list | tuple) or len(part) != len(X):
            got = f"{len(part)} entries" if isinstance(part, list | tuple) else type(part).__name__
            raise InputError(f"X is a list of {len(X)} blocks, so {name} must be a list of {len(X)} too; got {got}.")
    targets = cast(Sequence[ArrayLike], y)
    weights = [None] * len(X) if weight is None else list(cast(Sequence[PerRow], weight))
    blocks = [_read_one(estimator, j, *part, numeric) for j, part in enumerate(zip(X, targets, weights, strict=True))]
    if not any(len(b[1]) for b in blocks):
        raise InputError("Every block is empty: at least one block must hold rows.")
    parts, own, masses = zip(*blocks, strict=True)
    return Rows(parts, own, masses, np.arange(sum(map(len, own))))


def _read_one(
    estimator: BaseEstimator, j: int, X: Matrix, y: ArrayLike, weight: PerRow, numeric: bool
) -> tuple[Matrix, np.ndarray, np.ndarray]:
    where = f"block {j}"
    features, width = getattr(estimator, "n_features_in_", None), X.shape[1]
    if j > 0 and width != features:
        raise InputError(
            f"{where} has {width} features but block 0 has {features}; every block needs the same columns."
        )
    names = getattr(X, "columns", None)
    X = checks.validated(estimator, X, reset=j == 0, ensure_min_samples=0)
    checks.refuse_not_finite(X, names, f"{where}: X")
    y = _target(y, f"{where}: y", numeric)
    if len(y) != X.shape[0]:
        raise InputError(f"{where}: X has {X.shape[0]} rows but y has {len(y)} values.")
    return X, y, checks.weights_of(weight, X.shape[0], f"{where}: sample_weight")


def _target(y: ArrayLike, where: str, numeric: bool) -> np.ndarray:
    target: np.ndarray = column_or_1d(np.asarray(y))
    if not numeric:
        return target
    try:
        target = target.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{where} must hold numbers, got {target.dtype}.") from None
    bad = np.flatnonzero(~np.isfinite(target))
    if bad.size:
        raise InputError(f"{where}[{bad[0]}] is {target[bad[0]]}; remove the row or impute the value.")
    return target


# ---------------------------------------------------------------------- dask, where it is installed
def _read_chunks(estimator: BaseEstimator, X: DaskCollection, y: ArrayLike, weight: PerRow, numeric: bool) -> Rows:
    """X stays on the workers; y and weights, one number per row each, are fetched."""
    parts, rows, width = read_chunks(estimator, X)
    y = tuple(_target(part, f"block {j}: y", numeric) for j, part in enumerate(_aligned("y", y, rows)))
    given = [None] * len(rows) if weight is None else _aligned("sample_weight", weight, rows)
    masses = tuple(
        checks.weights_of(w, n, f"block {j}: sample_weight") for j, (w, n) in enumerate(zip(given, rows, strict=True))
    )
    return Rows(parts, y, masses, np.arange(sum(rows)), width)


def dask_parts(
    X: DaskCollection, y: ArrayLike, weight: PerRow
) -> tuple[list[Matrix], list[np.ndarray], list[np.ndarray] | None]:
    """Every chunk of rows as one block, computed in this process, chunk by chunk."""
    blocks = _chunks(X)
    rows = [b.shape[0] for b in blocks]
    return blocks, _aligned("y", y, rows), None if weight is None else _aligned("sample_weight", weight, rows)


def _chunks(X: DaskCollection) -> list[Matrix]:
    if hasattr(X, "to_delayed") and hasattr(X, "npartitions") and not hasattr(X, "chunks"):  # a data frame or series
        return [X.get_partition(j).compute() for j in range(X.npartitions)]
    if X.ndim == 2 and X.numblocks[1] > 1:
        X = X.rechunk({1: -1})
    return [X.blocks[j].compute() for j in range(X.numblocks[0])]


def _aligned(name: str, values: ArrayLike, rows: Sequence[int]) -> list[np.ndarray]:
    """y or weights split like the rows of X."""
    whole = (
        np.concatenate([np.asarray(c) for c in _chunks(cast(DaskCollection, values))])
        if is_dask(values)
        else np.asarray(values)
    )
    if len(whole) != sum(rows):
        raise InputError(f"X has {sum(rows)} rows but {name} has {len(whole)} values.")
    return list(np.split(whole, np.cumsum(rows)[:-1]))


def chunks_stay(estimator: object, X: object) -> bool:
    """Does this fit leave the chunks of X on their workers?"""
    engine = getattr(estimator, "engine", None)
    asked = isinstance(engine, Dask) or (isinstance(engine, str) and engine.lower() == "dask")
    return asked and getattr(estimator, "_chunks_stay", False) and is_dask(X)


def client_of(engine: EngineChoice | None) -> DaskClient | None:
    """The client of the cluster that will store the engine's blocks; None: there is no cluster yet."""
    from distributed import Client

    if getattr(engine, "address", None) is not None:
        raise InputError("To fit on dask arrays, pass engines.Dask(client=…), the client that holds them.")
    if (client := getattr(engine, "client", None)) is not None:
        return client
    try:
        return Client.current()
    except ValueError:
        return None


def computed(engine: EngineChoice | None, tasks: Sequence[Delayed]) -> list[Any]:
    """The values of small tasks, each computed on the worker of its chunk."""
    import dask

    client = client_of(engine)
    if client is None:
        return list(dask.compute(*tasks))
    return client.gather(at_home(client, tasks, sorted(client.scheduler_info(n_workers=-1)["workers"])))


def read_chunks(estimator: BaseEstimator, X: DaskCollection) -> tuple[tuple[Delayed, ...], list[int], int]:
    """The chunks of X, their numbers of rows, and the number of features; sets what scikit-learn expects."""
    import dask

    names, client = getattr(X, "columns", None), client_of(estimator.engine)
    if client is None:
        parts = dask.persist(*pieces(X, X))
    else:
        from distributed import wait

        parts = tuple(client.persist(pieces(X, X)))
        wait(parts)
    sizes = computed(estimator.engine, [dask.delayed(_rows_of)(p) for p in parts])
    estimator.n_features_in_ = int(X.shape[1])
    vars(estimator).pop("feature_names_in_", None)
    if names is not None and all(isinstance(n, str) for n in names):
        estimator.feature_names_in_ = np.asarray(names, dtype=object)
    if not sum(sizes):
        raise InputError("Every block is empty: at least one block must hold rows.")
    return parts, sizes, int(X.shape[1])


def mapped(
    engine: EngineChoice | None,
    fn: Callable[..., np.ndarray],
    X: tuple[Matrix, ...],
    weight: tuple[np.ndarray, ...],
    *more: np.ndarray,
) -> list[np.ndarray]:
    """fn(X_j, weight_j, …) of every block, on its worker."""
    if not is_dask(X[0]):
        return [fn(x, w, *more) for x, w in zip(X, weight, strict=True)]
    import dask

    return computed(engine, [dask.delayed(_on_matrix)(fn, x, w, *more) for x, w in zip(X, weight, strict=True)])


def later(fn: Callable[[Matrix], Matrix], X: Matrix) -> Matrix:
    """fn(X), now or on the worker of X."""
    if not is_dask(X):
        return fn(X)
    import dask

    return dask.delayed(_on_matrix)(fn, X)


def _on_matrix(fn: Callable[..., Matrix], X: Matrix | pd.DataFrame, *args: np.ndarray) -> Matrix | pd.DataFrame:
    if not hasattr(X, "columns"):
        return fn(X, *args)
    frame: pd.DataFrame = X
    values = fn(frame.to_numpy(), *args)
    if not isinstance(values, np.ndarray) or values.shape != frame.shape:
        return values
    return type(frame)(values, columns=frame.columns)  # names, for error messages


def _rows_of(X: Matrix) -> int:
    return int(X.shape[0])
