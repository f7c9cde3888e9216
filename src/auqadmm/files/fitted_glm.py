"""Models of a likelihood, of raw columns, as `auqadmm.load` returns them: generalised linear ones and Cox's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from sklearn.base import RegressorMixin

from auqadmm.files.model import FittedModel, TableLike
from auqadmm.files.tabular import Sheet, check_offset
from auqadmm.problem import InputError
from auqadmm.problem.families import NamedFamily
from auqadmm.quality.measures import explained
from auqadmm.words import quoted

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class FittedLikelihood(FittedModel):
    """One column of coefficients, and offsets in the columns that the fit had."""

    @property
    def coef_(self) -> np.ndarray:
        return self.parts.coef[0]

    @property
    def intercept_(self) -> float:  # type: ignore[override]
        return float(self.parts.intercept[0])

    def logits(self, sheet: Sheet, unseen: str = "error") -> np.ndarray:
        """X cᵀ + b + offset of a file, (n, 1)."""
        z = super().logits(sheet, unseen)
        for shift in (sheet.shift, self.encoding_.shift(sheet)):
            z = z if shift is None else z + shift[:, None]
        return z

    def _per_row(self, what: str, values: ArrayLike | None, X: TableLike, rows: int) -> np.ndarray | None:
        column = self.parts.roles.get(what)
        if values is None and column is not None:
            if not hasattr(X, "columns"):
                raise InputError(f"The model was fitted with {what} {quoted(column)}: pass {what}=, one per row.")
            have = X.column_names if isinstance(X, pa.Table) else list(X.columns)
            if column not in have:
                raise InputError(f"X lacks column {quoted(column)}, the {what} of the fit; or pass {what}=.")
            values = X[column]
        if values is None:
            return None
        try:
            x = np.asarray(values, dtype=np.float64).ravel()
        except (TypeError, ValueError):
            raise InputError(f"{what} must hold numbers.") from None
        if len(x) != rows:
            raise InputError(f"{what} has {len(x)} values but X has {rows} rows; give one per row.")
        return check_offset("X", x, column or what, what == "exposure")


class FittedCox(FittedLikelihood):
    """A fitted proportional hazards model: `predict` gives x·c, the logarithm of the hazard relative to a row with
    x = 0 of the same site. Baseline hazards stay at the sites."""

    def predict(self, X: TableLike, offset: ArrayLike | None = None) -> np.ndarray:
        """The log partial hazard, (n,), larger for those who are expected to have their event earlier."""
        sheet = self._sheet(X)
        sheet = replace(sheet, offset=self._per_row("offset", offset, X, sheet.rows))
        return self.logits(sheet)[:, 0]


class FittedGLM(RegressorMixin, FittedLikelihood):
    """A fitted generalised linear model: `predict` gives means, probabilities of `classes_[1]` for "binomial".

    Attributes
    ----------
    family_ : its family, link and parameter.
    classes_ : of "binomial", the two labels.
    """

    @property
    def family_(self) -> NamedFamily:
        assert self.parts.family is not None
        return self.parts.family

    @property
    def classes_(self) -> np.ndarray:
        if self.parts.classes is None:
            raise AttributeError(f"A model of family {self.family_.name!r} has no classes.")
        return np.array(self.parts.classes)

    def logits(self, sheet: Sheet, unseen: str = "error") -> np.ndarray:
        """X cᵀ + b + offset of a file, (n, 1)."""
        if self.parts.site_intercepts:
            raise InputError("Site intercepts are known at the sites alone: predict there, or fit a common intercept.")
        return super().logits(sheet, unseen)

    def predict(self, X: TableLike, offset: ArrayLike | None = None, exposure: ArrayLike | None = None) -> np.ndarray:
        """The expected target, (n,).

        `offset` and `exposure` have one number per row; without them they are the columns of X that the fit used.
        """
        if exposure is not None and not self.family_.takes_exposure:
            raise InputError("exposure is for families with a logarithmic link; use offset.")
        return self.means(self.logits(self._with_shifts(X, offset, exposure)))

    def _with_shifts(self, X: TableLike, offset: ArrayLike | None, exposure: ArrayLike | None) -> Sheet:
        sheet = self._sheet(X)
        sheet = replace(sheet, offset=self._per_row("offset", offset, X, sheet.rows))
        return replace(sheet, exposure=self._per_row("exposure", exposure, X, sheet.rows))

    def score(self, X: TableLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """D², the share of the deviance that the model explains: 1 at best, 0 for the best constant; of squares, R².

        As `score` of scikit-learn's generalised linear models, and of `ConsensusGLM`. Of "binomial" y are labels of
        `classes_`; offsets and exposures are in the columns that the fit had.
        """
        logits = self.logits(self._with_shifts(X, None, None))
        given = np.asarray(y).ravel()
        if self.parts.classes is not None:
            odd = np.flatnonzero(~np.isin(given, self.classes_))
            if odd.size:
                known = ", ".join(map(repr, self.parts.classes))
                raise InputError(
                    f"y[{odd[0]}] is {given.tolist()[odd[0]]!r}, which the model does not know (its classes: {known})."
                )
            given = given == self.classes_[1]
        try:
            target = given.astype(np.float64)
            weight = (
                np.ones(len(given)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64).ravel()
            )
        except (TypeError, ValueError):
            raise InputError("y and sample_weight must hold numbers.") from None
        if not len(target) == len(weight) == len(logits):
            raise InputError(f"X has {len(logits)} rows but y has {len(target)} values, weights {len(weight)}.")
        loss = self.family_.loss()
        loss.check_target("score", 2 * target - 1 if loss.target_kind == "binary" else target)
        return explained(loss, logits, target, weight)

    def means(self, logits: np.ndarray) -> np.ndarray:
        return self.family_.mean(logits[:, 0])
