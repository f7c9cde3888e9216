"""A fitted model as a scikit-learn estimator: raw columns in, predictions out.

What a model is, apart from scikit-learn, is `Parts`: how columns become features, one column of coefficients per class
(or one in all), and how it was trained. `model_files` keeps it in two files.

Shapes: n rows, m features after encoding, C columns; coef (C, m), intercept (C,).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import scipy.sparse
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from auqadmm.files.preprocessing import Encoding
from auqadmm.files.tabular import Roles, Sheet
from auqadmm.files.tabular_arrow import sheet_of
from auqadmm.problem import InputError
from auqadmm.words import quoted

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike

KINDS = ("logistic", "elastic-net", "svm")
TableLike: TypeAlias = "np.ndarray | scipy.sparse.spmatrix | pa.Table | pd.DataFrame"


@dataclass(frozen=True, eq=False)
class Parts:
    """`kind` is one of `KINDS`; `classes` None for a regression; `training` describes the run."""

    kind: str
    encoding: Encoding
    coef: np.ndarray
    intercept: np.ndarray
    classes: tuple[Any, ...] | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


class FittedModel(BaseEstimator):
    """A linear model of raw columns, as `auqadmm.load` returns it. It is fitted, and cannot be fitted again.

    `predict` takes a data frame with the columns of `feature_names_in_` (others are ignored), or an array with these
    columns in this order; a model of sparse files takes a scipy matrix.

    Attributes
    ----------
    feature_names_in_, n_features_in_ : the raw columns.
    coef_, intercept_ : of the encoded features, named by `get_feature_names_out()`; shapes as in scikit-learn.
    encoding_ : how columns become features: means, scales, categories.
    training_ : status, certificate, rounds, … of the run that fitted it.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: object, y: object = None) -> FittedModel:
        raise NotImplementedError("A loaded model cannot be fitted again; use `auqadmm fit` or one of the estimators.")

    @property
    def encoding_(self) -> Encoding:
        return self.parts.encoding

    @property
    def training_(self) -> dict[str, Any]:
        return dict(self.parts.training)

    @property
    def feature_names_in_(self) -> np.ndarray:
        return np.array(self.encoding_.names, dtype=object)

    @property
    def n_features_in_(self) -> int:
        return len(self.encoding_.names)

    def get_feature_names_out(self) -> np.ndarray:
        return np.array(self.encoding_.features, dtype=object)

    @property
    def coef_(self) -> np.ndarray:
        return self.parts.coef

    @property
    def intercept_(self) -> np.ndarray:
        return self.parts.intercept

    def logits(self, sheet: Sheet, unseen: str = "error") -> np.ndarray:
        """X cᵀ + b of a file, (n, C)."""
        return self.encoding_.matrix(sheet, unseen) @ self.parts.coef.T + self.parts.intercept

    def _logits(self, X: TableLike) -> np.ndarray:
        return self.logits(self._sheet(X))

    # ------------------------------------------------------------------ user input
    def _sheet(self, X: TableLike) -> Sheet:
        names, encoding = list(self.encoding_.names), self.encoding_
        if scipy.sparse.issparse(X) or encoding.sparse:
            return self._sparse_sheet(X)
        roles = Roles(categorical=tuple(c.name for c in encoding.categories))
        if hasattr(X, "columns"):
            have = {str(c): c for c in (X.column_names if isinstance(X, pa.Table) else X.columns)}
            absent = [name for name in names if name not in have]
            if absent:
                raise InputError(f"X lacks column {quoted(absent[0])}.")
            return sheet_of("X", _table(X, names, have), names, roles)
        array = np.asarray(X)
        if array.ndim != 2 or array.shape[1] != len(names):
            raise InputError(f"X must have {len(names)} columns (feature_names_in_), got shape {array.shape}.")
        if array.dtype.kind in "fiub" and not encoding.categories:
            return Sheet("X", len(array), dict.fromkeys(names, "number"), array.astype(np.float64))
        columns = {name: _arrow(name, array[:, k].tolist()) for k, name in enumerate(names)}
        return sheet_of("X", pa.table(columns), names, roles)

    def _sparse_sheet(self, X: TableLike) -> Sheet:
        """A matrix whose columns are those of `feature_names_in_`."""
        names = list(self.encoding_.names)
        X = scipy.sparse.csr_matrix(X, dtype=np.float64)
        if X.shape[1] != len(names):
            raise InputError(f"X must have {len(names)} columns (feature_names_in_), got shape {X.shape}.")
        if not self.encoding_.sparse:
            return Sheet("X", X.shape[0], dict.fromkeys(names, "number"), X.toarray())
        first = int(names[0])  # features of sparse files are numbered, from 0 or 1
        X = scipy.sparse.csr_matrix((X.data, X.indices + first, X.indptr), shape=(X.shape[0], X.shape[1] + first))
        return Sheet("X", X.shape[0], {str(k): "number" for k in range(X.shape[1])}, X)


class FittedElasticNet(RegressorMixin, FittedModel):
    """A fitted linear regression."""

    @property
    def coef_(self) -> np.ndarray:
        return self.parts.coef[0]

    @property
    def intercept_(self) -> float:  # type: ignore[override]
        return float(self.parts.intercept[0])

    def predict(self, X: TableLike) -> np.ndarray:
        """xᵀc + b, (n,)."""
        return self._logits(X)[:, 0]


class FittedClassifier(ClassifierMixin, FittedModel):
    """A fitted linear classifier."""

    @property
    def classes_(self) -> np.ndarray:
        return np.array(self.parts.classes)

    def decision_function(self, X: TableLike) -> np.ndarray:
        """xᵀc + b: (n,) for two classes, positive for `classes_[1]`; else (n, classes)."""
        logits = self._logits(X)
        return logits[:, 0] if logits.shape[1] == 1 else logits

    def predict(self, X: TableLike) -> np.ndarray:
        """The label with the largest decision value."""
        return self.labels(self._logits(X))

    def labels(self, logits: np.ndarray) -> np.ndarray:
        return self.classes_[(logits[:, 0] > 0).astype(int) if logits.shape[1] == 1 else logits.argmax(1)]


class FittedLinearSVC(FittedClassifier):
    """A fitted support vector machine."""


class FittedLogisticRegression(FittedClassifier):
    """A fitted logistic regression."""

    def predict_proba(self, X: TableLike) -> np.ndarray:
        """The probability of every class, (n, classes)."""
        return self.probabilities(self._logits(X))

    def predict_log_proba(self, X: TableLike) -> np.ndarray:
        with np.errstate(divide="ignore"):  # log of a probability that underflowed
            return np.log(self.predict_proba(X))

    @staticmethod
    def probabilities(logits: np.ndarray) -> np.ndarray:
        return np.hstack([expit(-logits), expit(logits)]) if logits.shape[1] == 1 else softmax(logits, axis=1)


def fitted(parts: Parts) -> FittedModel:
    """The estimator of a model."""
    made = {"logistic": FittedLogisticRegression, "elastic-net": FittedElasticNet, "svm": FittedLinearSVC}
    return made[parts.kind](parts)


def parts_of(model: Any) -> Parts:
    """The parts of a loaded model, or of a fitted ConsensusLogisticRegression and the like, which do not encode
    columns."""
    if isinstance(model, FittedModel):
        return model.parts
    kinds = {
        "ConsensusLogisticRegression": "logistic",
        "ConsensusLogisticRegressionCV": "logistic",
        "ConsensusLinearSVC": "svm",
        "ConsensusElasticNet": "elastic-net",
        "ConsensusElasticNetCV": "elastic-net",
        "ConsensusLasso": "elastic-net",
        "ConsensusLassoCV": "elastic-net",
        "ConsensusRidge": "elastic-net",
        "ConsensusRidgeCV": "elastic-net",
    }
    kind = kinds.get(type(model).__name__)
    if kind is None:
        raise InputError(f"save takes a loaded model or one of auqadmm's estimators, got {type(model).__name__}.")
    if not hasattr(model, "coef_"):
        raise InputError(f"This {type(model).__name__} is not fitted yet; call fit first.")
    coef = np.atleast_2d(model.coef_).astype(np.float64)
    names = getattr(model, "feature_names_in_", None)
    columns = [f"x{k}" for k in range(coef.shape[1])] if names is None else [str(name) for name in names]
    intercept = np.broadcast_to(np.atleast_1d(np.asarray(model.intercept_, dtype=np.float64)), (len(coef),)).copy()
    classes = None if kind == "elastic-net" else tuple(model.classes_.tolist())
    training = {"status": str(model.status_), "message": model.message_}
    return Parts(kind, Encoding.none(columns, names is not None), coef, intercept, classes, training=training)


def _table(X: TableLike, names: list[str], have: Mapping[str, Any]) -> pa.Table:
    if isinstance(X, pa.Table):
        return X.select(names)
    return pa.table({name: _arrow(name, X[have[name]]) for name in names})


def _arrow(name: str, values: ArrayLike) -> pa.Array:
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InputError(f"X: column {quoted(name)} cannot be read ({quoted(str(error), 120)}).") from None
