"""What is measured of which model, as sums over rows: `measure_of` a loss.

    Binary     two classes and their probabilities      accuracy, AUC, Brier score, log loss, explained deviance
    Margins    two classes and a decision value         accuracy, AUC, mean loss
    Classes    several classes                          accuracy, AUC of each against the rest, …
    Numbers    predictions in the units of the target   R², RMSE, MAE
    LogMeans   log links: counts, rates, amounts        explained deviance, observed over expected, RMSE, MAE

`first` are sums that need nothing else, `second` those around means that the first gave, and bins; `figures` are made
of both, whether they are of all sites or of one. `line` is Σcφ at the logits z + a + d·(x·u − m), m the mean of the
scores, with its derivatives by a and d: its minimum is the calibration, (0, 0) for a model that is its own best; with
d = −1 it is a constant model.

Shapes: r rows, C columns, k scores of a row (1, or one per class), n bins; bins (k, columns of sums, n).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from auqadmm.blocks.curvature import times
from auqadmm.blocks.loss import Loss
from auqadmm.blocks.rows import RowLoss
from auqadmm.core.reduce import Sums
from auqadmm.errors import InputError
from auqadmm.inference.statistics import null_loss
from auqadmm.problem import (
    CLogLog,
    Huber,
    LeastSquares,
    Logistic,
    Multinomial,
    Probit,
    Quantile,
    SmoothedHinge,
)
from auqadmm.problem.families import LOGARITHMIC, mean_of
from auqadmm.problem.made_of_losses import loss_of_rows
from auqadmm.quality.bins import Grid, auc_bounds, bins_of, exact_auc
from auqadmm.quality.rows import Scored

Figures = dict[str, float | None]
Line = Callable[[float, float], Tensor]  # a, d -> f, f_a, f_d, f_aa, f_ad, f_dd
Known = Mapping[str, np.ndarray]
ALIKE = 1e-10  # null deviance of a row, below which outcomes are all alike


@dataclass(frozen=True)
class Measure(ABC):
    """`names` of its figures; `calibrated`: a slope and a curve are made; `classes` of the target, 0: numbers."""

    loss: RowLoss
    classes: int = 0
    names: ClassVar[tuple[str, ...]] = ()
    calibrated: ClassVar[bool] = False
    ranked: ClassVar[bool] = False  # has an AUC

    # ------------------------------------------------------------------ sums over rows
    def first(self, at: Scored) -> Sums:
        """Σc, rows, Σcφ, Σc inf φ, and Σcs and Σcs² of the scores."""
        s = self.scores(at)
        value, least = self.loss.row_value(at.z, at.y), self.loss.row_infimum(at.y)
        return {
            "weight": at.c.sum(),
            "rows": (at.c > 0).sum().double(),
            "loss": times(at.c, value).sum(),
            "infimum": times(at.c, least.double()).sum(),
            "s": at.c @ s,
            "ss": at.c @ s.square(),
            **self.own(at),
        }

    def second(self, at: Scored, first: Known) -> Sums:
        """Sums of bins, (k, columns, n), where scores are ranked or calibrated; of the latter also the line's start."""
        if not (self.ranked or self.calibrated):
            return {}
        s, grids = self.scores(at), self.grids(first)
        bins = torch.stack([grid.sums(s[:, k], self.columns(at, k)) for k, grid in enumerate(grids)])
        return {"bins": bins, "line": self.line(at, first, 0.0, 0.0)} if self.calibrated else {"bins": bins}

    def line(self, at: Scored, first: Known, a: float, d: float) -> Tensor:
        """f, f_a, f_d, f_aa, f_ad, f_dd, (6,)."""
        x = at.linear - middle_of(first)
        z = at.z + a + d * x[:, None]
        s = self.loss.prepare(z)
        slope, bend = self.loss.row_slope(s, at.y)[:, 0], self.loss.row_curvature(s, at.y).diagonal()[:, 0]
        parts = self.loss.row_value(z, at.y), slope, slope * x, bend, bend * x, bend * x * x
        return torch.stack([times(at.c, part).sum() for part in parts])

    def grids(self, first: Known) -> list[Grid]:
        bins = bins_of(len(first["s"]))
        sums = zip(first["s"].tolist(), first["ss"].tolist(), strict=True)
        return [Grid.of(float(first["weight"]), s, ss, bins) for s, ss in sums]

    @abstractmethod
    def scores(self, at: Scored) -> Tensor:
        """What rows are ranked by, (r, k)."""

    @abstractmethod
    def own(self, at: Scored) -> Sums:
        """Further sums of the first kind."""

    @abstractmethod
    def columns(self, at: Scored, k: int) -> list[Tensor]:
        """What is summed in bins of the k-th score: of ranked ones the weights of its outcome and of others, then of
        calibrated ones what Σc, Σc·observed and Σc·predicted are made of."""

    # ------------------------------------------------------------------ from sums to figures
    @abstractmethod
    def figures(self, first: Known, second: Known, null: float | None) -> Figures:
        """But for AUC and calibration. `null`: the loss of the best constant."""

    def curve(self, bins: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights, what was observed and what was predicted, of every bin: from the bins of one score."""
        return bins[0], bins[1], bins[2]

    def null(self, first: Known, line: Line, offset: bool) -> float | None:
        """Σcφ of the best constant, None where it is not measured."""
        return None

    def bounds(self, second: Known) -> list[tuple[float, float] | None]:
        """Of the AUC of every score."""
        return [auc_bounds(x[0], x[1]) for x in second["bins"]] if self.ranked else []

    def exact(self, at: Scored) -> list[float | None]:
        """The AUC of every score, of rows in one place."""
        s = self.scores(at)
        return [exact_auc(s[:, k], *self.columns(at, k)[:2]) for k in range(s.shape[1])] if self.ranked else []


@dataclass(frozen=True)
class Binary(Measure):
    """Two classes, y = ±1, and the probability of the second."""

    names = (
        "accuracy", "auc", "brier", "log_loss", "deviance_explained", "calibration_intercept", "calibration_slope",
        "base_rate",
    )  # fmt: skip
    calibrated = ranked = True

    def scores(self, at: Scored) -> Tensor:
        return at.z

    def own(self, at: Scored) -> Sums:
        p, seen = mean_of(self.loss, at.z[:, 0]), (at.y > 0).double()
        sums = {
            "positive": times(at.c, seen).sum(),
            "right": times(at.c, ((p > 0.5).double() == seen).double()).sum(),
            "brier": times(at.c, (p - seen).square()).sum(),
            "y": times(at.c, at.y).sum(),
        }
        return sums if at.o is None else {**sums, "offset": times(at.c, at.o).sum()}

    def columns(self, at: Scored, k: int) -> list[Tensor]:
        seen = (at.y > 0).double()
        return [at.c * seen, at.c * (1 - seen), times(at.c, mean_of(self.loss, at.z[:, 0]))]

    def curve(self, bins: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return bins[0] + bins[1], bins[0], bins[2]

    def null(self, first: Known, line: Line, offset: bool) -> float | None:
        return _null(self.loss, first, line, offset)

    def figures(self, first: Known, second: Known, null: float | None) -> Figures:
        return {
            "accuracy": _share(first, "right"),
            "brier": _share(first, "brier"),
            "log_loss": _share(first, "loss"),
            "deviance_explained": _explained(first, null),
            "base_rate": _share(first, "positive"),
        }


@dataclass(frozen=True)
class Margins(Measure):
    """Two classes, y = ±1, and a decision value that is no probability."""

    names = ("accuracy", "auc", "loss", "base_rate")
    ranked = True

    def scores(self, at: Scored) -> Tensor:
        return at.z

    def own(self, at: Scored) -> Sums:
        seen = at.y > 0
        return {
            "positive": times(at.c, seen.double()).sum(),
            "right": times(at.c, ((at.z[:, 0] > 0) == seen).double()).sum(),
        }

    def columns(self, at: Scored, k: int) -> list[Tensor]:
        seen = (at.y > 0).double()
        return [at.c * seen, at.c * (1 - seen)]

    def figures(self, first: Known, second: Known, null: float | None) -> Figures:
        return {
            "accuracy": _share(first, "right"),
            "loss": _share(first, "loss"),
            "base_rate": _share(first, "positive"),
        }


@dataclass(frozen=True)
class Classes(Measure):
    """Several classes by decision values, the largest of which is predicted; each is ranked against the others."""

    names: ClassVar[tuple[str, ...]] = ("accuracy", "auc", "loss")
    ranked = True

    def scores(self, at: Scored) -> Tensor:
        return at.z

    def own(self, at: Scored) -> Sums:
        right = (at.z.argmax(1) == at.y).double()
        zeros = torch.zeros(self.classes, dtype=torch.float64, device=at.c.device)
        return {"right": times(at.c, right).sum(), "counts": zeros.index_add(0, at.y, at.c)}

    def columns(self, at: Scored, k: int) -> list[Tensor]:
        seen = (at.y == k).double()
        return [at.c * seen, at.c * (1 - seen)]

    def figures(self, first: Known, second: Known, null: float | None) -> Figures:
        return {"accuracy": _share(first, "right"), "loss": _share(first, "loss")}


@dataclass(frozen=True)
class Probabilities(Classes):
    """Several classes and their probabilities."""

    names = ("accuracy", "auc", "brier", "log_loss", "deviance_explained")

    def scores(self, at: Scored) -> Tensor:
        """log p − log(1 − p) of every class."""
        rest = [torch.logsumexp(torch.cat([at.z[:, :k], at.z[:, k + 1 :]], 1), 1) for k in range(at.z.shape[1])]
        return at.z - torch.stack(rest, 1)

    def own(self, at: Scored) -> Sums:
        p = torch.softmax(at.z, 1)
        seen = torch.nn.functional.one_hot(at.y, self.classes).double()
        return {**super().own(at), "brier": times(at.c, (p - seen).square().sum(1)).sum()}

    def null(self, first: Known, line: Line, offset: bool) -> float | None:
        counts, total = first["counts"][first["counts"] > 0], float(first["weight"])
        return float(-(counts * np.log(counts / total)).sum()) if total > 0 else None

    def figures(self, first: Known, second: Known, null: float | None) -> Figures:
        return {
            "accuracy": _share(first, "right"),
            "brier": _share(first, "brier"),
            "log_loss": _share(first, "loss"),
            "deviance_explained": _explained(first, null),
        }


@dataclass(frozen=True)
class Numbers(Measure):
    """Predictions in the units of the target, of a loss of one's own."""

    names: ClassVar[tuple[str, ...]] = ("r2", "rmse", "mae", "loss")

    def scores(self, at: Scored) -> Tensor:
        return at.z

    def own(self, at: Scored) -> Sums:
        return _errors(at, at.z[:, 0])

    def second(self, at: Scored, first: Known) -> Sums:
        mean = float(first["y"] / first["weight"]) if first["weight"] > 0 else 0.0
        return {**super().second(at, first), "yy": times(at.c, (at.y - mean).square()).sum()}

    def columns(self, at: Scored, k: int) -> list[Tensor]:
        return [at.c, at.c * at.y, at.c * at.z[:, 0]]

    def figures(self, first: Known, second: Known, null: float | None) -> Figures:
        whole = float(second["yy"])
        out = {
            "r2": 1 - float(first["squares"]) / whole if whole > 0 else None,
            "rmse": _root(_share(first, "squares")),
            "mae": _share(first, "absolute"),
            "loss": _share(first, "loss"),
            "below": _share(first, "below"),
        }
        return {name: value for name, value in out.items() if name in self.names}


@dataclass(frozen=True)
class SquaredNumbers(Numbers):
    """Least squares: predictions are means."""

    names = ("r2", "rmse", "mae", "calibration_intercept", "calibration_slope")
    calibrated = True


@dataclass(frozen=True)
class Quantiles(Numbers):
    """A quantile: so large a share of the targets should be below the prediction."""

    names = ("loss", "mae", "below")


@dataclass(frozen=True)
class LogMeans(Measure):
    """Logarithmic links: μ = exp(z). Curves are per unit of exposure, the exponential of the offset."""

    names = (
        "deviance_explained", "observed_expected", "rmse", "mae", "deviance", "calibration_intercept",
        "calibration_slope",
    )  # fmt: skip
    calibrated = True

    def scores(self, at: Scored) -> Tensor:
        return at.linear[:, None]

    def own(self, at: Scored) -> Sums:
        mu = torch.exp(at.z[:, 0])
        sums = {**_errors(at, mu), "mu": times(at.c, mu).sum()}
        return sums if at.o is None else {**sums, "offset": times(at.c, at.o).sum()}

    def columns(self, at: Scored, k: int) -> list[Tensor]:
        exposure = at.c if at.o is None else times(at.c, torch.exp(at.o))
        return [exposure, at.c * at.y, times(at.c, torch.exp(at.z[:, 0]))]

    def null(self, first: Known, line: Line, offset: bool) -> float | None:
        return _null(self.loss, first, line, offset)

    def figures(self, first: Known, second: Known, null: float | None) -> Figures:
        expected, weight = float(first["mu"]), float(first["weight"])
        left = 2 * (float(first["loss"]) - float(first["infimum"]))
        return {
            "deviance_explained": _explained(first, null),
            "observed_expected": float(first["y"]) / expected if expected > 0 else None,
            "rmse": _root(_share(first, "squares")),
            "mae": _share(first, "absolute"),
            "deviance": left / weight if weight > 0 else None,
        }


# ---------------------------------------------------------------------- by loss
MEASURES: dict[type[Loss], type[Measure]] = {
    Logistic: Binary,
    Probit: Binary,
    CLogLog: Binary,
    SmoothedHinge: Margins,
    Multinomial: Probabilities,
    LeastSquares: SquaredNumbers,
    Huber: Numbers,
    Quantile: Quantiles,
    **dict.fromkeys(LOGARITHMIC, LogMeans),
}
OTHERS: dict[str, type[Measure]] = {"binary": Margins, "classes": Classes, "real": Numbers}


def measure_of(loss: Loss, classes: int) -> Measure:
    """What is measured of a model with this loss; `classes` of the target, 0 for numbers."""
    inner = loss_of_rows(loss)
    known = MEASURES.get(type(inner))
    if known is None and not isinstance(inner, RowLoss):
        raise InputError(
            f"quality needs a loss of rows, and {type(inner).__name__} is none; write it as an auqadmm.losses.RowLoss."
        )
    return (known or OTHERS[inner.target_kind])(inner, classes)


def explained(loss: RowLoss, logits: np.ndarray, y: np.ndarray, weight: np.ndarray) -> float:
    """1 less the share of the best constant's deviance that is left, of rows in one place: logits (n, 1), y of 0 and 1
    for two classes."""
    z, w = torch.from_numpy(logits.astype(np.float64)), torch.from_numpy(weight)
    t = torch.from_numpy(2 * y - 1 if loss.target_kind == "binary" else y)
    null = loss.null_logits((w * t).sum()[None] / w.sum(), 1).expand(len(t), 1)
    least = loss.row_infimum(t)
    left, whole = (float((w * (loss.row_value(x, t) - least)).sum()) for x in (z, null))
    return 1 - left / whole if whole > 0 else 0.0


def middle_of(first: Known) -> float:
    """The mean score of models with one column."""
    return float(first["s"][0] / first["weight"]) if first["weight"] > 0 else 0.0


def _errors(at: Scored, predicted: Tensor) -> Sums:
    error = at.y - predicted
    return {
        "y": times(at.c, at.y).sum(),
        "absolute": times(at.c, error.abs()).sum(),
        "squares": times(at.c, error.square()).sum(),
        "below": times(at.c, (error <= 0).double()).sum(),
    }


def _null(loss: RowLoss, first: Known, line: Line, offset: bool) -> float | None:
    """Of losses that are linear in y."""
    sums = {name: float(first[name]) for name in ("weight", "y")} | {"offset": float(first.get("offset", 0.0))}

    def ask(z: float) -> list[float]:
        found = line(z - middle_of(first), -1.0).tolist()
        return [found[0], found[1], found[3]]

    found = null_loss(loss, sums, offset, ask)
    return found if math.isfinite(found) else None


def _share(first: Known, name: str) -> float | None:
    weight = float(first["weight"])
    return float(first[name]) / weight if weight > 0 and name in first else None


def _explained(first: Known, null: float | None) -> float | None:
    """1 − deviance/null deviance."""
    if null is None:
        return None
    whole = null - float(first["infimum"])
    if not whole > ALIKE * float(first["weight"]):
        return None
    return 1 - (float(first["loss"]) - float(first["infimum"])) / whole


def _root(x: float | None) -> float | None:
    return None if x is None else math.sqrt(x)
