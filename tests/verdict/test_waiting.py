"""When a verdict waits for a duality gap that costs nothing: at most until it has cost as much as the verdict."""

from types import SimpleNamespace

import pytest

from auqadmm.verdict.monitor import Gate


def judge(quadratic=True, cornered=False, triangle=False, price=100.0, spent=0.0):
    g, loss = SimpleNamespace(quadratic=quadratic), SimpleNamespace(cornered=cornered)
    return SimpleNamespace(g=g, loss=loss, fits_triangle=triangle, price=price, spent=spent)


@pytest.mark.parametrize(
    ("about", "by_gradients", "waits"),
    [
        ({}, False, False),  # smooth, by local solves: a verdict is cheaper than iterations
        ({}, True, True),
        ({"triangle": True}, True, False),
        ({"cornered": True}, False, True),
        ({"quadratic": False}, False, True),
        ({"quadratic": False, "price": 0.0}, False, False),  # nothing to be saved
    ],
)
def test_who_waits(about, by_gradients, waits):
    assert (Gate().waits(judge(**about), 1e-3, by_gradients) is not None) is waits


def test_without_a_gap_there_is_nothing_to_wait_for():
    assert Gate().waits(judge(cornered=True), None, True) is None


def test_it_waits_no_longer_than_a_verdict_costs():
    gate = Gate().waits(judge(cornered=True, spent=1000.0), 1e-3, False)
    assert gate is not None
    assert gate.since == 1000.0
    assert gate.waits(judge(cornered=True, spent=1099.0), 1e-3, False) is not None
    assert gate.waits(judge(cornered=True, spent=1100.0), 1e-3, False) is None
