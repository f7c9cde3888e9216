"""Options that commands on files share, in the panels of their help."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from auqadmm import baselines, engines, methods
from auqadmm.files.model import KINDS
from auqadmm.files.preprocessing import Settings
from auqadmm.files.tabular import Roles, is_table
from auqadmm.files.training import Task
from auqadmm.words import visible

COV = ("model", "expected", "robust", "cluster")
METHODS = ("auto", *methods.KNOWN, *baselines.KNOWN)
IMPUTE = ("none", "mean")
PLAIN_KINDS = tuple(kind for kind in KINDS if kind not in ("glm", "cox"))


def option(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


def known(values: Sequence[str]) -> Callable[[str], list[str]]:
    """Completion of a shell."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


SitesFile = Annotated[
    Path | None,
    typer.Option("--sites", help="In place of files: sites.toml, which names sites that connect to this command."),
]
SitesData = Annotated[str | None, typer.Option("--data", help="With --sites: the data set, by its name at the sites.")]
Watch = Annotated[
    bool, typer.Option("--watch", help="With --sites: show the state of the sites on a page of this machine.")
]
WatchPort = Annotated[
    int | None,
    typer.Option("--watch-port", help="With --sites: the same, on this port of 127.0.0.1.", min=1, max=65535),
]
FilesOrNone = Annotated[
    list[Path] | None,
    typer.Argument(
        help="csv, tsv, parquet, svmlight (.svm, .svmlight, .libsvm) or npz (X, y[, site, sample_weight, "
        "feature_names]): one file per worker, or any number with --site. None with --sites.",
        metavar="[FILE]...",
        show_default=False,
    ),
]
Files = Annotated[
    list[Path],
    typer.Argument(
        help="csv, tsv, parquet, svmlight (.svm, .svmlight, .libsvm) or npz (X, y[, site, sample_weight, "
        "feature_names]): one file per worker, or any number with --site.",
        metavar="FILE",
        show_default=False,
    ),
]

# ---------------------------------------------------------------------- what is fitted
Model = Annotated[
    str, option("Model", "logistic (two or more classes), elastic-net or svm.", autocompletion=known(PLAIN_KINDS))
]
L1 = Annotated[
    float, option("Model", "Strength of the l1 penalty: l1·Σ|c|, beside the MEAN loss over all rows.", min=0)
]
L2 = Annotated[
    float, option("Model", "Strength of the l2 penalty: l2/2·Σc², likewise (scikit-learn's C is 1/(rows·l2)).", min=0)
]
Intercept = Annotated[bool, option("Model", "Add a constant, which is never penalised.")]
Smoothing = Annotated[float, option("Model", "svm: width of the rounded corner of the hinge, > 0.")]

# ---------------------------------------------------------------------- columns
Target = Annotated[str | None, option("Columns", "Column to predict; svmlight and npz files have their own.")]
Site = Annotated[
    str | None, option("Columns", "Column that says which worker owns a row; without it a file is a worker.")
]
Id = Annotated[str | None, option("Columns", "Column that names the rows: no feature, and no value twice.")]
Weight = Annotated[
    str | None,
    option("Columns", "Column of row weights: a row of weight w counts w times.", "--weight", "--weights"),
]
Features = Annotated[str, option("Columns", "Columns to use: a,b,c. All others by default.", show_default=False)]
Drop = Annotated[str, option("Columns", "Columns to leave out: a,b,c.", show_default=False)]
Categorical = Annotated[
    str, option("Columns", "Columns of categories even where they look like numbers: a,b,c.", show_default=False)
]
LabelsAsWritten = Annotated[
    bool,
    option(
        "Columns",
        "Labels and categories that differ by case or blanks alone are different ones; otherwise they are refused.",
        "--labels-as-written",
    ),
]
OneHot = Annotated[
    bool, option("Columns", "Text becomes one feature per category, those of all workers in sorted order.")
]
DropFirst = Annotated[
    bool,
    option(
        "Columns",
        "Leave out the first category of a column; otherwise all are kept, as a penalty allows.",
        "--drop-first",
    ),
]
Standardize = Annotated[
    bool, option("Columns", "Numbers get mean 0 and variance 1 over all workers' rows (sparse files: variance only).")
]
Impute = Annotated[
    str,
    option(
        "Columns",
        "Missing values: none refuses them, mean fills in the mean or the most frequent category.",
        autocompletion=known(IMPUTE),
    ),
]

# ---------------------------------------------------------------------- how it runs
Method = Annotated[str, option("Run", f"One of {', '.join(METHODS)}.", autocompletion=known(METHODS))]
Engine = Annotated[
    str,
    option(
        "Run",
        f"Where workers live: {', '.join(engines.KNOWN)} (torch: every process reads its own files).",
        autocompletion=known(tuple(engines.KNOWN)),
    ),
]
MaxIter = Annotated[int, option("Run", "Limit of iterations.", min=0)]
Tol = Annotated[
    float | None,
    option(
        "Run",
        "Converged when the objective is within this of its optimum, relatively; 1e-16 unless it is given, 1e-18 with "
        "--family and --model cox.",
        min=0,
    ),
]
TimeLimit = Annotated[float | None, option("Run", "Limit of seconds; the model so far is kept.")]
RoundCost = Annotated[
    float, option("Run", "Numbers that a link carries while it waits for an answer; auto goes by it.", min=0)
]
Device = Annotated[str, option("Run", "cpu or cuda.", autocompletion=known(("cpu", "cuda")))]
Seed = Annotated[int, option("Run", "Of the random vectors that curvature is probed with.", min=0, max=2**31 - 1)]
Resume = Annotated[
    bool,
    option(
        "Run", "Go on with the run of --out from its checkpoint, if it is of these very files and settings.", "--resume"
    ),
]
CheckpointEvery = Annotated[int, option("Run", "Iterations between checkpoints; 0 for none.", min=0)]
CheckpointFolder = Annotated[
    Path | None,
    option(
        "Run",
        "Folder for checkpoints, as private as rows: by default beside --out, its name with .checkpoint; removed when "
        "the run has converged.",
        "--checkpoint",
        show_default=False,
    ),
]
KeepCheckpoint = Annotated[
    bool, option("Run", "Keep the checkpoints of a run that has converged.", "--keep-checkpoint")
]

# ---------------------------------------------------------------------- what it is worth
Inference = Annotated[
    bool,
    option("Statistics", "Standard errors, intervals and tests, in units of the raw columns (with --l2 0).",
            "--inference"),
]  # fmt: skip
Cov = Annotated[
    str,
    option("Statistics", "Which standard errors: model, expected, robust or cluster.", autocompletion=known(COV)),
]
Level = Annotated[float, option("Statistics", "Level of intervals.")]
Exponentiate = Annotated[
    bool, option("Statistics", "Show exp(coefficient): ratios of odds, rates or hazards.", "--exponentiate")
]
CrossValidation = Annotated[
    str | None,
    option("Statistics", "Also judge rows that were held out: a number of folds, or sites to leave one out each time.",
            "--cv"),
]  # fmt: skip

# ---------------------------------------------------------------------- output
Out = Annotated[Path, option("Output", "Folder for model, summary, history and report; empty or new.")]
OutOrNone = Annotated[
    Path | None, option("Output", "Folder for model, summary, history and report; empty or new. Not with --dry-run.")
]
Overwrite = Annotated[bool, option("Output", "Replace an earlier fit in --out.", "--overwrite")]
Quiet = Annotated[
    bool, option("Output", "No progress and no result on the screen, unless the run is interrupted.", "--quiet", "-q")
]
Json = Annotated[
    bool, option("Output", "One line of JSON per iteration on standard output, nothing else there.", "--json")
]
Debug = Annotated[bool, option("Output", "Show the traceback of an error.", "--debug")]


def names(text: str) -> tuple[str, ...]:
    """a,b,c as typed; a name with a comma is quoted, as in csv."""
    parts = next(csv.reader([text], skipinitialspace=True), [])
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def roles(
    target: str | None,
    site: str | None,
    id: str | None,
    weight: str | None,
    features: str,
    drop: str,
    categorical: str,
    task: Task,
) -> Roles:
    """What each column is for."""
    columns = (names(features) or None, names(drop), names(categorical))
    return Roles(target, site, id, weight, *columns, task.labels)


def given_out(out: Path | None, dry_run: bool) -> Path:
    """The folder to write to, which a dry run does not need."""
    if out is None and not dry_run:
        raise typer.BadParameter("--out is missing: name a folder for the model.")
    return out or Path()


def settings(
    standardize: bool, one_hot: bool, drop_first: bool, impute: str, roles: Roles, labels_as_written: bool = False
) -> Settings:
    """How columns are encoded."""
    fill = None if impute == "none" else impute
    return Settings(standardize, one_hot, drop_first, fill, roles.categorical, labels_as_written)


def check_usage(
    files: Sequence[Path],
    target: str | None,
    model: str,
    method: str,
    engine: str,
    impute: str,
    smoothing: float,
    time_limit: float | None,
    kinds: Sequence[str] = PLAIN_KINDS,
) -> None:
    """Usage errors detected before any file is opened: exit code 2."""
    choices = {
        "--model": (model, kinds),
        "--method": (method, METHODS),
        "--engine": (engine, tuple(engines.KNOWN)),
        "--impute": (impute, IMPUTE),
    }
    for name, (value, offered) in choices.items():
        if value not in offered:
            raise typer.BadParameter(f"{name}: there is no {value!r}; there are {', '.join(offered)}.")
    for name, number in {"--smoothing": smoothing, "--time-limit": time_limit}.items():
        if number is not None and not number > 0:
            raise typer.BadParameter(f"{name} must be > 0, got {number:g}.")
    if target is None and model != "cox" and any(is_table(path) for path in files):
        raise typer.BadParameter("--target is missing: name the column to predict.")
    repeated = next((path for k, path in enumerate(files) if path in files[:k]), None)
    if repeated is not None:
        raise typer.BadParameter(f"{visible(str(repeated))} is named twice.")
