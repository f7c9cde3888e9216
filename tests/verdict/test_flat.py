"""Optima where no row bends: every row is beyond the knee of Huber, and F is flat or a corner."""

from __future__ import annotations

import numpy as np
import pytest

import auqadmm as aq

DONE = ("converged", "rounding")


def blocks(X, y, w=None):
    parts = (X, y) if w is None else (X, y, w)
    half = len(y) // 2
    return [tuple(x[:half] for x in parts), tuple(x[half:] for x in parts)]


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("rows", [4, 6, 40])
@pytest.mark.parametrize("method", ["auto", "newton", "auq-lr", "fista"])
def test_an_even_number_of_rows_without_a_penalty(method, rows, scale):
    """Every value between the two middle rows, a knee away from both, is a median."""
    rng = np.random.default_rng(rows)
    y = np.where(np.arange(rows) % 2, 1.0, -1.0) * scale * (5 + rng.uniform(size=rows))
    result = aq.solve(aq.Problem(aq.Huber(0.5), aq.Zero(), blocks(np.ones((rows, 1)), y)), method)
    low, high = np.sort(y)[[rows // 2 - 1, rows // 2]]
    assert result.status in DONE, result.message
    assert low + 0.499 <= result.coef[0] <= high - 0.499


@pytest.mark.parametrize("penalty", [aq.L1(1.4), aq.ElasticNet(0.1, 0.1), aq.L2(0.3)])
def test_a_free_intercept_that_no_row_bends(penalty):
    """Slopes add up to zero by themselves, and are a dual point as they are."""
    rng = np.random.default_rng(32)
    X = rng.integers(0, 2, size=(14, 1)).astype(float)
    y = np.where(np.arange(14) % 2, 1.0, -1.0) * 1e3 * (5 + rng.uniform(size=14))
    problem = aq.Problem(aq.Huber(0.5), penalty, blocks(X, y), intercept=True)
    results = [aq.solve(problem, method) for method in ("auto", "newton", "auq-lr")]
    assert all(r.status in DONE for r in results), [r.message for r in results]
    values = [r.certificate.objective for r in results]
    assert np.ptp(values) <= 1e-5 * values[0]


def test_slopes_that_do_not_vanish_are_no_optimum():
    """No row bends at the start, and the optimum is elsewhere: nothing is said of the start."""
    y = np.array([10.0, 11.0, 12.0, 13.0])
    problem = aq.Problem(aq.Huber(0.5), aq.Zero(), blocks(np.ones((4, 1)), y))
    first = aq.solve(problem, "fista", max_iter=1)
    assert first.status == "max_iter"
    assert first.certificate.evidence == "none"
