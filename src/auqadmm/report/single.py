"""One fit, or the demo, as a report: the answer first (answer.py), then coefficients and how the run converged.

Everything comes from the files of a finished run, so that the page can be drawn again at any time. Names of columns,
labels and files are data: control characters are escaped here, and the page escapes the rest.

The page of the demo has, per model, the curves of all methods, a table of their cost, and the weights as images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from auqadmm.comparison import MethodRun
from auqadmm.files.model import Parts
from auqadmm.files.training import raw_coefficients
from auqadmm.report import answer
from auqadmm.report.content import Chapter, Curve, Panel, Picture, Report, Table
from auqadmm.report.style import COSTS, method_style
from auqadmm.report.tables import headers, table_row
from auqadmm.words import counted, quoted, visible

SHOWN_FEATURES, SHOWN_COLUMNS, SHOWN_FILES, LONGEST_NAME = 200, 12, 500, 200  # limits that keep a page readable


def fit_report(summary: Mapping[str, Any], history: Sequence[Mapping[str, Any]], parts: Parts) -> Report:
    """The page of one run, from its summary, its rows and its model."""
    chapters = (
        *_why(summary.get("diagnosis", ())),
        *answer.effects(summary, parts.encoding),
        *answer.agreement(summary),
        *(() if summary.get("inference") else (coefficients(summary, parts),)),
        *answer.quality(summary),
        answer.sites(summary),
        *answer.left(summary, history, parts.encoding),
        convergence(summary, history),
    )
    return Report(
        title=_title(summary),
        lead=_lead(summary, parts),
        chapters=chapters,
        about={
            "settings": {name: _word(value) for name, value in summary["settings"].items()},
            "files": [visible(str(name)) for name in summary["files"][:SHOWN_FILES]],
            "seed": summary["seed"],
            "engine": summary["engine"],
            "date": summary["date"],
            "versions": dict(summary["versions"]),
        },
        parts="Part",
    )


# ---------------------------------------------------------------------- chapters
def _why(findings: Sequence[Mapping[str, str]]) -> tuple[Chapter, ...]:
    """Findings about a run that did not converge; empty without any."""
    if not findings:
        return ()
    rows = tuple((visible(finding["sentence"]), visible(finding["setting"])) for finding in findings)
    caption = "Read off the history and what the run left behind; the first is the first to act on."
    return (Chapter("why", "Why it did not converge", caption, table=Table(("what was seen", "what to try"), rows)),)


def convergence(summary: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> Chapter:
    method = summary["method"]
    x = {name: tuple(row[name] for row in history) for name in COSTS}

    def column(name: str) -> tuple[float | None, ...]:
        return tuple(row[name] for row in history)

    objective = column("objective")
    lowest = min((value for value in objective if value is not None), default=0.0)
    above = tuple(None if value is None else value - lowest for value in objective)
    label = method_style(method).label
    panels = [
        Panel(
            "Objective",
            (Curve(method, label, x, {"above": above, "objective": objective}),),
            COSTS,
            {"above": "objective − lowest seen", "objective": "objective"},
            log_y=("above",),
        ),
        Panel(
            "Optimality",
            (Curve(method, label, x, {"kkt": column("kkt")}),),
            COSTS,
            {"kkt": "KKT residual"},
            (),
            ("kkt",),
        ),
    ]
    if any(value is not None for value in column("primal_residual")):
        curves = []
        for name in ("primal", "dual"):
            curves.append(Curve(name, f"{name} residual", x, {"r": column(f"{name}_residual")}))
            curves.append(Curve(name, f"{name} tolerance", x, {"r": column(f"eps_{name}")}))
        panels.append(Panel("Residuals", tuple(curves), COSTS, {"r": "residual"}, (), ("r",)))
    certificate = summary["certificate"]
    return Chapter(
        "convergence",
        "How it converged",
        f"The objective is {_objective(summary)}. The gap is how far it can still "
        "be above its optimum, relative to what is left of it or explained, and how that is known. The KKT residual "
        "and the method's own residuals are there for the eye.",
        panels=tuple(panels),
        table=Table(
            ("iterations", "rounds", "for the verdict", "bytes", "seconds", "objective", "gap at most", "evidence"),
            (
                (
                    str(summary["iterations"]),
                    str(summary["rounds"]),
                    str(summary.get("rounds_verdict", 0)),
                    str(summary["bytes"]),
                    f"{summary['seconds']:.3g}",
                    _number(summary["objective"], ".10g"),
                    _number(certificate.get("relative", certificate.get("relative_gap")), ".1e"),
                    str(certificate.get("evidence", "none")),
                ),
            ),
        ),
    )


def coefficients(summary: Mapping[str, Any], parts: Parts) -> Chapter:
    encoding, coef = parts.encoding, parts.coef
    raw = raw_coefficients(encoding, coef)
    order = np.argsort(-np.abs(coef).max(0), kind="stable")[:SHOWN_FEATURES]
    names = encoding.features
    several = len(coef) > 1
    shown = min(len(coef), SHOWN_COLUMNS)
    if several and parts.classes is not None:
        header = ("feature", *(_name(str(label)) for label in parts.classes[:shown]))
        rows = [(_name(names[k]), *(_number(coef[c, k], ".5g") for c in range(shown))) for k in order]
        rows.insert(0, ("(intercept)", *(_number(parts.intercept[c], ".5g") for c in range(shown))))
    else:
        header = ("feature", "coefficient", "per unit\nof the column")
        rows = [(_name(names[k]), _number(coef[0, k], ".6g"), _number(raw[0, k], ".6g")) for k in order]
        rows.insert(0, ("(intercept)", _number(parts.intercept[0], ".6g"), "–"))
    zero = int((coef == 0).all(0).sum())
    caption = f"{counted(len(names), 'feature')}, the largest first; {zero} have no influence at all (coefficient 0)."
    if len(order) < len(names):
        caption += f" {len(order)} are shown; model.safetensors holds all."
    if shown < len(coef):
        caption += f" {shown} of {len(coef)} classes are shown."
    if summary["settings"].get("standardize") and parts.kind not in ("glm", "cox"):
        caption += " Coefficients are those of standardised columns: the change per standard deviation."
    if not several and parts.classes is not None:
        caption += f" Positive: towards {_name(str(parts.classes[1]))}."
    return Chapter("coefficients", "Coefficients", caption, table=Table(header, tuple(rows)))


# ---------------------------------------------------------------------- text
def _title(summary: Mapping[str, Any]) -> str:
    names = {"logistic": "Logistic regression", "elastic-net": "Elastic net", "svm": "Support vector machine"}
    names |= {"cox": "Proportional hazards", "glm": "Generalised linear model"}
    target = f" of {_name(str(summary['target']))}" if summary.get("target") else ""
    family = f" ({answer.family_words(summary['settings'])})" if summary["model"] == "glm" else ""
    return f"{names[summary['model']]}{target}{family}"


def _lead(summary: Mapping[str, Any], parts: Parts) -> str:
    told = [answer.sentence(summary, parts), *map(visible, summary.get("refusals", ())), visible(summary["message"])]
    return "\n\n".join(told)


def _name(text: str) -> str:
    return quoted(text, LONGEST_NAME)[1:-1]


def _word(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, list | tuple):
        return ", ".join(map(_word, value)) or "–"
    return f"{value:g}" if isinstance(value, float) else visible(str(value))


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(float(value), form)


GAP_FLOOR = 1e-10  # the reference optimum is not known to more digits


def demo_report(runs: Sequence[MethodRun], weights: Mapping[str, bytes], about: Mapping[str, Any]) -> Report:
    """`weights`: a PNG per model."""
    models = dict.fromkeys(run.model for run in runs)
    return Report(
        title="Ten workers, one digit each",
        lead="Handwritten digits, split in the hardest way: every worker holds the images of one digit, and all must "
        "agree on one model. Objectives are measured against an optimum that none of these methods found.",
        chapters=tuple(
            _chapter(model, [run for run in runs if run.model == model], weights[model]) for model in models
        ),
        about=about,
    )


def _chapter(model: str, runs: Sequence[MethodRun], weights: bytes) -> Chapter:
    rows = [table_row(run) for run in runs]
    best = []
    for column, counts in enumerate(zip(*(row.iterations for row in rows), strict=True), start=1):
        reached = [k for k in counts if k is not None]
        best += [(place, column) for place, k in enumerate(counts) if reached and k == min(reached)]
    panels = (
        _panel("Objective", runs, "gap", "(objective − optimum) / optimum"),
        _panel("Optimality", runs, "kkt", "KKT residual"),
    )
    return Chapter(
        id=model.replace(" ", "-"),
        title=f"{model[:1].upper()}{model[1:]}",
        caption="The further left a curve falls, the fewer trips to the workers it took. In the pictures, weights of "
        "AUQ-ADMM in its second iteration: bright where a worker is certain.",
        panels=panels,
        pictures=(Picture(weights, f"Weights of the ten workers, {model}", "Weights of AUQ-ADMM"),),
        table=Table(tuple(headers()), tuple(tuple(row.cells()) for row in rows), tuple(best)),
    )


def _panel(title: str, runs: Sequence[MethodRun], key: str, words: str) -> Panel:
    curves = []
    for run in runs:
        history = run.result.history
        x = {name: tuple(history.column(name)) for name in COSTS}
        y = tuple(map(float, run.gaps)) if key == "gap" else tuple(history.column("kkt"))
        curves.append(Curve(run.method, method_style(run.method).label, x, {key: y}))
    return Panel(title, tuple(curves), COSTS, {key: words}, ("iteration", "rounds"), (key,), {key: GAP_FLOOR})


def _objective(summary: Mapping[str, Any]) -> str:
    """What was minimised: a likelihood is a sum over rows, other losses are means."""
    kind = summary["model"]["kind"] if isinstance(summary.get("model"), dict) else summary.get("model")
    if kind == "cox":
        return "minus the logarithm of the partial likelihood, plus the penalty where there is one"
    if kind == "glm" or summary.get("family"):
        return "the sum over the rows of all workers of minus the log-likelihood, plus the penalty where there is one"
    return "the mean loss over the rows of all workers plus the penalty"
