"""What a benchmark leaves behind: results.csv, the tables of results.md, run.json and the performance profile.

Reference: E. D. Dolan, J. J. Moré, Benchmarking optimization software with performance profiles, 2002.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

TARGETS = (1e-2, 1e-4, 1e-6)
TUNED = "c-admm-tuned"
ENDED = ("max_rounds", "time_limit", "converged")  # without the gap, but in the ordinary way


@dataclass(frozen=True)
class Line:
    """One line of results.csv. Counters are empty where the target was not reached; `uplink` counts numbers,
    `rounds_done` all rounds of the run. `prior`: "image" where the problem said that its features are pixels, else
    empty. `commit` and `date`: of the code, and of the run."""

    workload: str
    method: str
    prior: str
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
    rounds_done: int
    status: str
    message: str
    commit: str
    date: str

    @property
    def label(self) -> str:
        return f"{self.method}, {self.prior}" if self.prior else self.method


# ---------------------------------------------------------------------- files
def write(out: Path, done: Sequence[Line], about: dict[str, Any] | None = None) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "results.csv", done)
    skipped = {} if about is None else about["skipped"]
    (out / "results.md").write_text(markdown(done, skipped), encoding="utf-8")
    if about is not None:
        (out / "run.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def write_csv(path: Path, done: Sequence[Line]) -> None:
    """The whole file at once, under another name until it is complete."""
    part = path.with_suffix(".part")
    with part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Line)], lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: _short(x) for k, x in asdict(line).items()} for line in done)
    part.replace(path)


def _short(x: Any) -> Any:
    return f"{x:.4g}" if isinstance(x, float) else x


def read(paths: Sequence[Path]) -> list[Line]:
    """Lines of several results.csv; a later file replaces the same workload, method and prior of an earlier one."""
    whole = {"rounds", "iterations", "bytes_up", "bytes_down", "uplink", "hvps", "rounds_done"}
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
                found[line.workload, line.label, line.target] = line
    return list(found.values())


# ---------------------------------------------------------------------- tables
def thousands(numbers: int) -> str:
    """In thousands: 0.3, 4.2, 31, 4720."""
    x = numbers / 1000
    return f"{x:.0f}" if x >= 9.95 else f"{x:.1f}"


def cell(line: Line | None) -> str:
    """Rounds, and in brackets the numbers that one worker sent; or how the run ended. Empty: not run."""
    if line is None:
        return ""
    if line.rounds is not None:
        assert line.uplink is not None
        return f"{line.rounds} ({thousands(line.uplink)})"
    if line.status in ENDED:
        return f"– [{gap(line.final_gap)} after {line.rounds_done}]"
    return "n/a" if line.status == "not applicable" else line.status


def gap(x: float) -> str:
    """One figure: 4e-4."""
    mantissa, _, exponent = f"{x:.0e}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def last_lines(done: Sequence[Line]) -> dict[tuple[str, str], Line]:
    """(workload, label) → the line of the smallest gap."""
    return {(line.workload, line.label): line for line in done if line.target == TARGETS[-1]}


def markdown(done: Sequence[Line], skipped: dict[str, str]) -> str:
    last = last_lines(done)
    workloads = list(dict.fromkeys(w for w, _ in last))
    methods = list(dict.fromkeys(m for _, m in last))

    def shown(line: Line | None) -> str:
        rho = line.variant.partition("=")[2] if line is not None and line.rounds is not None else ""
        return cell(line) + (f" ρ {rho}" if rho else "")

    text = "Rounds to a relative objective gap of 1e-6; in brackets the numbers that one worker sent, in thousands.\n"
    text += "A dash: not reached; the gap at the end and the rounds taken. c-admm-tuned is an oracle.\n\n"
    if done:
        text += f"| workload | {' | '.join(methods)} |\n|---|{'---:|' * len(methods)}\n"
        for w in workloads:
            text += f"| {w} | {' | '.join(shown(last.get((w, m))) for m in methods)} |\n"
    if skipped:
        text += "\n## Skipped\n\n" + "".join(f"- {name}: {why}\n" for name, why in skipped.items())
    return text


# ---------------------------------------------------------------------- the picture
DASHES = {"auto": ":", "lbfgs": "--", "lbfgs-50": "-.", "lbfgs-w": "--", "owl-qn": "--", "fista": "--", TUNED: ":"}
NAMES = {TUNED: "C-ADMM, best ρ (oracle)", "lbfgs-50": "L-BFGS, 50 pairs", "newton": "Newton", "gram": "Gram"}
COLORS = {TUNED: "#999999", "lbfgs-50": "#56B4E9", "newton": "#117733", "gram": "#882255"}


def name_of(label: str) -> str:
    """A method and its prior, as people read them."""
    from auqadmm.report.style import method_style

    method, _, prior = label.partition(", ")
    return NAMES.get(method, method_style(method).label) + (f", {prior}" if prior else "")


def profile(done: Sequence[Line], path: Path) -> None:
    """Dolan and Moré's performance profile: the share of workloads solved within a factor of the best method.

    Only workloads on which every method was run count; one to which a method does not apply counts as not solved.
    """
    from matplotlib.figure import Figure

    from auqadmm.report.style import method_style

    ran = {key: x for key, x in last_lines(done).items() if x.status != "unavailable"}
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
        method, _, prior = m.partition(", ")
        color = COLORS.get(method, method_style(method).color)
        dashes = ":" if prior else DASHES.get(method, "-")
        label = f"{name_of(m)}: {len(ratios[m])} of {len(workloads)}"
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
