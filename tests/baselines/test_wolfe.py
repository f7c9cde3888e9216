"""The line search: strong Wolfe on convex restrictions, bounded work on anything else."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from auqadmm.baselines.quasi_newton import C2, WOLFE_DECREASE, WOLFE_TRIALS, Trial, search

number = st.floats(-3, 3, allow_nan=False)


def smooth_sum(a, b, bend):
    """φ(t) = Σ log(1 + exp(a t + b)) + bend/2 t²: a logistic loss along a ray."""

    def phi(t):
        z = a * t + b
        return Trial(
            t, float(np.logaddexp(0, z).sum() + 0.5 * bend * t * t), float(a @ np.exp(-np.logaddexp(0, -z)) + bend * t)
        )

    return phi


@given(
    st.lists(st.tuples(number, number), min_size=1, max_size=8),
    st.floats(1e-6, 10),
    st.floats(-4, 4),
)
def test_convex_restrictions_give_strong_wolfe_steps(rows, bend, log_first):
    phi = smooth_sum(*np.array(rows).T, bend)
    start = phi(0.0)
    assume(start.slope < -1e-3)
    found, good = search(phi, start, 10.0**log_first)
    assert good
    assert found.value <= start.value + WOLFE_DECREASE * found.t * start.slope
    assert abs(found.slope) <= C2 * abs(start.slope)


@given(st.floats(1e-3, 1e3), st.floats(1e-2, 1e2))
def test_a_parabola_takes_few_trials(bend, first):
    def phi(t):
        calls.append(t)
        return Trial(t, 0.5 * bend * t * t - t, bend * t - 1)

    calls = []
    _, good = search(phi, phi(0.0), first / bend)
    assert good
    assert len(calls) - 1 <= 6


@given(st.floats(-3, 6))
def test_trials_that_overflow_are_too_far(log_first):
    def phi(t):
        return Trial(t, -t - math.log1p(-t) * 0.5, -1 + 0.5 / (1 - t)) if t < 1 else Trial(t, math.inf, math.nan)

    found, good = search(phi, phi(0.0), 10.0**log_first)
    assert good
    assert 0 < found.t < 1


def test_slopes_decide_where_values_are_all_alike():
    def phi(t):
        return Trial(t, 1e8 + 2e-8 * (t > 0), 1e-6 * (t - 1))  # the parabola has drowned in the value

    assert search(phi, phi(0.0), 1e-3) == (None, False)
    found, good = search(phi, phi(0.0), 1e-3, noise=1e-6)
    assert good
    assert abs(found.t - 1) <= 0.9


def test_a_slope_that_lies_ends_after_a_bounded_number_of_trials():
    calls = []

    def climbs(t):
        calls.append(t)
        return Trial(t, t, -1.0)

    assert search(climbs, climbs(0.0), 1.0) == (None, False)
    assert len(calls) <= WOLFE_TRIALS + 1


def test_without_a_wolfe_step_the_lowest_trial_is_kept():
    def falls(t):
        return Trial(t, -t, -1.0)  # for ever: no step has a flat enough slope

    found, good = search(falls, falls(0.0), 1.0, trials=7)
    assert not good
    assert found.t >= 4.0**5


def test_nothing_but_nan_beyond_the_start():
    found, good = search(lambda t: Trial(t, math.nan, math.nan), Trial(0.0, 1.0, -1.0), 1.0)
    assert (found, good) == (None, False)
