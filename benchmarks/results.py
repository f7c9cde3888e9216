"""What a benchmark leaves behind: results.csv, the tables of results.md, run.json and the performance profile.

Reference: E. D. Dolan, J. J. Moré, Benchmarking optimization software with performance profiles, 2002.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

TARGETS = (1e-2, 1e-4, 1e-6)
TUNED = "c-admm-tuned"


@dataclass(frozen=True)
class Line:
    """One line of results.csv. Counters are empty where the target was not reached; `uplink` counts numbers."""

    workload: str
    method: str
    variant: str
    target: float
    rounds: int | None
    iterations: int | None
    bytes_up: int | None
    bytes_down: int | None
    uplink: int | None
    hvps: int | None
    seconds: float | None
    final_gap: float
    status: str
    message: str


# ---------------------------------------------------------------------- files
def write(out: Path, done: Sequence[Line], about: dict[str, Any] | None = None) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Line)])
        writer.writeheader()
        writer.writerows(asdict(line) for line in done)
    skipped = {} if about is None else about["skipped"]
    (out / "results.md").write_text(markdown(done, skipped), encoding="utf-8")
    if about is not None:
        (out / "run.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def read(paths: Sequence[Path]) -> list[Line]:
    """Lines of several results.csv; a later file replaces the same workload and method of an earlier one."""
    whole = {"rounds", "iterations", "bytes_up", "bytes_down", "uplink", "hvps"}
    real = {"target", "seconds", "final_gap"}

    def value(name: str, text: str) -> Any:
        if name in whole:
            return int(text) if text else None
        return (float(text) if text else None) if name in real else text

    found: dict[tuple[str, str, float], Line] = {}
    for path in paths:
        with path.open(newline="", encoding="utf-8") as file:
            for entry in csv.DictReader(file):
                line = Line(**{k: value(k, text) for k, text in entry.items()})
                found[line.workload, line.method, line.target] = line
    return list(found.values())


def markdown(done: Sequence[Line], skipped: dict[str, str]) -> str:
    last = {(line.workload, line.method): line for line in done if line.target == TARGETS[-1]}
    workloads = list(dict.fromkeys(w for w, _ in last))
    methods = list(dict.fromkeys(m for _, m in last))

    def table(title: str, cell: Callable[[Line], str]) -> str:
        head = f"| workload | {' | '.join(methods)} |\n|---|{'---:|' * len(methods)}\n"
        rows = "".join(
            f"| {w} | {' | '.join(cell(last[w, m]) if (w, m) in last else '' for m in methods)} |\n" for w in workloads
        )
        return f"## {title}\n\n{head}{rows}\n"

    def rounds(line: Line) -> str:
        if line.rounds is not None:
            return str(line.rounds) + (f" (ρ {line.variant.partition('=')[2]})" if line.variant else "")
        if line.status in ("max_rounds", "time_limit", "converged"):
            return f"– ({line.final_gap:.0e}{', time' if line.status == 'time_limit' else ''})"
        return line.status

    def uplink(line: Line) -> str:
        return "–" if line.uplink is None else f"{line.uplink / 1000:.1f}"

    text = "Relative objective gap; a dash: not reached, in brackets the gap at the end. c-admm-tuned is an oracle.\n\n"
    if done:
        text += table("Rounds to a gap of 1e-6", rounds)
        text += table("Uplink of one worker until then, in thousands of numbers", uplink)
    if skipped:
        text += "## Skipped\n\n" + "".join(f"- {name}: {why}\n" for name, why in skipped.items())
    return text


# ---------------------------------------------------------------------- the picture
STYLES = {
    "c-admm": ("#000000", "-"),
    "rb-admm": ("#E69F00", "-"),
    "ac-admm": ("#009E73", "-"),
    "uq-admm": ("#0072B2", "-"),
    "auq-admm": ("#56B4E9", "-"),
    "auq-lr": ("#D55E00", "-"),
    "auto": ("#D55E00", ":"),
    "lbfgs": ("#CC79A7", "-"),
    "lbfgs-w": ("#CC79A7", "-."),
    "owl-qn": ("#CC79A7", "--"),
    "fista": ("#CC79A7", ":"),
    TUNED: ("#777777", "--"),
}


def profile(done: Sequence[Line], path: Path) -> None:
    """Dolan and Moré's performance profile: the share of workloads solved within a factor of the best method.

    Only workloads on which every method was run count; one to which a method does not apply counts as not solved.
    """
    from matplotlib.figure import Figure

    ran = {(x.workload, x.method): x for x in done if x.target == TARGETS[-1] and x.status != "unavailable"}
    methods = list(dict.fromkeys(m for _, m in ran))
    workloads = [w for w in dict.fromkeys(w for w, _ in ran) if all((w, m) in ran for m in methods)]
    if not workloads:
        raise ValueError("There is no workload on which all methods were run: no profile can be drawn.")
    solved = {key: x.rounds for key, x in ran.items() if key[0] in workloads and x.rounds is not None}
    best: dict[str, int] = {}
    for (w, _), rounds in solved.items():
        best[w] = min(rounds, best.get(w, rounds))
    ratios = {m: sorted(solved[w, m] / best[w] for w in workloads if (w, m) in solved) for m in methods}
    end = 1.25 * max((r[-1] for r in ratios.values() if r), default=1.0)
    figure = Figure(figsize=(8.5, 4.6), layout="constrained")
    axes = figure.add_subplot()
    # the best at the end comes first in the legend
    for m in sorted(methods, key=lambda m: (-len(ratios[m]), ratios[m])):
        x = [1.0, *ratios[m], end]
        share = [k / len(workloads) for k in range(len(ratios[m]) + 1)]
        color, dashes = STYLES.get(m, ("#AAAAAA", "-."))
        label = f"{m}{' (oracle)' if m == TUNED else ''}: {len(ratios[m])} of {len(workloads)}"
        axes.step(x, [*share, share[-1]], where="post", color=color, linestyle=dashes, linewidth=2, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xlim(1, max(end, 2.0))
    axes.set_ylim(0, 1.03)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.set_xlabel("rounds to a gap of 1e-6, as a multiple of the best method's")
    axes.set_ylabel("share of workloads")
    axes.grid(color="#E3E3E3")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, title="method: workloads solved", alignment="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
