"""The verdict at any v, as a run would ask for it."""

from __future__ import annotations

import torch

from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Setup
from auqadmm.engines import LocalEngine
from auqadmm.verdict import Judge


def judge_of(problem, dtype=torch.float64):
    shard = problem.shard(dtype, torch.device("cpu"))
    setup = Setup(
        blocks=problem.census.blocks,
        features=problem.census.features,
        columns=problem.census.columns,
        intercept=problem.census.intercept,
        regularizer=problem.g,
        solve=None,
        loss=problem.loss,
        names=problem.names,
    )
    return Judge(Reduce(LocalEngine(shard)), setup)


def verdict(problem, v, tol=1e-5, judge=None):
    """The certificate of v, the cheap part included."""
    judge = judge or judge_of(problem)
    judge.begin()
    v = torch.as_tensor(v, dtype=torch.float64)
    known = judge.cheap(v, judge.score(v))
    return judge.full(v, tol, known).certificate
