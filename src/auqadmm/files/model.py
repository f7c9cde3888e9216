"""A fitted model as a scikit-learn estimator, raw columns in, predictions out; and as two files.

What a model is, apart from scikit-learn, is `Parts`: how columns become features, one column of coefficients per class
(or one in all), and how it was trained.

    DIR/model.safetensors    coef (C, m), intercept (C,), and mean, scale, fill of the columns of numbers
    DIR/model.json           format and versions, columns and categories, classes, how it was trained; the SHA-256 of
                             the other file, and of itself

They are safe to read without trust: sizes first, then checksums, then content; nothing is unpickled. A checksum
protects against damage, not against forgery: a forged model may predict anything, but it cannot run code.

Shapes: n rows, m features after encoding, C columns; coef (C, m), intercept (C,).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import safetensors
import safetensors.numpy
import scipy.sparse
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from auqadmm.files import atomic
from auqadmm.files.encoding import FormulaEncoding
from auqadmm.files.preprocessing import AnyEncoding, Encoding
from auqadmm.files.tabular import Roles, Sheet
from auqadmm.files.tabular_arrow import sheet_of
from auqadmm.formula.design import FormulaDesign
from auqadmm.problem import InputError
from auqadmm.problem.families import NamedFamily
from auqadmm.words import quoted

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike

KINDS = ("logistic", "elastic-net", "svm", "glm", "cox")
TableLike: TypeAlias = "np.ndarray | scipy.sparse.spmatrix | pa.Table | pd.DataFrame"


@dataclass(frozen=True, eq=False)
class Parts:
    """`kind` is one of `KINDS`; `classes` None for a regression; `training` describes the run. `family` and
    `site_intercepts` are of a "glm"."""

    kind: str
    encoding: AnyEncoding
    coef: np.ndarray
    intercept: np.ndarray
    classes: tuple[Any, ...] | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    family: NamedFamily | None = None
    site_intercepts: bool = False


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
    def encoding_(self) -> AnyEncoding:
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
    from auqadmm.files.fitted_glm import FittedCox, FittedGLM

    made = {
        "logistic": FittedLogisticRegression,
        "elastic-net": FittedElasticNet,
        "svm": FittedLinearSVC,
        "glm": FittedGLM,
        "cox": FittedCox,
    }
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
        "ConsensusGLM": "glm",
        "ConsensusCox": "cox",
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
    training = {"status": str(model.status_), "message": model.message_}
    encoding = Encoding.none(columns, names is not None)
    if kind == "glm":
        family = NamedFamily.of_loss(model._loss())
        if family is None:
            raise InputError(f"A model of {model.family!r} cannot be kept: use one of the families that have a name.")
        labels = (0, 1) if family.labels else None
        own = bool(model.site_intercepts)
        return Parts(kind, encoding, coef, intercept, labels, {}, training, family=family, site_intercepts=own)
    classes = None if kind in ("elastic-net", "cox") else tuple(model.classes_.tolist())
    return Parts(kind, encoding, coef, intercept, classes, training=training)


def _table(X: TableLike, names: list[str], have: Mapping[str, Any]) -> pa.Table:
    if isinstance(X, pa.Table):
        return X.select(names)
    return pa.table({name: _arrow(name, X[have[name]]) for name in names})


def _arrow(name: str, values: ArrayLike) -> pa.Array:
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InputError(f"X: column {quoted(name)} cannot be read ({quoted(str(error), 120)}).") from None


# ---------------------------------------------------------------------- files
FORMAT, MODEL_VERSION = "auqadmm model", 2  # 2: families and formulas
OLDEST_VERSION = 1
ARRAYS, ABOUT = "model.safetensors", "model.json"
LARGEST_JSON = 2**30  # bytes: larger files are not read into memory


class ModelError(InputError):
    """A model cannot be loaded; the message says which file and why.

    Examples
    --------
    >>> import auqadmm as aq
    >>> try:
    ...     aq.load("no-such-folder")
    ... except aq.ModelError as refused:
    ...     print("no-such-folder" in str(refused))
    True
    """


def save(model: object, folder: str | os.PathLike[str]) -> Path:
    """Keep a model in a folder, created if needed; an older model there is replaced.

    Parameters
    ----------
    model
        What `load` returned, or a fitted `ConsensusLogisticRegression`, `ConsensusElasticNet`, … .
    folder
        Where `model.safetensors` and `model.json` go.

    Returns
    -------
    pathlib.Path
        The folder.

    Raises
    ------
    InputError
        The model is not fitted, or of a kind that cannot be kept.
    OSError
        The folder cannot be written.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
    >>> y = np.array([1.0, 2.0, 3.0, 5.0, 4.0, 0.5])
    >>> sites = [0, 0, 0, 1, 1, 1]
    >>> import tempfile
    >>> model = aq.ConsensusElasticNet(alpha=0.1).fit(X, y, sites=sites)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = aq.save(model, folder)
    ...     aq.load(folder).predict(X[:2]).round(2)
    array([1.17, 2.32])
    """
    return write(parts_of(model), Path(folder))


def load(folder: str | os.PathLike[str]) -> FittedModel:
    """The model that `auqadmm fit --out FOLDER` or `save` left in a folder, as a fitted scikit-learn estimator.

    Parameters
    ----------
    folder
        What `auqadmm fit --out FOLDER` or `save` wrote.

    Returns
    -------
    FittedModel
        With `predict` and, for classes, `predict_proba` or `decision_function`, of raw columns.

    Raises
    ------
    ModelError
        A file is missing, changed, of a newer format or does not fit the others; the message says which.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
    >>> y = np.array([1.0, 2.0, 3.0, 5.0, 4.0, 0.5])
    >>> sites = [0, 0, 0, 1, 1, 1]
    >>> import tempfile
    >>> model = aq.ConsensusElasticNet(alpha=0.1).fit(X, y, sites=sites)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = aq.save(model, folder)
    ...     aq.load(folder).predict(X[:2]).round(2)
    array([1.17, 2.32])
    """
    return fitted(read(Path(folder)))


# ---------------------------------------------------------------------- writing
def write(parts: Parts, folder: Path) -> Path:
    arrays = {"coef": parts.coef, "intercept": parts.intercept, **parts.encoding.arrays()}
    data = safetensors.numpy.save({k: np.ascontiguousarray(v, dtype=np.float64) for k, v in arrays.items()})
    content = {
        "format": FORMAT,
        "version": MODEL_VERSION,
        "model": parts.kind,
        "classes": parts.classes,
        "preprocessing": parts.encoding.message(),
        "family": None if parts.family is None else parts.family.message(),
        "site_intercepts": parts.site_intercepts,
        "roles": dict(parts.roles),
        "training": dict(parts.training),
        "versions": dict(parts.versions),
        "arrays": {"file": ARRAYS, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()},
    }
    text = json.dumps({"checksum": _checksum(content), "content": content}, indent=1, allow_nan=False)
    folder.mkdir(parents=True, exist_ok=True)
    for name, piece in ((ARRAYS, data), (ABOUT, text.encode())):
        with atomic.part(folder, name) as path:
            atomic.write(path, [piece])
            atomic.keep(path, folder / name)
    return folder


# ---------------------------------------------------------------------- reading
def read(folder: Path) -> Parts:
    """The parts of a model, or ModelError."""
    content = _content(folder)
    described = content.get("arrays")
    if not isinstance(described, dict):
        raise _damaged(folder / ABOUT, "it does not name the arrays")
    data = _bytes(folder / ARRAYS, described.get("size"))
    if hashlib.sha256(data).hexdigest() != described.get("sha256"):
        raise _damaged(folder / ARRAYS, "its checksum differs")
    try:
        arrays = safetensors.numpy.load(data)
        encoding = _encoding(content["preprocessing"], arrays)
        classes = content["classes"]
        parts = Parts(
            kind=content["model"],
            encoding=encoding,
            coef=arrays["coef"],
            intercept=arrays["intercept"],
            classes=None if classes is None else tuple(classes),
            roles=content["roles"],
            training=content["training"],
            versions=content["versions"],
            family=_family(content.get("family")),
            site_intercepts=bool(content.get("site_intercepts", False)),
        )
        _check(parts)
    except (KeyError, TypeError, ValueError, AttributeError, safetensors.SafetensorError) as error:
        raise _damaged(folder / ABOUT, f"its parts do not fit together ({quoted(str(error), 80)})") from None
    return parts


def _encoding(message: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> AnyEncoding:
    if "formula" in message:
        return FormulaEncoding(FormulaDesign.read(message["formula"]))
    return Encoding.read(message, arrays)


def _family(message: Mapping[str, Any] | None) -> NamedFamily | None:
    return None if message is None else NamedFamily.of(message["name"], message["link"], message["parameter"])


def _content(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise ModelError(f"{_named(folder)} is not a folder; name the folder that `auqadmm fit --out` wrote.")
    path = folder / ABOUT
    try:
        document = json.loads(_bytes(path, None).decode())
    except (ValueError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise _damaged(path, "it is not JSON") from None
    content = document.get("content") if isinstance(document, dict) else None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ModelError(f"{_named(path)} is not the file of an {FORMAT}.")
    version = content.get("version")
    if not isinstance(version, int) or not OLDEST_VERSION <= version <= MODEL_VERSION:
        newer = isinstance(version, int) and version > MODEL_VERSION
        remedy = "install a newer auqadmm" if newer else "fit the model again"
        raise ModelError(
            f"{_named(path)} has format version {quoted(version)}, this library reads {OLDEST_VERSION} to "
            f"{MODEL_VERSION}; {remedy}."
        )
    if document.get("checksum") != _checksum(content):
        raise _damaged(path, "its checksum differs")
    return content


def _bytes(path: Path, size: object) -> bytes:
    """A whole file, of the expected size where one is known."""
    try:
        if not path.is_file():
            raise ModelError(f"There is no model in {_named(path.parent)}: {path.name} is missing.")
        actual = path.stat().st_size
        if actual > LARGEST_JSON and size is None:
            raise _damaged(path, "it is too large")
        if size is not None and actual != size:
            raise _damaged(path, f"it holds {actual} bytes instead of {quoted(size)}")
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{_named(path)} cannot be read: {error.strerror or error}.") from None


def _check(parts: Parts) -> None:
    """Arrays that fit each other, the columns and the classes."""
    columns = 1 if parts.classes is None or len(parts.classes) == 2 else len(parts.classes)
    encoding, numbers = parts.encoding, len(parts.encoding.numbers)
    shapes = {"coef": (columns, len(encoding.features)), "intercept": (columns,)}
    shapes |= dict.fromkeys(encoding.arrays(), (numbers,))
    for name, x in ({"coef": parts.coef, "intercept": parts.intercept} | encoding.arrays()).items():
        if x.dtype != np.float64 or x.shape != shapes[name] or not np.isfinite(x).all():
            raise ValueError(f"{name} is not {shapes[name]} finite numbers")
    if parts.kind not in KINDS or (parts.kind == "glm") != (parts.family is not None):
        raise ValueError("kind of model")
    labelled = parts.kind in ("logistic", "svm") if parts.family is None else parts.family.labels
    if labelled != (parts.classes is not None):
        raise ValueError("kind of model")
    if parts.classes is not None and len(parts.classes) < 2:
        raise ValueError("classes")


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _damaged(path: Path, why: str) -> ModelError:
    return ModelError(f"{_named(path)} is damaged: {why}; copy it again or fit the model again.")


def _named(path: Path) -> str:
    return quoted(os.fspath(path), 200).strip("'")
