"""A model in two files that are safe to read without trust.

    DIR/model.safetensors    coef (C, m), intercept (C,), and mean, scale, fill of the columns of numbers
    DIR/model.json           format and versions, columns and categories, classes, how it was trained; the SHA-256 of
                             the other file, and of itself

Reading: sizes first, then checksums, then content; nothing is unpickled. A checksum protects against damage, not
against forgery: a forged model may predict anything, but it cannot run code.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from auqadmm.files import atomic
from auqadmm.files.model import KINDS, FittedModel, Parts, fitted, parts_of
from auqadmm.files.preprocessing import Encoding
from auqadmm.problem import InputError
from auqadmm.words import quoted

FORMAT, MODEL_VERSION = "auqadmm model", 1
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
        encoding = Encoding.read(content["preprocessing"], arrays)
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
        )
        _check(parts)
    except (KeyError, TypeError, ValueError, AttributeError, safetensors.SafetensorError) as error:
        raise _damaged(folder / ABOUT, f"its parts do not fit together ({quoted(str(error), 80)})") from None
    return parts


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
    if version != MODEL_VERSION:
        newer = isinstance(version, int) and version > MODEL_VERSION
        remedy = "install a newer auqadmm" if newer else "fit the model again"
        raise ModelError(
            f"{_named(path)} has format version {quoted(version)}, this library reads {MODEL_VERSION}; {remedy}."
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
    if parts.kind not in KINDS or (parts.classes is None) != (parts.kind == "elastic-net"):
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
