"""`auqadmm fit`: a model of files, one worker per file or per site.

With `torchrun … -m auqadmm fit … --engine torch` every process reads its own files only; the first one speaks
and writes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from auqadmm import baselines, engines, methods
from auqadmm.api import solve
from auqadmm.cli import outputs
from auqadmm.cli.errors import CommandError
from auqadmm.cli.progress import Progress
from auqadmm.core.checkpoint import Checkpoint
from auqadmm.core.result import Result
from auqadmm.core.solve import Callback, Iteration
from auqadmm.core.state import Status
from auqadmm.data.tabular import Roles, is_table
from auqadmm.data.words import visible
from auqadmm.engines.world import World
from auqadmm.model import KINDS
from auqadmm.preprocessing import Settings
from auqadmm.preprocessing.merge import Agreed
from auqadmm.problem.agreement import Exchange, alone
from auqadmm.report.files import finite
from auqadmm.report.tables import versions
from auqadmm.training import Task, model_parts, prepare, share

STOPPED = 3
COLUMNS, MODEL, RUN, OUTPUT = "Columns", "Model", "Run", "Output"
METHODS = ("auto", *methods.KNOWN, *baselines.KNOWN)

EXAMPLES = """
**Examples**

`auqadmm fit site-*.parquet --model logistic --target sick --id patient --out fitted`

`auqadmm fit all.csv --site hospital --model elastic-net --target days --l1 0.01 --out fitted`

`torchrun --nproc-per-node 4 -m auqadmm fit part-*.csv --model svm --target y --engine torch --out fitted`

Exit codes: 0 converged, 1 error (one line on standard error), 2 wrong usage, 3 stopped before convergence.
"""


@dataclass(frozen=True)
class Place:
    """This process among those that run the same command."""

    rank: int = 0
    world: int = 1
    exchange: Exchange = alone


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def fit(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="csv, tsv, parquet, svmlight (.svm, .svmlight, .libsvm) or npz (X, y[, site, sample_weight, "
            "feature_names]): one file per worker, or any number with --site.",
            metavar="FILE…",
            show_default=False,
        ),
    ],
    model: Annotated[
        str, typer.Option(help="logistic (two or more classes), elastic-net or svm.", rich_help_panel=MODEL)
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for model, summary, history and report; empty or new.", rich_help_panel=OUTPUT)
    ],
    target: Annotated[
        str | None,
        typer.Option(help="Column to predict; svmlight and npz files have their own.", rich_help_panel=COLUMNS),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(
            help="Column that says which worker owns a row; without it, a file is a worker.", rich_help_panel=COLUMNS
        ),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(help="Column that names the rows; no feature, and no value twice.", rich_help_panel=COLUMNS),
    ] = None,
    weight: Annotated[
        str | None,
        typer.Option(help="Column of row weights: a row of weight w counts w times.", rich_help_panel=COLUMNS),
    ] = None,
    features: Annotated[
        str,
        typer.Option(help="Columns to use: a,b,c. All others by default.", rich_help_panel=COLUMNS, show_default=False),
    ] = "",
    drop: Annotated[
        str, typer.Option(help="Columns to leave out: a,b,c.", rich_help_panel=COLUMNS, show_default=False)
    ] = "",
    categorical: Annotated[
        str,
        typer.Option(
            help="Columns of categories even where they look like numbers: a,b,c.",
            rich_help_panel=COLUMNS,
            show_default=False,
        ),
    ] = "",
    one_hot: Annotated[
        bool,
        typer.Option(
            help="Text becomes one feature per category, the categories of all workers in sorted order.",
            rich_help_panel=COLUMNS,
        ),
    ] = True,
    drop_first: Annotated[
        bool,
        typer.Option(
            "--drop-first",
            help="Leave out the first category of each column; without it all are kept, and the penalty decides.",
            rich_help_panel=COLUMNS,
        ),
    ] = False,
    standardize: Annotated[
        bool,
        typer.Option(
            help="Numbers get mean 0 and variance 1 over the rows of all workers (sparse files: variance only).",
            rich_help_panel=COLUMNS,
        ),
    ] = True,
    impute: Annotated[
        str,
        typer.Option(
            help="Missing values: none refuses them, mean fills in the mean or the most frequent category.",
            rich_help_panel=COLUMNS,
        ),
    ] = "none",
    l1: Annotated[
        float,
        typer.Option(
            min=0,
            help="Strength of the l1 penalty: l1·Σ|c|, beside the MEAN loss over all rows.",
            rich_help_panel=MODEL,
        ),
    ] = 0.0,
    l2: Annotated[
        float,
        typer.Option(
            min=0,
            help="Strength of the l2 penalty: l2/2·Σc², likewise. (scikit-learn's C is 1/(rows·l2).)",
            rich_help_panel=MODEL,
        ),
    ] = 1e-3,
    intercept: Annotated[
        bool, typer.Option(help="Add a constant, which is never penalised.", rich_help_panel=MODEL)
    ] = True,
    smoothing: Annotated[
        float, typer.Option(help="svm: width of the rounded corner of the hinge, > 0.", rich_help_panel=MODEL)
    ] = 0.1,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.", rich_help_panel=RUN)] = "auto",
    engine: Annotated[
        str,
        typer.Option(
            help=f"Where workers live: {', '.join(engines.KNOWN)} (torch: each process of torchrun reads its own files).",
            rich_help_panel=RUN,
        ),
    ] = "local",
    max_iter: Annotated[int, typer.Option(min=0, help="Limit of iterations.", rich_help_panel=RUN)] = 1000,
    tol: Annotated[
        float,
        typer.Option(
            min=0, help="Converged when the relative KKT residual or duality gap is at most this.", rich_help_panel=RUN
        ),
    ] = 1e-8,
    time_limit: Annotated[
        float | None, typer.Option(min=0, help="Limit of seconds; the model so far is kept.", rich_help_panel=RUN)
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.", rich_help_panel=RUN)] = "cpu",
    seed: Annotated[
        int, typer.Option(min=0, help="Of the random vectors that curvature is probed with.", rich_help_panel=RUN)
    ] = 0,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run in --out, if it holds one of these very files and settings.",
            rich_help_panel=RUN,
        ),
    ] = False,
    checkpoint_every: Annotated[
        int, typer.Option(min=0, help="Iterations between checkpoints in --out; 0 for none.", rich_help_panel=RUN)
    ] = 10,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier fit in --out.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no result on the screen.", rich_help_panel=OUTPUT)
    ] = False,
    lines: Annotated[
        bool,
        typer.Option(
            "--json",
            help="One line of JSON per iteration on standard output, nothing else there.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Fit one model on files that hold the rows of different workers.

    Minimises the mean loss over the rows of all workers + l1·Σ|c| + l2/2·Σc². Of each file only sums, names of columns
    and categories go into the common preparation; rows stay with their worker. Writes summary.json, history.parquet,
    model.safetensors, model.json and report.html to --out.
    """
    _check_usage(files, model, target, method, engine, impute, smoothing)
    task = Task(model, l1, l2, intercept, smoothing)
    roles = Roles(target, site, id, weight, _names(features) or None, _names(drop), _names(categorical), task.labels)
    settings = Settings(standardize, one_hot, drop_first, None if impute == "none" else impute, roles.categorical)
    began = time.perf_counter()
    with _place(engine) as place:
        speaks = place.rank == 0
        folder = outputs.claim(out, resume, overwrite) if speaks else out
        prepared = prepare(share(files, place.rank, place.world), roles, settings, intercept, place.exchange)
    agreed = prepared.agreed
    if speaks and not quiet and not lines:
        _announce(agreed)
    saving = _checkpoint(folder, checkpoint_every, resume, place.world)
    with watching(quiet or lines or not speaks, model) as shown:
        callbacks: list[Callback] = [*shown, *([JsonLines()] if lines and speaks else [])]
        result = solve(
            prepared.problem(task, together=place.world > 1),
            method,
            engine,
            max_iter=max_iter,
            stop="certificate",
            certificate_tol=tol,
            time_limit=time_limit,
            device=device,
            seed=seed,
            callbacks=callbacks,
            checkpoint=saving,
        )
    if speaks:
        asked = {"max_iter": max_iter, "tol": tol, "time_limit": time_limit, "method": method, "device": device}
        options = {**asdict(task), **asdict(settings), **asked}
        summary = summarized(result, agreed, files, roles, options, engine, seed, time.perf_counter() - began)
        parts = model_parts(result, agreed, task, roles.special, finite(_brief(summary)), versions())
        written = outputs.write_all(folder, summary, result.history, parts)
        if not quiet and not lines:
            tell(result, summary, written)
    if result.status is not Status.converged:
        raise typer.Exit(STOPPED)


# ---------------------------------------------------------------------- what is shown
@contextmanager
def watching(silent: bool, title: str) -> Iterator[list[Callback]]:
    """Callbacks that show the run as it happens, on standard error."""
    if silent:
        yield []
        return
    with Progress(Console(stderr=True), title=title) as progress:
        yield [progress]


class JsonLines:
    """Every iteration as a line of JSON on standard output."""

    def __call__(self, event: Iteration) -> None:
        sys.stdout.write(json.dumps(finite(asdict(event.row)), allow_nan=False) + "\n")
        sys.stdout.flush()


def _announce(agreed: Agreed) -> None:
    classes = f", {len(agreed.classes)} classes" if agreed.classes else ""
    text = f"{agreed.rows} rows, {len(agreed.encoding.features)} features{classes}, {len(agreed.blocks)} workers."
    Console(highlight=False).print(text, markup=False)


def tell(result: Result, summary: dict[str, Any], written: list[Path]) -> None:
    """How it ended, on standard output."""
    screen = Console(highlight=False)
    screen.print(visible(result.message), markup=False, soft_wrap=True)
    screen.print(
        f"objective {summary['objective']:.8g}, KKT residual {summary['certificate']['kkt']:.1e}, "
        f"{summary['rounds']} rounds, {summary['bytes']} bytes per worker, {summary['seconds']:.2f} s of computing",
        markup=False,
        soft_wrap=True,
    )
    screen.print("\nWritten:")
    for path in written:
        screen.print(f"  {visible(str(path))}", markup=False, soft_wrap=True)


# ---------------------------------------------------------------------- what is kept
def summarized(
    result: Result,
    agreed: Agreed,
    files: list[Path],
    roles: Roles,
    options: dict[str, Any],
    engine: str,
    seed: int,
    wall: float,
) -> dict[str, Any]:
    """The content of summary.json."""
    last = result.history[-1] if len(result.history) else None
    certificate = result.certificate
    return {
        "format": outputs.FORMAT,
        "version": outputs.VERSION,
        "status": str(result.status),
        "message": result.message,
        "model": options.pop("kind"),
        "method": result.method,
        "iterations": result.n_iter,
        "rounds": last.rounds if last else 0,
        "bytes": last.bytes if last else 0,
        "seconds": last.seconds if last else 0.0,
        "wall_seconds": wall,
        "objective": certificate.objective,
        "certificate": {"kkt": certificate.kkt, "gap": certificate.gap, "relative_gap": certificate.relative_gap},
        "rows": agreed.rows,
        "features": len(agreed.encoding.features),
        "classes": agreed.classes,
        "target": roles.target,
        "blocks": [{"name": name, "rows": rows, "classes": classes} for name, rows, classes in agreed.blocks],
        "files": [str(path) for path in files],
        "settings": options,
        "engine": engine,
        "seed": seed,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
    }


def _brief(summary: dict[str, Any]) -> dict[str, Any]:
    """What a model remembers of its training: nothing about single workers."""
    return {name: value for name, value in summary.items() if name not in ("blocks", "files", "versions", "classes")}


# ---------------------------------------------------------------------- helpers
def _check_usage(
    files: list[Path], model: str, target: str | None, method: str, engine: str, impute: str, smoothing: float
) -> None:
    choices = (
        ("--model", model, KINDS),
        ("--method", method, METHODS),
        ("--engine", engine, tuple(engines.KNOWN)),
        ("--impute", impute, ("none", "mean")),
    )
    for name, value, known in choices:
        if value not in known:
            raise typer.BadParameter(f"{name}: there is no {value!r}; there are {', '.join(known)}.")
    if not smoothing > 0:
        raise typer.BadParameter(f"--smoothing must be > 0, got {smoothing:g}.")
    if target is None and any(is_table(path) for path in files):
        raise typer.BadParameter("--target is missing: name the column to predict.")
    repeated = next((path for k, path in enumerate(files) if path in files[:k]), None)
    if repeated is not None:
        raise typer.BadParameter(f"{visible(str(repeated))} is named twice.")


def _checkpoint(folder: Path, every: int, resume: bool, world: int) -> Checkpoint | None:
    if not resume and (every == 0 or world > 1):  # with many processes only on request: not every engine can
        return None
    return Checkpoint(folder / outputs.CHECKPOINTS, every=max(every, 1), resume="auto" if resume else False)


@contextmanager
def _place(engine: str) -> Iterator[Place]:
    """Where this process stands among those that torchrun started, while files are read."""
    if engine != "torch":
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise CommandError("Several processes were started, but --engine is not torch.")
        yield Place()
        return
    world = World(engines.Torch().timeout, torch.device("cpu"))
    try:
        yield Place(world.rank, world.size, world.exchange)
    except BaseException as error:
        world.fail(error)
        raise
    finally:
        world.close()
