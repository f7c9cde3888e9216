"""Errors of local solves must be summable for AUQ-LR's proof (docs/theory.md, section 2), however slow the run."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest

import auqadmm as aq
from auqadmm.local import NewtonCG
from auqadmm.methods.auq_lr.server import EPSILON
from tests.problems import regression_blocks


@dataclass(frozen=True)
class Listening:
    """A local solver that notes the outer residual which its tolerance follows."""

    told: list = field(default_factory=list)
    solver: NewtonCG = field(default_factory=NewtonCG)

    def solve(self, problem, u0, reference, memory):
        self.told.append(reference)
        return self.solver.solve(problem, u0, reference, memory)


def slow():
    """Weights without directions, never renewed and not accelerated, and columns that nearly depend on each other."""
    turn = np.eye(6) + 0.97 * (np.ones((6, 6)) - np.eye(6))
    blocks = [(X @ turn, np.where(y > 0, 1.0, -1.0)) for X, y in regression_blocks(noise=2.0)]
    return aq.Problem(aq.Logistic(), aq.L2(0.01), blocks)


@pytest.mark.parametrize("bound", [1e-2, 1e3])
def test_the_tolerance_of_local_solves_is_summable(monkeypatch, bound):
    """τ_k ≤ D‖r⁰‖(k + 1)^−(1 + ε). With D = 10³ no run of ours meets that bound; with a small one a slow run does."""
    monkeypatch.setattr(sys.modules[aq.methods.AUQLR.__module__], "D", bound)
    method = aq.methods.AUQLR(rank=0, memory=0, refresh=(), relaxation=1.0, columns="raw")
    norms, local = [], Listening()
    options = {"certificate_tol": 0, "abs_tol": 0, "rel_tol": 0, "max_iter": 30}
    problem = slow()
    aq.solve(
        problem, method, local=local, callbacks=[lambda e: norms.append(e.state.shared.residuals.reference)], **options
    )
    nothing, first, *told = local.told
    assert nothing is None
    N = problem.census.blocks
    start = first * math.sqrt(N) / min(1.0, bound)  # ‖r⁰‖
    summable = [bound * start * (k + 1) ** -(1 + EPSILON) for k in range(1, len(told) + 1)]
    expected = [min(norm, most) / math.sqrt(N) for norm, most in zip(norms, summable, strict=False)]
    assert told == pytest.approx(expected, rel=1e-12)
    met = [norm > most for norm, most in zip(norms, summable, strict=False)]
    assert all(met) if bound < 1 else not any(met)
    # which the residual alone is not seen to be: it falls more slowly than 1/k
    assert norms[-1] > norms[0] / len(norms)
