"""A method without the loop: its own setup, a reduction that can be watched, states one after the other."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import torch

import auqadmm as aq
from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Setup
from auqadmm.engines import LocalEngine
from auqadmm.verdict.duality import Certifier

CPU = torch.device("cpu")


class Watched(LocalEngine):
    """Counts maps over blocks; optionally interrupts one of them."""

    def __init__(self, shard, interrupt_at=None):
        super().__init__(shard)
        self.calls, self.interrupt_at = 0, interrupt_at

    def map_sum(self, fn, blocks, shared):
        self.calls += 1
        if self.calls == self.interrupt_at:
            raise KeyboardInterrupt
        return super().map_sum(fn, blocks, shared)


def reduction(problem, dtype=torch.float64):
    return Reduce(Watched(problem.shard(dtype, CPU)))


def setup_of(problem, warm=None):
    census = problem.census
    warm = None if warm is None else aq.WarmStart(warm)
    return Setup(census.blocks, census.features, census.columns, census.intercept, problem.g, None, warm=warm)


def states(method, problem, steps, reduce=None, warm=None):
    """The states of iterations 0 … steps."""
    reduce = reduction(problem) if reduce is None else reduce
    state = method.init(setup_of(problem, warm), reduce)
    yield state
    for _ in range(steps):
        state = method.step(state, reduce)
        yield state


def certifier(problem):
    zero = torch.zeros(problem.census.features, problem.census.columns, dtype=torch.float64)
    return Certifier(reduction(problem), problem.g, zero)


def objective(problem, v):
    return certifier(problem).certify(v).objective


def tensors(x):
    """Every tensor inside nested dataclasses, tuples and dicts."""
    if isinstance(x, torch.Tensor):
        yield x
    elif is_dataclass(x) and not isinstance(x, type):
        for f in fields(x):
            yield from tensors(getattr(x, f.name))
    elif isinstance(x, (tuple, list)):
        for item in x:
            yield from tensors(item)
    elif isinstance(x, dict):
        yield from tensors(tuple(x.values()))
