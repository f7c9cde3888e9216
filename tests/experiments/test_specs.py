"""Specs are values: pure, hashable, complete."""

from dataclasses import FrozenInstanceError, replace

import pytest

from auqadmm.paper.spec import (
    COMPARED,
    CONTROLS,
    DEFINED,
    FIGURES,
    METHODS,
    OURS,
    RELEASED,
    ProblemSpec,
    digest,
    essential,
    select,
)
from tests.experiments.specs import run_spec


@pytest.mark.parametrize("id", FIGURES)
@pytest.mark.parametrize("quick", [False, True])
def test_a_figure_is_a_pure_function(id, quick):
    make = FIGURES[id]
    assert make(quick) == make(quick)
    assert hash(make(quick)) == hash(make(quick))
    assert make(quick).id == id
    assert make(quick).panels or make(quick).pictures


def test_specs_are_frozen():
    with pytest.raises(FrozenInstanceError):
        run_spec().method = "rb-admm"


def test_every_comparison_has_all_methods_ours_and_the_controls():
    assert set(COMPARED) == {*METHODS, *OURS, *CONTROLS}
    for id in ("fig-elastic", "fig-multinomial", "fig-svm", "fig-workers"):
        for panel in FIGURES[id]().panels:
            assert tuple(run.method for run in panel.runs) == COMPARED


def test_the_table_of_experiments():
    panels = {(p.dataset, p.protocol, p.reduction) for p in FIGURES["fig-multinomial"]().panels}
    assert len(panels) == 9
    assert ("svhn", "defined", "sum") in panels
    assert ("svhn", "released", "sum") not in panels
    assert {p.reduction for p in FIGURES["fig-svm"]().panels} == {"mean"}
    assert {r.problem.blocks for r in FIGURES["fig-workers"]().runs} == {2, 4, 8}
    rows = {p.dataset: p.runs[0].problem.per_class for p in FIGURES["fig-svm"]().panels}
    assert rows == {"mnist": 5000, "svhn": 4500, "cifar10": 5000}
    assert [p.problem.model for p in FIGURES["fig-weights"](protocols=["defined"]).pictures] == [
        "elastic",
        "multinomial",
        "svm",
    ]


def test_protocols_decide_how_runs_are_made():
    for run in FIGURES["fig-multinomial"]().runs:
        protocol = DEFINED if run.protocol == "defined" else RELEASED
        assert run.problem.pixels == protocol.pixels
        assert (run.start, run.rank, run.iterations) == (protocol.start, protocol.rank, protocol.iterations)
        assert run.local == ("auto" if run.method in OURS else protocol.local)


def test_digests_tell_values_apart_and_equal_ones_not():
    assert digest(run_spec()) == digest(run_spec())
    others = [
        run_spec("rb-admm"),
        run_spec(iterations=4),
        run_spec(seed=1),
        run_spec(problem=ProblemSpec("digits", "svm", classes=(0, 1))),
        ProblemSpec("digits", "elastic"),
    ]
    assert len({digest(spec) for spec in [run_spec(), *others]}) == len(others) + 1


def test_names_of_all_runs_are_distinct():
    for quick in (False, True):
        runs = {run for figure in select("all", quick) for run in figure.runs}
        assert len({run.name for run in runs}) == len(runs)


def test_sums_do_not_depend_on_the_split():
    spec = ProblemSpec("mnist", "multinomial", "sum", workers=2)
    assert spec.pooled == replace(spec, workers=None)
    mean = replace(spec, reduction="mean")
    assert mean.pooled == mean


def test_select():
    assert [figure.id for figure in select("all")] == list(FIGURES)
    assert {run.protocol for run in select("fig-svm", protocol="released")[0].runs} == {"released"}
    assert {run.seed for run in select("fig-svm", seed=7)[0].runs} == {7}
    with pytest.raises(ValueError, match="no figure 'fig-x'; there are all, fig-datasets"):
        select("fig-x")
    with pytest.raises(ValueError, match="no protocol 'other'"):
        select("all", protocol="other")


def test_essential_is_mnist_by_means():
    figure = essential(FIGURES["fig-multinomial"]())
    assert {(p.dataset, p.reduction) for p in figure.panels} == {("mnist", "mean")}
    assert [p.data for p in essential(FIGURES["fig-datasets"]()).pictures] == ["mnist"]
