"""The forest plot of a meta-analysis: every coefficient at every site, and both combined estimates below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from auqadmm.inference.meta import Combined
from auqadmm.report.style import RC
from auqadmm.report.tables import whole
from auqadmm.words import quoted

MOST_PANELS, FOREST_NAME = 24, 28


def forest(
    names: Sequence[str],
    sites: Sequence[str],
    estimates: np.ndarray,
    errors: np.ndarray,
    combined: Sequence[Combined],
    ratio: str = "",
) -> Figure:
    """One panel per coefficient; `estimates` and `errors` (sites, coefficients), `ratio`: what exp of one is called."""
    from scipy import stats

    shown = list(range(len(names)))[:MOST_PANELS]
    across = min(3, len(shown))
    down = -(-len(shown) // across)
    rows = len(sites) + len(combined)
    far = stats.norm.ppf(0.5 + combined[0].level / 2)
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(1.8 + 3.0 * across, down * (0.9 + 0.24 * rows)), layout="constrained")
        axes = figure.subplots(down, across, squeeze=False, sharey=True)
        for ax, k in zip(axes.flat, shown, strict=False):
            _panel(ax, estimates[:, k], far * errors[:, k], [_ends(c, k) for c in combined])
            ax.xaxis.set_major_locator(MaxNLocator(4))
            if ratio:  # axes are logarithmic, ticks show ratios
                ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{np.exp(x):.3g}"))
            ax.set_title(_short(names[k]), fontsize="medium")
            ax.set_xlabel(ratio or "coefficient")
        for ax in axes.flat[len(shown) :]:
            ax.set_visible(False)
        labels = [*map(_short, sites), *("fixed" if c.method == "fixed" else "REML" for c in combined)]
        axes[0, 0].set_yticks(range(rows, 0, -1), labels)
    return figure


def write_forest(figure: Figure, path: Path) -> Path:
    """A PNG, complete or not there."""
    with whole(path) as part:
        figure.savefig(part, format="png", dpi=150)
    return path


def _ends(combined: Combined, k: int) -> tuple[float, float, float]:
    return float(combined.low[k]), float(combined.estimate[k]), float(combined.high[k])


def _panel(ax: Axes, middle: np.ndarray, far: np.ndarray, combined: Sequence[tuple[float, float, float]]) -> None:
    top = len(middle) + len(combined)
    places = np.arange(top, len(combined), -1)
    ax.hlines(places, middle - far, middle + far, color="0.35", linewidth=1.2)
    weight = 1 / np.square(far)
    ax.scatter(middle, places, s=12 + 50 * weight / weight.max(), marker="s", color="0.2", zorder=3)
    for place, (low, centre, high) in zip(range(len(combined), 0, -1), combined, strict=True):
        ax.fill(
            [low, centre, high, centre],
            [place, place + 0.25, place, place - 0.25],
            color="C0" if place == len(combined) else "C1",
            zorder=3,
        )
    ax.axvline(0.0, color="0.55", linewidth=0.9, zorder=0)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)


def _short(name: str) -> str:
    return quoted(str(name), FOREST_NAME)[1:-1].replace("$", r"\$")
