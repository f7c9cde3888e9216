"""Figures, as matplotlib `Figure` objects: without pyplot or lasting changes of matplotlib's settings.

convergence     relative objective gap and KKT residual against iterations, one column of panels per model
weight_images   the weights W_j of image data, drawn as images
gap_figure      relative objective gap against rounds and bytes, methods at equal gap

`forest` is the plot of a meta-analysis: every coefficient at every site, and both combined estimates below.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator
from numpy.typing import ArrayLike

from auqadmm.comparison import Comparison, Entry, MethodRun, curve
from auqadmm.inference.meta import Combined
from auqadmm.report.style import COSTS, RC, method_style
from auqadmm.report.tables import whole
from auqadmm.words import quoted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

# Below this a relative gap is the rounding of the optimum, not the progress of a method.
FIGURE_SMALLEST = 1e-13
FIGURE_MARKERS = 9  # per curve


def convergence(runs: Sequence[MethodRun], target: float | None = 1e-6) -> Figure:
    """How fast each method approaches the optimum.

    Parameters
    ----------
    runs
        Any number of methods on any number of models; one column of panels per model, in order of appearance.
    target
        Draw a line at this relative objective gap.

    Returns
    -------
    Figure
        Two rows: relative objective gap, relative KKT residual; both axes logarithmic.
    """
    if not runs:
        raise ValueError("convergence needs at least one run.")
    models = list(dict.fromkeys(run.model for run in runs))
    methods = list(dict.fromkeys(run.method for run in runs))
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(max(5.0 * len(models), 6.0), 6.6), layout="constrained")
        axes = figure.subplots(2, len(models), squeeze=False, sharex="col", sharey="row")
        handles: dict[str, Any] = {}
        for (top, bottom), model in zip(axes.T, models, strict=True):
            end = 2  # a single iteration still needs an axis of some width
            for run in (run for run in runs if run.model == model):
                end = max(end, run.result.n_iter)
                shift = methods.index(run.method) / len(methods)
                iterations = np.array(run.result.history.column("iteration"), dtype=float)
                kkt = np.array(run.result.history.column("kkt"), dtype=float)  # None becomes NaN
                handles[run.method] = _curve(top, iterations, run.gaps, run.method, shift)
                _curve(bottom, iterations, kkt, run.method, shift)
            if target is not None:
                top.axhline(target, color="#888888", linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
            top.set_title(model[:1].upper() + model[1:])
            bottom.set_xlabel("iterations")
            bottom.set_xlim(end**-0.03, end**1.03)
        axes[0, 0].set_ylabel("relative objective gap")
        axes[1, 0].set_ylabel("relative KKT residual")
        for row in axes:
            _log_axes(row)
        labels = [method_style(method).label for method in handles]
        figure.legend(handles.values(), labels, loc="outside upper center", ncols=min(len(labels), 6))
    return figure


def weight_images(weights: ArrayLike, image: tuple[int, int], title: str, columns: Sequence[str] = ()) -> Figure:
    """The weights of every worker, drawn as images on one colour scale.

    Parameters
    ----------
    weights
        Diagonals of the W_j, (N, m, C) with m = height·width; tensor or array.
    image
        (height, width) of the images.
    title
        Above the figure: whose weights these are, of which iteration.
    columns
        Names of the C columns of the model, e.g. its classes.

    Returns
    -------
    Figure
        One column: the workers in rows of five. Several: one row per worker, one column per column of the model.
    """
    W = np.asarray(weights, dtype=float)
    if W.ndim != 3 or W.shape[1] != image[0] * image[1] or W.size == 0:
        raise ValueError(f"weights must be (N, {image[0] * image[1]}, C) for {image} images, got {W.shape}.")
    N, _, C = W.shape
    wide = min(N, 5) if C == 1 else C
    tall = -(-N // wide) if C == 1 else N
    cell, labels = (1.75, 0.3 * tall) if C == 1 else (0.9, 0.25)
    spines = {f"axes.spines.{side}": False for side in ("left", "bottom")}
    with matplotlib.rc_context(RC | spines | {"axes.grid": False, "axes.titlelocation": "center"}):
        layout = ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, wspace=0.0, hspace=0.0)
        figure = Figure(figsize=(cell * wide + 1.1, cell * tall + labels + 0.35), layout=layout)
        axes = figure.subplots(tall, wide, squeeze=False)
        limits = {"vmin": float(W.min()), "vmax": float(W.max())}
        drawn: Any = None
        for place, axis in enumerate(axes.flat):
            j, c = (place, 0) if C == 1 else divmod(place, C)
            axis.set_xticks([])
            axis.set_yticks([])
            if j >= N:
                axis.set_visible(False)
                continue
            drawn = axis.imshow(W[j, :, c].reshape(image), interpolation="nearest", **limits)
            if C == 1:
                axis.set_title(f"worker {j}", fontsize=10, fontweight="normal")
                continue
            if j == 0:
                axis.set_title(columns[c] if columns else f"column {c}", fontsize=9, fontweight="normal")
            if c == 0:
                axis.set_ylabel(f"worker {j}", fontsize=9)
        figure.suptitle(title, fontsize=11.5)
        bar = figure.colorbar(drawn, ax=axes, shrink=0.95, pad=0.015, aspect=30, label="weight")
        bar.outline.set_visible(False)
    return figure


def save(figure: Figure, path: str | Path, dpi: int = 150) -> Path:
    """Write a figure; the format follows from the suffix."""
    path = Path(path)
    with whole(path) as part, matplotlib.rc_context(RC):
        figure.savefig(part, dpi=dpi, format=path.suffix.removeprefix(".") or None)
    return path


def _curve(axis: Axes, x: np.ndarray, y: np.ndarray, method: str, shift: float) -> Line2D:
    style = method_style(method)
    shown = np.isfinite(y)
    x, y = x[shown], np.maximum(y[shown], FIGURE_SMALLEST)
    marks: dict[str, Any] = {"marker": style.marker, "markevery": _spread(len(x), shift), "markeredgecolor": "white"}
    (line,) = axis.plot(x, y, color=style.color, markeredgewidth=0.6, **marks)
    return line


def _spread(count: int, shift: float) -> list[int]:
    """Positions evenly spaced on a logarithmic axis, the last included; `shift` in [0, 1) moves the others.

    With different shifts, coinciding curves show the markers of both.
    """
    if count == 0:
        return []
    steps = (np.arange(FIGURE_MARKERS) + shift) / FIGURE_MARKERS
    return [*np.unique((count**steps).astype(int) - 1).tolist(), count - 1]


def _log_axes(axes: Sequence[Axes]) -> None:
    """Logarithmic axes for panels that share a vertical one, with a label at every or every other power of ten."""
    values = np.concatenate([line.get_ydata() for axis in axes for line in axis.get_lines()])
    values = values[values > 0]
    if values.size == 0:  # nothing was evaluated: keep the default axes
        return
    for axis in axes:
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.minorticks_off()
        axis.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    low, high = np.log10(values.min()) - 0.3, np.log10(values.max()) + 0.3
    if np.floor(high) - np.ceil(low) < 1:  # fewer than two powers of ten visible
        low, high = np.floor(low), np.ceil(high)
    step = 1 if high - low < 7 else 2
    first = np.ceil(low / step) * step
    axes[0].set_ylim(10.0**low, 10.0**high)
    axes[0].set_yticks(10.0 ** np.arange(first, high + 1e-9, step))


# ---------------------------------------------------------------------- at equal gap
GAP_AXES = {name: COSTS[name] for name in ("rounds", "bytes")}
# below this a gap is the rounding of the optimum
GAP_SMALLEST = 1e-11
GAP_MARKERS = 7  # per curve


def gap_figure(comparison: Comparison, title: str) -> Figure:
    """Relative objective gap against rounds and bytes, both axes logarithmic; a line at the gap."""
    shown = [entry for entry in comparison.entries if entry.run is not None and len(entry.run.result.history)]
    with matplotlib.rc_context(RC):
        drawing = Figure(figsize=(10.0, 4.6), layout="constrained")
        axes = drawing.subplots(1, len(GAP_AXES), sharey=True)
        handles = {}
        for axis, (name, label) in zip(axes, GAP_AXES.items(), strict=True):
            for k, entry in enumerate(shown):
                handles[entry.method] = _gap_curve(axis, entry, name, k / len(shown))
            axis.axhline(comparison.gap, color="#888888", linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xlabel(label)
            axis.xaxis.set_major_formatter(FuncFormatter(_short))
            axis.yaxis.set_major_locator(LogLocator(numticks=9))
            axis.minorticks_off()
        axes[0].set_ylabel("relative objective gap")
        labels = [method_style(method).label for method in handles]
        drawing.legend(
            handles.values(),
            labels,
            loc="outside upper center",
            ncols=min(max(len(labels), 1), 8),
            title=title.replace("$", r"\$"),  # names of files must not be read as mathematics
            title_fontproperties={"weight": "bold", "size": 12},
        )
    return drawing


def _gap_curve(axis: Axes, entry: Entry, name: str, shift: float) -> Line2D:
    style = method_style(entry.method)
    assert entry.run is not None
    columns = curve(entry.run)
    pairs = [(x, y) for x, y in zip(columns[name], columns["gap"], strict=True) if y is not None and np.isfinite(y)]
    xs, ys = np.array(pairs, dtype=float).reshape(-1, 2).T
    (line,) = axis.plot(
        xs,
        np.maximum(ys, GAP_SMALLEST),
        color=style.color,
        marker=style.marker,
        markevery=_gap_spread(xs, shift),
        markeredgecolor="white",
        markeredgewidth=0.6,
    )
    return line


def _gap_spread(xs: np.ndarray, shift: float) -> list[int]:
    """About seven positions evenly spaced along a logarithmic axis, and the end; `shift` keeps equal curves apart."""
    if len(xs) == 0:
        return []
    at = np.log(np.maximum(xs, 1))
    wanted = at[0] + (at[-1] - at[0]) * (np.arange(GAP_MARKERS) + shift) / GAP_MARKERS
    return sorted({*(int(np.abs(at - place).argmin()) for place in wanted), len(xs) - 1})


def _short(x: float, _: object = None) -> str:
    """1000 as 1k, 2500000 as 2.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= size:
            return f"{x / size:g}{letter}"
    return f"{x:g}"


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
            ax.set_title(_shown_name(names[k]), fontsize="medium")
            ax.set_xlabel(ratio or "coefficient")
        for ax in axes.flat[len(shown) :]:
            ax.set_visible(False)
        labels = [*map(_shown_name, sites), *("fixed" if c.method == "fixed" else "REML" for c in combined)]
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


def _shown_name(name: str) -> str:
    return quoted(str(name), FOREST_NAME)[1:-1].replace("$", r"\$")
