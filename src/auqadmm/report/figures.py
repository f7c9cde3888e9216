"""Figures, as matplotlib `Figure` objects: nothing here touches pyplot or matplotlib's global settings for good.

    convergence     relative objective gap and KKT residual against iterations, one column of panels per model
    weight_images   the weights W_j of image data, drawn as images
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from auqadmm.experiments.compare import Run
from auqadmm.report.style import RC, method_style

# Below this a relative gap is the rounding of the optimum, not the progress of a method.
SMALLEST = 1e-13
MARKERS = 9


def convergence(runs: Sequence[Run], target: float | None = 1e-6) -> Figure:
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
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(max(5.0 * len(models), 6.0), 6.6), layout="constrained")
        axes = figure.subplots(2, len(models), squeeze=False, sharex="col")
        handles: dict[str, Any] = {}
        for column, model in enumerate(models):
            top, bottom = axes[0, column], axes[1, column]
            for run in (run for run in runs if run.model == model):
                iterations = np.array(run.result.history.column("iteration"), dtype=float)
                kkt = np.array(run.result.history.column("kkt"), dtype=float)  # None becomes NaN
                handles.setdefault(run.method, _curve(top, iterations, run.gaps, run.method))
                _curve(bottom, iterations, kkt, run.method)
            if target is not None:
                top.axhline(target, color="#999999", linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
            top.set_title(model)
            bottom.set_xlabel("iterations")
            for axis in (top, bottom):
                _log_axes(axis)
        axes[0, 0].set_ylabel("relative objective gap")
        axes[1, 0].set_ylabel("relative KKT residual")
        labels = [method_style(method).label for method in handles]
        figure.legend(handles.values(), labels, loc="outside upper center", ncols=min(len(labels), 6))
    return figure


def weight_images(weights: Any, image: tuple[int, int], title: str, columns: Sequence[str] = ()) -> Figure:
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
    if W.ndim != 3 or W.shape[1] != image[0] * image[1]:
        raise ValueError(f"weights must be (N, {image[0] * image[1]}, C) for {image} images, got {W.shape}.")
    N, _, C = W.shape
    wide = min(N, 5) if C == 1 else C
    tall = -(-N // wide) if C == 1 else N
    cell = 1.75 if C == 1 else 0.88
    with matplotlib.rc_context({**RC, "axes.grid": False, "axes.titlelocation": "center"}):
        figure = Figure(figsize=(cell * wide + 1.3, cell * tall + 0.9), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0.02, hspace=0.02)  # type: ignore[union-attr]
        axes = figure.subplots(tall, wide, squeeze=False)
        limits = {"vmin": float(W.min()), "vmax": float(W.max())}
        drawn = None
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
        figure.colorbar(drawn, ax=axes, shrink=0.9, pad=0.02, aspect=30, label="weight")
    return figure


def save(figure: Figure, path: str | Path, dpi: int = 150) -> Path:
    """Write a figure; the format follows from the suffix."""
    with matplotlib.rc_context(RC):
        figure.savefig(path, dpi=dpi)
    return Path(path)


def _curve(axis: Any, x: np.ndarray, y: np.ndarray, method: str) -> Any:
    style = method_style(method)
    shown = np.isfinite(y)
    x, y = x[shown], np.maximum(y[shown], SMALLEST)
    (line,) = axis.plot(
        x, y, color=style.color, marker=style.marker, markevery=_spread(len(x)), markeredgecolor="white", markeredgewidth=0.6
    )
    return line


def _spread(count: int) -> list[int]:
    """Positions that look evenly spaced on a logarithmic axis, first and last included."""
    return np.unique(np.geomspace(1, count, MARKERS).round().astype(int) - 1).tolist() if count else []


def _log_axes(axis: Any) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(base=10, numticks=9))
    axis.minorticks_off()
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axis.margins(x=0.03)
