"""`auqadmm meta`: every worker fits the model alone, and the estimates are combined: fixed effect and REML.

Designs are agreed upon as for one common fit: the same levels, references and knots, so that coefficients of sites mean
the same. A site whose own fit has no standard errors is left out as a whole, and named with the reason.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from auqadmm.api import solve
from auqadmm.cli import dry_run, options, outputs, study
from auqadmm.cli.outputs import CommandError
from auqadmm.core.state import Status
from auqadmm.files import atomic
from auqadmm.files.training import Prepared, Task, prepare
from auqadmm.inference.meta import Combined, combine
from auqadmm.problem import InputError, Problem, Zero
from auqadmm.problem.ingest import RawBlock
from auqadmm.problem.risk_sets import EVENT
from auqadmm.report.figures import forest, write_forest
from auqadmm.report.tables import finite, versions
from auqadmm.words import counted, listed, visible

FORMAT, META_VERSION = "auqadmm meta", 1
RESULT, PICTURE = "meta.json", "forest.png"
COVARIANCES = ("model", "expected", "robust")
META_TOLERANCE = 1e-18  # of a site's own fit, as of ConsensusGLM

EXAMPLES = """
**Examples**

`auqadmm meta site-*.csv --family binomial --target sick --out combined`

`auqadmm meta all.csv --site hospital --family poisson --exposure days --formula "falls ~ age + C(ward)" --out combined`

`auqadmm meta site-*.csv --model cox --time days --event died --exponentiate --out combined`

Exit codes: 0 combined, 1 error (one line on standard error), 2 wrong usage. Sites that are left out are named.
"""

MODELS = ("glm", "cox")
ModelNamed = Annotated[
    str | None,
    options.option(
        "Model", "glm with --family (--family alone says so), or cox.", autocompletion=options.known(MODELS)
    ),
]
FamilyNamed = Annotated[
    str | None,
    options.option(
        "Model", f"One of {', '.join(study.FAMILY_NAMES)}.", autocompletion=options.known(study.FAMILY_NAMES)
    ),
]
Cov = Annotated[
    str,
    options.option(
        "Model",
        "Standard errors at a site: model (observed information), expected (as R's glm), robust.",
        autocompletion=options.known(COVARIANCES),
    ),
]
Level = Annotated[float, options.option("Model", "Of intervals, between 0 and 1.")]
Exponentiate = Annotated[
    bool, options.option("Model", "Show exp(coef): ratios of odds, rates, hazards or means.", "--exponentiate")
]
Out = Annotated[Path, options.option("Output", f"Folder for {RESULT} and {PICTURE}; created if needed.")]
Overwrite = Annotated[bool, options.option("Output", "Replace an earlier result in --out.", "--overwrite")]


@dataclass(frozen=True)
class SiteFit:
    """What one site found alone; `reason`: why it has no numbers."""

    name: str
    rows: int
    names: tuple[str, ...] = ()
    coef: np.ndarray | None = None
    se: np.ndarray | None = None
    ratio: str = ""
    reason: str = ""


def meta(
    files: options.Files,
    out: Out,
    model: ModelNamed = None,
    family: FamilyNamed = None,
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
    impute: options.Impute = "none",
    intercept: options.Intercept = True,
    ties: study.Ties = None,
    cov: Cov = "model",
    level: Level = 0.95,
    exponentiate: Exponentiate = False,
    overwrite: Overwrite = False,
    debug: options.Debug = False,
) -> None:
    """Fit every worker alone and combine the estimates: fixed effect and REML, with Q and I².

    Every site fits the same model on its own rows; what is combined are its estimates and their standard errors. The
    common fit of `auqadmm fit` needs fewer rows per site. Writes meta.json and forest.png to --out.
    """
    if model not in (None, *MODELS):
        raise typer.BadParameter(f"--model: there is no {model!r} here; there are {', '.join(MODELS)}.")
    times = study.Survival(time, event, entry, ties)
    asked = study.study(model, family, link, parameter, formula, False, exposure, offset, times, files, target, trials)
    if asked.family is not None and asked.family.searched:
        raise typer.BadParameter("--family negative-binomial needs --parameter here: sites must have the same k.")
    study.refuse_beside_formula(formula, target, features, drop, False, impute, intercept)
    if asked.survival is None:
        target = asked.formula.target if asked.formula is not None else target
        options.check_usage(files, target, "glm", "auto", "local", impute, 1.0, None, ("glm",))
    else:
        options.check_usage(files, asked.survival.time, "cox", "auto", "local", impute, 1.0, None, ("cox",))
    if cov not in COVARIANCES:
        raise typer.BadParameter(f"--cov: there is no {cov!r}; there are {', '.join(COVARIANCES)}.")
    if not 0 < level < 1:
        raise typer.BadParameter(f"--level must be between 0 and 1, got {level:g}.")
    task = asked.task(0.0, None, intercept, 0.1)
    roles = asked.roles(options.roles(target, site, id, weight, features, drop, categorical, task))
    settings = asked.settings(options.settings(True, True, False, impute, roles, labels_as_written), task, False)
    folder = _claimed(out, overwrite)
    prepared = prepare(files, roles, settings, task, formula=asked.formula)
    fits = [fit_alone(block, prepared, task, cov, exponentiate) for block in prepared.blocks]
    good = [fit for fit in fits if not fit.reason]
    if len(good) < 2:
        why = "; ".join(f"{fit.name}: {fit.reason.rstrip('.')}" for fit in fits if fit.reason)
        raise CommandError(
            f"{counted(len(good), 'site')} could be fitted alone, two are needed{': ' * bool(why)}{why}."
        )
    estimates, errors = (np.array([getattr(fit, part) for fit in good]) for part in ("coef", "se"))
    found = [combine(estimates, errors, method, level) for method in ("fixed", "reml")]
    words = dry_run.sentence(prepared.agreed, task, roles)
    ratio = good[0].ratio if exponentiate else ""
    with outputs.writing(folder):
        _write(folder, summarized(words, fits, found, task, [str(path) for path in files], cov))
        figure = forest(good[0].names, [fit.name for fit in good], estimates, errors, found, ratio)
        write_forest(figure, folder / PICTURE)
    screen = Console(highlight=False)
    for line in (*table(words, fits, found, ratio), "", "Written:", f"  {folder / RESULT}", f"  {folder / PICTURE}"):
        screen.print(visible(line), markup=False, soft_wrap=True)


def fit_alone(block: RawBlock, prepared: Prepared, task: Task, cov: str, exponentiate: bool = False) -> SiteFit:
    """The model of one site, or why it has none."""
    features = len(prepared.agreed.encoding.features) + int(task.intercept)
    if block.rows <= features:
        return SiteFit(block.name, block.rows, reason=f"{counted(block.rows, 'row')} for {features} coefficients.")
    X = np.asarray(block.X.todense() if hasattr(block.X, "todense") else block.X)
    empty = [prepared.agreed.encoding.features[k] for k in np.flatnonzero(~X.any(axis=0))]
    if empty:
        return SiteFit(block.name, block.rows, reason=f"no row has {listed(empty)}.")
    classes = prepared.agreed.classes
    if classes and len(np.unique(block.y)) < 2:
        return SiteFit(block.name, block.rows, reason=f"all rows are {classes[int(block.y[0])]!r}.")
    if task.kind == "cox" and not block.y[:, EVENT].any():
        return SiteFit(block.name, block.rows, reason="no row has an event.")
    try:
        result = solve(
            Problem(task.loss(2), Zero(), [block], intercept=task.intercept),
            certificate_tol=META_TOLERANCE,
            inference=True,
        )
        found = result.inference(cov, exponentiate=exponentiate)
    except InputError as error:
        return SiteFit(block.name, block.rows, reason=str(error))
    if result.status not in (Status.converged, Status.rounding):
        return SiteFit(block.name, block.rows, reason=result.message)
    return SiteFit(block.name, block.rows, found.names, found.coef, found.se, found.exponentiated)


# ---------------------------------------------------------------------- what is shown
def table(words: str, fits: list[SiteFit], found: list[Combined], ratio: str) -> list[str]:
    """Both combinations, coefficient by coefficient, and who was left out."""
    good = [fit for fit in fits if not fit.reason]
    fixed, reml = found
    show = np.exp if ratio else np.asarray
    rest = f"{(1 - fixed.level) / 2:.3g}", f"{(1 + fixed.level) / 2:.3g}"
    heads = ["ratio" if ratio else "coef", "std err", "P>|z|", f"[{rest[0]}", f"{rest[1]}]"]
    lines = [words, f"Each site alone; {len(good)} of {counted(len(fits), 'site')} combined."]
    lines += [f"Left out: {fit.name}: {fit.reason}" for fit in fits if fit.reason]
    for title, c in (("Fixed effect", fixed), ("Random effects (REML)", reml)):
        middle, low, high = show(c.estimate), show(c.low), show(c.high)
        se = middle * c.se if ratio else c.se
        columns = [[f"{x:.4f}" for x in v] for v in (middle, se)]
        columns += [[f"{x:.3f}" for x in c.p]] + [[f"{x:.4f}" for x in v] for v in (low, high)]
        more = ["Q", "df", "P(Q)"] if c is fixed else ["tau²"]
        columns += (
            [[f"{x:.2f}" for x in c.q], [f"{x:.0f}" for x in c.df], [f"{x:.3f}" for x in c.q_p]]
            if c is fixed
            else [[f"{x:.4g}" for x in c.tau2]]
        )
        columns += [[f"{x:.0%}" for x in c.i2]]
        lines += ["", title, *_aligned(good[0].names, [*heads, *more, "I²"], columns)]
    return [*lines, f"ratio: {ratio}, exp(coef)."] if ratio else lines


def _aligned(names: tuple[str, ...], heads: list[str], columns: list[list[str]]) -> list[str]:
    first = max(len(name) for name in names)
    widths = [max(map(len, [head, *column])) + 2 for head, column in zip(heads, columns, strict=True)]
    lines = [" " * first + "".join(head.rjust(width) for head, width in zip(heads, widths, strict=True))]
    for name, *cells in zip(names, *columns, strict=True):
        lines.append(name.ljust(first) + "".join(x.rjust(width) for x, width in zip(cells, widths, strict=True)))
    return lines


# ---------------------------------------------------------------------- what is kept
def summarized(
    words: str, fits: list[SiteFit], found: list[Combined], task: Task, files: list[str], cov: str
) -> dict[str, Any]:
    """The content of meta.json."""
    good = [fit for fit in fits if not fit.reason]
    names = good[0].names

    def by_name(values: np.ndarray | None) -> dict[str, float]:
        return dict(zip(names, np.asarray(values).tolist(), strict=True))

    def combined(c: Combined) -> dict[str, Any]:
        parts = [part.name for part in fields(c) if part.name not in ("method", "level")]
        return {part: by_name(getattr(c, part)) for part in parts}

    return {
        "format": FORMAT,
        "version": META_VERSION,
        "model": words,
        "family": asdict(task.family) if task.family is not None else None,
        **({"ties": task.ties} if task.ties is not None else {}),
        "cov": cov,
        "level": found[0].level,
        "sites": [
            {"name": fit.name, "rows": fit.rows, "coef": by_name(fit.coef), "se": by_name(fit.se)} for fit in good
        ],
        "left_out": [{"name": fit.name, "rows": fit.rows, "reason": fit.reason} for fit in fits if fit.reason],
        **{c.method: combined(c) for c in found},
        "files": files,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
    }


def _claimed(out: Path, overwrite: bool) -> Path:
    folder = outputs.writable_folder(out)
    there = [name for name in (RESULT, PICTURE) if (folder / name).exists()]
    if there and not overwrite:
        raise CommandError(f"{folder} holds {listed(there)}; --overwrite replaces it, another --out keeps it.")
    return folder


def _write(folder: Path, content: dict[str, Any]) -> None:
    text = json.dumps(finite(content), indent=2, allow_nan=False) + "\n"
    with atomic.part(folder, RESULT) as path:
        atomic.write(path, [text.encode()])
        atomic.keep(path, folder / RESULT)
