"""What the estimators share: reading rows, warm starts, fitted attributes, linear predictions, and how good they are.

Shapes: n rows, m features, C columns; X (n, m), y, weight, offset (n,), coef (C, m), intercept (C,).
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from textwrap import fill, shorten
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse
import torch
from numpy.typing import ArrayLike
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from auqadmm.blocks.rows import Loss, RowLoss
from auqadmm.blocks.shard import Census, RawBlock, build_shard
from auqadmm.core.reduce import Reduce
from auqadmm.core.result import Result
from auqadmm.core.state import Status
from auqadmm.engines.local import LocalEngine
from auqadmm.estimators import blocks, checks
from auqadmm.estimators.blocks import Rows, is_block_list, rows_of_sites
from auqadmm.estimators.checks import MatrixLike, PerRow
from auqadmm.estimators.fitting import report
from auqadmm.problem import Cox, InputError, LeastSquares
from auqadmm.problem.ingest import read_reals
from auqadmm.quality.evaluate import quality_at
from auqadmm.quality.measures import explained
from auqadmm.quality.quality import Quality

if TYPE_CHECKING:
    from sklearn.utils import Tags


class ConsensusEstimator(BaseEstimator):
    """A linear model xᵀc + b of rows that belong to workers."""

    def _read(self, X: MatrixLike, y: ArrayLike, sites: PerRow, sample_weight: PerRow, *, numeric: bool) -> Rows:
        rows = blocks.read(self, X, y, sites, sample_weight, numeric=numeric)
        if rows.total == 0:
            raise InputError("Every sample weight is zero: at least one row must count.")
        return rows

    def _warm(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Coefficients (C, m) and intercepts (C,) of the previous fit, for warm starts."""
        if not checks.truth("warm_start", self.warm_start) or not hasattr(self, "coef_"):
            return None
        coef = np.atleast_2d(self.coef_)
        return coef, np.broadcast_to(np.atleast_1d(self.intercept_), (len(coef),))

    def _keep(self, results: list[Result]) -> None:
        """How the run ended, or the runs, one per class."""
        alone = len(results) == 1
        good = (Status.converged, Status.rounding)
        worst = next((r for r in results if r.status not in good), results[0])
        self.n_iter_ = results[0].n_iter if alone else np.array([r.n_iter for r in results])
        self.status_ = worst.status
        self.message_ = worst.message
        self.certificate_ = results[0].certificate if alone else [r.certificate for r in results]
        self.history_ = results[0].history if alone else [r.history for r in results]
        report(self, results)

    def _logits(self, X: MatrixLike) -> np.ndarray:
        """X cᵀ + b, (n, C)."""
        check_is_fitted(self)
        names = getattr(X, "columns", None)
        X = checks.validated(self, X, reset=False)
        checks.refuse_not_finite(X, names)
        return X @ np.atleast_2d(self.coef_).T + self.intercept_

    def _row_loss(self) -> RowLoss:
        """The loss of rows that the fitted model has."""
        return LeastSquares()

    def quality(self, X: MatrixLike, y: ArrayLike, sites: PerRow = None, sample_weight: PerRow = None) -> Quality:
        """How good the model is on these rows: of all together, and of each site.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features); a list of these, one per site
            Rows, those of the fit or new ones.
        y : array (n_samples,)
            Their targets.
        sites : array (n_samples,), optional
            Which site owns a row.
        sample_weight : array (n_samples,), optional
            A row of weight w counts w times.

        Returns
        -------
        Quality
            Accuracy, AUC, calibration, errors, explained deviance: what suits the model.

        Raises
        ------
        InputError
            Rows cannot be used, or have a label that the model does not know.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
        >>> y, sites = np.array([1.0, 2.0, 3.0, 5.0, 4.0, 0.5]), ["a", "a", "a", "b", "b", "b"]
        >>> found = aq.ConsensusElasticNet(alpha=0.1).fit(X, y, sites=sites).quality(X, y, sites=sites)
        >>> round(found.figures["r2"], 3), found.sites["rmse"].round(2).tolist()
        (0.973, [0.23, 0.29])
        """
        check_is_fitted(self)
        X, (target, weight), numbers = joined(X, y, sample_weight)
        return quality_of(self, self._row_loss(), X, target, sites if numbers is None else numbers, weight)

    def site_scores(
        self, X: MatrixLike, y: ArrayLike, sites: ArrayLike, sample_weight: PerRow = None
    ) -> dict[object, float]:
        """`score` of every site's own rows.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features)
            Rows.
        y : array (n_samples,)
            Their targets.
        sites : array (n_samples,)
            Which site owns a row: labels of any kind.
        sample_weight : array (n_samples,), optional
            Weights of rows.

        Returns
        -------
        dict
            The score by label, in sorted order.

        Raises
        ------
        InputError
            There is not one label per row.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0.0, 1.0, 2.0, 4.0])
        >>> model = aq.ConsensusRidge(alpha=0.1).fit(X, y, sites=["a", "a", "b", "b"])
        >>> {site: round(score, 2) for site, score in model.site_scores(X, y, ["a", "a", "b", "b"]).items()}
        {'a': 0.92, 'b': 0.87}
        """
        check_is_fitted(self)
        labels, target = np.asarray(sites), np.asarray(y)
        owned = blocks.rows_of_sites(sites, len(target))
        weight = None if sample_weight is None else np.asarray(sample_weight)
        out = {}
        for rows in owned:
            more = {} if weight is None else {"sample_weight": weight[rows]}
            if getattr(self, "site_intercepts", False):
                more["sites"] = labels[rows]
            out[labels[rows[0]].item()] = float(self.score(_taken(X, rows), target[rows], **more))
        return out

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Non-default parameters, abbreviated: a method or an engine has many of its own."""
        if not get_config()["print_changed_only"]:
            return super().__repr__(N_CHAR_MAX)
        defaults = {name: p.default for name, p in signature(type(self)).parameters.items()}
        changed = {k: v for k, v in self.get_params(deep=False).items() if repr(v) != repr(defaults[k])}
        inside = ", ".join(f"{name}={shorten(repr(value), 60, placeholder='…')}" for name, value in changed.items())
        return fill(f"{type(self).__name__}({inside})", 120, subsequent_indent="    ", max_lines=4)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class ConsensusClassifier(ClassifierMixin, ConsensusEstimator):
    """Labels of any kind, class weights, and the decision rule."""

    def _read_classes(
        self, X: MatrixLike, y: ArrayLike, sites: PerRow, sample_weight: PerRow
    ) -> tuple[Rows, np.ndarray]:
        """The rows with class indices as target and class weights in their weight, and
        the classes with positive weight."""
        rows, weight, counting = self._read_labels(X, y, sites, sample_weight)
        return rows.with_weight(weight), counting

    def _read_labels(
        self, X: MatrixLike, y: ArrayLike, sites: PerRow, sample_weight: PerRow
    ) -> tuple[Rows, np.ndarray, np.ndarray]:
        """The same, class weights apart: rows, weights (n,) with class weights, and classes of positive weight."""
        rows = self._read(X, y, sites, sample_weight, numeric=False)
        labels = _labels(rows.y)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        weight = np.concatenate(rows.weight)
        weight = weight * checks.class_weights(self.class_weight, self.classes_, codes, weight)[codes]
        counting = np.unique(codes[weight > 0])
        if len(counting) < 2:
            label = self.classes_[counting[0] if len(counting) else 0]
            which = "rows" if len(self.classes_) < 2 else "rows of weight > 0"
            raise InputError(
                f"All {which} have the label {label!r}: one class is not enough, {type(self).__name__} needs at least "
                "two classes over all workers."
            )
        return rows.with_target(codes), weight, counting

    def decision_function(self, X: MatrixLike) -> np.ndarray:
        """The decision values xᵀc + b.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features)
            Rows to predict.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            For two classes positive where `classes_[1]` is predicted.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
        >>> y = np.array(["a", "a", "b", "b", "b", "a"])
        >>> sites = [0, 0, 0, 1, 1, 1]
        >>> model = aq.ConsensusLinearSVC().fit(X, y, sites=sites)
        >>> (model.decision_function(X) > 0) == (model.predict(X) == "b")
        array([ True,  True,  True,  True,  True,  True])
        """
        logits = self._logits(X)
        return logits[:, 0] if logits.shape[1] == 1 else logits

    def predict(self, X: MatrixLike) -> np.ndarray:
        """The label with the largest decision value.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features)
            Rows to predict.

        Returns
        -------
        ndarray of shape (n_samples,)
            Labels of `classes_`.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
        >>> y = np.array(["a", "a", "b", "b", "b", "a"])
        >>> sites = [0, 0, 0, 1, 1, 1]
        >>> aq.ConsensusLogisticRegression().fit(X, y, sites=sites).predict(X[:3])
        array(['a', 'a', 'b'], dtype='<U1')
        """
        logits = self.decision_function(X)
        return self.classes_[(logits > 0).astype(int) if logits.ndim == 1 else logits.argmax(1)]


def _taken(X: MatrixLike, rows: np.ndarray) -> MatrixLike:
    """Some rows of an array, a sparse matrix or a data frame, names of columns included."""
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    if scipy.sparse.issparse(X):
        return scipy.sparse.csr_matrix(X)[rows]
    return X[rows] if hasattr(X, "columns") else np.asarray(X)[rows]  # type: ignore[index]


def _labels(parts: tuple[np.ndarray, ...]) -> np.ndarray:
    """The labels of all blocks; the dtype of empty blocks is ignored."""
    filled = [y for y in parts if len(y)]
    kinds = {"numbers" if y.dtype.kind in "fiub" else "text" for y in filled}
    if len(kinds) > 1 and not any(y.dtype == object for y in filled):
        raise InputError("Some blocks have numbers and others text as labels; use one type for all labels.")
    return np.concatenate(filled)


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
        raise InputError(f"y[{row}] is {y.tolist()[row]!r}, which the model does not know (its classes: {shown}).")
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


def deviance_explained(loss: RowLoss, logits: np.ndarray, y: ArrayLike, sample_weight: PerRow) -> float:
    """D²: 1 less the share of the best constant's deviance that is left."""
    target = np.asarray(y, dtype=np.float64).ravel()
    return explained(loss, logits, target, checks.weights_of(sample_weight, len(target)))
