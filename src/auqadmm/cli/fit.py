"""`auqadmm fit`: a model of files, one worker per file or per site.

With `torchrun … -m auqadmm fit … --engine torch` every process reads its own files only; the first one prints
and writes.
"""

from __future__ import annotations

import os
import sys
import time as clock
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console

from auqadmm import engines
from auqadmm.api import solve
from auqadmm.callbacks.progress import Progress
from auqadmm.checkpoint.settings import Checkpoint
from auqadmm.cli import checkpoints, options, outputs, study
from auqadmm.cli import dry_run as dry_run_text
from auqadmm.cli import sites as at_sites
from auqadmm.cli.evaluation import Asked, evaluated, size_found
from auqadmm.cli.outputs import CommandError
from auqadmm.core.result import Result
from auqadmm.core.solve import Callback
from auqadmm.core.state import Status
from auqadmm.engines.world import World
from auqadmm.files.model import KINDS
from auqadmm.files.preprocessing import Agreed
from auqadmm.files.tabular import Roles
from auqadmm.files.training import model_parts, prepare, share
from auqadmm.frames import sized_fit
from auqadmm.methods import ROUND_COST
from auqadmm.problem import InputError
from auqadmm.problem.agreement import Exchange, alone, together
from auqadmm.report.tables import finite, versions
from auqadmm.words import counted, visible

STOPPED = 3  # exit code: a model was written that did not converge

EXAMPLES = """
**Examples**

`auqadmm fit site-*.parquet --model logistic --target sick --id patient --out fitted`

`auqadmm fit all.csv --site hospital --model elastic-net --target days --l1 0.01 --out fitted`

`auqadmm fit site-*.csv --family poisson --exposure days --formula "falls ~ age + C(ward)" --out fitted`

`auqadmm fit site-*.csv --model cox --time days --event died --inference --exponentiate --out fitted`

`torchrun --nproc-per-node 4 -m auqadmm fit part-*.csv --model svm --target y --engine torch --out fitted`

Exit codes: 0 converged, 1 error (one line on standard error), 2 wrong usage, 3 stopped before convergence.
"""


@dataclass(frozen=True)
class OutputPlace:
    """The rank of this process among those that run the same command."""

    rank: int = 0
    world: int = 1
    exchange: Exchange = alone


def fit(
    files: options.FilesOrNone = None,
    model: study.Model = None,
    out: options.OutOrNone = None,
    family: study.Family = None,
    link: study.Link = None,
    parameter: study.Parameter = None,
    formula: study.FormulaText = None,
    target: options.Target = None,
    site: options.Site = None,
    id: options.Id = None,
    weight: options.Weight = None,
    exposure: study.Exposure = None,
    offset: study.Offset = None,
    trials: study.TrialsColumn = None,
    time: study.Time = None,
    event: study.Event = None,
    entry: study.Entry = None,
    features: options.Features = "",
    drop: options.Drop = "",
    categorical: options.Categorical = "",
    labels_as_written: options.LabelsAsWritten = False,
    one_hot: options.OneHot = True,
    drop_first: options.DropFirst = False,
    standardize: study.Standardize = None,
    impute: options.Impute = "none",
    l1: study.L1 = 0.0,
    l2: study.L2 = None,
    intercept: options.Intercept = True,
    site_intercepts: study.SiteIntercepts = False,
    smoothing: options.Smoothing = 0.1,
    ties: study.Ties = None,
    method: options.Method = "auto",
    engine: options.Engine = "local",
    sites: options.SitesFile = None,
    data: options.SitesData = None,
    watch: options.Watch = False,
    watch_port: options.WatchPort = None,
    max_iter: options.MaxIter = 1000,
    tol: options.Tol = None,
    time_limit: options.TimeLimit = None,
    round_cost: options.RoundCost = ROUND_COST,
    inference: options.Inference = False,
    cov: options.Cov = "model",
    level: options.Level = 0.95,
    exponentiate: options.Exponentiate = False,
    cv: options.CrossValidation = None,
    baseline: study.BaselineTimes = None,
    device: options.Device = "cpu",
    seed: options.Seed = 0,
    resume: options.Resume = False,
    checkpoint: options.CheckpointFolder = None,
    checkpoint_every: options.CheckpointEvery = 10,
    keep_checkpoint: options.KeepCheckpoint = False,
    dry_run: study.DryRun = False,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    lines: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Fit one model on files that hold the rows of different workers.

    Minimises the mean loss over the rows of all workers + l1·Σ|c| + l2/2·Σc²; with --family or --model cox the sum of
    −log-likelihoods, without a penalty unless --l1 or --l2 add one. Of each file only sums, names of columns and
    categories go into the common preparation; rows stay with their worker. Writes summary.json, history.parquet,
    model.safetensors, model.json and report.html to --out; checkpoints lie beside it and go when the run has converged.
    """
    if resume and overwrite:
        raise typer.BadParameter("--resume and --overwrite exclude each other.")
    files = files or []
    watched: bool | int = watch if watch_port is None else watch_port
    at_sites.check_usage(files, sites, data, watched, engine, site=site)
    times = study.Survival(time, event, entry, ties)
    asked = study.study(
        model, family, link, parameter, formula, site_intercepts, exposure, offset, times, files, target, trials
    )
    study.refuse_beside_formula(formula, target, features, drop, drop_first, impute, intercept)
    target = asked.formula.target if asked.formula is not None else target
    options.check_usage(files, target, asked.kind, method, engine, impute, smoothing, time_limit, KINDS)
    if resume and asked.family is not None and asked.family.searched:
        raise typer.BadParameter("--resume needs --parameter: a run that searches for k keeps no checkpoints.")
    worth = Asked.checked(inference, cov, level, exponentiate, cv, seed, baseline, asked.survival is not None)
    wanted = options.given_out(out, dry_run)
    tol = tol if tol is not None else 1e-18 if asked.kind in ("glm", "cox") else 1e-16
    task = asked.task(l1, l2, intercept, smoothing)
    roles = asked.roles(options.roles(target, site, id, weight, features, drop, categorical, task))
    encoded = options.settings(True, one_hot, drop_first, impute, roles, labels_as_written)
    settings = asked.settings(encoded, task, standardize)
    run = {"max_iter": max_iter, "tol": tol, "time_limit": time_limit, "method": method, "device": device}
    run["round_cost"] = round_cost
    plain = {name: value for name, value in asdict(settings).items() if name != "advice"}
    chosen = {**plain, **run, **worth.settings} | ({} if formula is None else {"formula": formula})
    searched = task.family is not None and task.family.searched  # every k is a run of its own
    saves = (checkpoint_every > 0 or resume) and not searched
    places = outputs.Claimed(wanted, checkpoints.place(wanted, checkpoint))
    began = clock.perf_counter()
    where: Any = engine
    with ExitStack() as tidy:
        with _place(engine) as place:
            speaks = place.rank == 0

            def claimed() -> tuple[outputs.Claimed, bool]:
                if dry_run or not speaks:
                    return places, False
                tidy.enter_context(outputs.nothing_left(places.folder, places.saved))
                found = _claimed(places, resume, overwrite, saves)
                return found, resume and outputs.finished(found, files, {**task.settings, **chosen}, seed)

            places, answers = together(place.exchange, claimed)
            if answers[0]:
                _tell_finished(places, speaks and not quiet and not lines)
                return
            if sites is None:
                own = share(files, place.rank, place.world)
                prepared = prepare(own, roles, settings, task, place.exchange, asked.formula)
            else:
                where = tidy.enter_context(at_sites.connected(sites, quiet or lines, watched))
                prepared, method = at_sites.prepared(
                    where, str(data), asked.kind, method, roles, settings, task, asked.formula, worth.cv
                )
        agreed = prepared.agreed
        if dry_run:
            place_of = engine if sites is None else "sites"
            dry_run_text.tell(prepared, task, roles, settings, method, place_of, round_cost, speaks)
            if sites is not None:
                sys.stdout.write("\n".join(map(visible, at_sites.terms(where))) + "\n")
            return
        if speaks and overwrite:  # only after the files proved readable
            outputs.clear(places, saves)
        if speaks and not quiet and not lines:
            _announce(agreed)
        saving = _checkpoint(places.saved, checkpoint_every, resume) if saves else None
        with watching(quiet or not speaks, lines, asked.kind) as callbacks, _sentences():
            run_once = partial(
                solve,
                method=method,
                engine=where,
                max_iter=max_iter,
                stop="certificate",
                certificate_tol=tol,
                time_limit=time_limit,
                device=device,
                seed=seed,
                callbacks=callbacks,
                round_cost=round_cost,
            )
            if searched:
                task, result, rounds = sized_fit(prepared, task, run_once, together=place.world > 1)
            else:
                result = run_once(prepared.problem(task, together=place.world > 1), checkpoint=saving)
            found = evaluated(result, agreed, task, worth)
            result = found.settled(result)
            found = replace(found, size=size_found(result, task, rounds)) if searched else found
        done = result.status in (Status.converged, Status.rounding)
        if speaks:
            used, kind = {**task.settings, **chosen}, engine if sites is None else "sites"
            summary = summarized(result, agreed, files, roles, used, kind, seed, clock.perf_counter() - began)
            summary |= found.summary() | ({} if sites is None else {"left": where.received()})
            parts = model_parts(result, agreed, task, roles.special, finite(_brief(summary)), versions())
            written = outputs.write_all(places, summary, result.history, parts)
            if done and not keep_checkpoint:  # only after the model is written
                checkpoints.remove(places.saved)
            kept = places.saved if checkpoints.begun(places.saved) else None
            if not quiet and not lines:
                tell(result, summary, written, kept, more=found.lines())
            elif result.status is Status.interrupted:  # an unexpected end is shown in any case
                onward = "" if kept is None else " Go on with --resume."
                sys.stderr.write(f"auqadmm: {visible(result.message)}{onward}\n")
        if not done:
            raise typer.Exit(STOPPED)


# ---------------------------------------------------------------------- what is shown
@contextmanager
def watching(silent: bool, lines: bool, title: str) -> Iterator[list[Callback]]:
    """Callbacks that show the run live: as text on standard error, as lines of JSON on standard output."""
    if silent and not lines:
        yield []
        return
    shown = Progress(sys.stdout, mode="json") if lines else Progress(Console(stderr=True), title=title)
    with shown as progress:
        yield [progress]


def _announce(agreed: Agreed) -> None:
    parts = [counted(agreed.rows, "row"), counted(len(agreed.encoding.features), "feature")]
    parts += [counted(len(agreed.classes), "class")] if agreed.classes else []
    text = f"{', '.join(parts)}, {counted(len(agreed.blocks), 'worker')}."
    if agreed.dropped:
        left_out = sum(rows for _, rows in agreed.dropped)
        text += f" {counted(left_out, 'row')} with missing values {'was' if left_out == 1 else 'were'} left out."
    Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)


def _tell_finished(places: outputs.Claimed, aloud: bool) -> None:
    if aloud:
        folder = visible(str(places.folder))
        text = f"The fit in {folder} has converged, of these files and settings: nothing is left to do."
        Console(highlight=False).print(text, markup=False, soft_wrap=True)


def tell(
    result: Result, summary: dict[str, Any], written: list[Path], kept: Path | None, more: Sequence[str] = ()
) -> None:
    """The outcome, on standard output; `kept`: where checkpoints are, `more`: what the model is worth."""
    screen = Console(highlight=False)
    screen.print(visible(result.message), markup=False, soft_wrap=True)
    screen.print(
        f"objective {summary['objective']:.8g}, {summary['rounds']} rounds ({summary['rounds_verdict']} of them for "
        f"the verdict), {summary['bytes']} bytes per worker, {summary['seconds']:.2f} s of computing",
        markup=False,
        soft_wrap=True,
    )
    for finding in summary["diagnosis"]:
        if finding["sentence"][1:] in result.message:  # already in the message
            continue
        text = f"{finding['sentence']} Try {finding['setting']}."
        screen.print(visible(text), markup=False, soft_wrap=True)
    for line in more:
        screen.print(visible(line), markup=False, soft_wrap=True)
    screen.print("\nWritten:")
    for path in written:
        screen.print(f"  {visible(str(path))}", markup=False, soft_wrap=True)
    if kept is not None:
        screen.print(f"  {visible(str(kept))}: checkpoints, as private as rows", markup=False, soft_wrap=True)
    if kept is not None and result.status in (Status.max_iter, Status.time_limit, Status.interrupted):
        screen.print("\nThe same command with --resume (and a higher limit) goes on from here.")


# ---------------------------------------------------------------------- what is kept
def summarized(
    result: Result,
    agreed: Agreed,
    files: list[Path],
    roles: Roles,
    chosen: dict[str, Any],
    engine: str,
    seed: int,
    wall: float,
) -> dict[str, Any]:
    """The content of summary.json."""
    last = result.history[-1] if len(result.history) else None
    certificate = result.certificate
    return {
        "format": outputs.FORMAT,
        "version": outputs.FIT_VERSION,
        "status": str(result.status),
        "message": result.message,
        "diagnosis": [asdict(f) for f in result.diagnose()],
        "model": chosen["kind"],
        "method": result.method,
        "iterations": result.n_iter,
        "rounds": last.rounds if last else 0,
        "rounds_verdict": last.rounds_verdict if last else 0,
        "reductions": last.reductions if last else 0,
        "bytes": last.bytes if last else 0,
        "seconds": last.seconds if last else 0.0,
        "wall_seconds": wall,
        "objective": certificate.objective,
        "certificate": {**asdict(certificate), "verdict": certificate.words()},
        "rows": agreed.rows,
        "dropped": dict(agreed.dropped),
        "features": len(agreed.encoding.features),
        "classes": agreed.classes,
        "target": roles.target if roles.time is None else roles.time,
        **({} if roles.event is None else {"event": roles.event}),
        "blocks": [{"name": name, "rows": rows, "classes": classes} for name, rows, classes in agreed.blocks],
        "files": [str(path) for path in files],
        "settings": {name: value for name, value in chosen.items() if name != "kind"},
        "engine": engine,
        "seed": seed,
        "date": clock.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
    }


def _brief(summary: dict[str, Any]) -> dict[str, Any]:
    """The training record of a model: nothing about single workers."""
    apart = ("blocks", "files", "versions", "classes", "quality", "cross_validation", "inference", "left")
    return {name: value for name, value in summary.items() if name not in apart}


# ---------------------------------------------------------------------- helpers
@contextmanager
def _sentences() -> Iterator[None]:
    """Errors of `solve` (a missing device, an unsupported engine) as one sentence."""
    try:
        yield
    except ValueError as error:
        raise CommandError(str(error)) from error


def _claimed(places: outputs.Claimed, resume: bool, overwrite: bool, saves: bool) -> outputs.Claimed:
    """The folders, or the same error in all processes."""
    try:
        return outputs.claim(places.folder, places.saved, resume, overwrite, saves)
    except CommandError as error:
        raise InputError(str(error)) from None


def _checkpoint(folder: Path, every: int, resume: bool) -> Checkpoint:
    return Checkpoint(folder, every=max(every, 1), resume="auto" if resume else False)


@contextmanager
def _place(engine: str) -> Iterator[OutputPlace]:
    """The torchrun processes, for the exchange while files are read."""
    if engine != "torch":
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise CommandError("Several processes were started, but --engine is not torch.")
        yield OutputPlace()
        return
    world = World(engines.Torch().timeout, torch.device("cpu"))
    try:
        yield OutputPlace(world.rank, world.size, world.exchange)
    except InputError:  # raised in all processes
        raise
    except BaseException as error:
        world.fail(error)
        raise
    finally:
        world.close()
