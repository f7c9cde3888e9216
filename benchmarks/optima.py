"""The optimum of each workload, kept in optima.json: by methods that have nothing to do with ADMM, and certified.

An optimum is kept when its relative KKT residual is at most 1e-9, as the library's certificate defines it; the
duality gap beside it bounds how far the objective can be off. How they are found: `auqadmm/paper/optimum.py`.

    python benchmarks/optima.py --workloads 'mnist-*' --device cuda
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from workloads import Workload, select

import auqadmm as aq
from auqadmm.paper.data import DataError
from auqadmm.paper.optimum import KKT, Optimum, compute

FILE = Path(__file__).with_name("optima.json")


def known() -> dict[str, Optimum]:
    """The optima in optima.json."""
    if not FILE.is_file():
        return {}
    return {name: Optimum(**entry) for name, entry in json.loads(FILE.read_text(encoding="utf-8")).items()}


def write(found: dict[str, Optimum], path: Path | None = None) -> None:
    entries = {name: vars(found[name]) for name in sorted(found)}
    (path or FILE).write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")


def optimum(workload: Workload, problem: aq.Problem | None = None, device: str = "cpu") -> Optimum:
    """From the file, else computed now and added to it."""
    found = known()
    name = workload.pooled.name
    if name not in found:
        if problem is None or workload.pooled != workload:
            problem = workload.pooled.make()
        new = compute(problem, device)
        if not new.kkt <= KKT:
            raise RuntimeError(f"{name}: KKT residual {new.kkt:.1e}, above {KKT:.0e} ({new.how})")
        found = known() | {name: new}
        write(found)
    return found[name]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compute reference optima and keep them in optima.json.")
    parser.add_argument("--workloads", nargs="+", default=["*"], metavar="GLOB")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--force", action="store_true", help="compute again what is already known")
    parser.add_argument("--out", type=Path, help="copy the file there when done")
    given = parser.parse_args(arguments)
    failures = 0
    for workload in dict.fromkeys(w.pooled for w in select(given.workloads)):
        if given.force:
            write({name: entry for name, entry in known().items() if name != workload.name})
        began = time.perf_counter()
        try:
            found = optimum(workload, device=given.device)
        except DataError as error:
            print(f"{workload.name:32} skipped: {error}", flush=True)
            continue
        except RuntimeError as error:
            failures += 1
            print(f"{workload.name:32} FAILED: {error}", flush=True)
            continue
        seconds = time.perf_counter() - began
        gap = "none" if found.gap is None else f"{found.gap / abs(found.objective):.0e}"
        print(
            f"{workload.name:32} {found.objective:.12g}  KKT {found.kkt:.0e}  relative gap {gap}  {seconds:.1f} s  "
            f"{found.how}",
            flush=True,
        )
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
            write(known(), given.out / FILE.name)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
