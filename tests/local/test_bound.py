"""A bound on the products of a local solve: kept, said, and felt only where it is met."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import auqadmm as aq
from auqadmm.local import LBFGS, Mixed, NewtonCG
from tests.local.cases import gradient, local_problem, shard_of


@pytest.mark.parametrize("weights", ["diagonal", "curved"])
@pytest.mark.parametrize("solver", [NewtonCG(tol=1e-12), LBFGS(tol=1e-12), Mixed(tol=1e-12)])
def test_it_is_kept_and_said(solver, weights):
    problem = local_problem(shard_of("Multinomial"), weights)
    u0 = torch.zeros_like(problem.lam)
    free = solver.solve(problem, u0, None, None)
    assert free.converged.all()
    for products in (1, 2, 3):
        found = replace(solver, products=products).solve(problem, u0, None, None)
        # one look at rounding more where a block stops short
        assert (found.hvps <= products + 1).all()
        assert not found.converged.any()
        assert (gradient(problem, found.u) > 1e-12).all()
        # what is handed back is better than nothing
        assert (problem.value(problem.at(found.u).point) < problem.value(problem.at(u0).point)).all()


def test_one_that_is_never_met_changes_no_bit():
    problem = local_problem(shard_of("Multinomial"), "curved")
    u0 = torch.zeros_like(problem.lam)
    free = NewtonCG().solve(problem, u0, 1e-3, None)
    most = int(free.hvps.max())
    bounded = NewtonCG(products=most).solve(problem, u0, 1e-3, None)
    assert torch.equal(free.u, bounded.u)
    assert torch.equal(free.hvps, bounded.hvps)
    assert bounded.converged.all()


def test_one_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="products must be a positive integer; got 0"):
        NewtonCG(products=0)
    with pytest.raises(ValueError, match="products must be"):
        aq.methods.AUQLR(products=0)


def weak(l2):
    X, y = load_digits(return_X_y=True)
    keep = y < 4
    order = np.argsort(y[keep], kind="stable")
    X, y = X[keep][order] / 16, y[keep][order]
    return aq.Problem(aq.Multinomial(), aq.L2(l2), [(X[y == k], y[y == k]) for k in range(4)])


def test_a_run_says_which_blocks_met_it():
    problem, rows = weak(1e-4), []
    method = aq.methods.AUQLR(products=4)
    run = aq.solve(problem, method, max_iter=12, callbacks=[lambda event: rows.append(event.row)])
    assert any(row.failed_blocks for row in rows)
    assert all(b.hvps - a.hvps <= 5 * 4 for a, b in pairwise(rows))
    assert "inner-inaccurate" in run.diagnose()
