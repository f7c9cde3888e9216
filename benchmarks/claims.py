"""What verdicts on the paper need beside its curves: how far another seed moves a run, and what weights cost.

    python benchmarks/claims.py seeds --data DIR        gaps of UQ, AUQ and permuted weights over seeds, as defined
    python benchmarks/claims.py cost --data DIR         arithmetic of weights and of local solves, both protocols

Both write into results/paper (--out) and name the commit they were made with. They take minutes on one core.

Arithmetic is counted, not timed: multiplications and additions of matrix products (two per entry) and of
factorisations, as torch dispatches them on a CPU. Work on vectors alone is left out on both sides. The count of a run
is the same on every machine as long as the same iterates are computed.

    weights     inside `UQ.diagonals`: the Hessian where it is taken, and r Lanczos steps
    iteration   everything that an iteration takes, weights included
    plain       the same of C-ADMM at ρ = a, which has AUQ's penalty and no weights

Averages over iterations 2 to 10 (2 to 3 as released, where the amount of work is fixed): what is done once, such as
Gram matrices, is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from auqadmm.api import solve
from auqadmm.methods import UQ
from auqadmm.paper import problems
from auqadmm.paper.bundle import read_optima
from auqadmm.paper.run import Runner, system
from auqadmm.paper.spec import RunSpec, select
from auqadmm.paper.store import Store

ROOT = Path(__file__).parents[1]
EARLY = 10
SEEDS = (0, 1, 2)
SCATTERED = ("uq-admm", "auq-admm", "auq-permuted")
# runs of ten iterations that take a core seconds; SVHN stands for 3072 features
SEEDED = (("fig-elastic", "mnist"), ("fig-elastic", "svhn"), ("fig-multinomial", "mnist"), ("fig-svm", "mnist"))
COUNTED = ("fig-elastic", "fig-multinomial", "fig-svm")
ITERATIONS = {"defined": 10, "released": 3}


# ---------------------------------------------------------------------- runs
def specs(figure: str, panel: str, methods: Sequence[str]) -> Iterator[RunSpec]:
    """Runs of one data set, in every reading of the figure."""
    (found,) = select(figure)
    for part in found.panels:
        if part.name == panel:
            yield from (run for run in part.runs if run.method in methods)


def seeds(data: Path | None, cache: Path) -> list[dict[str, Any]]:
    runner = Runner(Store(cache), data, known=read_optima(ROOT / "results/paper/optima.json"))
    rows = []
    for figure, panel in SEEDED:
        for spec in specs(figure, panel, SCATTERED):
            if (spec.protocol, spec.problem.reduction) != ("defined", "mean"):
                continue
            runs = [runner.run(replace(spec, seed=seed, iterations=EARLY)) for seed in SEEDS]
            gaps = [float(run.columns["gap"][-1]) for run in runs]
            entry = {"figure": figure, "panel": panel, "protocol": "defined", "reduction": "mean"}
            rows.append(entry | {"method": spec.method, "iteration": EARLY, "gaps": gaps})
            print(f"{spec.name}: {', '.join(f'{gap:.4g}' for gap in gaps)}", flush=True)
    return rows


# ---------------------------------------------------------------------- arithmetic
def _batch(shape: Sequence[int], keep: int) -> int:
    return math.prod(shape[: len(shape) - keep])


def _cholesky(a: Sequence[int], *_: Any, **__: Any) -> int:
    return _batch(a, 2) * a[-1] ** 3 // 3


def _inverse(a: Sequence[int], *_: Any, **__: Any) -> int:
    return _batch(a, 2) * 2 * a[-1] ** 3 // 3


def _cholesky_solve(b: Sequence[int], a: Sequence[int], *_: Any, **__: Any) -> int:
    return _batch(b, 2) * 2 * a[-1] ** 2 * b[-1]


def _triangular(a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    return _batch(b, 2) * b[-2] * b[-1] * a[-1]


def _solve(a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    return _batch(a, 2) * (2 * a[-1] ** 3 // 3)


def _eigh(a: Sequence[int], *_: Any, **__: Any) -> int:
    return _batch(a, 2) * 9 * a[-1] ** 3


def _added(c: Sequence[int], a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * math.prod(a) * b[-1]


def _mv(a: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * math.prod(a)


aten = torch.ops.aten
MORE = {
    aten.linalg_cholesky_ex: _cholesky,
    aten.cholesky: _cholesky,
    aten.cholesky_inverse: _inverse,
    aten.cholesky_solve: _cholesky_solve,
    aten.linalg_solve_triangular: _triangular,
    aten._linalg_solve_ex: _solve,
    aten.linalg_inv_ex: _inverse,
    aten._linalg_eigh: _eigh,
    aten.mv: _mv,
    aten.baddbmm_: _added,  # torch knows what these cost, but not in place
    aten.addmm_: _added,
}


class Counter:
    """Arithmetic of a run, and of it what is spent on weights."""

    def __init__(self) -> None:
        self.mode = FlopCounterMode(display=False, custom_mapping=MORE)
        self.weights = self.hvps = self.calls = 0
        self.after: list[tuple[int, int]] = []  # weights, all of it; after each iteration

    @property
    def total(self) -> int:
        return self.mode.get_total_flops()

    def mark(self, event: Any) -> None:
        self.after.append((self.weights, self.total))

    @property
    def per_iteration(self) -> tuple[float, float]:
        """Weights, and all of it; the first iteration left out."""
        (first, *_, last), count = self.after, len(self.after) - 1
        return (last[0] - first[0]) / count, (last[1] - first[1]) / count

    @contextmanager
    def counting(self) -> Iterator[None]:
        plain, counter = UQ.diagonals, self

        def diagonals(self: UQ, *arguments: Any) -> Any:
            before = counter.total
            found = plain(self, *arguments)
            counter.weights += counter.total - before
            counter.hvps += found[1]
            counter.calls += 1
            return found

        UQ.diagonals = diagonals  # type: ignore[method-assign]
        try:
            with self.mode:
                yield
        finally:
            UQ.diagonals = plain  # type: ignore[method-assign]


def counted(spec: RunSpec, problem: Any, count: int) -> Counter:
    counter = Counter()
    with counter.counting():
        solve(
            problem,
            problems.make_method(spec.method, spec.rank),
            max_iter=count,
            abs_tol=0.0,
            rel_tol=0.0,
            stop="residuals",
            local=spec.local,
            seed=spec.seed,
            start=spec.start,
            evaluate_every=0,
            callbacks=[counter.mark],
        )
    return counter


def cost(data: Path | None) -> list[dict[str, Any]]:
    rows = []
    for figure in COUNTED:
        own = {s.problem.name + s.protocol: s for s in specs(figure, "mnist", ("auq-admm",))}
        plain = {s.problem.name + s.protocol: s for s in specs(figure, "mnist", ("c-admm-a",))}
        for key, spec in own.items():
            problem, count = problems.make_problem(spec.problem, data, sparse=False), ITERATIONS[spec.protocol]
            bare = counted(plain[key], problem, count)
            ranks = (1, 5, 10, 100) if figure == "fig-multinomial" else (spec.rank,)
            for rank in ranks:
                found = counted(replace(spec, method=f"auq-rank-{rank}"), problem, count)
                rows.append(
                    {
                        "figure": figure,
                        "panel": "mnist",
                        "protocol": spec.protocol,
                        "reduction": spec.problem.reduction,
                        "rank": rank,
                        "used": rank == spec.rank,
                        "iterations": count,
                        "hvps": found.hvps // found.calls,
                        "weights": round(found.per_iteration[0]),
                        "iteration": round(found.per_iteration[1]),
                        "plain": round(bare.per_iteration[1]),
                    }
                )
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("seeds", "cost"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("runs/claims"))
    parser.add_argument("--out", type=Path, default=ROOT / "results/paper")
    given = parser.parse_args()
    torch.set_num_threads(1)
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
    ).stdout.strip()
    rows = seeds(given.data, given.cache) if given.what == "seeds" else cost(given.data)
    about = {"command": f"python benchmarks/claims.py {given.what}", "commit": commit, **system("cpu")}
    path = given.out / f"{given.what}.json"
    path.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
