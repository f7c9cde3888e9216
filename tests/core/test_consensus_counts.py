"""What a consensus step reports beside its iterates: thresholds of the residual test, Hessian products, tolerances."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.local import NewtonCG
from tests.problems import class_blocks, least_squares, multinomial


@dataclass(frozen=True)
class Listening:
    """A local solver that notes the outer residual which its tolerance follows."""

    told: list = field(default_factory=list)
    solver: NewtonCG = field(default_factory=NewtonCG)

    def solve(self, problem, u0, reference, memory):
        self.told.append(reference)
        return self.solver.solve(problem, u0, reference, memory)


def events(problem, method, **options):
    seen = []
    options = {"max_iter": 4, "stop": "residuals", "abs_tol": 1e-6, "rel_tol": 1e-3, **options}
    aq.solve(problem, method, callbacks=[seen.append], **options)
    return seen


@pytest.mark.parametrize(("residuals", "workers"), [("weighted", 4), ("paper", 1)])
def test_thresholds_of_the_residual_test(residuals, workers):
    """S3: √(Nn)·ε_abs + ε_rel·max{‖u‖, √N‖v‖} and the same with ‖λ‖; the paper has √n. The u of a row is the one that
    gave its v."""
    problem = least_squares()
    rows, models = [], []
    for event in events(problem, aq.methods.C(rho=0.7, residuals=residuals), abs_tol=1e-2, rel_tol=0.0):
        rows.append(event.row)
        models.append(event.state)
    first = np.sqrt(workers * 6) * 1e-2
    assert [row.eps_primal for row in rows] == pytest.approx([first] * len(rows))
    assert [row.eps_dual for row in rows] == pytest.approx([first] * len(rows))
    seen = events(problem, aq.methods.C(rho=0.7, residuals=residuals), abs_tol=0.0, rel_tol=1e-3)
    for before, now in pairwise(seen):
        u, v = before.state.blocks.u.norm(), 2 * now.state.shared.v.norm()  # N = 4
        assert now.row.eps_primal == pytest.approx(1e-3 * float(max(u, v)), rel=1e-12)
        assert now.row.eps_dual == pytest.approx(1e-3 * float(now.state.blocks.lam.norm()), rel=1e-12)


def test_the_products_of_an_estimate_count_for_every_block():
    """UQ-ADMM asks once for five products of each of three blocks; C-ADMM with the same weights for none."""
    problem = multinomial(class_blocks())
    counts = {}
    for rank in (1, 5):
        method = aq.methods.UQ(curvature=aq.curvature.Lanczos(rank), interval=(0.3, 0.3))  # the weights are all alike
        counts[rank] = events(problem, method)[0].row.hvps
    assert counts[5] - counts[1] == 3 * (5 - 1)


def test_local_solves_follow_what_a_block_moved():
    """‖W(u − v)‖ of all blocks, as a mean over them."""
    local = Listening()
    seen = events(multinomial(class_blocks()), aq.methods.C(rho=0.7), local=local)
    for k, (before, now) in enumerate(pairwise(seen), start=2):
        moved = 0.7 * (before.state.blocks.u - before.state.shared.v)
        expected = float(moved.norm()) / np.sqrt(3)
        assert now.state.shared.reference == pytest.approx(expected, rel=1e-12)
        if now is not seen[-1]:  # the next iteration's solves
            assert local.told[k + 1] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bad", ["gradient", "weights"])
def test_a_block_is_not_healthy_if_its_gradient_or_its_weights_are_not(bad):
    from auqadmm.core.consensus import _primal
    from auqadmm.metrics.weights import Diagonal

    u = torch.zeros(2, 3, 1, dtype=torch.float64)
    w, norm = torch.ones_like(u), torch.ones(2, dtype=torch.float64)
    (w if bad == "weights" else norm)[1] = torch.nan
    done = torch.ones(2, dtype=torch.bool)
    sums = _primal(u, norm, done, norm, u, Diagonal(w), u, 1.0)
    assert float(sums["not_finite"]) == 1.0
