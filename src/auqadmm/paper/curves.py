"""Curves of the paper's figures, from the lines of their CSV files.

gap_figure       relative objective gap against iterations, bytes and seconds: three rows, one column per panel
paper_figure     what the paper plots, objective and residuals against iterations: three rows, one column per panel

Methods are lines with filled markers, controls broken lines with open ones; every curve is labelled at
its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from auqadmm.paper.bundle import CurveLine
from auqadmm.report.style import COSTS, RC, method_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

# below this a gap is the rounding of the optimum
CURVE_FLOOR = 1e-11
CURVE_MARKERS = 7  # per curve
DATASETS = {"mnist": "MNIST", "svhn": "SVHN", "cifar10": "CIFAR-10", "digits": "Digits"}
READING = {"mean": "means over rows", "sum": "sums over rows"}
X_AXES = {name: COSTS[name] for name in ("iteration", "bytes", "seconds")}
Y_AXES = {
    "gap": "relative objective gap",
    "objective": "objective",
    "primal": "primal residual",
    "dual": "dual residual",
}


def gap_figure(lines: Sequence[CurveLine], title: str) -> Figure:
    """The gap against iterations, bytes and seconds, both axes logarithmic."""
    return _grid(lines, title, [(x, "gap") for x in X_AXES], log_x=True)


def paper_figure(lines: Sequence[CurveLine], title: str) -> Figure:
    """Objective, primal and dual residual against iterations."""
    return _grid(lines, title, [("iteration", y) for y in ("objective", "primal", "dual")], log_x=False)


def panel_title(name: str) -> str:
    """ "mnist, 4 workers" as a title."""
    dataset, *rest = name.split(", ")
    return ", ".join([DATASETS.get(dataset, dataset), *rest])


def by_panel(lines: Sequence[CurveLine]) -> dict[str, dict[str, list[CurveLine]]]:
    """panel → method → its lines, in order of appearance."""
    panels: dict[str, dict[str, list[CurveLine]]] = {}
    for line in lines:
        panels.setdefault(line.panel, {}).setdefault(line.method, []).append(line)
    return panels


# ---------------------------------------------------------------------- drawing
# inches: the layout is set by hand, since matplotlib's own engines take seconds for a grid of this size
CELL, GAP_X, GAP_Y = (3.35, 2.25), 1.12, 0.62
LEFT, RIGHT, BOTTOM = 0.75, 0.55, 0.55


def _grid(lines: Sequence[CurveLine], title: str, pairs: list[tuple[str, str]], log_x: bool) -> Figure:
    """One cell per panel and pair of axes: panels side by side; a single panel has its pairs side by side."""
    panels = by_panel(lines)
    if not panels:
        raise ValueError("There are no results to draw.")
    methods = list(dict.fromkeys(line.method for line in lines))
    alone = len(panels) == 1
    tall, wide = (1, len(pairs)) if alone else (len(pairs), len(panels))
    with matplotlib.rc_context(RC | {"lines.markersize": 5, "lines.linewidth": 1.5}):
        figure, axes = _canvas(tall, wide, len(methods))
        handles: dict[str, Any] = {}
        for i, (x, y) in enumerate(pairs):
            for j, (panel, runs) in enumerate(panels.items()):
                axis = axes[0, i] if alone else axes[i, j]
                for method, run in runs.items():
                    drawn = _curve(axis, run, x, y, method, methods.index(method) / len(methods), log_x)
                    if drawn is not None:
                        handles.setdefault(method, drawn)
                if i == 0:
                    axis.set_title(panel_title(panel))
                axis.set_xlabel(X_AXES[x])
                if alone or j == 0:
                    axis.set_ylabel(Y_AXES[y])
                _axes(axis, log_x)
        _legend(figure, handles, title, wide)
        for axis in axes.flat:
            _end_labels(axis)
    return figure


def _canvas(tall: int, wide: int, entries: int) -> tuple[Figure, Any]:
    top = 0.62 + 0.21 * -(-entries // LEGEND_COLUMNS.get(wide, 4))
    width = LEFT + wide * CELL[0] + (wide - 1) * GAP_X + RIGHT
    height = BOTTOM + tall * CELL[1] + (tall - 1) * GAP_Y + top
    figure = Figure(figsize=(width, height))
    axes = figure.subplots(tall, wide, squeeze=False)
    figure.subplots_adjust(
        left=LEFT / width,
        right=1 - RIGHT / width,
        bottom=BOTTOM / height,
        top=1 - top / height,
        wspace=GAP_X / CELL[0],
        hspace=GAP_Y / CELL[1],
    )
    return figure, axes


LEGEND_COLUMNS = {1: 2, 2: 3, 3: 4}


def _legend(figure: Figure, handles: dict[str, Any], title: str, wide: int) -> None:
    figure.legend(
        list(handles.values()),
        [method_style(method).label for method in handles],
        loc="upper center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=min(len(handles), LEGEND_COLUMNS.get(wide, 4)),
        title=title,
        title_fontproperties={"weight": "bold", "size": 12},
        fontsize=9,
    )


def _curve(
    axis: Axes, run: Sequence[CurveLine], x: str, y: str, method: str, shift: float, log_x: bool
) -> Line2D | None:
    style = method_style(method)
    points = [(getattr(line, x), getattr(line, y)) for line in run]
    kept = [(a, b) for a, b in points if a is not None and b is not None and a > 0]
    if not kept:
        return None
    xs, ys = (np.array(values, dtype=float) for values in zip(*kept, strict=True))
    ys = np.maximum(ys, CURVE_FLOOR)
    control = bool(run[0].control)
    (drawn,) = axis.plot(
        xs,
        ys,
        color=style.color,
        linestyle=style.dash,
        marker=style.marker,
        markevery=_spread(xs, shift, log_x),
        markerfacecolor="white" if control else style.color,
        markeredgecolor=style.color if control else "white",
        markeredgewidth=0.9 if control else 0.5,
        label=style.short or style.label,
        zorder=2.5 if control else 3,
        clip_on=True,
    )
    return drawn


def _spread(xs: np.ndarray, shift: float, log_x: bool) -> list[int]:
    """About seven positions evenly spaced along the axis; `shift` keeps the markers of equal curves apart."""
    at = np.log(xs) if log_x else xs
    width = (at[-1] - at[0]) or 1.0
    wanted = at[0] + width * (np.arange(CURVE_MARKERS) + shift) / CURVE_MARKERS
    return sorted({int(np.abs(at - place).argmin()) for place in wanted})


def _axes(axis: Axes, log_x: bool) -> None:
    ys = np.concatenate([line.get_ydata() for line in axis.get_lines()] or [np.array([1.0])])
    axis.set_yscale("log")
    narrow = ys.max() / ys.min() < 30  # less than two powers of ten: label 2 and 5 as well
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=8))
    axis.yaxis.set_major_formatter(FuncFormatter(_power))
    axis.minorticks_off()
    if log_x:
        axis.set_xscale("log")
        xs = np.concatenate([line.get_xdata() for line in axis.get_lines()] or [np.array([1.0])])
        few = xs.max() / xs.min() < 100
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=9))
        axis.xaxis.set_major_formatter(FuncFormatter(_power))
        axis.minorticks_off()
    axis.set_xmargin(0.03)


def _power(x: float, _: object = None) -> str:
    """Short numbers in full, others as powers of ten (as Unicode: mathtext is slow)."""
    if x <= 0:
        return ""
    exponent = math.floor(math.log10(x) + 1e-9)
    if -2 <= exponent <= 3:
        return f"{x:g}"
    mantissa = float(f"{x / 10.0**exponent:.2g}")
    power = "10" + "".join("⁻" if c == "-" else "⁰¹²³⁴⁵⁶⁷⁸⁹"[int(c)] for c in str(exponent))
    return power if mantissa == 1 else f"{mantissa:g}·{power}"


def _end_labels(axis: Axes) -> None:
    """The short name of each curve right of its end, moved up or down until none overlap."""
    axis.get_xlim(), axis.get_ylim()  # updates the limits, which transData does not
    ends = []
    for line in axis.get_lines():
        x, y = np.asarray(line.get_xdata())[-1], np.asarray(line.get_ydata())[-1]
        ends.append((line, *axis.transData.transform((x, y))))
    if not ends:
        return
    low, high = axis.bbox.y0, axis.bbox.y1
    height = 8.2 * axis.figure.dpi / 72
    ends.sort(key=lambda end: end[2])
    places: list[float] = []
    for _, _, y in ends:
        places.append(max(min(y, high), places[-1] + height if places else low))
    overflow = places[-1] - high
    if overflow > 0:  # push back down from the top
        top = high
        for k in range(len(places) - 1, -1, -1):
            places[k] = min(places[k], top)
            top = places[k] - height
    for (line, x, y), place in zip(ends, places, strict=True):
        axis.annotate(
            line.get_label(),
            (line.get_xdata()[-1], line.get_ydata()[-1]),
            xytext=((axis.bbox.x1 - x) * 72 / axis.figure.dpi + 3, (place - y) * 72 / axis.figure.dpi),
            textcoords="offset points",
            color=line.get_color(),
            fontsize=7.5,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": line.get_color(), "linewidth": 0.4, "alpha": 0.6, "shrinkA": 0},
        )
