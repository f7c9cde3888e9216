"""The picture of docs/scaling.md: time to a gap of 1e-6 against the number of workers, one panel per link.

Colour is the method, the kind of line the topology. Upper row: the hard problem; lower row: the easy one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scaling_model import LAST, LINKS, SUMMED, TOPOLOGIES, Cost, Link, costs, time_of

from auqadmm.methods.auq_lr.method import DIRECTIONS_BYTES

DASHES: dict[str, Any] = {"star": "-", "tree": (0, (5, 2)), "ring": (0, (1, 1.6))}
TITLES = {"multinomial-sum": "sums over rows (hard)", "multinomial-mean": "means over rows (easy)"}
FEATURES = 784
FREE = "auq-lr-free"
WISHES = {FREE: "free server*", SUMMED: "parts summed*"}  # AUQ-LR as it is not; thin lines, trees only
SECONDS = ((1.0, "1 s"), (60.0, "1 min"), (3600.0, "1 h"), (86400.0, "1 day"))


def picture(measured: Sequence[dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from auqadmm.report.style import RC

    kinds = list(dict.fromkeys(str(row["kind"]) for row in measured))
    with mpl.rc_context(RC):
        figure = Figure(figsize=(13.5, 4.3 * len(kinds) + 0.7), layout="constrained")
        grid = figure.subplots(len(kinds), len(LINKS), sharex=True, sharey="row", squeeze=False)
        for axes_row, kind in zip(grid, kinds, strict=True):
            found = costs(measured, kind)
            room = _room([row for row in measured if row["kind"] == kind])
            for axes, link in zip(axes_row, LINKS, strict=True):
                _panel(axes, found, link, room)
                axes.set_title(f"{link.name}: {_words(link)}", fontsize=10.5)
            axes_row[0].set_ylabel(f"MNIST softmax, {TITLES.get(kind, kind)}\ntime to a gap of 1e-6")
        for axes in grid[-1]:
            axes.set_xlabel("workers, 400 rows each")
        _key(figure)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)


def _panel(axes: Any, found: Sequence[Cost], link: Link, room: float) -> None:
    N = np.logspace(1, 6, 101)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.axvspan(10, LAST, color="#EFEFEF", zorder=0)
    ends: list[tuple[float, str, str]] = []
    free = [replace(cost, method=FREE, server=lambda n: 0.0) for cost in found if cost.method == "auq-lr"]
    for cost in [*found, *free]:
        style = _style(cost.method)
        thin = cost.method in WISHES
        for topology, dash in DASHES.items():
            if thin and topology != "tree":
                continue
            y = np.array([time_of(n, cost, link, topology).total for n in N])
            limited = bool(cost.parts) and not cost.summed
            near = room >= N if limited else np.full(N.shape, True)
            width = 1.1 if thin else 1.9
            axes.plot(N[near], y[near], color=style.color, linestyle=dash, linewidth=width)
            # beyond what the server has room for: paler, since the method would keep fewer directions
            axes.plot(N[~near], y[~near], color=style.color, linestyle=dash, linewidth=width, alpha=0.45)
            if topology == "tree":
                ends.append((y[-1], style.label, style.color))
                if limited and not thin:
                    axes.plot(N[near][-1:], y[near][-1:], marker="x", color=style.color, markersize=7, mew=2)
    axes.set_xlim(10, 1e6)
    axes.set_ylim(_lowest(found) / 2, 2e6)
    axes.set_yticks([s for s, _ in SECONDS], [name for _, name in SECONDS])
    axes.set_yticks([], minor=True)
    _labels(axes, ends)


def _lowest(found: Sequence[Cost]) -> float:
    """The same for all links, so that panels can be compared."""
    return min(time_of(10, cost, link, topology).total for cost in found for link in LINKS for topology in TOPOLOGIES)


def _labels(axes: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names at the right ends of the trees' lines, moved apart where they would touch."""
    low, high = np.log10(axes.get_ylim())
    at = -np.inf
    for y, label, color in sorted(ends):
        at = max(min((np.log10(y) - low) / (high - low), 0.96), at + 0.048)
        axes.annotate(
            label,
            xy=(1.0, at),
            xycoords="axes fraction",
            xytext=(4, 0),
            textcoords="offset points",
            color=color,
            fontsize=8.5,
            va="center",
            annotation_clip=False,
        )


def _key(figure: Any) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    grey = "#444444"
    lines = [Line2D([], [], color=grey, linestyle=dash, label=name) for name, dash in DASHES.items()]
    lines[1].set_label("tree, 32 children each (names at its ends)")
    limit = "room for directions ends (paler beyond)"
    lines.append(Line2D([], [], color=grey, marker="x", linestyle="", mew=2, label=limit))
    lines.append(Line2D([], [], linestyle="", label="* AUQ-LR as it is not: thin lines, see the text"))
    figure.legend(
        handles=[*lines, Patch(color="#EFEFEF", label="rounds measured; right of it extrapolated")],
        loc="outside lower center",
        ncols=3,
        fontsize=9,
    )


def _style(method: str) -> Any:
    from auqadmm.report.style import method_style

    return replace(method_style("auq-lr"), label=WISHES[method]) if method in WISHES else method_style(method)


def _room(rows: Sequence[dict[str, Any]]) -> float:
    """N beyond which the server keeps fewer directions per worker than were used."""
    used = [row for row in rows if row["directions"]]
    if not used:
        return np.inf
    return min(DIRECTIONS_BYTES / (8 * FEATURES * row["directions"]) for row in used)


def _words(link: Link) -> str:
    rate = "10 Gbit/s" if link.up >= 1e9 else f"{link.up / 1e6:g} Mbit/s up, {link.down / 1e6:g} down"
    return f"{link.latency * 1e3:g} ms, {rate}"
