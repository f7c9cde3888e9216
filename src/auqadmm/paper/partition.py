"""Who holds what, as a picture: rows per class and worker as a heat map, with the rows of each worker beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from auqadmm.paper.data.table import PartitionTable
from auqadmm.report.style import RC

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# One hue from light to dark: the order of the colours is that of their brightness, whatever colours a reader sees.
SHADES = LinearSegmentedColormap.from_list("rows", ["#DFEBF5", "#7DB4D8", "#1F83BF", "#005A8F"])
NOBODY = "#FAFAFA"
BAR = "#8FA3B0"
# inches: the least height and width of a cell with a number in it, and the most of any picture
CELL = (0.21, 0.52)
TALLEST, WIDEST = 14.0, 16.0
# letters of a name of a worker or a class that are shown
LETTERS = 18


def rows_per_class(table: PartitionTable, title: str = "Rows per class and worker") -> Figure:
    """A heat map of the table: a row per worker, a column per class, the numbers in the cells where they fit."""
    counts = np.array(table.counts, dtype=int).reshape(len(table.workers), len(table.classes))
    N, C = counts.shape
    if counts.size == 0:
        raise ValueError("There is nothing to draw: the table has no workers or no classes.")
    tall, wide = min(max(CELL[0], 0.42 - 0.007 * N) * N, TALLEST), min(CELL[1] * C, WIDEST)
    widest = len(f"{counts.max():,}")
    fits = tall / N >= 0.9 * CELL[0] and wide / C >= 0.08 * widest
    with matplotlib.rc_context(RC | {"axes.grid": False}):
        figure = Figure(figsize=(wide + 3.0, tall + 1.25), layout="constrained")
        cells, bars = figure.subplots(1, 2, sharey=True, width_ratios=(max(wide, 1.6), 1.4))
        shown: np.ma.MaskedArray = np.ma.masked_equal(counts, 0)
        top = max(int(counts.max()), 1)
        cells.imshow(shown, cmap=SHADES, vmin=0, vmax=top, aspect="auto", interpolation="nearest")
        cells.set_facecolor(NOBODY)
        if fits:
            _numbers(cells, counts, top)
        _lines(cells, N, C)
        _names(cells, table, tall / N, wide / C)
        _totals(bars, table.totals, tall / N)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure


def _numbers(axis: Axes, counts: np.ndarray, top: int) -> None:
    for (j, c), count in np.ndenumerate(counts):
        if count:
            axis.text(c, j, f"{count:,}", ha="center", va="center", fontsize=8, color=_ink(count / top))


def _ink(shade: float) -> str:
    """White on dark cells, black on light ones."""
    red, green, blue, _ = SHADES(shade)
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else "#1A1A1A"


def _lines(axis: Axes, N: int, C: int) -> None:
    if N * C <= 2000:  # more would hide the cells
        axis.set_xticks(np.arange(C + 1) - 0.5, minor=True)
        axis.set_yticks(np.arange(N + 1) - 0.5, minor=True)
        axis.grid(which="minor", color="white", linewidth=1.2)
    axis.tick_params(which="both", length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)


def _names(axis: Axes, table: PartitionTable, height: float, width: float) -> None:
    """Names on both axes; where they would touch, every second, fifth, … one."""
    every = _step(len(table.workers), height, 0.15)
    axis.set_yticks(range(0, len(table.workers), every), [_short(name) for name in table.workers[::every]])
    names = [_short(name) for name in table.classes]
    upright = max(map(len, names)) * 0.085 > width
    every = _step(len(names), width, 0.17 if upright else 0.0)
    axis.set_xticks(range(0, len(names), every), names[::every], rotation=90 if upright else 0)
    axis.set_xlabel("class", labelpad=6)
    axis.set_ylabel("worker", labelpad=8)


def _totals(axis: Axes, totals: tuple[int, ...], height: float) -> None:
    axis.barh(range(len(totals)), totals, height=0.72, color=BAR)
    top = max(max(totals), 1)
    if height >= 0.15:
        for j, total in enumerate(totals):
            axis.text(total + 0.04 * top, j, f"{total:,}", va="center", fontsize=8, color="#1A1A1A")
    axis.set_xlim(0, 1.55 * top)
    axis.set_xticks([])
    axis.tick_params(which="both", length=0, labelleft=False)
    axis.set_xlabel("rows")
    for spine in axis.spines.values():
        spine.set_visible(False)


def _step(count: int, room: float, needed: float) -> int:
    steps = [step for step in (1, 2, 5, 10, 20, 50, 100) if step * room >= needed]
    return steps[0] if steps else max(count, 1)


def _short(name: str) -> str:
    return name if len(name) <= LETTERS else name[: LETTERS - 1] + "…"
