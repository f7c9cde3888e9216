"""Type aliases for the input of estimators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    import pandas as pd
    import scipy.sparse as sp
    from sklearn.model_selection import BaseCrossValidator

    from auqadmm.core.solve import Method
    from auqadmm.engines import Place

# what users pass
MatrixLike: TypeAlias = "ArrayLike | sp.spmatrix | pd.DataFrame | DaskCollection"
PerRow: TypeAlias = "ArrayLike | None"  # one value per row: sites, weights
Grid: TypeAlias = "int | Sequence[float] | np.ndarray"  # how many values, or the values themselves
Fold = tuple[np.ndarray, np.ndarray]  # train, test
Folds: TypeAlias = "int | BaseCrossValidator | Iterable[Fold] | None"
ClassWeight: TypeAlias = "Mapping[object, float] | str | None"
Scorer = Callable[..., float]
MethodChoice: TypeAlias = "str | Method"
EngineChoice: TypeAlias = "str | Place"

# what they become
SparseMatrix: TypeAlias = "sp.csr_matrix | sp.csc_matrix"
Matrix: TypeAlias = "np.ndarray | SparseMatrix"  # the rows of a block, (n_j, m)
Start = tuple[np.ndarray, np.ndarray]  # coef (C, m) and intercept (C,) to start from


BlockRows: TypeAlias = "tuple[Matrix, np.ndarray, np.ndarray]"  # X, y, weight


def is_sparse(X: object) -> TypeGuard[SparseMatrix]:
    return bool(scipy.sparse.issparse(X))


class DaskCollection(Protocol):
    """Rows of dask: an array, or a data frame or series, which has partitions in place of chunks."""

    shape: tuple[int, ...]
    ndim: int
    npartitions: int
    numblocks: tuple[int, ...]
    blocks: Sequence[Any]

    def get_partition(self, n: int) -> Any: ...
    def rechunk(self, chunks: dict[int, int]) -> DaskCollection: ...


class HasSettings(Protocol):
    """The parameters that all estimators share."""

    max_iter: int
    tol: float
    n_blocks: int
    fit_intercept: bool
    method: MethodChoice
    engine: EngineChoice
    verbose: int
