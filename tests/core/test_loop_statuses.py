"""How a run ends: converged, out of iterations or time, interrupted, diverged, with a failed local solve."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import auqadmm as aq
from tests.problems import least_squares, multinomial, regression_blocks


def test_converged_only_with_residuals_and_certificate():
    result = aq.solve(least_squares(), "c-admm")
    last = result.history[-1]
    assert result.status == "converged"
    assert last.primal_residual <= last.eps_primal
    assert last.dual_residual <= last.eps_dual
    assert result.certificate.passes(1e-5)
    assert "Converged after" in result.message
    earlier = result.history[-2]
    fine = earlier.primal_residual <= earlier.eps_primal and earlier.dual_residual <= earlier.eps_dual
    assert not (fine and earlier.kkt <= 1e-5), "it would have had to stop one iteration before"


def test_residuals_alone_may_stop_far_from_the_optimum_and_the_certificate_does_not():
    problem = least_squares(reduction="sum")
    loose = aq.solve(problem, aq.methods.C(rho=0.1), stop="residuals", abs_tol=1e-1, rel_tol=0)
    strict = aq.solve(problem, aq.methods.C(rho=0.1), abs_tol=1e-1, rel_tol=0, max_iter=5000)
    assert loose.status == "converged"
    assert loose.n_iter < strict.n_iter
    assert not loose.certificate.passes(1e-5)
    assert strict.certificate.passes(1e-5)


def test_certificate_rule_ignores_residuals():
    result = aq.solve(least_squares(), "c-admm", stop="certificate", abs_tol=0, rel_tol=0, certificate_tol=1e-3)
    assert result.status == "converged"
    assert result.certificate.passes(1e-3)


def test_max_iter_says_what_is_missing():
    result = aq.solve(multinomial(), "c-admm", max_iter=3)
    assert result.status == "max_iter"
    assert result.n_iter == len(result.history) == 3
    for words in ("limit of 3 iterations", "primal residual", "dual residual", "KKT residual", "tolerance", "try"):
        assert words in result.message


def test_no_iterations_returns_the_start():
    result = aq.solve(least_squares(), max_iter=0)
    assert result.status == "max_iter"
    assert result.n_iter == 0
    assert (result.v == 0).all()
    assert math.isfinite(result.objective)


def test_time_limit_is_a_status():
    result = aq.solve(
        least_squares(), "c-admm", max_iter=10**6, abs_tol=0, rel_tol=0, certificate_tol=0, time_limit=0.3
    )
    assert result.status == "time_limit"
    assert "time limit of 0.3 s" in result.message
    assert result.n_iter > 0


def test_ctrl_c_returns_the_last_consistent_iterate():
    problem = least_squares()

    def press(event):
        if event.row.iteration == 7:
            raise KeyboardInterrupt

    result = aq.solve(problem, "ac-admm", abs_tol=0, rel_tol=0, certificate_tol=0, callbacks=[press])
    plain = aq.solve(problem, "ac-admm", abs_tol=0, rel_tol=0, certificate_tol=0, max_iter=7)
    assert result.status == "interrupted"
    assert result.n_iter == 7
    assert "after 7 iterations" in result.message
    assert torch.equal(result.v, plain.v)
    assert torch.equal(result.lam, plain.lam)


@pytest.mark.parametrize("call", [1, 5, 12])
def test_ctrl_c_inside_a_local_solve(call):
    """The interrupt comes in mid-iteration: what is returned is the iterate before it, untouched."""

    class Interrupted(aq.local.Direct):
        calls = 0

        def solve(self, *args):
            type(self).calls += 1
            if type(self).calls == call:
                raise KeyboardInterrupt
            return super().solve(*args)

    options = {"abs_tol": 0, "rel_tol": 0, "certificate_tol": 0}
    result = aq.solve(least_squares(), "auq-admm", local=Interrupted(), **options)
    done = max(call - 2, 0)  # the first solve belongs to the start, call k + 1 to iteration k
    plain = aq.solve(least_squares(), "auq-admm", max_iter=done, **options)
    assert result.status == "interrupted"
    assert result.n_iter == done
    assert torch.equal(result.v, plain.v)


def test_a_callback_that_returns_true_stops_the_run():
    result = aq.solve(least_squares(), certificate_tol=0, callbacks=[lambda event: event.row.iteration >= 4])
    assert result.status == "interrupted"
    assert result.n_iter == 4
    assert "callback" in result.message


def test_divergence_names_the_block_and_the_step():
    def explode(u, X, y):
        z = X @ u
        return torch.exp(torch.where(y > 50, 1e4 * z * z, 0.0)) + 0.5 * (z - y) ** 2

    blocks = regression_blocks()
    X, y = blocks[2]
    bad = (X, np.where(np.arange(len(y)) == 0, 100.0, y))
    problem = aq.Problem(aq.CustomLoss(explode), aq.L2(1.0), [blocks[0], blocks[1], bad])
    result = aq.solve(problem, "c-admm", start="random", max_iter=5)
    assert result.status == "diverged"
    assert "block 2" in result.message
    assert "local solve (u-step)" in result.message
    assert result.v.isfinite().all()


def test_a_failed_local_solve_is_named_and_never_called_converged():
    problem = multinomial()
    result = aq.solve(problem, "c-admm", local=aq.local.NewtonCG(tol=1e-12, max_iter=1), max_iter=30)
    failed = [row for row in result.history if row.failed_blocks]
    assert failed
    assert set(failed[0].failed_blocks) <= {"block 0", "block 1", "block 2"}
    loose = aq.solve(
        problem,
        "c-admm",
        local=aq.local.NewtonCG(tol=1e-30, max_iter=1),
        max_iter=5,
        abs_tol=1e9,
        certificate_tol=1e9,
    )
    assert loose.history[0].failed_blocks
    assert loose.status == "max_iter"
    assert "missed its tolerance" in loose.message
