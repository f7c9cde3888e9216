"""From ten workers to a million, on paper: time to a gap of 1e-6 on three kinds of links, by method and topology.

    python benchmarks/scaling.py measure        rounds, bytes, processor seconds for N = 2 … 50 → measured.csv (minutes)
    python benchmarks/scaling.py model          formulas of scaling_model.py, N = 10 … 10⁶      → modelled.csv
    python benchmarks/scaling.py table          the tables of docs/scaling.md, from both
    python benchmarks/scaling.py plot           docs/images/scaling.png, from measured.csv

What is measured is in scaling_measure.py. Files go to results/scaling (--out). docs/scaling.md says what to make of it.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "scaling.png"


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{x:.6g}" if isinstance(x, float) else x for k, x in row.items()} for row in rows)


def measure(out: Path, kinds: Sequence[str], workers: Sequence[int], limit: float) -> None:
    """Run everything; the file is written after each run, so that an interrupt loses little."""
    from rounds import Budget, environment
    from scaling_measure import measure_all

    about = environment(Budget(2000, limit, "cpu"))
    done: list[dict[str, Any]] = []
    began = time.perf_counter()

    def tell(row: dict[str, Any]) -> None:
        done.append(row)
        write(out / "measured.csv", done)
        print(json.dumps(row), flush=True)

    measure_all(tuple(kinds), tuple(workers), 2000, limit, tell)
    about |= {"threads": 1, "seconds": round(time.perf_counter() - began)}
    (out / "run.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["measure", "model", "table", "plot"])
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "scaling")
    parser.add_argument("--kinds", nargs="+", default=["multinomial-sum", "multinomial-mean"])
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 5, 10, 20, 50])
    parser.add_argument("--max-seconds", type=float, default=400.0, help="of each run")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    given = parser.parse_args(arguments)
    if given.action == "measure":
        measure(given.out, given.kinds, given.workers, given.max_seconds)
        return 0
    source = given.out / "measured.csv"
    if not source.is_file():
        parser.error(f"{source} is missing: `python benchmarks/scaling.py measure` makes it.")
    from scaling_model import modelled, read

    measured = read(source)
    if given.action == "model":
        write(given.out / "modelled.csv", modelled(measured))
    elif given.action == "table":
        from scaling_tables import tables

        modelled_rows, links = (read(given.out / name) for name in ("modelled.csv", "links.csv"))
        print("\n".join(tables(measured, modelled_rows, links).values()), end="")
    else:
        from scaling_plot import picture

        picture(measured, given.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
