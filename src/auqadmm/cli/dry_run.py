"""`auqadmm fit --dry-run`: what would be fitted, and what would leave a worker."""

from __future__ import annotations

import sys

from auqadmm.files.encoding import Encoding, FormulaEncoding
from auqadmm.files.preprocessing import Agreed, Settings
from auqadmm.files.tabular import Roles
from auqadmm.files.training import Prepared, Task
from auqadmm.formula.design import FormulaDesign, reference_of
from auqadmm.methods.auto.cost import Facts, estimates
from auqadmm.words import counted, quoted, visible

SHOWN = 20  # names in a list
NAMES = {"logistic": "Logistic regression", "elastic-net": "Linear regression", "svm": "Support vector machine"}
SENT = {
    "newton": "the value, the slope and the curvature (a triangle) of its loss",
    "lbfgs": "the value and the slope of its loss",
    "fista": "the value and the slope of its loss",
}
OTHER = "the slope of its loss, and its weights or directions of its curvature"
WHO = {
    "local": "One process reads all files; nothing leaves it.",
    "torch": "Processes see the sums over all of them; what is sent before round 1, and multipliers at the end, each "
    "process sees of every other.",
}
WHO["sites"] = "The coordinator sees sums over all sites where they are masked, else those of each site."
DRIVER = "The driver sees what every worker sends."


def tell(
    prepared: Prepared,
    task: Task,
    roles: Roles,
    settings: Settings,
    method: str,
    engine: str,
    round_cost: float,
    speaks: bool,
) -> None:
    """Print it, in one process."""
    if speaks:
        lines = [*fitted(prepared.agreed, task, roles, settings), "", *sent(prepared, task, method, engine, round_cost)]
        sys.stdout.write("\n".join(visible(line) for line in lines) + "\n")


def fitted(agreed: Agreed, task: Task, roles: Roles, settings: Settings) -> list[str]:
    """The model in a sentence, the workers, and the features."""
    lines = [sentence(agreed, task, roles), "", f"{counted(agreed.rows, 'row')}, {_workers(agreed)}"]
    lines += [f"  {name}: {counted(rows, 'row')}" for name, rows, _ in agreed.blocks[:SHOWN]]
    lines += [f"  … and {len(agreed.blocks) - SHOWN} more"] if len(agreed.blocks) > SHOWN else []
    for name, rows in agreed.dropped:
        lines.append(f"  {name}: {counted(rows, 'row')} left out, with missing values")
    encoding = agreed.encoding
    lines += ["", f"{counted(len(encoding.features), 'feature')}{_constant(task)}"]
    if isinstance(encoding, FormulaEncoding):
        return lines + _formula_lines(encoding.design)
    return lines + _column_lines(encoding, settings)


def sentence(agreed: Agreed, task: Task, roles: Roles) -> str:
    """What is minimised, and of what."""
    penalty = ""
    if task.l1 or task.l2:
        penalty = f", with penalties l1 = {task.l1:g} and l2 = {task.l2:g}"
    target = "" if roles.target is None else f" of {quoted(roles.target)}"
    also = {"entry": roles.entry, "exposure": roles.exposure, "offset": roles.offset, "weights": roles.weight}
    columns = [f"{what} {quoted(name)}" for what, name in also.items() if name is not None]
    more = f", with {', '.join(columns)}" if columns else ""
    what = "the sum of the losses" if task.l1 or task.l2 else "the largest likelihood"
    if task.kind == "cox":
        until = f"{quoted(str(roles.time))} until {quoted(str(roles.event))}"
        return f"Proportional hazards of {until}, a baseline for every worker, ties {task.ties}{more}: {what}{penalty}."
    if task.family is None:
        return f"{NAMES[task.kind]}{target}: the mean loss over all rows{penalty}."
    family = f"{task.family.name.capitalize()} model, link {task.family.link},{target}"
    event = f" being {quoted(agreed.classes[1])} (not {quoted(agreed.classes[0])})" if agreed.classes else ""
    return f"{family}{event}{more}: {what}{penalty}."


def _workers(agreed: Agreed) -> str:
    return f"{counted(len(agreed.blocks), 'worker')}:"


def _constant(task: Task) -> str:
    if task.site_intercepts:
        return ", and an intercept for every worker, which stays there:"
    if task.kind == "cox":
        return ":"
    return " and an intercept:" if task.intercept else ", no intercept:"


def _formula_lines(design: FormulaDesign) -> list[str]:
    lines = [f"  {name}" for name in design.features[:SHOWN]]
    lines += [f"  … and {len(design.features) - SHOWN} more"] if len(design.features) > SHOWN else []
    for name, levels in design.levels.items():
        reference = reference_of(design, name)
        note = "" if reference is None else f"; compared with {quoted(reference)}"
        lines.append(f"  levels of {name}: {', '.join(map(str, levels[:SHOWN]))}{note}")
    for key, state in design.states.items():
        if "knots" in state:
            knots = ", ".join(f"{knot:g}" for knot in sorted(set(state["knots"])))
            lines.append(f"  knots of {key}: {knots} (from pooled counts of rounded values)")
    return lines


def _column_lines(encoding: Encoding, settings: Settings) -> list[str]:
    scaled = ", standardised for the fit" if settings.standardize else ""
    numbers = encoding.numbers
    lines = [f"  {', '.join(numbers[:SHOWN])}{', …' if len(numbers) > SHOWN else ''}{scaled}"] if numbers else []
    for column in encoding.categories:
        levels = [str(level) for level in column.levels or ()]
        first = f"{levels[0]} (reference)" if encoding.drop_first else levels[0]
        lines.append(f"  {column.name}: {', '.join([first, *levels[1:SHOWN]])}{', …' if len(levels) > SHOWN else ''}")
    return lines


def sent(prepared: Prepared, task: Task, method: str, engine: str, round_cost: float) -> list[str]:
    """What leaves a worker, how much, and who sees it."""
    agreed = prepared.agreed
    features, columns = len(agreed.encoding.features) + int(task.common_intercept), _columns(agreed, task)
    unknowns = features * columns
    first = "names and kinds of columns, categories, sums and sums of squares of columns, labels, numbers of rows"
    if isinstance(agreed.encoding, FormulaEncoding) and agreed.encoding.design.states:
        first += ", counts of rounded values and sums for the transforms of the formula"
    lines = ["What every worker would send:", f"  before round 1: {first}"]
    chosen, rounds = method, ""
    if method == "auto":
        posed = prepared.problem(task, together=True)
        facts = Facts(len(agreed.blocks), features, columns, posed.loss, posed.regularizer, rows=agreed.rows)
        best = estimates(facts, round_cost)[0]
        chosen, rounds = best.method, f", about {best.rounds:.0f} rounds"
    numbers = unknowns + 1 + (unknowns * (unknowns + 1) // 2 if chosen == "newton" else 0)
    size = f"about {numbers} numbers ({8 * numbers} bytes)"
    lines.append(f"  every round: {SENT.get(chosen, OTHER)}: {size}; method {chosen}{rounds}")
    if task.likelihood:
        triangle = unknowns * (unknowns + 1) // 2
        lines.append(f"  for standard errors, once: sums over its rows, up to 4 × {triangle} numbers")
    lines.append(f"Who sees it: {WHO.get(engine, DRIVER)} Sums over few rows say much about them.")
    return [*lines, "", "Nothing was fitted, nothing was written."]


def _columns(agreed: Agreed, task: Task) -> int:
    """Of the unknown: one, or one per class."""
    return task.loss(len(agreed.classes or ())).columns_for(len(agreed.classes or ()))
