"""`auqadmm demo`: all methods, two models, ten workers with one digit each.

The optimum of each model comes from scipy or scikit-learn; every method is then measured by how many iterations
it takes to come within 1e-2, 1e-4 and 1e-6 of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console

from auqadmm.api import solve
from auqadmm.callbacks.progress import Progress
from auqadmm.cli.errors import CommandError, writable_folder, writing
from auqadmm.cli.tables import LEGEND, best_of, comparison_table
from auqadmm.comparison.digits import IMAGE, TEN_DIGITS, digits_elastic_net, digits_multinomial
from auqadmm.comparison.equal_gap import MethodRun
from auqadmm.comparison.reference import reference
from auqadmm.core.state import Status
from auqadmm.methods import KNOWN
from auqadmm.paper.pictures import Snapshot
from auqadmm.problem import Problem
from auqadmm.report import figures
from auqadmm.report.page import write_page
from auqadmm.report.single import demo_report
from auqadmm.report.style import method_style
from auqadmm.report.tables import run_summary, versions, write_history, write_summary

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
    scikit-learn. Takes about half a minute.
    """
    folder = writable_folder(out)
    screen = Console(highlight=False)
    if not quiet:
        screen.print(
            f"Fitting {len(MODELS)} models with {len(KNOWN)} methods each on 1797 handwritten digits, "
            f"{TEN_DIGITS} workers with one digit each: {'about ten seconds' if quick else 'about half a minute'}.\n"
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
    screen.print(LEGEND, style="dim")
    about = {"seed": seed, "quick": quick, "seconds": time.perf_counter() - began}
    with writing(folder):
        written = write_all(folder, runs, pictures, about)
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


def write_all(folder: Path, runs: list[MethodRun], pictures: dict[str, Snapshot], about: dict[str, Any]) -> list[Path]:
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
