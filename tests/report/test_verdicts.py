"""Verdicts on made-up results whose truth is known."""

import numpy as np
import pytest

from auqadmm.experiments import pictures
from auqadmm.experiments.bundle import Bundle
from auqadmm.experiments.spec import Denoising
from auqadmm.report import gaps
from auqadmm.report.verdicts import average, control, correlations, fastest, rank, verdicts, weights, workers
from tests.report.paper_lines import comparison, run

READING = ("defined", "mean")


@pytest.mark.parametrize(("auq", "holds"), [(0.5, "yes"), (0.7, "yes"), (0.95, "no")])
def test_fastest_is_about_the_papers_methods_alone(auq, holds):
    found = fastest("fig-elastic", "elastic net", READING, comparison(auq=auq))
    assert found.holds == holds  # though AUQ-LR is faster still
    assert found.protocol == "as defined, means over rows"
    assert "AUQ" in found.number
    assert "after 10" in found.number


def test_partly_is_some_data_sets_and_not_others():
    lines = comparison(auq=0.5) + comparison(auq=0.95, panel="svhn")
    assert fastest("fig-elastic", "elastic net", READING, lines).holds == "partly"


@pytest.mark.parametrize(("against", "holds"), [(0.8, "yes"), (0.5, "no"), (0.4, "no")])
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
    assert [v.holds for v in average(Bundle(arrays=held))] == ["no", "yes"]
    assert average(Bundle()) == []


def test_all_together_and_nothing_from_nothing():
    lines = comparison() + comparison("fig-svm", reading=("released", "mean"))
    found = verdicts(Bundle(tuple(lines)))
    assert [v.figure for v in found] == ["fig-elastic", "fig-svm"] * 2
    assert verdicts(Bundle()) == ()


def test_short_runs_decide_nothing():
    lines = [line for line in comparison() if line.iteration < 10]
    assert fastest("fig-elastic", "elastic net", READING, lines).holds == "open"


def test_numbers_as_people_write_them():
    told = {0.5612: "0.56", 9.4e-9: "9.4e-9", 116.0: "116", 99.7: "100", 6.44: "6.4", 3e-11: "≤ 1e-10"}
    assert [gaps.number(x) for x in told] == list(told.values())
