"""Tables of docs/scaling.md and docs/measurements.md in Markdown, from measured.csv, modelled.csv and links.csv."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scaling_model import LINKS, TOPOLOGIES, Cost, Link, costs, time_of

SHOWN = (10, 1_000, 100_000, 1_000_000)
NAMES = {
    "auq-lr": "AUQ-LR",
    "auq-lr-summed": "AUQ-LR, parts summed (not built)",
    "lbfgs": "L-BFGS",
    "fista": "FISTA",
    "c-admm": "C-ADMM",
}
Rows = Sequence[dict[str, Any]]


def tables(measured: Rows, modelled: Rows, links: Rows) -> dict[str, str]:
    """By name; the two pages hold each of them word for word."""
    return {
        "measured": _measured(measured),
        "modelled": _modelled(modelled),
        "spent": _spent(modelled),
        "wins": _wins(measured),
        "links": _links(links),
    }


def _measured(rows: Rows) -> str:
    head = [
        "problem",
        "method",
        "N",
        "rounds to 1e-6",
        "slowest block, ms",
        "server, ms",
        "KB up",
        "KB down",
        "parts, KB",
    ]
    lines = []
    for row in rows:
        gap = f"– [{row['gap']:.0e} after {row['rounds_done']:.0f}]"
        rounds = gap if row["rounds_6"] is None else f"{row['rounds_6']:.0f}"
        seconds = [f"{1e3 * row[k]:.1f}" for k in ("slowest", "server")]
        sizes = [f"{row['summed'] / 1e3:.0f}", f"{row['down'] / 1e3:.0f}", f"{row['parts'] / 1e3:.0f}"]
        kind = row["kind"].rpartition("-")[2]
        lines.append([f"{kind}s", NAMES[row["method"]], f"{row['workers']:.0f}", rounds, *seconds, *sizes])
    return _table(head, lines)


def _modelled(rows: Rows) -> str:
    head = ["problem", "link", "method", *(f"N = {_count(N)}" for N in SHOWN)]
    best: dict[tuple[str, str, str], dict[int, tuple[float, str]]] = {}
    for row in rows:
        per = best.setdefault((row["kind"], row["link"], row["method"]), {})
        found = (row["seconds"], row["topology"])
        per[int(row["workers"])] = min(found, per.get(int(row["workers"]), found))
    built: dict[tuple[str, str, int], float] = {}
    for (kind, link, method), per in best.items():
        for N in SHOWN:
            if method != "auq-lr-summed":
                built[kind, link, N] = min(per[N][0], built.get((kind, link, N), per[N][0]))
    lines = []
    for kind in dict.fromkeys(k for k, _, _ in best):
        for link in dict.fromkeys(l for _, l, _ in best):
            for method in (m for k, l, m in best if (k, l) == (kind, link)):
                cells = []
                for N in SHOWN:
                    seconds, topology = best[kind, link, method][N]
                    cell = f"{duration(seconds)} ({topology})"
                    cells.append(f"**{cell}**" if seconds == built[kind, link, N] else cell)
                lines.append([f"{kind.rpartition('-')[2]}s", link, NAMES[method], *cells])
    return _table(head, lines)


def _spent(rows: Rows) -> str:
    """On what a run over mobile links in a tree is spent."""
    shares = ("compute", "server", "latency", "transfer", "parts")
    head = ["method", "N", "rounds", *shares, "all"]
    lines = []
    for row in rows:
        chosen = (row["kind"], row["link"], row["topology"]) == ("multinomial-sum", "mobile", "tree")
        if chosen and row["method"] in ("auq-lr", "lbfgs") and row["workers"] in SHOWN:
            times = [duration(row[k]) for k in (*shares, "seconds")]
            lines.append([NAMES[row["method"]], _count(int(row["workers"])), f"{row['rounds']:.0f}", *times])
    return _table(head, lines)


def _wins(measured: Rows) -> str:
    """The N up to which AUQ-LR is the fastest, every method in its best topology."""
    head = ["problem", "server", *(link.name for link in LINKS)]
    lines = []
    for kind in dict.fromkeys(str(row["kind"]) for row in measured):
        found = {cost.method: cost for cost in costs(measured, kind) if not cost.summed}
        ours = found.pop("auq-lr")
        idle = replace(ours, server=lambda N: 0.0)
        for name, cost in (("as measured", ours), ("takes no time", idle)):
            cells = [_reach(cost, list(found.values()), link) for link in LINKS]
            lines.append([f"{kind.rpartition('-')[2]}s", name, *cells])
    return _table(head, lines)


def _reach(ours: Cost, others: Sequence[Cost], link: Link) -> str:
    def best(cost: Cost, N: float) -> float:
        return min(time_of(N, cost, link, topology).total for topology in TOPOLOGIES)

    last = 0.0
    for N in np.logspace(1, 6, 101):
        if best(ours, N) >= min(best(cost, N) for cost in others):
            break
        last = N
    return "never" if last == 0 else _count(int(float(f"{last:.1g}")))


def _links(rows: Rows) -> str:
    head = ["method", "KB summed per round", "parts, KB in all", "no limit, s", "limited, s", "predicted, s"]
    free = {row["method"]: row["seconds_per_round"] for row in rows if row["mbit"] is None}
    lines = []
    for row in (row for row in rows if row["mbit"] is not None):
        sizes = [f"{row['summed_bytes'] / row['rounds'] / 1e3:.0f}", f"{row['parts_bytes'] / 1e3:.0f}"]
        seconds = [f"{x:.3f}" for x in (free[row["method"]], row["seconds_per_round"], row["predicted"])]
        lines.append([NAMES[row["method"]], *sizes, *seconds])
    return _table(head, lines)


def duration(seconds: float) -> str:
    """Two figures, in seconds, minutes, hours or days."""
    units = ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600), (float("inf"), "d", 86400))
    unit, size = next((unit, size) for limit, unit, size in units if seconds < limit)
    x = seconds / size
    return f"{x:.0f} {unit}" if x >= 9.95 else f"{x:.1f} {unit}" if x >= 0.995 else f"{x:.2f} {unit}"


def _count(N: int) -> str:
    return f"{N:,}".replace(",", " ")


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    texts = ("problem", "link", "method", "server") if "problem" in head else ("method",)
    rule = ["---" if name in texts else "---:" for name in head]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *lines)) + "\n"
