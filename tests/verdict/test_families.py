"""Verdicts on families: a bound that is proved holds at any distance, and what is called converged is near."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import auqadmm as aq
from tests.problem.family_cases import CASES, study
from tests.verdict.asking import judge_of, verdict

PENALTIES = {"none": aq.Zero(), "ridge": aq.L2(0.5), "elastic net": aq.ElasticNet(1.0, 0.2)}


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("name", ["gamma", "negative-binomial", "tweedie", "probit", "cloglog"])
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.thin(3)
def test_a_bound_holds_at_any_distance(name, penalty, offset):
    case = CASES[name]
    data = study(case, 5, scale=np.array([1.0, 20.0, 1.0, 1.0]))
    problem = aq.Problem(case.loss, PENALTIES[penalty], data.blocks(True, offset), intercept=True)
    best = aq.solve(problem, "newton", certificate_tol=1e-20)
    assert str(best.status) in ("converged", "rounding")
    judge = judge_of(problem)
    rng, seen = np.random.default_rng(0), set()
    away = rng.normal(size=best.v.shape) / np.array([1, 20, 1, 1, 1])[:, None]
    for far in (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0):
        v = best.v + far * torch.from_numpy(away)
        told = verdict(problem, v, 1e-5, judge)
        gap = told.objective - best.objective
        assert gap >= -1e-12 * abs(best.objective)
        if told.evidence in ("proved", "estimated"):
            assert told.gap_bound >= gap * (1 - 1e-6) - 1e-10
        if told.passes(1e-5):
            assert gap <= 1e-5 * told.scale * (1 + 1e-6)
            seen.add(far)
    assert 1e-5 in seen
