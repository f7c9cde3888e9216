"""What users pass to estimators: names for it, and checks with one clear sentence for each thing that cannot be used.

Shapes are scikit-learn's: X (n, m), y (n,).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, cast

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import validation
from sklearn.utils.class_weight import compute_class_weight

from auqadmm.checks import is_number, whole_number
from auqadmm.problem import InputError

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
FLOATS = (np.float64, np.float32)


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


def validated(
    estimator: BaseEstimator, X: MatrixLike, y: PerRow = "no_validation", *, reset: bool, **options: object
) -> Any:
    """X, or X and y, as arrays; NaN and infinity are left to `refuse_not_finite`, which says where."""
    options = {"accept_sparse": "csr", "dtype": FLOATS, **options}
    if hasattr(validation, "validate_data"):
        return validation.validate_data(estimator, X, y, reset=reset, ensure_all_finite=False, **options)
    return estimator._validate_data(X, y, reset=reset, force_all_finite=False, **options)  # scikit-learn < 1.6


def where_it_is(X: Any, y: Any, numeric: bool) -> str | None:
    """A sentence with the place of what scikit-learn refused, where it names none."""
    rows, target = np.shape(X)[:1], np.asarray(y)
    if target.ndim == 1 and rows and len(target) != rows[0]:
        return f"X has {rows[0]} rows but y has {len(target)} values; give one per row."
    if hasattr(X, "dtypes") and hasattr(X, "columns"):
        for name in X.columns:
            values = np.asarray(X[name])
            bad = next((i for i, x in enumerate(values) if not _is_number(x)), None) if values.ndim == 1 else None
            if bad is not None:
                return f"X, column {str(name)!r}, row {bad} is {values[bad]!r}; columns must hold numbers."
    if numeric and target.ndim == 1:
        bad = next((i for i, x in enumerate(target) if not _is_number(x) or not np.isfinite(float(x))), None)
        if bad is not None:
            kind = "NaN" if _is_number(target[bad]) and np.isnan(float(target[bad])) else "no finite number"
            return f"Input y contains {kind}: y[{bad}] is {target[bad]}; remove the row or impute the value."
    return None


def _is_number(x: object) -> bool:
    try:
        float(x)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def refuse_not_finite(X: Matrix, names: Sequence[object] | None = None, where: str = "X") -> None:
    """Raise for the first NaN or infinity, with its row and column."""
    if is_sparse(X):
        bad = np.flatnonzero(~np.isfinite(X.data))
        if not bad.size:
            return
        row, col = int(np.searchsorted(X.indptr, bad[0], side="right")) - 1, int(X.indices[bad[0]])
        value = X.data[bad[0]]
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(X.sum()):  # finite for all but extreme data, without an array of flags
                return
        rows, cols = np.nonzero(~np.isfinite(X))
        if not rows.size:
            return
        row, col = int(rows[0]), int(cols[0])
        value = X[row, col]
    label = "" if names is None else f" ({str(names[col])!r})"
    kind = "NaN" if np.isnan(value) else "infinity (inf)"
    raise InputError(f"{where} contains {kind} in row {row}, column {col}{label}; remove the row or impute the value.")


def weights_of(sample_weight: PerRow, rows: int, where: str = "sample_weight") -> np.ndarray:
    """One finite weight ≥ 0 per row, float64; ones for None, and one number applies to all rows."""
    if sample_weight is None:
        return np.ones(rows)
    try:
        weight = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{where} must hold numbers, got {type(sample_weight).__name__}.") from None
    if weight.ndim == 0:
        weight = np.full(rows, float(weight))
    if weight.shape != (rows,):
        raise InputError(f"{where} must have one value per row, shape ({rows},); got shape {weight.shape}.")
    bad = np.flatnonzero(~np.isfinite(weight) | (weight < 0))
    if bad.size:
        raise InputError(f"{where}[{bad[0]}] is {weight[bad[0]]}; weights must be finite and not negative.")
    return weight


def at_least_zero(name: str, value: float) -> float:
    if not (is_number(value) and 0 <= value < math.inf):
        raise InputError(f"{name} must be a finite number ≥ 0, got {value!r}.")
    return float(value)


def above_zero(name: str, value: float, infinite: bool = False) -> float:
    if not (is_number(value) and value > 0 and (infinite or value < math.inf)):
        raise InputError(f"{name} must be a {'' if infinite else 'finite '}number > 0, got {value!r}.")
    return float(value)


def share(name: str, value: float) -> float:
    if not (is_number(value) and 0 <= value <= 1):
        raise InputError(f"{name} must be a number between 0 and 1, got {value!r}.")
    return float(value)


def truth(name: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name} must be True or False, got {value!r}.")
    return bool(value)


def count(name: str, value: object) -> int:
    return whole_number(name, cast("float", value), least=1)  # also validates it


def class_weights(class_weight: ClassWeight, classes: np.ndarray, codes: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The factor of each class. "balanced": the classes then have equal weight, sample weights included."""
    if class_weight is None:
        return np.ones(len(classes))
    if isinstance(class_weight, str) and class_weight == "balanced":
        mass = np.bincount(codes, weights=weight, minlength=len(classes))
        # a class of total weight 0 keeps weight 0 whatever its factor
        return weight.sum() / (len(classes) * np.where(mass > 0, mass, 1.0))
    if not isinstance(class_weight, dict):
        raise InputError(f"class_weight must be None, 'balanced' or a dict from label to weight, got {class_weight!r}.")
    unseen = sorted(map(repr, set(class_weight) - set(classes.tolist())))
    if unseen:
        shown = ", ".join(map(repr, classes.tolist()[:10]))
        raise InputError(f"class_weight names {unseen[0]}, which is not a class of y (classes: {shown}).")
    for label, value in class_weight.items():
        at_least_zero(f"class_weight[{label!r}]", value)
    return compute_class_weight(class_weight, classes=classes, y=classes)


def penalty_factors(given: ArrayLike | None, features: int) -> np.ndarray | None:
    """Multiples of the strengths, one per feature; None: all are 1."""
    if given is None:
        return None
    try:
        factors = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"penalty_factors must hold numbers, got {type(given).__name__}.") from None
    if factors.shape != (features,):
        raise InputError(f"penalty_factors has the shape {factors.shape}; {features} features need one number each.")
    bad = np.flatnonzero(~(np.isfinite(factors) & (factors >= 0)))
    if bad.size:
        raise InputError(f"penalty_factors[{bad[0]}] is {factors[bad[0]]:g}; factors are finite and not negative.")
    return factors
