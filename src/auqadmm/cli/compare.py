"""`auqadmm compare`: methods on one problem at equal distance from its optimum.

`compare_files` reads files as `auqadmm fit` does; `contest` takes any problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from auqadmm.callbacks.progress import Progress
from auqadmm.cli import options
from auqadmm.cli.demo import one_thread
from auqadmm.cli.errors import CommandError, writable_folder, writing
from auqadmm.cli.tables import empty_table
from auqadmm.comparison.equal_gap import DEFAULT, Comparison, ComparisonInterrupted, compare
from auqadmm.core.solve import Callback
from auqadmm.files.training import Task, prepare
from auqadmm.problem import Problem
from auqadmm.report import equal_gap as report
from auqadmm.report import figures
from auqadmm.report.style import method_style
from auqadmm.report.tables import write_summary
from auqadmm.words import visible

EXAMPLES = """
**Examples**

`auqadmm compare site-*.parquet --model logistic --target sick --id patient --out compared`

`auqadmm compare all.csv --site hospital --model elastic-net --target days --methods auto,fista --out compared`

Exit codes: 0 done, 1 error (one line on standard error), 2 wrong usage, 3 no method reached the gap.
"""
UNREACHED = 3  # exit code: no error, but no method reached the gap
LEGEND = "* least of its column, ◀ fewest rounds, all until the gap is reached; bytes per worker"

Methods = Annotated[
    str,
    typer.Option(
        help=f"Methods: a,b,c. By default {', '.join(DEFAULT)}, as far as they apply.",
        show_default=False,
        rich_help_panel="Run",
    ),
]
Gap = Annotated[
    float, typer.Option(help="Relative objective gap (F − F*)/|F*| at which a run ends.", rich_help_panel="Run")
]
Out = Annotated[
    Path, typer.Option(help="Folder for compare.png, compare.csv and compare.json.", rich_help_panel="Output")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress; only the results.", rich_help_panel="Output")]


def compare_files(
    files: options.Files,
    model: options.Model,
    out: Out,
    target: options.Target = None,
    site: options.Site = None,
    id: options.Id = None,
    weight: options.Weight = None,
    features: options.Features = "",
    drop: options.Drop = "",
    categorical: options.Categorical = "",
    one_hot: options.OneHot = True,
    drop_first: options.DropFirst = False,
    standardize: options.Standardize = True,
    impute: options.Impute = "none",
    l1: options.L1 = 0.0,
    l2: options.L2 = 1e-3,
    intercept: options.Intercept = True,
    smoothing: options.Smoothing = 0.1,
    methods: Methods = "",
    gap: Gap = 1e-4,
    max_iter: options.MaxIter = 2000,
    time_limit: options.TimeLimit = None,
    seed: options.Seed = 0,
    quiet: Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Compare methods on files: what each takes to come equally close to the optimum.

    The same problem as `auqadmm fit` would solve, all workers in this process. The optimum comes from a solver that is
    none of the methods, where one knows the problem; every method then runs until its objective is within --gap of it.
    Shows rounds, bytes, Hessian-vector products and seconds.
    """
    wanted = options.names(methods)
    for name in wanted or ("auto",):
        options.check_usage(files, target, model, name, "local", impute, smoothing, time_limit)
    if not 0 < gap < 1:
        raise typer.BadParameter(f"--gap must lie between 0 and 1, got {gap:g}.")
    folder = writable_folder(out)
    task = Task(model, l1, l2, intercept, smoothing)
    roles = options.roles(target, site, id, weight, features, drop, categorical, task)
    settings = options.settings(standardize, one_hot, drop_first, impute, roles)
    prepared = prepare(files, roles, settings, intercept)
    agreed = prepared.agreed
    title = f"{model}, {agreed.rows} rows, {len(agreed.encoding.features)} features, {len(agreed.blocks)} workers"
    comparison = contest(
        prepared.problem(task),
        title,
        folder,
        wanted or None,
        gap,
        max_iter=max_iter,
        time_limit=time_limit,
        seed=seed,
        quiet=quiet,
    )
    if comparison.winner is None:
        raise typer.Exit(UNREACHED)


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
            comparison = compare(
                problem, names, gap, max_iter=max_iter, time_limit=time_limit, seed=seed, watching=watching
            )
    except ComparisonInterrupted:
        raise CommandError("Interrupted; nothing was written.") from None
    show(comparison, title)  # before writing files: a full disk must not lose the table
    with writing(folder):
        written = write_all(folder, comparison, title, {"seed": seed, "max_iter": max_iter, "time_limit": time_limit})
    tell(comparison, written)
    return comparison


def show(comparison: Comparison, title: str) -> None:
    """The table and its reference optimum, on standard output."""
    screen = Console(highlight=False)
    screen.print(drawn(comparison, title))
    screen.print(LEGEND, style="dim", markup=False)
    for entry in comparison.entries:
        if entry.note and entry.at is None:
            screen.print(visible(f"{method_style(entry.method).label}: {entry.note}"), markup=False, soft_wrap=True)
    screen.print(f"Optimum {comparison.best.objective:.10g} from {comparison.best.how}.", markup=False, soft_wrap=True)


def tell(comparison: Comparison, written: Sequence[Path]) -> None:
    """Files and verdict, on standard output."""
    screen = Console(highlight=False)
    screen.print("\nWritten:")
    for path in written:
        screen.print(f"  {visible(str(path))}", soft_wrap=True, markup=False)
    screen.print(f"\n{report.verdict(comparison)}", soft_wrap=True, markup=False)


def drawn(comparison: Comparison, title: str) -> Table:
    table = empty_table(visible(title), report.HEADERS)
    for cells in report.table(comparison):
        table.add_row(*(Text(cell, style="bold green" if cell.endswith(("*", report.WON)) else "") for cell in cells))
    return table


def write_all(folder: Path, comparison: Comparison, title: str, about: dict[str, object]) -> list[Path]:
    """The files of a comparison, the picture first."""
    return [
        figures.save(report.figure(comparison, title), folder / "compare.png"),
        report.write_csv(folder / "compare.csv", comparison),
        write_summary(folder / "compare.json", {"title": title, **about, **report.summary(comparison)}),
    ]
