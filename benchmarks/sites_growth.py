"""Memory, files and threads of a coordinator and its sites over many small fits, which are processes of their own.

python -m benchmarks.sites_growth --runs 1000 --out results/sites/growth.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.sites_fits import Hospitals, about, fitted

import auqadmm as aq

EVERY = 50  # runs between two looks
METHODS = ("newton", "lbfgs")
ITERATIONS = 2  # of a fit, which is followed by its last verdict


def look(pid: int, folder: Path | None) -> dict[str, float]:
    """What a process has: MB of memory, threads, open files; and files of its folder, of which the audit grows."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    found: dict[str, float] = {
        "mb": round(int(status["VmRSS"].split()[0]) / 1024, 2),
        "threads": int(status["Threads"]),
        "open": len(os.listdir(f"/proc/{pid}/fd")),
    }
    if folder is not None:
        files = [path for path in folder.rglob("*") if path.is_file()]
        found |= {"files": len(files), "kb": round(sum(path.stat().st_size for path in files) / 1024, 1)}
    return found


def grown(table: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """From the second look, when all is loaded, to the last: by process."""
    first, last = table[1]["processes"], table[-1]["processes"]
    return {
        name: {what: round(value - first[name][what], 2) for what, value in now.items()} for name, now in last.items()
    }


def measured(place: Hospitals, runs: int) -> list[dict[str, Any]]:
    table = []
    with aq.Sites(place.folder / "sites.toml") as sites:
        for k in range(runs + 1):
            if k % EVERY == 0:
                found = {name: look(process.pid, place.state(name)) for name, process in place.processes.items()}
                found["coordinator"] = look(os.getpid(), None)
                table.append({"runs": k, "processes": found})
                sys.stderr.write(
                    f"{k} runs, coordinator {found['coordinator']}, {place.names[0]} {found[place.names[0]]}\n"
                )
            if k < runs:
                fitted(sites, METHODS[k % len(METHODS)], max_iter=ITERATIONS)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--masked", action="store_true")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Hospitals(Path(folder), given.sites, given.masked) as place:
        table = measured(place, given.runs)
    found = about(given.commit) | {
        "runs": given.runs, "sites": given.sites, "masked": given.masked, "methods": METHODS, "iterations": ITERATIONS,
        "seconds": round(time.monotonic() - began, 1), "grown": grown(table), "table": table,
    }  # fmt: skip
    text = json.dumps(found, indent=1) + "\n"
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text)
    sys.stdout.write(json.dumps(found["grown"]) + "\n")


if __name__ == "__main__":
    main()
