"""The acceleration of AUQ-LR: it pays, forgets, refuses steps too far and takes back those that mislead."""

from __future__ import annotations

import pytest
import torch

import auqadmm as aq
from auqadmm.methods.auq_lr.server import Anderson, D
from tests.methods.cases import LR
from tests.problems import class_blocks, multinomial


def test_acceleration_pays():
    problem = multinomial(class_blocks(classes=4, per_block=30), reduction="sum", regularizer=aq.L2(0.01))
    fast = aq.solve(problem, LR(), certificate_tol=1e-8, max_iter=500)
    plain = aq.solve(problem, LR(memory=0), certificate_tol=1e-8, max_iter=500)
    assert fast.status == plain.status == "converged"
    assert fast.n_iter <= plain.n_iter
    assert fast.objective == pytest.approx(plain.objective, rel=1e-7)


def test_a_step_too_far_is_refused():
    """A nearly singular memory asks for an absurd step: the test on its size says no."""
    anderson = Anderson.empty(3, torch.zeros(1, 1, dtype=torch.float64)).measured(1.0)
    tiny, one = torch.tensor([1e-16], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64)
    huge = anderson.extended(tiny, one, torch.ones(1, 1, dtype=torch.float64))
    assert huge.coefficients(torch.tensor([1e-4], dtype=torch.float64)) is None
    fine = anderson.extended(one, one, torch.ones(1, 1, dtype=torch.float64))
    assert fine.coefficients(torch.tensor([0.5], dtype=torch.float64)) == pytest.approx(0.5)
    assert fine.allowance == pytest.approx(D)


def test_memory_forgets_the_oldest_column():
    anderson = Anderson.empty(2, torch.zeros(2, 1, dtype=torch.float64)).measured(1.0)
    full = torch.tensor([[4.0, 1, 0], [1, 5, 2], [0, 2, 6]], dtype=torch.float64)
    for k in range(3):
        row = full[k, : k + 1]
        anderson = anderson.extended(row, row, torch.full((2, 1), float(k), dtype=torch.float64))
    assert torch.equal(anderson.gram, full[1:, 1:])
    assert anderson.columns[0, 0].tolist() == [1.0, 2.0]


def test_acceleration_that_misleads_is_taken_back(monkeypatch):
    """Coefficients made wrong on purpose: the run goes back to plain steps and still arrives."""
    honest = Anderson.coefficients

    def wrong(self, against):
        return honest(self, -3.0 * against)

    monkeypatch.setattr(Anderson, "coefficients", wrong)
    went_back = []

    def watch(event):
        went_back.append(event.state.shared.memory.directive.action == 3)

    problem = multinomial(reduction="sum")
    run = aq.solve(problem, LR(), certificate_tol=1e-6, max_iter=600, callbacks=[watch])
    assert any(went_back)
    assert run.status == "converged", run.message


def test_nan_among_the_scalars_means_a_plain_step():
    anderson = Anderson.empty(2, torch.zeros(1, 1, dtype=torch.float64)).measured(1.0)
    nan = torch.tensor([float("nan")], dtype=torch.float64)
    column = torch.ones(1, 1, dtype=torch.float64)
    assert anderson.extended(nan, nan, column).coefficients(nan) is None
