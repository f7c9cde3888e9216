"""What a round over sites costs on this machine, each site a process of its own, over TLS.

    python -m benchmarks.sites_rounds 4 50 --fits --out results/sites/rounds.json

Two measurements. *Messages*: a 64×10 array out, the same size back, and the sum; milliseconds of a round, and of
processor time per message at either end, which other work on the machine hardly changes. *Fits*: the time of a real fit
over four sites less that of the same fit in this process, per call.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.sites_fits import Hospitals, about, fitted, posed, rows
from tests.sites.places import Place, place

import auqadmm as aq
from auqadmm.sites.hub import Hub

WARM = 20  # rounds until connections are open and code is loaded
REPEATS = 7  # of a fit
METHODS = ("newton", "auq-lr")


def spent(pids: Iterable[int]) -> float:
    """Seconds of processor time of these processes."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def messages(made: Place, rounds: int) -> dict[str, float]:
    """Milliseconds of a round, and of processor time per message."""
    body, count = np.random.default_rng(0).standard_normal((64, 10)).tobytes(), len(made.names)
    with made.hub() as hub:
        hub.wait(made.names, 300)
        hub.begin("x", made.names, 120)
        pids = [process.pid for process in made.processes.values()]
        taken = []
        for k in range(rounds + WARM):
            if k == WARM:
                own, theirs = time.process_time(), spent(pids)
            began = time.perf_counter()
            found = hub.call(dict.fromkeys(made.names, body))
            parts = [np.frombuffer(x) for x in found.values() if isinstance(x, bytes)]
            assert len(parts) == count
            np.sum(parts, axis=0)
            if k >= WARM:
                taken.append(1000 * (time.perf_counter() - began))
        own, theirs = time.process_time() - own, spent(pids) - theirs
    taken.sort()
    return {
        "median": round(statistics.median(taken), 2),
        "p95": round(taken[int(0.95 * len(taken))], 2),
        "least": round(taken[0], 2),
        "cpu_coordinator": round(1000 * own / rounds / count, 3),
        "cpu_site": round(1000 * theirs / rounds / count, 3),
    }


def of_messages(count: int, rounds: int) -> dict[str, float]:
    names = [f"site{k:03d}" for k in range(count)]
    with tempfile.TemporaryDirectory() as folder, place(Path(folder), names, quiet=30.0) as made:
        for name in names:
            made.start(name)
        return {"sites": count, "rounds": rounds, **messages(made, rounds), "load": round(os.getloadavg()[0], 1)}


class Counted:
    """Counts the calls of a hub."""

    def __init__(self) -> None:
        self.calls, self.plain = 0, Hub.call

    def __enter__(self) -> Counted:
        def call(hub: Hub, *args: Any, **options: Any) -> Any:
            self.calls += 1
            return self.plain(hub, *args, **options)

        Hub.call = call  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        Hub.call = self.plain  # type: ignore[method-assign]


def of_fits(masked: bool) -> list[dict[str, Any]]:
    """Milliseconds per call of fits over four sites, less those of the same fits here."""
    methods = METHODS[: 1 if masked else None]  # masks leave no room for weights of one site
    with (
        tempfile.TemporaryDirectory() as folder,
        Hospitals(Path(folder), 4, masked) as hospitals,
        aq.Sites(hospitals.folder / "sites.toml") as sites,
    ):
        return [{"method": method, "masked": masked, **compared(sites, method)} for method in methods]


def compared(sites: aq.Sites, method: str) -> dict[str, float]:
    fitted(sites, method)
    there, calls = [], 0
    for _ in range(REPEATS):
        with Counted() as counted:
            began = time.perf_counter()
            fitted(sites, method)
            there.append(1000 * (time.perf_counter() - began) / counted.calls)
            calls = counted.calls
    here = [1000 * seconds / calls for seconds in local(method)]
    return {
        "calls": calls,
        "sites": round(statistics.median(there), 2),
        "local": round(statistics.median(here), 2),
        "overhead": round(statistics.median(there) - statistics.median(here), 2),
        "overhead_least": round(min(there) - min(here), 2),
        "load": round(os.getloadavg()[0], 1),
    }


def local(method: str) -> list[float]:
    """Seconds of the same fit in this process."""
    blocks = []
    for frame in (rows(k) for k in range(4)):
        blocks.append((frame.drop(columns="sick").to_numpy(), (frame.sick == "yes").to_numpy().astype(int)))
    taken = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        aq.solve(posed(blocks), method)
        taken.append(time.perf_counter() - began)
    return taken[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sites", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--fits", action="store_true")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = about(given.commit) | {"unit": "ms", "messages": [of_messages(n, given.rounds) for n in given.sites]}
    if given.fits:
        found["fits"] = [*of_fits(masked=False), *of_fits(masked=True)]
    text = json.dumps(found, indent=1) + "\n"
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
