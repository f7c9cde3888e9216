"""How a run ends: converged, out of iterations or time, interrupted, diverged, with a failed local solve."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.core.stopping import two_digits
from tests.problems import least_squares, multinomial, regression_blocks


def test_converged_only_with_a_proof():
    result = aq.solve(least_squares(), "c-admm")
    assert result.status == "converged"
    assert result.certificate.passes(1e-5)
    assert result.history[-1].relative == result.certificate.relative
    assert f"Converged: within {two_digits(result.certificate.relative)} of the optimum (proved)" in result.message
    assert f"; {result.n_iter} iterations." in result.message
    assert all(row.relative is None or row.relative > 1e-5 for row in result.history.rows[:-1])
    far = aq.solve(least_squares(), "c-admm", certificate_tol=1e-14, max_iter=1000)
    best = far.objective
    assert far.status == "converged"
    assert result.objective - best <= result.certificate.gap_bound
    early = aq.solve(least_squares(), "c-admm", max_iter=result.n_iter // 2)
    assert early.status == "max_iter"
    assert not early.certificate.passes(1e-5)


def test_residuals_alone_may_stop_far_from_the_optimum_and_the_certificate_does_not():
    problem = least_squares(reduction="sum")
    loose = aq.solve(problem, aq.methods.C(rho=0.1), stop="residuals", abs_tol=1e-1, rel_tol=0)
    strict = aq.solve(problem, aq.methods.C(rho=0.1), abs_tol=1e-1, rel_tol=0, max_iter=5000)
    assert loose.status == "residuals"
    last = loose.history[-1]
    assert last.primal_residual <= last.eps_primal
    assert last.dual_residual <= last.eps_dual
    assert "residuals within tolerance" in loose.message
    assert loose.certificate.words() in loose.message
    assert loose.n_iter < strict.n_iter
    assert not loose.certificate.passes(1e-5)
    assert strict.status == "converged"
    assert strict.certificate.passes(1e-5)


@pytest.mark.parametrize("stop", ["certificate", "both"])
def test_certificate_rule_ignores_residuals(stop):
    result = aq.solve(least_squares(), "c-admm", stop=stop, abs_tol=0, rel_tol=0, certificate_tol=1e-3)
    assert result.status == "converged"
    assert result.certificate.passes(1e-3)


def test_max_iter_says_what_is_missing():
    result = aq.solve(multinomial(), "c-admm", max_iter=3)
    assert result.status == "max_iter"
    assert result.n_iter == len(result.history) == 3
    known = f"V is {result.certificate.words()} (asked: 1.0e-5)"
    assert not result.certificate.passes(1e-5)
    for words in (
        "Not converged: stopped at the limit of 3 iterations.",
        known,
        "Raise the limit",
        "try",
        "diagnose()",
    ):
        assert words in result.message


def test_the_floor_of_rounding_is_a_status():
    result = aq.solve(multinomial(), "lbfgs", certificate_tol=1e-40, max_iter=200)
    assert result.status == "rounding"
    assert result.message.startswith("At the floor of rounding after")
    assert result.certificate.evidence == "rounding"
    assert not result.certificate.passes(1e-5)
    exact = aq.solve(multinomial(), "lbfgs", certificate_tol=0, max_iter=200)
    assert result.objective == pytest.approx(exact.objective, rel=1e-13)


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


def test_a_failed_local_solve_is_named_where_it_matters():
    """The verdict is about v alone: a block that stopped short neither forbids nor excuses anything."""
    problem = multinomial()
    short_of = aq.local.NewtonCG(tol=1e-30, max_iter=1)
    result = aq.solve(problem, "c-admm", local=short_of, max_iter=5, abs_tol=1e9, certificate_tol=1e-14)
    assert result.status == "max_iter"
    assert set(result.history[0].failed_blocks) <= {"block 0", "block 1", "block 2"}
    assert result.history[0].failed_blocks
    assert "missed its tolerance in 5 iterations" in result.message
    assert not result.certificate.passes(1e-14)
    onward = aq.solve(problem, "c-admm", local=short_of, max_iter=2000, certificate_tol=1e-8)
    best = aq.solve(problem, "lbfgs", certificate_tol=1e-14)
    assert onward.history[-1].failed_blocks
    assert onward.status == "converged"
    assert onward.objective - best.objective <= 1e-8 * best.objective
