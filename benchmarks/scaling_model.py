"""Seconds to a gap of 1e-6 with N workers, from what was measured with 2 to 50 of them.

    time = rounds(N) · (compute + server(N) + link(a, d)) + parts(p)

A worker sends a bytes per round that are summed, receives d, and sends p bytes in the whole run that are put side by
side (AUQ-LR's directions and curvatures; p = 0 for all others). One hop takes ℓ seconds; a worker sends at u and
receives at w, the server and aggregators do both at S, and b = min(u, w):

    star    link = 2ℓ + max(a/u, N·a/S) + max(d/w, N·d/S)                          parts = max(p/u, N·p/S)
    tree    D = ⌈log_k N⌉ levels of aggregators with k = 32 children:
            link = 2Dℓ + max(a/u, ka/S) + max(d/w, kd/S) + (D−1)(ka/S + kd/S)      parts = max(p/u, N·p/S)
    ring    link = 2(N−1)(ℓ + a/(N·b))                                parts = renewals·(N−1)ℓ + (N−1)p/b

Nothing overlaps, nobody is late and nobody leaves.

`auq-lr-summed` does not exist: AUQ-LR whose parts could be added up on the way (a tree carries p like any other
message, and the server works as with two workers), at the same number of rounds.

Rounds: interpolated between the measured N, and beyond them R(50)·(N/50)^e. Sums with N = 50 are the workload
mnist-multinomial-sum-n50 of results/rounds/h200.csv. Gradient methods only see the sum over all workers, so e = 0. For
consensus methods e is fitted: to results/rounds/h200.csv, where the same rows are cut into 2 to 50 blocks, if that
workload is there; else to the measured runs. Never below 0.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

FAN_IN = 32
DECADES = (10, 50, 100, 1_000, 10_000, 100_000, 1_000_000)
LAST = 50  # workers in the largest problem that was solved
GRADIENT = ("lbfgs", "fista")
SUMMED = "auq-lr-summed"
STRONG = Path(__file__).resolve().parents[1] / "results" / "rounds" / "h200.csv"


@dataclass(frozen=True)
class Link:
    """`latency` of a hop in seconds; bits per second that a worker sends (`up`), receives (`down`), a server either."""

    name: str
    latency: float
    up: float
    down: float
    server: float = 10e9


LINKS = (
    Link("LAN", 1e-4, 10e9, 10e9),
    Link("WAN", 50e-3, 100e6, 100e6),
    Link("mobile", 100e-3, 10e6, 50e6),
)


@dataclass(frozen=True)
class Cost:
    """Of one method on one problem: functions of N, and seconds and bytes of one worker."""

    method: str
    rounds: Callable[[float], float]
    server: Callable[[float], float]
    compute: float
    up: float
    down: float
    parts: float = 0.0
    renewals: int = 0
    summed: bool = False  # are the parts added up on the way?


@dataclass(frozen=True)
class Time:
    """Seconds of a whole run, by what they are spent on."""

    compute: float
    server: float
    latency: float
    transfer: float
    parts: float

    @property
    def total(self) -> float:
        return self.compute + self.server + self.latency + self.transfer + self.parts


# ---------------------------------------------------------------------- topologies: (latency, transfer) of one round
def star(N: float, a: float, d: float, link: Link) -> tuple[float, float]:
    up, down = max(8 * a / link.up, 8 * N * a / link.server), max(8 * d / link.down, 8 * N * d / link.server)
    return 2 * link.latency, up + down


def tree(N: float, a: float, d: float, link: Link) -> tuple[float, float]:
    depth, k = levels(N), min(FAN_IN, N)
    inner = (depth - 1) * 8 * k * (a + d) / link.server
    last = max(8 * a / link.up, 8 * k * a / link.server) + max(8 * d / link.down, 8 * k * d / link.server)
    return 2 * depth * link.latency, last + inner


def ring(N: float, a: float, d: float, link: Link) -> tuple[float, float]:
    return 2 * (N - 1) * link.latency, 2 * (N - 1) / N * 8 * a / min(link.up, link.down)


def levels(N: float) -> int:
    """Of aggregators above N workers."""
    return max(1, math.ceil(math.log(N) / math.log(FAN_IN) - 1e-12))


TOPOLOGIES = {"star": star, "tree": tree, "ring": ring}


def side_by_side(N: float, cost: Cost, link: Link, topology: str) -> float:
    """Seconds for the parts of weights of all workers, in the whole run."""
    if cost.parts == 0:
        return 0.0
    if topology == "ring":
        if cost.summed:
            return ring(N, cost.parts, 0.0, link)[1]  # they travel in messages that are sent anyway
        gathered = (N - 1) * 8 * cost.parts / min(link.up, link.down)
        return cost.renewals * (N - 1) * link.latency + gathered
    if cost.summed and topology == "tree":
        return tree(N, cost.parts, 0.0, link)[1]
    return max(8 * cost.parts / link.up, 8 * N * cost.parts / link.server)


def time_of(N: float, cost: Cost, link: Link, topology: str) -> Time:
    rounds = cost.rounds(N)
    latency, transfer = TOPOLOGIES[topology](N, cost.up, cost.down, link)
    parts = side_by_side(N, cost, link, topology)
    return Time(rounds * cost.compute, rounds * cost.server(N), rounds * latency, rounds * transfer, parts)


# ---------------------------------------------------------------------- from measurements
def read(path: Path) -> list[dict[str, Any]]:
    """measured.csv with numbers as numbers, None where there is none."""

    def value(text: str) -> Any:
        try:
            return None if text == "" else float(text)
        except ValueError:
            return text

    with path.open(newline="", encoding="utf-8") as file:
        return [{k: value(x) for k, x in row.items()} for row in csv.DictReader(file)]


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """e of the law R ~ N^e through measured (N, R), by least squares of logarithms; 0 if they do not grow."""
    if len(points) < 2:
        return 0.0
    x, y = np.log(np.array(points, dtype=float)).T
    return max(0.0, float(np.polyfit(x, y, 1)[0]))


def same_rows(kind: str, method: str, path: Path = STRONG) -> list[tuple[float, float]]:
    """(N, rounds to 1e-6) of the same rows cut into N blocks, on the plain problem if that was run."""
    found = []
    rows = [row for row in (read(path) if path.is_file() else ()) if row["method"] == method and row["target"] == 1e-6]
    prior = None if any(not row.get("prior") for row in rows) else "image"
    for row in rows:
        if row["rounds"] and (row.get("prior") or None) == prior:
            name = str(row["workload"])
            if name == f"mnist-{kind}-iid":
                found.append((10.0, row["rounds"]))
            elif (tail := name.removeprefix(f"mnist-{kind}-n")) != name and tail.isdigit():
                found.append((float(tail), row["rounds"]))
    return sorted(found)


def costs(measured: Sequence[dict[str, Any]], kind: str) -> list[Cost]:
    """One for each method that reached 1e-6."""
    found = []
    for method in dict.fromkeys(row["method"] for row in measured if row["kind"] == kind):
        rows = sorted((r for r in measured if (r["kind"], r["method"]) == (kind, method)), key=lambda r: r["workers"])
        points = [(row["workers"], row["rounds_6"]) for row in rows if row["rounds_6"]]
        points += [(N, R) for N, R in same_rows(kind, method) if N == LAST > rows[-1]["workers"]]
        if len(points) < 2:
            continue
        e = 0.0 if method in GRADIENT else exponent(same_rows(kind, method) or points)
        last = rows[-1]
        line = _server(rows)
        made = Cost(
            method,
            _law(points, e),
            line if last["parts"] else _constant(line(last["workers"])),
            last["slowest"],
            last["summed"],
            last["down"],
            last["parts"],
            int(last["renewals"]),
        )
        found.append(made)
        if last["parts"]:
            found.append(replace(made, method=SUMMED, server=_constant(line(rows[0]["workers"])), summed=True))
    return found


def _law(points: Sequence[tuple[float, float]], e: float) -> Callable[[float], float]:
    x, y = np.log(np.array(points, dtype=float)).T
    return lambda N: float(np.exp(np.interp(math.log(N), x, y) + e * max(0.0, math.log(N) - x[-1])))


def _server(rows: Sequence[dict[str, Any]]) -> Callable[[float], float]:
    """Seconds per round: between measured N as measured, beyond them a line with the fitted slope, never falling."""
    N, seconds = (np.array([row[k] for row in rows]) for k in ("workers", "server"))
    slope = max(0.0, float(np.polyfit(N, seconds, 1)[0])) if len(N) > 1 else 0.0
    return lambda n: float(np.interp(n, N, seconds) + slope * max(0.0, n - N[-1]))


def _constant(x: float) -> Callable[[float], float]:
    return lambda _: x


# ---------------------------------------------------------------------- all of it
def modelled(measured: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per problem, link, topology, method and N."""
    found = []
    for kind in dict.fromkeys(str(row["kind"]) for row in measured):
        for cost in costs(measured, kind):
            for link in LINKS:
                for topology in TOPOLOGIES:
                    for N in DECADES:
                        time = time_of(N, cost, link, topology)
                        row: dict[str, Any] = {"kind": kind, "link": link.name, "topology": topology}
                        row |= {"method": cost.method, "workers": N, "rounds": cost.rounds(N), "seconds": time.total}
                        found.append(row | asdict(time))
    return found
