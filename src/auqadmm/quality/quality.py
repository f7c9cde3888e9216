"""The figures of a model, in numbers and on a screen."""

from __future__ import annotations

from dataclasses import dataclass, field
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from auqadmm.errors import AuqadmmError
from auqadmm.quality.bins import Calibration

if TYPE_CHECKING:
    import pandas as pd

LABELS = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "concordance": "concordance",
    "events": "events",
    "brier": "Brier score",
    "log_loss": "log loss",
    "deviance_explained": "deviance explained",
    "r2": "R²",
    "rmse": "RMSE",
    "mae": "MAE",
    "loss": "mean loss",
    "deviance": "mean deviance",
    "below": "share at or below",
    "observed_expected": "observed / expected",
    "calibration_intercept": "calibration intercept",
    "calibration_slope": "calibration slope",
    "base_rate": "share of the second class",
}
SHARES = ("accuracy", "deviance_explained", "below", "base_rate")


@dataclass(frozen=True, eq=False)
class Quality:
    """How good a model is: of all rows together, by sums over sites, and of each site.

    Made by `Result.quality` and by `quality` of estimators. Which figures there are depends on the loss; those that
    rows do not determine are None.

    Attributes
    ----------
    figures
        By name. Two classes: accuracy, auc, brier, log_loss, deviance_explained, calibration_intercept and
        calibration_slope, base_rate (the share of the second class). Several classes: accuracy, auc (the mean over
        classes, each against the rest), brier, log_loss, deviance_explained. Numbers: r2, rmse, mae, calibration.
        Counts, rates and amounts: deviance_explained, observed_expected, rmse, mae, deviance (mean), calibration.
        Losses that are no likelihood: loss, their mean. Quantiles: below, the share of rows at or below.
        Cox's model: concordance, of pairs of rows of the same site (and, held out, of the same fold), and events.
    rows, weight
        How many rows counted, and the sum of their weights.
    auc_bounds
        Between which values the AUC is: pairs whose scores are in one bin count one half.
    bins
        Of the scores, in the grid of AUC and calibration.
    calibration
        `predicted`, `observed` and `weight` of ten groups of rows, from the lowest prediction; None where predictions
        are no means.
    site_names, site_figures
        The same figures of every site by itself, with rows and weight; these are of a single site, and exact.
    by
        How rows were held out: "" for the rows of the fit themselves, "5 folds of the rows of each site",
        "leaving one site out".
    notes
        What must be said of the numbers.
    rounds, numbers
        What it took: reductions, and numbers that one worker sent; runs of cross-validation not counted.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2))
    >>> y = rng.random(300) < 1 / (1 + np.exp(-2 * X[:, 0]))
    >>> problem = aq.Problem(aq.Logistic(), aq.L2(1.0), [(X[:200], y[:200]), (X[200:], y[200:])], intercept=True)
    >>> found = aq.solve(problem).quality()
    >>> round(found.figures["auc"], 3), found.auc_bounds[0] <= found.figures["auc"] <= found.auc_bounds[1]
    (0.879, True)
    >>> found.sites[["rows", "accuracy", "auc"]].round(2)
              rows  accuracy   auc
    block 0  200.0      0.78  0.87
    block 1  100.0      0.86  0.89
    """

    figures: dict[str, float | None]
    rows: int
    weight: float
    auc_bounds: tuple[float, float] | None = None
    bins: int = 0
    calibration: Calibration | None = field(default=None, repr=False)
    site_names: tuple[str, ...] = field(default=(), repr=False)
    site_figures: tuple[dict[str, float | None], ...] = field(default=(), repr=False)
    by: str = ""
    notes: tuple[str, ...] = ()
    rounds: int = 0
    numbers: int = 0

    def __repr__(self) -> str:
        return self.summary()

    @property
    def sites(self) -> pd.DataFrame:
        """A row per site: rows, weight and figures, NaN where there is none."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise AuqadmmError("Tables need pandas: pip install pandas. `site_figures` does without.") from None
        names = self.site_figures[0] if self.site_figures else {}
        columns = {name: [_float(site[name]) for site in self.site_figures] for name in names}
        return pandas.DataFrame(columns, index=list(self.site_names))

    def summary(self) -> str:
        """The figures as text: a line of all rows, a table of sites, notes.

        Returns
        -------
        str
            Lines to print.
        """
        held = f", {self.by}" if self.by else ""
        lines = [
            f"Quality of {self.rows} rows{held}:",
            *wrap(self.line(), 100, initial_indent="  ", subsequent_indent="  "),
        ]
        if len(self.site_figures) > 1:
            lines += table(["site", "rows", *(LABELS[name] for name in self.shown)], self.cells())
        return "\n".join([*lines, *self.notes])

    @property
    def shown(self) -> list[str]:
        """Names of the figures that tables of sites have."""
        return [name for name in self.figures if name not in ("base_rate", "calibration_intercept", "deviance", "loss")]

    def line(self) -> str:
        """All figures in a line.

        Returns
        -------
        str
            Names and values, separated by commas.
        """
        parts = []
        for name, value in self.figures.items():
            text = f"{LABELS[name]} {shown(name, value)}"
            if name == "auc" and self.auc_bounds is not None and self.auc_bounds[1] - self.auc_bounds[0] > 1e-4:
                text += f" (between {self.auc_bounds[0]:.4f} and {self.auc_bounds[1]:.4f})"
            parts.append(text)
        return ", ".join(parts)

    def cells(self) -> list[list[str]]:
        """A table of sites, as text.

        Returns
        -------
        list of list of str
            Of every site its name, rows and the figures in `shown`.
        """
        rows = []
        for name, figures in zip(self.site_names, self.site_figures, strict=True):
            rows.append([name, f"{figures['rows']:g}", *(shown(key, figures[key]) for key in self.shown)])
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values.

        Returns
        -------
        dict
            For JSON.
        """
        curve = self.calibration
        return {
            "rows": self.rows,
            "weight": self.weight,
            "figures": dict(self.figures),
            "auc_bounds": None if self.auc_bounds is None else list(self.auc_bounds),
            "bins": self.bins,
            "calibration": None if curve is None else {name: x.tolist() for name, x in vars(curve).items()},
            "sites": [
                {"name": name, **figures} for name, figures in zip(self.site_names, self.site_figures, strict=True)
            ],
            "by": self.by,
            "notes": list(self.notes),
            "rounds": self.rounds,
            "numbers": self.numbers,
        }


def shown(name: str, value: float | None) -> str:
    """A figure as text."""
    if value is None:
        return "–"
    if name in SHARES:
        return f"{round(100 * value, 1) + 0.0:.1f} %"
    if name.startswith("calibration"):
        return f"{value:.3f}" if abs(value) >= 5e-4 else "0.000"
    return f"{value:.4f}" if name in ("auc", "brier", "concordance") else f"{value:.4g}"


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    """Columns side by side: words to the left, numbers to the right."""
    widths = [max(len(row[k]) for row in [heads, *rows]) for k in range(len(heads))]
    return [
        "  " + "  ".join([row[0].ljust(widths[0]), *(x.rjust(w) for x, w in zip(row[1:], widths[1:], strict=True))])
        for row in [heads, *rows]
    ]


def _float(value: float | None) -> float:
    return float("nan") if value is None else float(value)
