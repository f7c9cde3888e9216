"""What a verdict costs: seconds, rounds and numbers of a default run, beside the same iterations without one.

    python benchmarks/verdict.py --workloads "mnist-*" --device cuda --out results/verdict/h200.json --commit C

Each workload is solved as users do, to a gap of 1e-5 that is proved or estimated; then again for as many iterations
with no verdict asked for (`certificate_tol=0`), in turns, and the fastest of each are compared (a host that others use
too adds seconds, and never takes any away). Optima of `optima.json`, where there are any, say how far the verdict was
from the truth.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import workloads
from optima import known

import auqadmm as aq
from auqadmm.engines import LocalEngine
from auqadmm.paper.data import DataError

TOL = 1e-5


def measure(workload: workloads.Workload, device: str, repeats: int, seconds: float) -> dict[str, Any]:
    problem = workload.make()
    engine = LocalEngine(problem.shard(torch.float64, torch.device(device)))
    common: dict[str, Any] = {"engine": engine, "device": device, "time_limit": seconds}
    judged, plain, result = [], [], None
    method = aq.solve(
        problem, "auto", max_iter=2000, certificate_tol=TOL, **common
    ).method  # it needs round 0 to choose
    for _ in range(repeats + 1):  # the first warms up
        result = aq.solve(problem, method, max_iter=2000, certificate_tol=TOL, **common)
        bare = aq.solve(problem, method, max_iter=result.n_iter, certificate_tol=0.0, **common)
        judged.append(result.history[-1].seconds)
        plain.append(bare.history[-1].seconds)
    assert result is not None
    last, certificate = result.history[-1], result.certificate
    before = result.history[-2].rounds if result.n_iter > 1 else 0
    optimum = known().get(workload.pooled.name)
    return {
        "workload": workload.name,
        "method": method,
        "status": str(result.status),
        "iterations": result.n_iter,
        "rounds": last.rounds,
        "rounds_verdict": last.rounds_verdict,
        "rounds_before": before,
        "numbers": last.bytes_up // 8,
        "seconds": min(judged[1:]),
        "seconds_without": min(plain[1:]),
        "ratio": min(judged[1:]) / min(plain[1:]),
        "median_ratio": statistics.median(judged[1:]) / statistics.median(plain[1:]),
        "relative": certificate.relative if certificate.evidence != "none" else None,
        "evidence": certificate.evidence,
        "true": None if optimum is None else (certificate.objective - optimum.objective) / certificate.scale,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["digits-*"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--max-seconds", type=float, default=30.0)
    parser.add_argument("--commit", default="")
    parser.add_argument("--out", type=Path, default=Path("runs/verdict.json"))
    options = parser.parse_args(arguments)
    device = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    about = {"commit": options.commit, "device": device, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    rows: list[dict[str, Any]] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for workload in workloads.select(options.workloads):
        try:
            rows.append(measure(workload, options.device, options.repeats, options.max_seconds))
        except DataError as error:
            rows.append({"workload": workload.name, "status": "skipped", "message": str(error)})
        sys.stderr.write(json.dumps(rows[-1]) + "\n")
        options.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
