"""Tables on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from auqadmm.comparison.equal_gap import GAPS, MethodRun
from auqadmm.report.style import method_style
from auqadmm.report.tables import headers, power, table_row


def comparison_table(model: str, runs: Sequence[MethodRun]) -> Table:
    """All methods on one model; the fewest iterations to each gap in bold."""
    rows = [table_row(run) for run in runs]
    table = empty_table(f"{model[:1].upper()}{model[1:]}", headers())
    fewest = [
        min((k for k in column if k is not None), default=None)
        for column in zip(*(r.iterations for r in rows), strict=True)
    ]
    for row in rows:
        cells = [Text(cell) for cell in row.cells()]
        for place, (k, least) in enumerate(zip(row.iterations, fewest, strict=True), start=1):
            if k is not None and k == least:
                cells[place].stylize("bold green")
        table.add_row(*cells)
    return table


def empty_table(title: str, names: Sequence[str]) -> Table:
    """Columns of numbers between a name and a remark."""
    table = Table(
        title=Text(title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place in (0, len(names) - 1) else "right", no_wrap=True)
    return table


LEGEND = """\
it. to   iterations until (objective − optimum) / optimum is within that number
rounds   sums over all workers until then: one per iteration, two for RB-ADMM,
         which needs the residuals before it can go on, and a few for verdicts
seconds  of computing
KKT      relative residual of the last iteration; it decides nothing
gap      what the last verdict says of it without knowing the optimum: it is
         proved to be within this of it, relatively"""


def best_of(runs: Sequence[MethodRun]) -> str:
    """One sentence: which method needed the fewest iterations on each model, at the smallest gap reached."""
    parts = []
    for model in dict.fromkeys(run.model for run in runs):
        for gap in reversed(GAPS):
            reached = [
                (row.iteration, run.method) for run in runs if run.model == model and (row := run.first_within(gap))
            ]
            if reached:
                k, method = min(reached)
                parts.append(f"{method_style(method).label} on the {model} ({k} to {power(gap)})")
                break
    return f"Fewest iterations: {', '.join(parts)}." if parts else "No method came within 1e-2 of the optimum."
