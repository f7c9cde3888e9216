"""How fast the local solves are, and how their cost grows: ratios in one run, on one device.

    python benchmarks/speed.py --out runs/speed                                  this machine's processor
    python benchmarks/speed.py --device cuda --out runs/speed-gpu
    python benchmarks/speed.py --parts ceilings roofline iteration --out …       some of it
    python benchmarks/speed.py --show runs/speed/speed.json                      table and picture of an earlier run

ceilings    copy and matrix-product rates of the device, and what starting an operation costs
roofline    one Hessian-vector product of each workload: bytes, operations, share of the ceilings
iteration   one outer iteration of C-ADMM: ours (to the default accuracy, and to ‖∇F_j‖ ≤ 1e-6) and the released loop,
            all blocks at once and block by block ("plain")
gap         seconds to a gap of 1e-6: ours, L-BFGS and FISTA on the pooled rows on the same device, scipy, scikit-learn
accuracy    rounds to a gap of 1e-6 with local solves as accurate as needed, and with exact ones
growth      one iteration against blocks (at fixed rows), features, rows and rank
uneven      one huge and a thousand small blocks against the even split of the same rows
single      float32 with float64 sums: the gap it reaches
memory      peak beside the data's own size
peers       logistic regression, MNIST 0/1: dask-glm's ADMM (where installed), scikit-learn, ours, to equal gaps

A row whose data are missing is skipped, with the reason; speed.json is written after every row.

Writes speed.json, speed.md and speed.png. Times are medians of wall-clock times; on a shared machine only ratios within
one run mean anything.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import speed_cases as cases
import speed_peers as peers
import torch
from rounds import described
from speed_report import picture, table

import auqadmm as aq
from auqadmm.paper.data import DataError

PARTS: dict[str, Callable[[str], Iterable[dict[str, Any]]]] = {
    "ceilings": cases.ceilings,
    "roofline": cases.roofline,
    "iteration": cases.iteration,
    "gap": peers.gap,
    "accuracy": peers.accuracy,
    "growth": cases.growth,
    "uneven": cases.uneven,
    "single": cases.single,
    "memory": cases.memory,
    "peers": peers.logistic,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--commit", help="of the code, where there is no git")
    parser.add_argument("--out", type=Path, default=Path("runs/speed"))
    parser.add_argument("--show", type=Path, help="a speed.json: draw it again")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "speed.json"
    if given.show is not None:
        found = json.loads(given.show.read_text())
    else:
        found = {"about": _about(given.device, given.threads, given.commit or described())}
        for part in given.parts:
            began = time.perf_counter()
            rows = found[part] = []
            try:
                for row in PARTS[part](given.device):
                    rows.append(row)
                    path.write_text(json.dumps(found, indent=1))
            except DataError as error:  # what was measured before is kept
                rows.append({"skipped": str(error)})
            except Exception as error:  # one part must not take the others with it
                rows.append({"error": f"{type(error).__name__}: {error}"})
            sys.stdout.write(f"{part}: {time.perf_counter() - began:.1f} s\n")
            sys.stdout.flush()
            path.write_text(json.dumps(found, indent=1))
    text = table(found)
    (given.out / "speed.md").write_text(text)
    sys.stdout.write(text)
    try:
        picture(found, given.out / "speed.png")
    except ImportError:
        sys.stdout.write("no picture: matplotlib is not installed here\n")
    return 0


def _about(device: str, threads: int, commit: str) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    versions = {"auqadmm": aq.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return {
        "device": name,
        "threads": threads,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "prior": "",
        **versions,
    }


if __name__ == "__main__":
    sys.exit(main())
