"""`auqadmm compare`: methods on one problem at equal distance from its optimum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from auqadmm.callbacks.drawing import clean
from auqadmm.cli.demo import one_thread
from auqadmm.cli.errors import CommandError
from auqadmm.cli.progress import Progress
from auqadmm.core.solve import Callback
from auqadmm.experiments.equal_gap import Comparison, Interrupted, compare
from auqadmm.problem import Problem
from auqadmm.report import equal_gap as report
from auqadmm.report import figures, files
from auqadmm.report.style import method_style

LEGEND = "* least of its column, ◀ fewest rounds; counted until the gap was reached, bytes of one worker up and down"


def contest(
    problem: Problem,
    title: str,
    folder: Path,
    names: Sequence[str] | None = None,
    gap: float = 1e-4,
    *,
    max_iter: int = 2000,
    time_limit: float | None = None,
    seed: int = 0,
    quiet: bool = False,
) -> Comparison:
    """Run the methods, show the table, write compare.png, compare.csv and compare.json to the folder."""

    @contextmanager
    def watching(name: str) -> Iterator[Callback | None]:
        if quiet:
            yield None
            return
        with Progress(Console(stderr=True), title=method_style(name).label) as progress:
            yield progress

    try:
        with one_thread():
            found = compare(problem, names, gap, max_iter=max_iter, time_limit=time_limit, seed=seed, watching=watching)
    except Interrupted:
        raise CommandError("Interrupted; nothing was written.") from None
    written = write_all(folder, found, title, {"seed": seed, "max_iter": max_iter, "time_limit": time_limit})
    show(found, title, written)
    return found


def show(found: Comparison, title: str, written: Sequence[Path]) -> None:
    """Table, verdict and files, on standard output."""
    screen = Console(highlight=False)
    screen.print(drawn(found, title))
    screen.print(LEGEND, style="dim", markup=False)
    for entry in found.entries:
        if entry.note and entry.at is None:
            screen.print(clean(f"{method_style(entry.method).label}: {entry.note}"), markup=False, soft_wrap=True)
    screen.print(f"Optimum {found.best.objective:.10g} from {found.best.how}.", markup=False, soft_wrap=True)
    screen.print("\nWritten:")
    for path in written:
        screen.print(f"  {clean(str(path))}", soft_wrap=True, markup=False)
    screen.print(f"\n{report.verdict(found)}", soft_wrap=True, markup=False)


def drawn(found: Comparison, title: str) -> Table:
    table = Table(
        title=Text(clean(title)),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for place, name in enumerate(report.HEADERS):
        table.add_column(name, justify="left" if place in (0, len(report.HEADERS) - 1) else "right", no_wrap=True)
    for cells in report.table(found):
        table.add_row(*(Text(cell, style="bold green" if cell.endswith(("*", report.WON)) else "") for cell in cells))
    return table


def write_all(folder: Path, found: Comparison, title: str, about: dict[str, object]) -> list[Path]:
    """The files of a comparison, the picture first."""
    return [
        figures.save(report.figure(found, title), folder / "compare.png"),
        report.write_csv(folder / "compare.csv", found),
        files.write_summary(folder / "compare.json", {"title": title, **about, **report.summary(found)}),
    ]
