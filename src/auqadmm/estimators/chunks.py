"""Dask rows that stay on their workers: with the engine "dask" only y, weights and sums over rows are fetched.

`Rows.X` then has one dask.delayed per block in place of a matrix. Chunks are kept in the workers' memory during a
fit, since it passes over them three times: means, mean squares, and the scaled blocks of the problem.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sklearn.base import BaseEstimator

if TYPE_CHECKING:
    import pandas as pd
    from dask.delayed import Delayed
    from distributed import Client as DaskClient

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from auqadmm.engines import Dask
from auqadmm.engines.on_dask import at_home
from auqadmm.estimators.types import DaskCollection, EngineChoice, Matrix
from auqadmm.problem import InputError
from auqadmm.problem.sources import is_dask, pieces


def stay(estimator: object, X: object) -> bool:
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


def read(estimator: BaseEstimator, X: DaskCollection) -> tuple[tuple[Delayed, ...], list[int], int]:
    """The chunks of X, their numbers of rows, and the number of features; sets what scikit-learn expects."""
    import dask

    names, client = getattr(X, "columns", None), client_of(estimator.engine)
    if client is None:
        parts = dask.persist(*pieces(X, X))
    else:
        from distributed import wait

        parts = tuple(client.persist(pieces(X, X)))
        wait(parts)
    sizes = computed(estimator.engine, [dask.delayed(_rows)(p) for p in parts])
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


def _rows(X: Matrix) -> int:
    return int(X.shape[0])
