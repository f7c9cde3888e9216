"""Options of generalised linear models, Cox's model and formulas, and what they ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from auqadmm.cli.options import known, option
from auqadmm.files.model import KINDS
from auqadmm.files.preprocessing import Settings
from auqadmm.files.tabular import Roles, is_table
from auqadmm.files.training import Task
from auqadmm.formula.parsing import Formula, parse
from auqadmm.problem import InputError
from auqadmm.problem.cox import TIES
from auqadmm.problem.families import FAMILIES, LOGARITHMIC, NamedFamily
from auqadmm.words import quoted, visible

Time = Annotated[
    str | None,
    option("Columns", "With --model cox: column of times, above zero, until the event or the end of observation."),
]
Event = Annotated[
    str | None, option("Columns", "With --model cox: column that is 1 or true for an event, 0 or false for censored.")
]
Entry = Annotated[
    str | None, option("Columns", "With --model cox: column of times from which rows are at risk, below --time.")
]
Ties = Annotated[
    str | None,
    option(
        "Model",
        "With --model cox: efron (default) or breslow, how events at the same time share those at risk.",
        autocompletion=known(TIES),
    ),
]
BaselineTimes = Annotated[
    str | None,
    option(
        "Statistics",
        "With --model cox: times, as 30,90,365, at which to tell every worker's cumulative baseline hazard (of raw "
        "columns that are zero).",
        "--baseline",
    ),
]
FAMILY_NAMES = tuple(FAMILIES)
LINKS = tuple(dict.fromkeys(link for links in FAMILIES.values() for link in links))
LOG_FAMILIES = [name for name, links in FAMILIES.items() if next(iter(links.values())) in LOGARITHMIC]
DEFAULT_L2 = 1e-3  # of models that are no family: makes them unique
Model = Annotated[
    str | None,
    option(
        "Model",
        "logistic (two or more classes), elastic-net, svm, cox (proportional hazards, stratified by worker, "
        "with --time and --event), or glm with --family; --family alone says glm.",
        autocompletion=known(KINDS),
    ),
]
Family = Annotated[
    str | None,
    option(
        "Model",
        f"Generalised linear model: {', '.join(FAMILIES)}. The sum of −log-likelihoods is minimised, without a penalty "
        "unless --l1 or --l2 add one; coefficients are of raw columns.",
        autocompletion=known(FAMILY_NAMES),
    ),
]
Link = Annotated[
    str | None, option("Model", "Of binomial: logit (default), probit, cloglog.", autocompletion=known(LINKS))
]
Parameter = Annotated[
    float | None,
    option(
        "Model",
        "Of the family: k of negative-binomial (found from the rows), power of tweedie (1.5), delta of huber (1), q of "
        "quantile (0.5).",
    ),
]
FormulaText = Annotated[
    str | None,
    option(
        "Model",
        'Target and terms, as in R: "sick ~ age + C(stage) + bs(bmi, df=4) + offset(log_days)"; with --family, or '
        "with --model cox, where the left side is the time. Rows that lack a value are left out.",
        "--formula",
    ),
]
SiteIntercepts = Annotated[
    bool,
    option(
        "Model",
        "With --family: every worker has an intercept of its own, which stays there, in place of a common one.",
        "--site-intercepts",
    ),
]
L1 = Annotated[
    float,
    option(
        "Model",
        "Strength of the l1 penalty: l1·Σ|c|, beside the MEAN loss over all rows; with --family or cox the SUM.",
        min=0,
    ),
]
L2 = Annotated[
    float | None,
    option(
        "Model",
        "Strength of the l2 penalty: l2/2·Σc², likewise (scikit-learn's C is 1/(rows·l2)). By default 0.001, with "
        "--family or cox 0.",
        min=0,
    ),
]
Exposure = Annotated[
    str | None,
    option(
        "Columns", f"Column of sizes or times at risk, above zero, of {', '.join(LOG_FAMILIES)}: rates are modelled."
    ),
]
Offset = Annotated[str | None, option("Columns", "With --family or cox: column that is added to the linear predictor.")]
TrialsColumn = Annotated[
    str | None,
    option("Columns", "With --family binomial: column of numbers of trials, of which --target counts the successes."),
]
Standardize = Annotated[
    bool | None,
    option(
        "Columns",
        "Numbers get mean 0 and variance 1 over all workers' rows (sparse files: variance only). By default, but not "
        "with --family or penalised cox, where it matters to penalties alone.",
        "--standardize/--no-standardize",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool,
    option("Run", "Say what would be fitted and what would leave a worker; fit nothing, write nothing.", "--dry-run"),
]


@dataclass(frozen=True)
class Survival:
    """What was typed for Cox's model: columns, and how ties are broken."""

    time: str | None = None
    event: str | None = None
    entry: str | None = None
    ties: str | None = None

    def refuse_without_cox(self) -> None:
        """These options belong to one model: exit code 2."""
        given = {"--time": self.time, "--event": self.event, "--entry": self.entry, "--ties": self.ties}
        wrong = next((name for name, value in given.items() if value is not None), None)
        if wrong is not None:
            raise typer.BadParameter(f"{wrong} goes with --model cox.")

    def checked(
        self, files: Sequence[Path], target: str | None, others: Mapping[str, object], formula: Formula | None
    ) -> Survival:
        """Complete, with the time on the left side of the formula where there is one; or wrong usage, exit code 2.
        `others`: options that this model does not have."""
        if target is not None:
            raise typer.BadParameter(
                "--target has no place beside --model cox: name the columns with --time and --event."
            )
        wrong = next((name for name, value in others.items() if value), None)
        if wrong is not None:
            raise typer.BadParameter(f"{wrong} has no place beside --model cox.")
        time = self.time
        if formula is not None:
            if time not in (None, formula.target):
                raise typer.BadParameter(
                    f"--time {quoted(time)} is not the left side of the formula; leave it out, or write it there."
                )
            if not formula.intercept:
                raise typer.BadParameter(
                    "--model cox has no intercept, the baseline hazards take its place: leave `0 +` or `- 1` out."
                )
            time = formula.target
        for name, value in (("--time", time), ("--event", self.event)):
            if value is None:
                raise typer.BadParameter(f"--model cox needs --time and --event: {name} is missing.")
        if self.ties not in (None, *TIES):
            raise typer.BadParameter(f"--ties: there is no {self.ties!r}; there are {', '.join(TIES)}.")
        odd = next((path for path in files if not is_table(path)), None)
        if odd is not None:
            raise typer.BadParameter(f"--model cox reads csv, tsv and parquet files; {visible(str(odd))} is none.")
        return Survival(time, self.event, self.entry, self.ties or TIES[0])


@dataclass(frozen=True)
class StudyOptions:
    """What was asked beside the options that all models have."""

    kind: str
    family: NamedFamily | None = None
    formula: Formula | None = None
    site_intercepts: bool = False
    exposure: str | None = None
    offset: str | None = None
    survival: Survival | None = None
    trials: str | None = None

    def task(self, l1: float, l2: float | None, intercept: bool, smoothing: float) -> Task:
        if self.survival is not None:
            return Task(self.kind, l1, l2 or 0.0, intercept=False, ties=self.survival.ties)
        if self.family is None:
            return Task(self.kind, l1, DEFAULT_L2 if l2 is None else l2, intercept, smoothing)
        constant = intercept if self.formula is None else self.formula.intercept
        return Task(
            self.kind,
            l1,
            l2 or 0.0,
            constant,
            smoothing,
            self.family,
            self.site_intercepts,
            trials=self.trials is not None,
        )

    def roles(self, roles: Roles) -> Roles:
        """With the columns that a family or Cox's model has, and those of the formula."""
        roles = replace(roles, offset=self.offset, exposure=self.exposure)
        if self.trials is not None:
            if roles.weight is not None:
                raise typer.BadParameter("--weight has no place beside --trials, which are weights.")
            roles = replace(roles, weight=self.trials)
        if self.survival is not None:
            columns = self.survival
            roles = replace(roles, target=None, time=columns.time, event=columns.event, entry=columns.entry)
        if self.formula is None:
            return roles
        target = self.formula.target if self.survival is None else None
        return replace(roles, target=target, features=self.formula.columns, asker="the formula", gaps=True)

    def settings(self, settings: Settings, task: Task, standardize: bool | None) -> Settings:
        """A likelihood without penalty needs one level of every category as reference."""
        if not task.likelihood:
            return replace(settings, standardize=standardize is not False)
        free = task.l1 == task.l2 == 0
        scaled = free and self.survival is not None if standardize is None else standardize
        one_less = free and (task.intercept or self.survival is not None)  # a baseline is a constant too
        return replace(settings, standardize=scaled, drop_first=settings.drop_first or one_less)


def study(
    model: str | None,
    family: str | None,
    link: str | None,
    parameter: float | None,
    formula: str | None,
    site_intercepts: bool,
    exposure: str | None,
    offset: str | None,
    survival: Survival | None = None,
    files: Sequence[Path] = (),
    target: str | None = None,
    trials: str | None = None,
) -> StudyOptions:
    """What is asked for, or wrong usage: exit code 2."""
    if model is None and family is None:
        raise typer.BadParameter("--model or --family is missing: say what to fit.")
    survival = survival or Survival()
    if model == "cox":
        read = None if formula is None else parse(formula)
        others = {"--family": family, "--link": link, "--parameter": parameter, "--exposure": exposure}
        others["--trials"] = trials
        others["--site-intercepts (every worker has a baseline hazard)"] = site_intercepts
        columns = survival.checked(files, target, others, read)
        return StudyOptions("cox", None, read, offset=offset, survival=columns)
    survival.refuse_without_cox()
    if family is None:
        given = {
            "--link": link, "--parameter": parameter, "--formula": formula, "--exposure": exposure, "--offset": offset,
            "--site-intercepts": site_intercepts or None, "--trials": trials,
        }  # fmt: skip
        if model == "glm":
            raise typer.BadParameter(f"--model glm needs --family: {', '.join(FAMILIES)}.")
        wrong = next((name for name, value in given.items() if value is not None), None)
        if wrong is not None:
            raise typer.BadParameter(f"{wrong} goes with --family: {', '.join(FAMILIES)}.")
        return StudyOptions(str(model))
    if model not in (None, "glm"):
        raise typer.BadParameter(f"--model {model} and --family exclude each other; leave one of the two out.")
    try:
        named = NamedFamily.of(family, link, parameter)
    except InputError as error:
        raise typer.BadParameter(str(error)) from None
    if trials is not None and not named.labels:
        raise typer.BadParameter("--trials is for --family binomial, whose --target then counts successes.")
    if exposure is not None and not named.takes_exposure:
        raise typer.BadParameter(
            f"--exposure is for families with a logarithmic link ({', '.join(LOG_FAMILIES)}); use --offset, on the "
            "scale of the linear predictor."
        )
    read = None if formula is None else parse(formula)
    if read is not None and site_intercepts and not read.intercept:
        raise typer.BadParameter("--site-intercepts are in place of the common one: leave `0 +` or `- 1` out.")
    return StudyOptions("glm", named, read, site_intercepts, exposure, offset, trials=trials)


def refuse_beside_formula(
    formula: str | None, target: str | None, features: str, drop: str, drop_first: bool, impute: str, intercept: bool
) -> None:
    """What the formula says itself is not said twice."""
    if formula is None:
        return
    given = {
        "--features": bool(features),
        "--drop": bool(drop),
        "--drop-first": drop_first,
        "--impute": impute != "none",
        "--no-intercept (write - 1)": not intercept,
    }
    wrong = next((name for name, value in given.items() if value), None)
    if wrong is not None:
        raise typer.BadParameter(f"{wrong} has no place beside --formula, which says what is used.")
    if target is not None and target != parse(formula).target:
        raise typer.BadParameter(f"--target {quoted(target)} is not the target of the formula; leave it out.")
