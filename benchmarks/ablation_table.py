"""The tables of `ablation.py`, in Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablation_patch import Switch
from results import TARGETS

BASE = "baseline"
HEAD = ("switch", "runs", "rounds", "seconds", "products", "numbers", "worst", "best", "failed", "unchanged", "lines")
Row = dict[str, Any]


def read(files: Sequence[Path]) -> list[Row]:
    found: dict[tuple[str, ...], Row] = {}
    for file in files:
        for row in json.loads(file.read_text(encoding="utf-8"))["rows"]:
            found[row["method"], row["switch"], row["workload"], row["prior"]] = row
    return list(found.values())


def table(files: Sequence[Path], switches: Sequence[Switch]) -> str:
    """Per switch: geometric means of ratios to the baseline at the smallest gap that the baseline reached (as a rule
    1e-6), over the cases that both reached; the case with the largest and the smallest ratio of rounds (of products
    for C-ADMM, whose rounds stay the same); cases that only the baseline solved; and those in which nothing changed."""
    rows = read(files)
    base = {(row["method"], row["workload"], row["prior"]): row for row in rows if row["switch"] == BASE}
    lines = []
    for switch in switches:
        pairs = [
            (base[key], row)
            for row in rows
            if row["switch"] == switch.name and (key := (row["method"], row["workload"], row["prior"])) in base
        ]
        if pairs:
            lines.append(_line(switch, [p for p in pairs if p[0]["at"]]))
    rule = ["---"] + ["---:"] * (len(HEAD) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (HEAD, rule, *lines))


def _line(switch: Switch, pairs: Sequence[tuple[Row, Row]]) -> list[str]:
    ranked = "rounds" if switch.method == "auq-lr" else "hvps"
    ratios: dict[str, dict[str, float]] = {name: {} for name in ("rounds", "seconds", "hvps", "numbers")}
    failed, unchanged, absent = [], 0, 0
    for before, after in pairs:
        target = next(t for t in map("{:g}".format, reversed(TARGETS)) if t in before["at"])
        label = after["workload"] + (f", {after['prior']}" if after["prior"] else "")
        if after["status"] == "not reached":
            absent += 1
            continue
        if target not in after["at"]:
            failed.append(f"{label} ({after['status'].replace('_', ' ')}, {after['gap']:.0e})")
            continue
        unchanged += _same(before, after)
        for name, found in ratios.items():
            old, new = before["at"][target][name], after["at"][target][name]
            if old > 0 and new > 0:
                found[label] = new / old
    means = [_mean(ratios[name].values()) for name in ("rounds", "seconds", "hvps", "numbers")]
    order = sorted(ratios[ranked].items(), key=lambda item: item[1])
    ends = [f"{order[k][0]} {order[k][1]:.2f}" for k in (-1, 0)] if order else ["", ""]
    count = f"{len(pairs) - absent}" + (f" ({absent} not met)" if absent else "")
    return [switch.name, count, *means, *ends, "; ".join(failed), str(unchanged), str(switch.lines)]


def _same(before: Row, after: Row) -> bool:
    """The same rounds, numbers, products and gap, to the last digit: the run did not notice."""

    def kept(row: Row) -> Any:
        at = {t: {k: x for k, x in counts.items() if k != "seconds"} for t, counts in row["at"].items()}
        return at, row["gap"], row["rounds_done"]

    return kept(before) == kept(after)


def _mean(ratios: Any) -> str:
    logs = [math.log(x) for x in ratios]
    return f"{math.exp(sum(logs) / len(logs)):.2f}" if logs else ""


def catalogue(switches: Sequence[Switch]) -> str:
    head = ("switch", "what is off", "code", "lines")
    rows = [(s.name, s.off, s.code, str(s.lines)) for s in switches]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---", "---", "---", "---:"), *rows))
