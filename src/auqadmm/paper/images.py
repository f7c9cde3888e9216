"""Figures that are images: samples of the data, weights beside class averages, the denoising illustration (S9).

All from the arrays of `paper/pictures.py`. And the partition: rows per class and worker as a heat map, with the rows
of each worker beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from auqadmm.paper.curves import DATASETS
from auqadmm.paper.data.partitions import PartitionTable
from auqadmm.report.style import RC

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage


Arrays = Mapping[str, np.ndarray]
BARE: Any = RC | {
    "axes.grid": False,
    "axes.titlelocation": "center",
    "axes.titleweight": "normal",
    "axes.titlesize": 9.5,
    "axes.spines.left": False,
    "axes.spines.bottom": False,
}
READINGS = {
    "printed": "As printed: f_j = ½‖u − b_j‖², every Hessian the identity",
    "masked": "With masks: f_j = ½‖M_j(u − b)‖², worker j knows quadrant j",
}


def sample_images(sets: Mapping[str, Arrays]) -> Figure:
    """A few images of every class, one row of pictures per data set."""
    ratios = [arrays["images"].shape[0] / arrays["images"].shape[1] for arrays in sets.values()]
    with matplotlib.rc_context(BARE):
        figure = Figure(figsize=(8.4, sum(8.0 * ratio + 0.75 for ratio in ratios)), layout="constrained")
        axes = figure.subplots(len(sets), 1, squeeze=False, height_ratios=ratios)[:, 0]
        for axis, (name, arrays) in zip(axes, sets.items(), strict=True):
            images = arrays["images"]
            tall, wide = images.shape[:2]
            drawn, places = mosaic(images.reshape(-1, *images.shape[2:]), wide, fill=255)
            axis.imshow(drawn, cmap="gray" if drawn.ndim == 2 else None, interpolation="nearest", vmin=0, vmax=255)
            axis.set_title(DATASETS.get(name, name), fontweight="bold", fontsize=11)
            _ticks(axis, places[1], [str(label) for label in arrays["classes"]], places[0], [""] * tall)
    return figure


def weight_figure(arrays: Arrays, title: str) -> Figure:
    """One column of the model: the average image of each worker's class above its weights. Several: all weights, one
    row per worker, the class averages in front."""
    weights = np.asarray(arrays["weights"], dtype=float)
    averages = np.asarray(arrays["averages"], dtype=float)
    shape = tuple(int(k) for k in arrays["shape"])
    N, _, C = weights.shape
    scale = Normalize(float(weights.min()), float(weights.max()))
    grey = [colormaps["gray"](_picture(flat / (averages.max() or 1.0), shape))[..., :3] for flat in averages]
    tinted = [[colormaps["viridis"](scale(_picture(w, shape)))[..., :3] for w in block.T] for block in weights]
    workers = [f"worker {j}" for j in range(N)]
    if C == 1:
        tiles, across, down = [*grey, *(row[0] for row in tinted)], workers, ["class average", "weights"]
        size = (max(1.05 * N + 1.6, 6.4), 3.1 if N > 4 else 4.4)
    else:
        tiles = [tile for j in range(N) for tile in (grey[j], *tinted[j])]
        across, down = ["average", *(f"column {c}" for c in range(C))], workers
        size = (0.8 * (C + 1) + 1.8, 0.8 * N + 0.9)
    with matplotlib.rc_context(BARE):
        figure = Figure(figsize=size, layout="constrained")
        axis = figure.subplots()
        whole, at = mosaic(np.stack(tiles), len(across), fill=1.0)
        axis.imshow(whole, interpolation="nearest")
        _ticks(axis, at[1], across, at[0], down)
        axis.tick_params(labeltop=True, labelbottom=False)
        figure.suptitle(title, fontsize=11)
        bar = figure.colorbar(
            ScalarMappable(scale, "viridis"), ax=axis, shrink=0.9, aspect=30, pad=0.02, label="weight"
        )
        bar.outline.set_visible(False)
    return figure


def mosaic(images: np.ndarray, wide: int, fill: float) -> tuple[np.ndarray, tuple[list[float], list[float]]]:
    """Images (n, h, w[, 3]) as one, `wide` in a row with a little space between them, and the centres of its rows and
    columns: one picture is drawn a hundred times as fast as a hundred axes."""
    n, h, w, *colours = images.shape
    space = max(1, h // 12)
    tall = -(-n // wide)
    whole = np.full((tall * (h + space) - space, wide * (w + space) - space, *colours), fill, dtype=images.dtype)
    for k, image in enumerate(images):
        top, left = (k // wide) * (h + space), (k % wide) * (w + space)
        whole[top : top + h, left : left + w] = image
    rows = [i * (h + space) + (h - 1) / 2 for i in range(tall)]
    return whole, (rows, [j * (w + space) + (w - 1) / 2 for j in range(wide)])


def _ticks(axis: Axes, x: Sequence[float], across: Sequence[str], y: Sequence[float], down: Sequence[str]) -> None:
    axis.set_xticks(x, across, fontsize=9)
    axis.set_yticks(y, down, fontsize=9)
    axis.tick_params(length=0)


def denoising_figure(arrays: Arrays) -> Figure:
    """Both readings: local models, weights, and the averages after one iteration, with their errors."""
    with matplotlib.rc_context(BARE):
        figure = Figure(figsize=(11.6, 9.4), layout="constrained")
        figure.suptitle("Denoising in four quadrants, after ONE iteration", fontsize=12, fontweight="bold")
        for part, (reading, words) in zip(figure.subfigures(2, 1, squeeze=False)[:, 0], READINGS.items(), strict=True):
            part.suptitle(words, fontsize=11)
            axes = part.subplots(3, 7)
            _row(axes[0], arrays, ["noisy", "target"], reading, "u", "local model", "gray", (0, 1))
            _row(axes[1], arrays, [], reading, "W", "weights", "viridis", (0.1, 1))
            _averages(axes[2], arrays, reading)
    return figure


AVERAGES = {
    "weighted": "weighted, exact\ndiagonal",
    "plain": "plain, ρ = 1",
    "lanczos_gaussian": "Lanczos,\nGaussian start",
    "lanczos_signs": "Lanczos,\nrandom signs",
    "rho_a": "control:\nplain, ρ = a",
    "permuted": "control:\npermuted",
    "mean": "control:\naveraged weights",
}


def error(arrays: Arrays, reading: str, name: str) -> float:
    """Relative distance of an average from the solution."""
    target = np.asarray(arrays["target"], dtype=float)
    return float(np.linalg.norm(arrays[f"{reading}_v_{name}"] - target) / np.linalg.norm(target))


def _averages(axes: Sequence[Axes], arrays: Arrays, reading: str) -> None:
    for axis, (name, words) in zip(axes, AVERAGES.items(), strict=True):
        _show(axis, arrays[f"{reading}_v_{name}"], cmap="gray", vmin=0, vmax=1)
        axis.set_title(words)
        axis.set_xlabel(f"error {error(arrays, reading, name):.2f}", fontsize=9)


def _row(
    axes: Sequence[Axes],
    arrays: Arrays,
    extra: Sequence[str],
    reading: str,
    key: str,
    words: str,
    cmap: str,
    limits: tuple[float, float],
) -> None:
    names = {"noisy": "observed b", "target": "solution"}
    for j in range(4):
        _show(axes[j], arrays[f"{reading}_{key}"][j], cmap=cmap, vmin=limits[0], vmax=limits[1])
        axes[j].set_title(f"{words} {j + 1}")
    for axis, name in zip(axes[4:], extra, strict=False):
        _show(axis, arrays[name], cmap="gray", vmin=0, vmax=1)
        axis.set_title(names[name])
    if key == "W":  # beside the exact diagonal, the Lanczos estimate
        for axis, j in zip(axes[4:], range(3), strict=True):
            _show(axis, arrays[f"{reading}_W_lanczos"][j], cmap=cmap, vmin=limits[0], vmax=limits[1])
            axis.set_title(f"Lanczos weights {j + 1}")
    for axis in axes[4 + len(extra) :] if key != "W" else ():
        axis.set_visible(False)


def _picture(flat: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """(m,) as a displayable image; the mean over colours."""
    image = flat.reshape(shape)
    return image.mean(0) if image.ndim == 3 else image


def _show(axis: Axes, image: np.ndarray, **options: Any) -> AxesImage:
    axis.set_xticks([])
    axis.set_yticks([])
    return axis.imshow(np.asarray(image), interpolation="nearest", **options)


# One hue from light to dark: brightness is monotone, also for colour-blind readers.
SHADES = LinearSegmentedColormap.from_list("rows", ["#DFEBF5", "#7DB4D8", "#1F83BF", "#005A8F"])
NOBODY = "#FAFAFA"
BAR = "#8FA3B0"
# inches: the least height and width of a cell with a number in it, and the most of any picture
CELL = (0.21, 0.52)
TALLEST, WIDEST_FIGURE = 14.0, 16.0
# characters of a worker's or class's name that are shown
LETTERS = 18


def rows_per_class(table: PartitionTable, title: str = "Rows per class and worker") -> Figure:
    """A heat map of the table: a row per worker, a column per class, the numbers in the cells where they fit."""
    counts = np.array(table.counts, dtype=int).reshape(len(table.workers), len(table.classes))
    N, C = counts.shape
    if counts.size == 0:
        raise ValueError("There is nothing to draw: the table has no workers or no classes.")
    tall, wide = min(max(CELL[0], 0.42 - 0.007 * N) * N, TALLEST), min(CELL[1] * C, WIDEST_FIGURE)
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
    """Names on both axes; where they would overlap, every second, fifth, … one."""
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
