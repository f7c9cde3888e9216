"""Tables of seconds, growth and memory, from results/speed/*.json and the consensus step's file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import results as lines_of
import tables_base as base
from tables_base import Table, grid

GPU = "results/speed/h200.json"
VSTEP = "results/rounds/vstep-h200.json"
PROBLEMS = {
    "mnist-multinomial-mean": "MNIST multinomial, means",
    "mnist-multinomial-sum": "MNIST multinomial, sums",
    "mnist-elastic-mean": "MNIST elastic net, means",
    "mnist-svm": "MNIST SVM",
    "cifar10-multinomial-mean": "CIFAR-10 multinomial, means",
}


def _speed(file: str) -> Mapping[str, Any]:
    found = json.loads((base.ROOT / file).read_text(encoding="utf-8"))
    return {part: [r for r in rows if _whole(r)] if part != "about" else rows for part, rows in found.items()}


def _whole(row: Mapping[str, Any]) -> bool:
    return "error" not in row and "skipped" not in row


def _spoken(about: Mapping[str, Any]) -> str:
    return f"commit {about['commit']}; {about['date']}" + ("; with the image prior" if about.get("prior") else "")


def _number(x: float | None) -> str:
    """Two or three figures."""
    if x is None:
        return "–"
    return f"{x:.0f}" if x >= 99.5 else f"{x:.1f}" if x >= 0.995 else f"{x:.2g}"


def iteration(file: str) -> Table:
    found = _speed(file)
    head = ["workload", "default accuracy", "a tenth of the residual", "to 1e-6, or exact", "released", "plain"]
    rows = []
    for row in found["iteration"]:
        tight = row.get("to 1e-6", row.get("exact"))
        kinds = (row["default accuracy"], row["coarse"], tight, row["released"], row["plain"])
        rows.append([PROBLEMS[row["workload"]], *map(_number, kinds)])
    return Table(grid(head, rows), (file,), _spoken(found["about"]))


def seconds_to_gap() -> Table:
    who = {"auq-lr": "AUQ-LR", "lbfgs": "L-BFGS", "c-admm": "C-ADMM", "fista": "FISTA"}
    found = _speed(GPU)
    rows = []
    for row in found["gap"]:
        cells = ["" if w not in row else "> 20" if row[w] is None else _number(row[w]) for w in who]
        rows.append([PROBLEMS[row["workload"]], *cells])
    return Table(grid(["", *who.values()], rows), (GPU,), _spoken(found["about"]))


def growth() -> Table:
    found = _speed(GPU)
    points: dict[str, list[tuple[int, float]]] = {}
    for row in found["growth"]:
        points.setdefault(row["along"], []).append((row["value"], row["milliseconds"]))
    rows = []
    for along, measured in points.items():
        ends = measured[0], measured[-1]
        few, many = (f"{value:,}".replace(",", " ") for value, _ in ends)
        rows.append([along, f"{few} → {many}", " → ".join(_number(took) for _, took in ends)])
    return Table(grid(["", "from → to", "ms"], rows), (GPU,), _spoken(found["about"]))


def memory() -> Table:
    found = _speed(GPU)
    methods = {"c-admm": "C-ADMM", "auq-admm": "AUQ-ADMM", "auq-lr": "AUQ-LR"}
    peaks: dict[str, dict[str, float]] = {}
    for row in found["memory"]:
        if "method" in row:
            peaks.setdefault(row["workload"], {"data": row["data, MiB"]})[row["method"]] = row["peak, MiB"]
    rows = [[PROBLEMS[w], *(f"{per[k]:.0f}" for k in ("data", *methods))] for w, per in peaks.items()]
    return Table(grid(["", "data, MiB", *methods.values()], rows), (GPU,), _spoken(found["about"]))


def single() -> Table:
    found = _speed(GPU)
    head = ["workload", "float64, ms", "float32, ms", "gap of float32 after 30 rounds"]
    rows = [
        [PROBLEMS[r["workload"]], _number(r["float64, ms"]), _number(r["float32, ms"]), lines_of.gap(r["float32, gap"])]
        for r in found["single"]
    ]
    return Table(grid(head, rows), (GPU,), _spoken(found["about"]))


def vstep() -> Table:
    rows = json.loads((base.ROOT / VSTEP).read_text(encoding="utf-8"))
    head = ["workload", "unknowns", "rounds", "ms per round, all", "v-step", "with set-up", "MiB beyond what is held"]
    made = [
        [
            row["workload"],
            f"{row['unknowns']}",
            f"{row['rounds']}",
            f"{row['round_ms']:.0f}",
            f"{row['vstep_ms_median']:.1f} ({row['vstep_ms_max']:.1f})",
            f"{row['setup_ms_max']:.1f}",
            f"{row['peak_mib']:.0f}",
        ]
        for row in rows
    ]
    return Table(grid(head, made), (VSTEP,), "; ".join(dict.fromkeys(map(_spoken, rows))))
