"""docs/reproduction.md says what results/paper holds."""

from auqadmm.experiments import bundle
from auqadmm.experiments.paper import select
from tests.report.reproduction_numbers import PAGE, ROOT, tables, written


def test_the_tables_are_those_of_the_results():
    assert written(PAGE.read_text(encoding="utf-8")) == tables(bundle.read(ROOT / "results"))


def test_every_curve_of_the_paper_is_in_the_results():
    held = bundle.read(ROOT / "results")
    wanted = {
        (figure.id, panel.name, panel.protocol, panel.reduction, run.method)
        for figure in select("all")
        for panel in figure.panels
        for run in panel.runs
    }
    assert {(x.figure, x.panel, x.protocol, x.reduction, x.method) for x in held.lines} == wanted
    assert {run.problem.pooled.name for figure in select("all") for run in figure.runs} <= set(held.optima)
    assert max(best.kkt for best in held.optima.values()) <= 1e-9
