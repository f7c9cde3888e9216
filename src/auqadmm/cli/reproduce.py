"""`auqadmm reproduce`: the figures of the paper, computed or redrawn, with verdicts on its claims.

--quick     scikit-learn's digits: everything in a few minutes, nothing to download
(neither)   MNIST, as defined, means over rows: minutes per figure on two cores
--full      all data sets, both protocols, sums and means: hours on a CPU
--from DIR  draw the results of an earlier run; nothing is computed
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from auqadmm.cli.outputs import CommandError, writable_folder
from auqadmm.paper import bundle, problems
from auqadmm.paper.chapters import drawings, report
from auqadmm.paper.data import DataError, load
from auqadmm.paper.run import Done, Job, Runner, jobs_of, needed_optima, perform_all
from auqadmm.paper.spec import FIGURES, PROTOCOLS, Figure, Samples, WeightImages, essential, select
from auqadmm.paper.store import Store
from auqadmm.paper.verdicts import markdown, verdicts
from auqadmm.report.content import OUTCOMES, ClaimVerdict
from auqadmm.report.figures import save
from auqadmm.report.page import write_page

FORMATS = ("png", "svg", "pdf")
MARKS = {"yes": "green", "no": "red", "partly": "yellow", "tie": "cyan", "open": "dim"}


def reproduce(
    figure: Annotated[str, typer.Argument(help=f"all, or one of {', '.join(FIGURES)}.", metavar="FIGURE")],
    data: Annotated[
        Path | None, typer.Option(help="Folder with mnist/, svhn/, cifar10/, or packs of them; else $AUQADMM_DATA.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="On digits that come with scikit-learn, few iterations.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="All data sets, both protocols, sums and means: hours on a CPU.")
    ] = False,
    protocol: Annotated[str | None, typer.Option(help="defined or released.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Draw the results in this folder; compute nothing.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for figures, numbers, page and cache.")] = Path("auqadmm-paper"),
    force: Annotated[bool, typer.Option("--force", help="Compute again what the cache holds.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    jobs: Annotated[int, typer.Option(min=0, help="Runs side by side; 0: one per core, at most four.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of start vectors, random starts and permutations.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress; only the results.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Reproduce the paper's figures, with three controls in every comparison and a verdict on every claim.

    Results are kept under --out: a second call draws what the first has computed, and an interrupted one continues.
    """
    if quick and full:
        raise typer.BadParameter("--quick and --full exclude each other.")
    for name, value, known in (("FIGURE", figure, ("all", *FIGURES)), ("--protocol", protocol, (None, *PROTOCOLS))):
        if value not in known:
            raise typer.BadParameter(f"{name}: there is no {value!r}; there are {', '.join(filter(None, known))}.")
    folder = writable_folder(out)
    screen = Console(highlight=False)
    began = time.perf_counter()
    failed: list[Done] = []
    if source is not None:
        results, chosen = _read(source, figure), select(figure)
    else:
        chosen = chosen_figures(figure, quick, full, protocol, seed)
        console = None if quiet else Console(stderr=True)
        check_data(chosen, data, console)
        store = Store(folder / "cache")
        runner = Runner(store, data, device, force)
        failed = compute(runner, chosen, jobs or min(os.cpu_count() or 1, 4), console)
        results, _ = bundle.gather(chosen, store)
        bundle.write(folder, results, {"command": _command(), "date": time.strftime("%Y-%m-%d")})
    written = draw(folder, [spec.id for spec in chosen], results)
    judged = verdicts(results)
    if judged:
        screen.print(verdict_table(judged))
    screen.print(f"\n{len(written)} files in {folder} after {time.perf_counter() - began:.0f} s:", soft_wrap=True)
    for path in written:
        if path.suffix in (".png", ".html", ".md"):
            screen.print(f"  {path}", soft_wrap=True, markup=False)
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise CommandError(f"{failed[0].name} failed{more}: {failed[0].error}")


def chosen_figures(name: str, quick: bool, full: bool, protocol: str | None, seed: int) -> list[Figure]:
    """What is computed: everything with --quick and --full, MNIST as defined without."""
    if quick or full:
        return select(name, quick, protocol, seed)
    return [essential(figure) for figure in select(name, False, protocol or "defined", seed)]


def check_data(figures: Sequence[Figure], data: Path | None, console: Console | None = None) -> None:
    """Check for missing images before computing, not after; download them where possible."""
    needed = [run.problem.data for figure in figures for run in figure.runs]
    for picture in (p for figure in figures for p in figure.pictures):
        if isinstance(picture, Samples):
            needed.append(picture.data)
        elif isinstance(picture, WeightImages):
            needed.append(picture.problem.data)
    for name in dict.fromkeys(needed):
        try:
            problems.images(name, data)
        except DataError:
            _fetch(name, data, console)


def compute(runner: Runner, figures: Sequence[Figure], jobs: int, console: Console | None) -> list[Done]:
    """Compute everything missing in the store; returns failures."""
    optima, todo = jobs_of(figures, ())
    stages: list[Sequence[Job]] = [needed_optima(runner, optima, todo), todo]
    failed: list[Done] = []
    with _threads(jobs), _board(console, sum(map(len, stages))) as show:
        try:
            for done in perform_all(runner, stages, jobs):
                show(done)
                failed += [done] if done.error else []
        except KeyboardInterrupt:
            raise CommandError("Interrupted; what was complete is kept, and the next call continues there.") from None
    return failed


def draw(folder: Path, ids: Sequence[str], results: bundle.Bundle) -> list[Path]:
    """Every figure in every format, and the page."""
    pictures = folder / "figures"
    pictures.mkdir(exist_ok=True)
    written = []
    for id in ids:
        for name, drawing in drawings(id, results).items():
            written += [save(drawing, pictures / f"{name}.{suffix}") for suffix in FORMATS]
    if not written:
        raise CommandError("There are no results to draw.")
    judged = folder / "verdicts.md"
    judged.write_text(markdown(verdicts(results)), encoding="utf-8")
    page = folder / "report.html"
    write_page(report(results, ids, about(results)), page)
    return [page, judged, *written]


def about(results: bundle.Bundle) -> dict[str, str]:
    """The provenance of the numbers, for the page's footer."""
    lines = {"drawn by": _command()}
    for k, entry in enumerate(results.about.get("runs", [results.about]), start=1):
        if command := entry.get("command"):
            lines[f"numbers {k}"] = command
        for system in entry.get("systems", []):
            words = ", ".join(f"{name} {value}" for name, value in system.items() if name != "wall_seconds")
            lines[f"system {len(lines)}"] = words
    return lines


def verdict_table(judged: Sequence[ClaimVerdict]) -> Table:
    title = f"Verdicts; b/e/w: comparisons that are strictly {', '.join(OUTCOMES)}"
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, title=title, title_justify="left")
    for name in ("claim", "protocol", "holds", "b/e/w"):
        table.add_column(name)
    for verdict in judged:
        counts = "/".join(map(str, verdict.counts.values())) if verdict.cells else ""
        table.add_row(verdict.claim, verdict.protocol, f"[{MARKS[verdict.holds]}]{verdict.holds}[/]", counts)
    return table


# ---------------------------------------------------------------------- helpers
def _fetch(name: str, data: Path | None, console: Console | None) -> None:
    shown: set[str] = set()

    def told(file: str, done: int, total: int | None) -> None:
        if console is not None and file not in shown:
            shown.add(file)
            console.print(f"downloading {file}", highlight=False, markup=False, soft_wrap=True)

    try:
        load(name, data, progress=told)
    except DataError as error:
        raise CommandError(f"{str(error).rstrip('.')}; --quick needs no data.") from None


def _read(source: Path, figure: str) -> bundle.Bundle:
    try:
        return bundle.read(source, tuple(FIGURES) if figure == "all" else (figure,))
    except ValueError as error:
        raise CommandError(str(error)) from None


@contextmanager
def _threads(jobs: int) -> Iterator[None]:
    """One thread per run where runs are side by side: more would only compete."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if jobs > 1 else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _board(console: Console | None, total: int) -> Iterator[Any]:
    """A bar on a terminal, a line per run elsewhere, nothing without a console."""
    if console is None:
        yield lambda done: None
    elif console.is_terminal and not console.is_dumb_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("reproducing", total=total)
            yield lambda done: progress.update(task, advance=1, description=done.name[-48:])
    else:
        count = 0

        def line(done: Done) -> None:
            nonlocal count
            count += 1
            text = f"[{count}/{total}] {done.name}: {done.error or done.text} ({done.seconds:.1f} s)"
            console.print(text, highlight=False, markup=False, soft_wrap=True)

        yield line


def _command() -> str:
    return " ".join(["auqadmm", *sys.argv[1:]])
