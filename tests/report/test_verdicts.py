"""Verdicts on made-up results whose truth is known."""

import numpy as np
import pytest

from auqadmm.paper import outcomes, pictures
from auqadmm.paper.bundle import Bundle
from auqadmm.paper.outcomes import EQUAL, SCATTER, holds, outcome, tolerance
from auqadmm.paper.spec import Denoising
from auqadmm.paper.verdicts import (
    average,
    control,
    correlations,
    cost,
    fastest,
    improve,
    markdown,
    rank,
    verdicts,
    weights,
    workers,
)
from auqadmm.report.content import Cell, ClaimVerdict
from tests.report.paper_lines import comparison, run

READING = ("defined", "mean")


def cells(*outcomes):
    return [Cell("", x, "") for x in outcomes]


def test_three_outcomes():
    assert [outcome(x, 1.0) for x in (0.5, 0.9, 0.92, 1.0, 1.09, 1.11, 2.0)] == [
        *("better", "better", "equal", "equal", "equal", "worse", "worse")
    ]
    assert outcome(1.0, 1.2, SCATTER) == "equal"
    assert outcome(0.0, 0.0) == "equal"


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (("better", "better"), "yes"),
        (("better", "equal"), "partly"),
        (("better", "worse"), "partly"),
        (("equal", "equal"), "tie"),
        (("equal", "worse"), "no"),
        ((), "open"),
    ],
)
def test_a_tie_is_no_win(found, verdict):
    assert holds(cells(*found)) == verdict


def test_a_claim_of_equality_is_about_ties():
    assert holds(cells("equal", "equal"), wanted="equal") == "yes"
    assert holds(cells("equal", "worse"), wanted="equal") == "partly"
    assert holds(cells("better", "worse"), wanted="equal") == "no"


def test_counts():
    judged = ClaimVerdict("", "", "partly", "", "", cells=tuple(cells("better", "worse", "worse")))
    assert judged.counts == {"better": 1, "equal": 0, "worse": 2}
    assert judged.tally == "1 better, 0 equal, 2 worse"
    assert ClaimVerdict("", "", "open", "", "").tally == ""
    row = markdown([judged]).splitlines()[-1]
    assert "| **partly** | 1 | 0 | 2 |" in row


def test_only_runs_that_scatter_have_the_wider_tie():
    assert tolerance("fig-svm", "released", ("auq-admm", "c-admm")) == SCATTER
    assert tolerance("fig-multinomial", "released", ("rb-admm", "c-admm")) == EQUAL
    assert tolerance("fig-elastic", "released", ("auq-admm", "c-admm")) == EQUAL
    assert tolerance("fig-svm", "defined", ("auq-admm", "c-admm")) == EQUAL


@pytest.mark.parametrize(("auq", "holds"), [(0.5, "yes"), (0.7, "tie"), (0.702, "tie"), (0.95, "no")])
def test_fastest_is_about_the_papers_methods_alone(auq, holds):
    found = fastest("fig-elastic", "elastic net", READING, comparison(auq=auq))
    assert found.holds == holds  # though AUQ-LR is faster still
    assert found.protocol == "as defined, means over rows"
    assert "AUQ" in found.number
    assert "after 10" in found.number


def test_partly_is_some_data_sets_and_not_others():
    lines = comparison(auq=0.5) + comparison(auq=0.95, panel="svhn")
    assert fastest("fig-elastic", "elastic net", READING, lines).holds == "partly"


def test_ties_are_named_and_counted():
    found = fastest("fig-elastic", "elastic net", READING, comparison(auq=0.7) + comparison(auq=0.95, panel="svhn"))
    assert found.holds == "no"
    assert found.counts == {"better": 0, "equal": 2, "worse": 2}
    assert "MNIST after 10: equal, AUQ 0.028, UQ 0.028" in found.number
    assert "SVHN after 20: worse" in found.number


def test_adaptive_penalties_against_the_fixed_one():
    """RB is as fast as C in these runs, AC slower: a tie and a loss are no improvement."""
    found = improve("fig-elastic", "elastic net", READING, comparison())
    assert (found.holds, found.tally) == ("no", "0 better, 2 equal, 2 worse")
    assert "RB: 0 better, 2 equal, 0 worse" in found.number
    assert "AC: 0 better, 0 equal, 2 worse" in found.number
    faster = run("c-admm", 0.9) + run("rb-admm", 0.8) + run("rb-admm-paper", 0.7) + run("ac-admm", 0.6)
    assert improve("fig-elastic", "elastic net", READING, faster).holds == "yes"


def test_weights_are_cheap_where_they_add_little_to_an_iteration():
    row = {"figure": "fig-svm", "panel": "mnist", "protocol": "defined", "reduction": "mean", "rank": 5, "used": True}
    cheap, dear = ({"weights": w, "iteration": 150, "plain": 100, **row} for w in (9, 11))
    found = [cost(Bundle(costs=rows))[0] for rows in ((cheap,), (cheap, dear), (dear,))]
    assert [v.holds for v in found] == ["yes", "partly", "no"]
    assert "SVM, MNIST: equal, weights (rank 5) 0.09, all of AUQ's iteration 1.5" in found[0].number
    assert cost(Bundle()) == []


@pytest.mark.parametrize(("against", "holds"), [(0.8, "yes"), (0.5, "tie"), (0.4, "no")])
def test_a_gain_counts_only_against_the_controls(against, holds):
    assert control("fig-elastic", "elastic net", READING, comparison(control=against)).holds == holds


@pytest.mark.parametrize(("last", "holds"), [(0.5, "yes"), (0.515, "partly"), (0.7, "no")])
def test_rank(last, holds):
    lines = run("auq-rank-1", 0.5, "fig-rank") + run("auq-rank-100", last, "fig-rank")
    found = rank(READING, lines)
    assert found.holds == holds
    assert "rank 100" in found.number


@pytest.mark.parametrize(("many", "holds"), [(0.5, "yes"), (0.7, "partly"), (0.95, "no")])
def test_workers(many, holds):
    lines = []
    for panel, auq, plain in (("mnist, 2 workers", 0.5, 0.5), ("mnist, 8 workers", many, 0.8)):
        lines += run("auq-admm", auq, "fig-workers", panel) + run("c-admm", plain, "fig-workers", panel)
    assert workers(READING, lines).holds == holds
    assert workers(READING, run("auq-admm", 0.5, "fig-workers")).holds == "open"


def test_weights_that_are_class_averages_and_weights_that_are_noise(rng):
    averages = rng.random((3, 50))
    own = (0.1 + averages)[:, :, None]
    assert np.allclose(np.diag(correlations(own, averages)), 1)
    held = {"weights-mnist-svm-defined": {"weights": own, "averages": averages}}
    assert [v.holds for v in weights(Bundle(arrays=held))] == ["yes"]
    held = {"weights-mnist-svm-defined": {"weights": rng.random((3, 50, 1)), "averages": averages}}
    assert [v.holds for v in weights(Bundle(arrays=held))] == ["no"]
    assert np.isfinite(correlations(np.ones((3, 50, 1)), averages)).all()


def test_averaging_helps_with_masks_and_not_as_printed():
    held = {"denoising": pictures.compute(Denoising(size=16))}
    assert [v.holds for v in average(Bundle(arrays=held))] == ["tie", "yes"]
    assert average(Bundle()) == []


def test_all_together_and_nothing_from_nothing():
    lines = comparison() + comparison("fig-svm", reading=("released", "mean"))
    found = verdicts(Bundle(tuple(lines)))
    assert [v.figure for v in found] == ["fig-elastic", "fig-svm"] * 3
    assert verdicts(Bundle()) == ()


def test_short_runs_decide_nothing():
    lines = [line for line in comparison() if line.iteration < 10]
    assert fastest("fig-elastic", "elastic net", READING, lines).holds == "open"


def test_numbers_as_people_write_them():
    told = {0.5612: "0.56", 9.4e-9: "9.4e-9", 116.0: "116", 99.7: "100", 6.44: "6.4", 3e-11: "≤ 1e-10"}
    assert [outcomes.number(x) for x in told] == list(told.values())
