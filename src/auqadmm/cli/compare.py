"""Methods side by side: `auqadmm demo` on digits, `auqadmm compare` on files.

demo      all methods, two models, ten workers with one digit each. The optimum of each model comes from scipy or
          scikit-learn; every method is measured by how many iterations it takes to come within 1e-2, 1e-4 and 1e-6
compare   methods on one problem at equal distance from its optimum: `compare_files` reads files as `auqadmm fit`
          does, `contest` takes any problem
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from auqadmm.api import solve
from auqadmm.callbacks.progress import Progress
from auqadmm.cli import options
from auqadmm.cli.outputs import CommandError, writable_folder, writing
from auqadmm.comparison import (
    DEFAULT,
    GAPS,
    IMAGE,
    TEN_DIGITS,
    Comparison,
    ComparisonInterrupted,
    MethodRun,
    compare,
    digits_elastic_net,
    digits_multinomial,
    reference,
)
from auqadmm.core.solve import Callback
from auqadmm.core.state import Status
from auqadmm.files.training import Task, prepare
from auqadmm.methods import KNOWN
from auqadmm.paper.pictures import Snapshot
from auqadmm.problem import Problem
from auqadmm.report import figures
from auqadmm.report.figures import gap_figure
from auqadmm.report.page import write_page
from auqadmm.report.single import demo_report
from auqadmm.report.style import method_style
from auqadmm.report.tables import (
    GAP_HEADERS,
    WON,
    gap_summary,
    gap_table,
    gap_verdict,
    headers,
    power,
    run_summary,
    table_row,
    versions,
    write_comparison,
    write_history,
    write_summary,
)
from auqadmm.words import visible


# ---------------------------------------------------------------------- tables
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


DEMO_LEGEND = """\
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


# ---------------------------------------------------------------------- demo
# A verdict of 1e-6 proves that the objective is within 1e-6 of the optimum, the last of the gaps in the table, without
# knowing the optimum.
RULE: dict[str, Any] = {"stop": "certificate", "certificate_tol": 1e-6}


@dataclass(frozen=True)
class DemoModel:
    """What the demo fits; at most `full` iterations, or `quick`."""

    name: str
    problem: Callable[[], Problem]
    full: int
    quick: int


# Every method proves 1e-6 within the full limits. The slowest are C-ADMM on the elastic net (2041 iterations, cheap:
# the local systems are factored once) and AUQ-ADMM on the multinomial (138).
MODELS = (
    DemoModel("elastic net", digits_elastic_net, full=2500, quick=150),
    DemoModel("multinomial", digits_multinomial, full=300, quick=40),
)


# AUQ-ADMM chooses the weights of iteration 2 at local models that were fitted. Those of iteration 1 are taken at
# u = 0, where all classes look alike; later ones are drawn from an interval that shrinks towards a point.
PICTURED = 2


def demo(
    out: Annotated[Path, typer.Option(help="Folder for figures, summary and history; made if need be.")] = Path(
        "auqadmm-demo"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="Far fewer iterations: seconds, and unfinished curves.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random vectors that curvature is probed with.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress; only the results.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Compare all methods on handwritten digits: a table, a page, three figures, the numbers behind them.

    Ten workers each hold the images of one digit, the hardest way to split them, and must agree on one model: an
    elastic net that predicts the digit as a number, and a multinomial (softmax) regression. The images come with
    scikit-learn. Takes about a minute.
    """
    folder = writable_folder(out)
    screen = Console(highlight=False)
    if not quiet:
        screen.print(
            f"Fitting {len(MODELS)} models with {len(KNOWN)} methods each on 1797 handwritten digits, "
            f"{TEN_DIGITS} workers with one digit each: {'about ten seconds' if quick else 'about a minute'}.\n"
        )
    began = time.perf_counter()
    runs: list[MethodRun] = []
    pictures: dict[str, Snapshot] = {}
    with one_thread():
        for model in MODELS:
            pictures[model.name] = Snapshot(PICTURED)
            runs += fit_all(model, quick, seed, None if quiet else Console(stderr=True), pictures[model.name])
    if not quiet:
        screen.print()
    for model in MODELS:
        screen.print(comparison_table(model.name, [run for run in runs if run.model == model.name]))
        screen.print()
    screen.print(DEMO_LEGEND, style="dim")
    about = {"seed": seed, "quick": quick, "seconds": time.perf_counter() - began}
    with writing(folder):
        written = write_demo(folder, runs, pictures, about)
    screen.print("\nWritten:")
    for path in written:
        screen.print(f"  {path}", soft_wrap=True, markup=False)
    advice = f"Look at {written[0]} first: the further left a curve falls, the fewer iterations it took."
    screen.print(f"\n{best_of(runs)}\n{advice}", soft_wrap=True, markup=False)


@contextmanager
def one_thread() -> Iterator[None]:
    """Products this small are slower on several cores, tenfold on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fit_all(
    model: DemoModel, quick: bool, seed: int, console: Console | None, snapshot: Snapshot
) -> Iterator[MethodRun]:
    """Every method on one model, against an independently computed optimum."""
    problem = model.problem()
    optimum = reference(problem).objective
    limit = model.quick if quick else model.full
    for name in KNOWN:
        title = f"{model.name}, {method_style(name).label}"
        with Progress(console, title=title) if console else nullcontext() as progress:
            watching = [x for x in (progress, snapshot if name == "auq-admm" else None) if x is not None]
            result = solve(problem, name, max_iter=limit, seed=seed, callbacks=watching, **RULE)
        if result.status is Status.interrupted:
            raise CommandError("Interrupted; nothing was written.")
        if result.status is Status.diverged:
            raise CommandError(f"{title}: {result.message}")
        if console:
            how = f"{result.status} after {result.n_iter} iterations, {result.history[-1].seconds:.1f} s, "
            how += result.certificate.words()
            console.print(f"{title}: {how}", highlight=False, markup=False)
        yield MethodRun(model.name, result, optimum)


def write_demo(folder: Path, runs: list[MethodRun], pictures: dict[str, Snapshot], about: dict[str, Any]) -> list[Path]:
    """All files of the demo, the most interesting first."""
    written = [figures.save(figures.convergence(runs), folder / "convergence.png")]
    classes = [f"class {digit}" for digit in range(TEN_DIGITS)]
    for model, snapshot in pictures.items():
        title = f"Weights $W_j$ of AUQ-ADMM in iteration 2, {model}: bright where worker $j$ is certain"
        picture = figures.weight_images(np.asarray(snapshot.weights), IMAGE, title, classes)
        written.append(figures.save(picture, folder / f"weights-{model.replace(' ', '-')}.png"))
    images = {model: path.read_bytes() for model, path in zip(pictures, written[1:], strict=True)}
    page = demo_report(runs, images, {**about, "versions": versions(), "command": "auqadmm demo"})
    written.insert(0, write_page(page, folder / "report.html"))
    summary = {"versions": versions(), **about, "runs": [run_summary(run) for run in runs]}
    written.append(write_summary(folder / "summary.json", summary))
    written.append(write_history(folder / "history.csv", runs))
    return written


# ---------------------------------------------------------------------- compare
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
    labels_as_written: options.LabelsAsWritten = False,
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
    settings = options.settings(standardize, one_hot, drop_first, impute, roles, labels_as_written)
    prepared = prepare(files, roles, settings, task)
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
        written = write_contest(
            folder, comparison, title, {"seed": seed, "max_iter": max_iter, "time_limit": time_limit}
        )
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
    screen.print(f"\n{gap_verdict(comparison)}", soft_wrap=True, markup=False)


def drawn(comparison: Comparison, title: str) -> Table:
    table = empty_table(visible(title), GAP_HEADERS)
    for cells in gap_table(comparison):
        table.add_row(*(Text(cell, style="bold green" if cell.endswith(("*", WON)) else "") for cell in cells))
    return table


def write_contest(folder: Path, comparison: Comparison, title: str, about: dict[str, object]) -> list[Path]:
    """The files of a comparison, the picture first."""
    return [
        figures.save(gap_figure(comparison, title), folder / "compare.png"),
        write_comparison(folder / "compare.csv", comparison),
        write_summary(folder / "compare.json", {"title": title, **about, **gap_summary(comparison)}),
    ]
