"""What the server itself does as workers become many, N = 10, 100, 1000: processor milliseconds, memory, numbers.

    python benchmarks/scaling_server.py --out results/scaling/server.csv          (one thread, minutes)

Every worker holds 80 rows of MNIST, drawn at random with replacement, sums over rows, l2 = N (weak scaling):

    784 × 1     logistic regression, even digits against odd ones    AUQ-LR with 20 directions per worker, Newton
    784 × 10    softmax regression                                   AUQ-LR with 20 directions per worker

Blocks are computed one after the other in this process, off the server's clock (`Stopwatch`). On it are consensus steps
(those with new weights also set up K and its preconditioner), Anderson acceleration, adding up what workers sent, and
putting their parts side by side. A run is a fixed number of rounds, and workers of AUQ-LR take one gradient step
instead of solving their local problem: their messages are the same, and with this l2 so are the iterations of consensus
steps (46 and 47 in a run with 5 workers; with l2 = N/50 they would be 57 and 213).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from rounds import LeftToCallback, as_it_is
from scaling import write
from scaling_measure import Held, OneByOne
from torch import Tensor
from workloads import SCALE, dataset

import auqadmm as aq
from auqadmm.methods.auq_lr import method as lowrank
from auqadmm.metrics.vstep import LowRankMetric

sys.path.append(str(Path(__file__).resolve().parents[1]))
from tests.alive import Alive

WORKERS = (10, 100, 1000)
CASES = (("auq-lr", 1), ("newton", 1), ("auq-lr", 10))
ROWS, RANK, SEED = 80, 20, 0
TIMES = {10: 3, 100: 3}  # of which the shortest counts: other work on the machine shows in short runs
ITERATIONS = {"auq-lr": 5, "newton": 3}


def problem(columns: int, workers: int) -> aq.Problem:
    images, rng = dataset("mnist"), np.random.default_rng(SEED)
    blocks = []
    for _ in range(workers):
        rows = rng.integers(0, len(images.y), ROWS)
        rows[:10] = [rng.choice(np.flatnonzero(images.y[:5000] == c)) for c in range(10)]  # all classes are everywhere
        X = (images.X[rows] + rng.random((ROWS, images.X.shape[1]))) / (SCALE["mnist"] + 1)  # and no pixel always blank
        blocks.append((X, images.y[rows] % 2 if columns == 1 else images.y[rows]))
    loss = aq.Logistic(reduction="sum") if columns == 1 else aq.Multinomial(reduction="sum")
    return aq.Problem(loss, aq.L2(workers), blocks)


# ---------------------------------------------------------------------- on the clock
class Stopwatch:
    """Processor seconds by name, each without those of what it calls by another name; only inside a method's step."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: defaultdict[str, int] = defaultdict(int)
        self._names: list[str] = []
        self._since = 0.0

    @property
    def running(self) -> bool:
        return "step" in self._names

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        self._turn()
        self._names.append(name)
        self.calls[name] += self.running
        try:
            yield
        finally:
            self._turn()
            self._names.pop()

    def _turn(self) -> None:
        now = time.process_time()
        if self.running:
            self.seconds[self._names[-1]] += now - self._since
        self._since = now

    def around(self, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            with self.on(name):
                return fn(*arguments)

        return timed


class Engine(OneByOne):
    """Blocks one after the other; what each sends is added to the sum at once, as a server does that waits for it."""

    def __init__(self, problem: aq.Problem, watch: Stopwatch) -> None:
        super().__init__(problem)
        self.watch, self.rounds, self.numbers, self.renewals = watch, 0, 0, 0

    def _each(self, fn: Callable[[Any, Any], Any], blocks: Any) -> Any:
        held = blocks if isinstance(blocks, Held) else (blocks,) * len(self.shards)
        for shard, own in zip(self.shards, held, strict=True):
            with self.watch.on("local"):
                found = fn(shard, own)
            yield found

    def map_sum(self, fn: Any, blocks: Any, shared: Any) -> tuple[Any, dict[str, Tensor]]:
        states, sums = [], {}
        with self.watch.on("sums"):
            for state, sent in self._each(lambda shard, own: fn(shard, own, shared), blocks):
                states.append(state)
                for name, x in sent.items():
                    sums[name] = sums[name].add_(x) if name in sums else x.double().clone()
        self._count(len(self.shards) * sum(x.numel() for x in sums.values()), rounds=bool(sums))
        return Held(states), sums

    def map_minmax(self, fn: Any, blocks: Any, shared: Any) -> tuple[Any, dict[str, Tensor]]:
        found = list(self._each(lambda shard, own: fn(shard, own, shared), blocks))
        ends = {name: torch.stack([s[name] for _, s in found]) for name in found[0][1]}
        extremes = {k: torch.stack([x[:, 0].amin(0), x[:, 1].amax(0)]) for k, x in ends.items()}
        return Held(own for own, _ in found), extremes

    def map_concat(self, fn: Any, blocks: Any) -> dict[str, Tensor]:
        with self.watch.on("parts"):
            self.renewals += 1
            found = list(self._each(fn, blocks))
            parts = {name: torch.cat([part[name] for part in found]) for name in found[0]}
        self._count(sum(x.numel() for x in parts.values()))
        return parts

    def gather(self, fn: Any, blocks: Any) -> Tensor:
        with self.watch.on("sums"):
            return torch.cat(list(self._each(fn, blocks)))

    def _count(self, numbers: int, rounds: int = 0) -> None:
        if self.watch.running:
            self.numbers += numbers
            self.rounds += rounds


@dataclass
class Steps:
    """A method on the clock."""

    method: Any
    watch: Stopwatch

    @property
    def name(self) -> str:
        return str(self.method.name)

    def init(self, setup: Any, reduce: Any) -> Any:
        with self.watch.on("step"):
            return self.method.init(setup, reduce)

    def step(self, state: Any, reduce: Any) -> Any:
        with self.watch.on("step"):
            return self.method.step(state, reduce)


class Solves:
    """Consensus steps, with new weights and without, and the iterations of the latter."""

    def __init__(self, watch: Stopwatch) -> None:
        self.watch, self.plain = watch, LowRankMetric.solve
        self.last: LowRankMetric | None = None
        self.iterations = 0

    def __call__(self, metric: LowRankMetric, *arguments: Any) -> Any:
        new, self.last = metric is not self.last, metric
        with self.watch.on("set-up" if new else "consensus"):
            found = self.plain(metric, *arguments)
        self.iterations += 0 if new else found.iterations
        return found


# ---------------------------------------------------------------------- memory
def at_most(shared: Any) -> int:
    """Bytes of what the server was sent, and of what one step makes of that, set-up included, at a time."""
    metric, here = shared.metric, shared.memory
    if metric is None:  # Newton's
        with Alive() as alive:
            replace(here).move(shared.setup)
        return held(here.upper) + alive.peak
    with Alive() as alive:
        LowRankMetric(metric.parts).solve(shared.setup.regularizer, here.z, shared.v)
    return held(metric.parts) + alive.peak


def held(*roots: Any) -> int:
    """Bytes of all tensors that can be reached, each memory once."""
    seen: set[int] = set()
    sizes: dict[int, int] = {}
    left = list(roots)
    while left:
        x = left.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, Tensor):
            storage = x.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        elif isinstance(x, dict):
            left += x.values()
        elif isinstance(x, tuple | list):
            left += x
        elif type(x).__module__.startswith("auqadmm"):
            left += vars(x).values() if hasattr(x, "__dict__") else ()
    return sum(sizes.values())


# ---------------------------------------------------------------------- one run
class Enough(Exception):
    """What follows a run, such as its certificate, is no part of what is measured."""


def split(method: str, columns: int, workers: int, given: aq.Problem, iterations: int) -> dict[str, Any]:
    """One row: milliseconds of the whole run by what they were spent on, with how often; MB; numbers of a round."""
    watch = Stopwatch()
    solves, engine = Solves(watch), Engine(given, watch)
    chosen = as_it_is(aq.methods.resolve(method))
    chosen = replace(chosen, rank=RANK, local=False) if method == "auq-lr" else chosen
    sizes, last = [(0, 0)], []

    def look(event: aq.Iteration) -> None:
        shared = event.state.shared
        last[:] = [shared]
        sizes.append((held(shared.metric, shared.memory), held(getattr(shared.memory, "anderson", None))))
        if event.row.iteration >= iterations:
            raise Enough

    timed = {"first_z": "anderson", "next_z": "anderson", "unpacked": "parts", "directions": "parts"}
    with ExitStack() as patches, suppress(Enough):
        patches.enter_context(patch.object(LowRankMetric, "solve", lambda *arguments: solves(*arguments)))
        patches.enter_context(patch.object(LowRankMetric, "apply", watch.around("K", LowRankMetric.apply)))
        for name, what in timed.items():
            patches.enter_context(patch.object(lowrank, name, watch.around(what, getattr(lowrank, name))))
        limits = {"abs_tol": 0.0, "rel_tol": 0.0, "stop": "residuals", "max_iter": iterations + 1}
        aq.solve(given, LeftToCallback(Steps(chosen, watch)), engine, callbacks=[look], **limits)
    ms = {name: 1e3 * seconds for name, seconds in watch.seconds.items() if name != "local"}
    return {
        "method": method,
        "columns": columns,
        "workers": workers,
        "rounds": engine.rounds,
        "server_ms": sum(ms.values()),
        "setup_ms": ms.get("set-up", 0.0) + ms.get("K", 0.0),
        "setups": watch.calls["set-up"],
        "steps_ms": ms.get("consensus", 0.0),
        "steps": watch.calls["consensus"],
        "cg_iterations": solves.iterations,
        "anderson_ms": ms.get("anderson", 0.0),
        "sums_ms": ms["sums"],
        "parts_ms": ms.get("parts", 0.0),
        "renewals": engine.renewals,
        "rest_ms": ms["step"],
        "held_mb": max(whole for whole, _ in sizes) / 1e6,
        "anderson_mb": max(columns for _, columns in sizes) / 1e6,
        "peak_mb": at_most(last[-1]) / 1e6,
        "numbers": engine.numbers // engine.rounds,
        "local_ms": 1e3 * watch.seconds["local"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", nargs="+", type=int, default=WORKERS)
    parser.add_argument("--out", type=Path, default=Path("runs/server.csv"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for columns in (1, 10):
        split("auq-lr", columns, 2, problem(columns, 2), 2)  # libraries are loaded on first use
        for workers in given.workers:
            made = problem(columns, workers)
            for method in (method for method, size in CASES if size == columns):
                began = time.perf_counter()
                runs = [split(method, columns, workers, made, ITERATIONS[method]) for _ in range(TIMES.get(workers, 1))]
                found.append(min(runs, key=lambda run: run["server_ms"]))
                write(given.out, found)
                print(f"{time.perf_counter() - began:.0f} s", found[-1], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
