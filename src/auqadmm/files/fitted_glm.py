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
from auqadmm.problem.named_family import NamedFamily
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
        sheet = self._sheet(X)
        sheet = replace(sheet, offset=self._per_row("offset", offset, X, sheet.rows))
        sheet = replace(sheet, exposure=self._per_row("exposure", exposure, X, sheet.rows))
        return self.means(self.logits(sheet))

    def means(self, logits: np.ndarray) -> np.ndarray:
        return self.family_.mean(logits[:, 0])
