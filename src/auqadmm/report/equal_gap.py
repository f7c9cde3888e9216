"""A comparison at equal gap as a picture, as rows of a table and as values for files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from auqadmm.comparison.equal_gap import COUNTED, Comparison, Entry, curve
from auqadmm.report.style import COSTS, RC, method_style
from auqadmm.report.tables import MISSING, power, versions, whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

AXES = {name: COSTS[name] for name in ("rounds", "bytes")}
HEADERS = ("\nmethod", "\nit.", "\nrounds", "\nbytes", "Hessian\nproducts", "\nseconds", "\nresult")
COLUMNS = ("method", "status", "iterations", *COUNTED, "gap", "best_in", "note")
WON = " ◀"
MARKED = ("rounds", "bytes", "seconds")  # not Hessian products: gradient methods take none, which is no merit
# below this a gap is the rounding of the optimum
GAP_SMALLEST = 1e-11
GAP_MARKERS = 7  # per curve


def table(comparison: Comparison) -> list[list[str]]:
    """One list of cells per method, under `HEADERS`; the least of each column is marked, and the winner's name."""
    winner = comparison.winner
    rows = []
    for entry in comparison.entries:
        name = method_style(entry.method).label + (WON if entry is winner else "")
        if entry.at is None:
            rows.append([name, *[MISSING] * (len(COUNTED) + 1), outcome(entry, comparison.gap)])
            continue
        counts = [_cell(comparison, entry, name) for name in COUNTED]
        rows.append([name, str(entry.at.iteration), *counts, outcome(entry, comparison.gap)])
    return rows


def _cell(comparison: Comparison, entry: Entry, name: str) -> str:
    value = getattr(entry.at, name)
    text = f"{value:.3g}" if name == "seconds" else f"{value:,}".replace(",", " ")
    return f"{text} *" if name in MARKED and value == comparison.least(name) else text


def outcome(entry: Entry, gap: float) -> str:
    """The progress of the method."""
    if entry.at is not None:
        return f"within {power(gap)}"
    gaps = None if entry.run is None else entry.run.gaps
    if gaps is None or not np.isfinite(gaps).any():
        return entry.status
    return f"{entry.status} at {np.nanmin(gaps):.1e}"


def verdict(comparison: Comparison) -> str:
    """One sentence: who needed least of what."""
    winner = comparison.winner
    if winner is None or winner.at is None:
        return f"No method came within {power(comparison.gap)} of the optimum; raise --max-iter or --gap."
    parts = [f"Fewest rounds to a gap of {power(comparison.gap)}: {method_style(winner.method).label}"]
    parts[0] += f" ({winner.at.rounds})"
    for name, words in (("bytes", "fewest bytes"), ("seconds", "least time")):
        least = next(e for e in comparison.reached if getattr(e.at, name) == comparison.least(name))
        parts.append(f"{words}: {method_style(least.method).label}")
    return "; ".join(parts) + "."


# ---------------------------------------------------------------------- files
def write_csv(path: Path, comparison: Comparison) -> Path:
    """One line per method; counters are those at the gap, empty where it was not reached."""
    with whole(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(_values(comparison, entry) for entry in comparison.entries)
    return path


def _values(comparison: Comparison, entry: Entry) -> dict[str, Any]:
    best = [name for name in MARKED if entry.at and getattr(entry.at, name) == comparison.least(name)]
    gaps = None if entry.run is None else entry.run.gaps
    values: dict[str, Any] = {"method": entry.method, "status": entry.status, "note": entry.note}
    values |= {"gap": None if gaps is None or not len(gaps) else float(gaps[-1]), "best_in": ";".join(best)}
    if entry.at is not None:
        values |= {"iterations": entry.at.iteration} | {name: getattr(entry.at, name) for name in COUNTED}
    return values


def summary(comparison: Comparison) -> dict[str, Any]:
    """Everything as plain values, the curves included."""
    entries = []
    for entry in comparison.entries:
        curves = {} if entry.run is None else {"curve": curve(entry.run)}
        entries.append(_values(comparison, entry) | curves)
    winner = comparison.winner
    return {
        "gap": comparison.gap,
        "optimum": comparison.best.objective,
        "optimum_from": comparison.best.how,
        "winner": None if winner is None else winner.method,
        "methods": entries,
        "versions": versions(),
    }


# ---------------------------------------------------------------------- picture
def figure(comparison: Comparison, title: str) -> Figure:
    """Relative objective gap against rounds and bytes, both axes logarithmic; a line at the gap."""
    shown = [entry for entry in comparison.entries if entry.run is not None and len(entry.run.result.history)]
    with matplotlib.rc_context(RC):
        drawing = Figure(figsize=(10.0, 4.6), layout="constrained")
        axes = drawing.subplots(1, len(AXES), sharey=True)
        handles = {}
        for axis, (name, label) in zip(axes, AXES.items(), strict=True):
            for k, entry in enumerate(shown):
                handles[entry.method] = _curve(axis, entry, name, k / len(shown))
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


def _curve(axis: Axes, entry: Entry, name: str, shift: float) -> Line2D:
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
        markevery=_spread(xs, shift),
        markeredgecolor="white",
        markeredgewidth=0.6,
    )
    return line


def _spread(xs: np.ndarray, shift: float) -> list[int]:
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
