"""speed.json as tables and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def table(found: Mapping[str, Any]) -> str:
    """One Markdown table per part."""
    about = ", ".join(f"{key} {value}" for key, value in found["about"].items())
    lines = [f"# Speed\n\n{about}"]
    for part, rows in found.items():
        if part == "about" or not rows:
            continue
        names = list(dict.fromkeys(name for row in rows for name in row))
        lines.append(f"\n## {part}\n\n| {' | '.join(names)} |\n|{'---|' * len(names)}")
        lines += ["| " + " | ".join(_cell(row.get(name)) for name in names) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}".replace(",", " ")
    return str(value)


def picture(found: Mapping[str, Any], path: Path) -> None:
    """Left: one iteration, ours and the released loop. Right: how an iteration grows."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    rows = [row for row in found.get("iteration", []) if "plain" in row]
    kinds = {"plain": "#999999", "released": "#d55e00", "to 1e-6": "#0072b2", "exact": "#0072b2"}
    kinds["default accuracy"] = "#009e73"
    for i, row in enumerate(rows):
        for kind, colour in kinds.items():
            if kind in row:
                left.plot(row[kind], i, "o", color=colour, markersize=8)
                above = -14 if kind == "default accuracy" else 7  # the two of ours are often neighbours
                text = {"textcoords": "offset points", "ha": "center", "size": 8}
                left.annotate(_cell(row[kind]), (row[kind], i), (0, above), **text)
    left.set(xscale="log", xlabel="milliseconds per outer iteration of C-ADMM", yticks=range(len(rows)))
    left.set_yticklabels([row["workload"] for row in rows])
    left.margins(x=0.15, y=0.2)
    names = {
        "plain": "released loop, block by block",
        "released": "released loop, batched",
        "to 1e-6": "ours, ‖∇F‖ ≤ 1e-6 (or exact)",
        "default accuracy": "ours, default",
    }
    handles = [plt.Line2D([], [], marker="o", ls="", color=kinds[kind], label=name) for kind, name in names.items()]
    below = {"frameon": False, "fontsize": 8, "loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": 2}
    left.legend(handles=handles, **below)
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in found.get("growth", []):
        if "milliseconds" in row:
            curves.setdefault(row["along"], []).append((row["value"], row["milliseconds"]))
    for (name, points), marker, colour in zip(
        curves.items(), "osD^v", ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"), strict=False
    ):
        right.plot(*zip(*points, strict=True), marker=marker, color=colour, label=name)
    right.set(xscale="log", yscale="log", xlabel="blocks, features, rows or rank", ylabel="milliseconds per iteration")
    if curves:
        right.legend(**below)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    figure.suptitle(found["about"]["device"], fontsize=10)
    figure.savefig(path, dpi=150)
    plt.close(figure)
