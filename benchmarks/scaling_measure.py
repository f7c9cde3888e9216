"""What the model of scaling.py is fed with: rounds, bytes and processor seconds as the number of workers grows.

Every worker holds 400 rows of MNIST, shuffled, and N grows: 2, 5, 10, 20, 50. The strength of g grows with N, so that
the problem stays the same but for its sample (weak scaling):

    multinomial-sum     sums over rows, l2 = N/50: at N = 50 this is mnist-multinomial-sum-n50 of workloads.py; hard
    multinomial-mean    means over rows, l2 = N/10: at N = 10 as strong as in mnist-multinomial-mean; easy

`OneByOne` is an engine of one process that computes block after block, as N workers would, and keeps the processor
seconds of each (one thread). A round waits for the slowest block; what is left of an iteration, adding up apart, is the
server's. Scoring is not counted. Seconds are of the processor, not of the wall: others may use the machine too.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from optima import compute
from rounds import NO_TEST, LeftToCallback, Watch, resolve
from torch import Tensor
from workloads import SCALE, WORKLOADS, dataset

import auqadmm as aq
from auqadmm.blocks.shard import build_shard
from auqadmm.paper.data import by_class, iid

SEED = 0
WORKERS = (2, 5, 10, 20, 50)
METHODS = ("auq-lr", "lbfgs", "fista", "c-admm")
TARGETS = (1e-4, 1e-6)
KINDS = ("multinomial-sum", "multinomial-mean")


# ---------------------------------------------------------------------- problems
def weak(kind: str, workers: int) -> aq.Problem:
    """The first `workers` of 50 blocks of 400 rows."""
    images, per_class = dataset("mnist"), WORKLOADS["mnist-multinomial-sum"].per_class
    parts = by_class(images.X, images.y, per_class)
    X, y = (torch.cat([torch.as_tensor(part[k]) for part in parts]).numpy() for k in (0, 1))
    blocks = [(X / SCALE["mnist"], y) for X, y in iid(X, y, max(WORKERS), SEED)[:workers]]
    reduction = kind.rpartition("-")[2]
    l2 = workers / (50 if reduction == "sum" else 10)
    return aq.Problem(aq.Multinomial(reduction=reduction), aq.L2(l2), blocks, image=images.shape)


# ---------------------------------------------------------------------- an engine with a stopwatch
@dataclass
class Round:
    """What one call of a method took: processor seconds of the slowest block, of a block on average, and of the server;
    bytes that one worker sent to be summed and to be put side by side."""

    slowest: float = 0.0
    mean: float = 0.0
    server: float = 0.0
    summed: int = 0
    parts: int = 0


class Held(tuple[Any, ...]):
    """The states of all blocks. The loop asks it for weights to put into a result, which nobody needs here."""

    W = None


class OneByOne:
    """One shard per block, computed one after the other in this process."""

    def __init__(self, problem: aq.Problem) -> None:
        self.census, self.names = problem.census, problem.census.names
        place = (torch.float64, torch.device("cpu"))
        self.shards = [
            build_shard((block,), (target,), problem.loss, problem.census, (j,), *place)
            for j, (block, target) in enumerate(zip(problem.blocks, problem._targets, strict=True))
        ]
        self.now, self.busy = Round(), 0.0

    def _each(self, fn: Callable[[Any, Any], Any], blocks: Any) -> list[Any]:
        held = blocks if isinstance(blocks, Held) else (blocks,) * len(self.shards)
        found, seconds = [], []
        for shard, own in zip(self.shards, held, strict=True):
            began = time.process_time()
            found.append(fn(shard, own))
            seconds.append(time.process_time() - began)
        self.now.slowest += max(seconds)
        self.now.mean += statistics.fmean(seconds)
        self.busy += sum(seconds)
        return found

    def map_sum(self, fn: Any, blocks: Any, shared: Any) -> tuple[Any, dict[str, Tensor]]:
        found = self._each(lambda shard, own: fn(shard, own, shared), blocks)
        began = time.process_time()
        sums = {name: torch.stack([s[name].double() for _, s in found]).sum(0) for name in found[0][1]}
        self.busy += time.process_time() - began  # adding up is the network's, on the way
        self.now.summed += 8 * sum(x.numel() for x in sums.values())
        return Held(own for own, _ in found), sums

    def map_minmax(self, fn: Any, blocks: Any, shared: Any) -> tuple[Any, dict[str, Tensor]]:
        found = self._each(lambda shard, own: fn(shard, own, shared), blocks)
        ends = {name: torch.stack([s[name] for _, s in found]) for name in found[0][1]}
        return Held(own for own, _ in found), {
            k: torch.stack([x[:, 0].amin(0), x[:, 1].amax(0)]) for k, x in ends.items()
        }

    def map_concat(self, fn: Any, blocks: Any) -> dict[str, Tensor]:
        found = self._each(fn, blocks)
        parts = {name: torch.cat([part[name] for part in found]) for name in found[0]}
        self.now.parts += math.ceil(8 * sum(x.numel() for x in parts.values()) / len(self.shards))
        return parts

    def peek(self, fn: Any, blocks: Any) -> Any:
        return fn(self.shards[0], blocks[0] if isinstance(blocks, Held) else blocks)

    def gather(self, fn: Any, blocks: Any) -> Tensor:
        return torch.cat(self._each(fn, blocks))

    def scatter(self, x: Tensor) -> Any:
        return Held(x[j : j + 1] for j in range(len(self.shards)))

    def agreed(self, number: float) -> float:
        return number

    def same(self, settings: Any) -> None:
        return None

    def first(self, work: Callable[[], bytes]) -> bytes:
        return work()

    def close(self, error: BaseException | None = None) -> None:
        return None


@dataclass
class Timed:
    """A method whose steps are timed, scoring between them not."""

    method: Any
    engine: OneByOne
    rounds: list[Round] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.method.name)

    def init(self, setup: Any, reduce: Any) -> Any:
        return self._timed(lambda: self.method.init(setup, reduce))

    def step(self, state: Any, reduce: Any) -> Any:
        return self._timed(lambda: self.method.step(state, reduce))

    def _timed(self, work: Callable[[], Any]) -> Any:
        self.engine.now, self.engine.busy = Round(), 0.0
        began = time.process_time()
        found = work()
        self.engine.now.server = max(time.process_time() - began - self.engine.busy, 0.0)
        self.rounds.append(self.engine.now)
        self.engine.now = Round()
        return found


# ---------------------------------------------------------------------- one run
@dataclass(frozen=True)
class Measured:
    """One run. `rounds_4`, `rounds_6`: to a gap of 1e-4, 1e-6 (None: not reached in `rounds_done`).

    Per round: `slowest`, `mean` and `server` seconds, `summed` and `down` bytes of one worker. In all, until the end:
    `parts` bytes of one worker that are put side by side, in `renewals` messages; `directions`: the most of any block.
    """

    kind: str
    method: str
    workers: int
    unknowns: int
    rounds_4: int | None
    rounds_6: int | None
    rounds_done: int
    gap: float
    slowest: float
    mean: float
    server: float
    summed: float
    down: float
    parts: int
    renewals: int
    directions: int


def measure(
    kind: str, workers: int, name: str, problem: aq.Problem, optimum: float, most: int, limit: float
) -> Measured:
    """One method until a gap of 1e-6, `most` rounds or `limit` seconds."""
    engine = OneByOne(problem)
    timed = Timed(resolve(name), engine)
    watch = Watch(optimum, most)
    directions, rows = [0], []

    def widest(event: aq.Iteration) -> None:
        rows.append(event.row)
        U = getattr(event.state.shared.memory, "U", None)
        directions.append(0 if U is None else int(U.shape[2]))

    aq.solve(
        problem,
        LeftToCallback(timed),
        engine,
        max_iter=most,
        time_limit=limit,
        callbacks=[watch, widest],
        **NO_TEST,
    )
    row = rows[-1]  # as it was when the run ended: what only its result takes is not the method's
    done, calls = row.rounds, timed.rounds
    hit = {target: watch.hits[target].rounds if target in watch.hits else None for target in TARGETS}
    return Measured(
        kind,
        name,
        workers,
        problem.census.unknowns,
        hit[1e-4],
        hit[1e-6],
        done,
        watch.gap,
        sum(x.slowest for x in calls) / done,
        sum(x.mean for x in calls) / done,
        sum(x.server for x in calls) / done,
        sum(x.summed for x in calls) / done,
        row.bytes_down / done,
        sum(x.parts for x in calls),
        sum(x.parts > 0 for x in calls),
        max(directions),
    )


def measure_all(
    kinds: tuple[str, ...], workers: tuple[int, ...], most: int, limit: float, tell: Any
) -> list[dict[str, Any]]:
    """All runs; the optimum of each problem is found by a Newton method that has nothing to do with ours."""
    torch.set_num_threads(1)
    found = []
    for kind in kinds:
        for N in workers:
            if not any(_plan(kind, name, N, most) for name in METHODS):
                continue
            problem = weak(kind, N)
            best = compute(problem, "cpu")
            for name in METHODS:
                if (rounds := _plan(kind, name, N, most)) > 0:
                    found.append(asdict(measure(kind, N, name, problem, best.objective, rounds, limit)))
                    tell(found[-1])
    return found


def _plan(kind: str, method: str, workers: int, most: int) -> int:
    """Rounds at most; 0: left out. Sums take long in one process, and their rounds at N = 50 are in h200.csv.

    C-ADMM is slow on them; a few rounds say what one costs.
    """
    if kind.endswith("mean"):
        return most
    if method == "c-admm":
        return 20 if workers == 10 else 0
    return most if workers <= (5 if method == "fista" else 10) else 0
