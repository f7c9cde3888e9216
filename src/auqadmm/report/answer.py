"""What was asked and the answer, from the summary of a fit: effects, whether sites agree, quality, what left a site.

Keys of the summary that are missing, as of a fit without --inference or of an older one, leave their chapter out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from auqadmm.files.model import Parts
from auqadmm.files.preprocessing import AnyEncoding
from auqadmm.quality.quality import LABELS, shown
from auqadmm.report.content import Agreement, Chapter, Forest, Interval, Table
from auqadmm.words import counted, quoted, short, visible

SHOWN_EFFECTS, SHOWN_FORESTS, FOLDED_FORESTS, SHOWN_SITES, ANSWER_NAME = 200, 6, 30, 500, 60
NAMED = 4  # features that the sentence about the model names
ROUNDS = {
    "newton": "value, slope and curvature of its loss",
    "lbfgs": "value and slope of its loss",
    "lbfgs-w": "value and slope of its loss, weights of coefficients",
    "owl-qn": "value and slope of its loss",
    "fista": "value and slope of its loss",
    "auq-lr": "its model, weighted, with a few directions of its curvature; value and slope of its loss",
}
OTHER_ROUNDS = "its model, weighted; value and slope of its loss"


# ---------------------------------------------------------------------- in one sentence
def sentence(summary: Mapping[str, Any], parts: Parts) -> str:
    """What was predicted from what, on which rows, how well, and how sure."""
    kinds = {"logistic": "A logistic model", "elastic-net": "A linear model", "svm": "A support vector machine"}
    kinds["cox"] = "A proportional hazards model, with a baseline for every site,"
    kinds["glm"] = f"A generalised linear model ({family_words(summary['settings'])})"
    columns = list(parts.encoding.names)
    named = ", ".join(name_of(c) for c in columns[:NAMED])
    some = f"{named} and {counted(len(columns) - NAMED, 'more column')}" if len(columns) > NAMED else named
    target = name_of(str(summary["target"])) if summary.get("target") else "the target"
    target += f" until {name_of(str(summary['event']))}" if summary.get("event") else ""
    what = f"{kinds[summary['model']]} of {target} from {some}"
    size = f"on {counted(summary['rows'], 'row')} at {counted(len(summary['blocks']), 'site')}"
    return f"{what}, {size}. {_how_well(summary)}{_how_sure(summary)}".strip()


def family_words(settings: Mapping[str, Any]) -> str:
    """Such as "Poisson, link log"."""
    family = str(settings.get("family"))
    name = family.capitalize() if family in ("poisson", "tweedie", "huber") else family.replace("-", " ")
    return f"{name}, link {settings.get('link')}"


def _how_well(summary: Mapping[str, Any]) -> str:
    told = []
    for key, where in (("quality", "on the rows of the fit"), ("cross_validation", "on rows that were held out")):
        figures = summary.get(key, {}).get("figures", {})
        names = [
            n for n in ("auc", "concordance", "r2", "deviance_explained", "accuracy") if figures.get(n) is not None
        ][:1]
        told += [f"{LABELS[n]} {shown(n, figures[n])} {where}" for n in names]
    text = "; ".join(told)
    return f"{text[:1].upper()}{text[1:]}. " if told else ""


def _how_sure(summary: Mapping[str, Any]) -> str:
    """The effects that are furthest from none."""
    found = summary.get("inference")
    if not found or "p" not in found["table"]:
        return ""
    table, names = found["table"], found["names"]
    sign = "t" if "t" in table else "z"
    order = sorted((k for k, n in enumerate(names) if n != "intercept"), key=lambda k: -abs(table[sign][k] or 0.0))
    clear = [k for k in order if table["p"][k] is not None and table["p"][k] < 1 - found["level"]]
    if not clear:
        return f"No effect is told from none at the level of {100 * found['level']:g}\u00a0%."
    what = found["exponentiated"] or "effect"
    value = table["ratio" if found["exponentiated"] else "coef"]
    told = [
        f"{name_of(names[k])} {_n(value[k], 3)} ({_n(table['low'][k], 3)} to {_n(table['high'][k], 3)})"
        for k in clear[:NAMED]
    ]
    more = f" and {len(clear) - NAMED} more" if len(clear) > NAMED else ""
    plural = "" if len(clear) == 1 else "s"
    return f"The {what}{plural} per unit, with {100 * found['level']:g}\u00a0% intervals: {', '.join(told)}{more}."


# ---------------------------------------------------------------------- effects
def effects(summary: Mapping[str, Any], encoding: AnyEncoding) -> tuple[Chapter, ...]:
    """The table with intervals."""
    found = summary.get("inference")
    if not found:
        return ()
    table, names, ratio = found["table"], found["names"], found["exponentiated"]
    value = np.array(table["ratio" if ratio else "coef"], dtype=float)
    scale = np.ones(len(names))
    scale[: len(encoding.scale)] = encoding.scale
    tested = "p" in table
    sign = "t" if "t" in table else "z"
    level = f"{100 * found['level']:g}\u00a0% interval"
    order = list(range(len(names)))
    if len(names) > SHOWN_EFFECTS:
        rank = np.abs(np.array(table[sign] if tested else value, dtype=float))
        order = sorted(np.argsort(-rank, kind="stable")[:SHOWN_EFFECTS].tolist())
    rows = []
    for k in order:
        ends = (table["low"][k], table["high"][k]) if tested else (None, None)
        drawn = [None if x is None or names[k] == "intercept" else _per_spread(x, scale[k], bool(ratio))
                 for x in (value[k], *ends)]  # fmt: skip
        cells = [_n(value[k]), _n(table["se"][k])]
        if tested:
            cells += [f"{_n(ends[0])} to {_n(ends[1])}", _p(table["p"][k])]
        elif "one_step" in table:
            cells.append(_n(table["one_step"][k]))
        rows.append(Interval(name_of(names[k]), drawn[0], drawn[1], drawn[2], tuple(cells)))
    heads = [ratio or "coefficient", "std error"]
    heads += [level, "p"] if tested else ["one step"] if "one_step" in table else []
    axis = "per standard deviation" if (scale != 1).any() else "per unit"
    caption = (
        f"{found['family'] or 'No'} likelihood, link {found['link'] or 'identity'}; {found['cov']} standard errors; "
        f"{found['nobs']:g} rows, {found['df_resid']:.6g} degrees of freedom left. Numbers are per unit of the column."
    )
    if found["deviance"] is not None:
        caption += f" Deviance {_n(found['deviance'], 6)} of {_n(found['null_deviance'], 6)}"
        caption += "." if found["aic"] is None else f"; AIC {_n(found['aic'], 6)}, BIC {_n(found['bic'], 6)}."
    if found["label"]:
        caption += f" {found['label']}"
    if summary["classes"] is not None:
        caption += f" Positive, or above 1: towards {name_of(str(summary['classes'][1]))}."
    forest = Forest("Effects", tuple(heads), tuple(rows), 1.0 if ratio else 0.0, axis, bool(ratio))
    return (Chapter("effects", "Effects, and how sure", caption, drawings=(forest,)),)


def _per_spread(x: float, scale: float, ratio: bool) -> float | None:
    if not ratio:
        return x * scale
    try:
        return x**scale if x > 0 else None
    except OverflowError:
        return None


def agreement(summary: Mapping[str, Any]) -> tuple[Chapter, ...]:
    """The heterogeneity line, and a forest by site of every effect."""
    found = summary.get("inference")
    if not found or not found["sites"] or len(found["sites"]["names"]) < 2:
        return ()
    h, sites = found["heterogeneity"], found["sites"]
    caption = (
        "Squares are what a site's own rows say, one Newton step from the common model, with "
        f"{100 * found['level']:g}\u00a0% intervals; the diamond is the model of all."
    )
    if h is not None:
        p = _p(h["p"]) if h["p"] < 0.001 else f"= {_p(h['p'])}"
        line = f"Q = {h['statistic']:.2f}, df {h['df']:g}, p {p}, I² = {100 * h['i2']:.0f} %"
        verdict = (
            "Sites differ by more than chance" if h["p"] < 0.05 else "Sites differ by no more than chance explains"
        )
        caption = f"{verdict}: {line}.\n\n{caption}"
    labels = short(sites["names"])[:SHOWN_SITES]
    table, ratio = found["table"], found["exponentiated"]
    value = table["ratio" if ratio else "coef"]
    forests = []
    for k, name in enumerate(found["names"]):
        if name == "intercept":
            continue
        rows = []
        for j, label in enumerate(labels):
            v, low, high = (_finite(sites[key][j][k]) for key in ("coef", "low", "high"))
            words = (_n(v, 3), "–" if low is None else f"{_n(low, 3)} to {_n(high, 3)}")
            rows.append(Interval(name_of(label), v, low, high, words))
        ends = (table["low"][k], table["high"][k]) if "low" in table else (None, None)
        words = (_n(value[k], 3), "–" if ends[0] is None else f"{_n(ends[0], 3)} to {_n(ends[1], 3)}")
        rows.append(Interval("all sites", value[k], ends[0], ends[1], words, common=True))
        head = (ratio or "coefficient", f"{100 * found['level']:g}\u00a0% interval")
        forests.append(Forest(name_of(name), head, tuple(rows), 1.0 if ratio else 0.0, "per unit", bool(ratio)))
    return (
        Chapter(
            "agreement",
            "Do sites agree?",
            caption,
            drawings=tuple(forests[:SHOWN_FORESTS]),
            more=tuple(forests[SHOWN_FORESTS : SHOWN_FORESTS + FOLDED_FORESTS]),
        ),
    )


# ---------------------------------------------------------------------- quality
def quality(summary: Mapping[str, Any]) -> tuple[Chapter, ...]:
    """Figures of all rows, and what was predicted against what was seen."""
    made = {"rows of the fit": summary.get("quality"), "held out": summary.get("cross_validation")}
    kept = {name: found for name, found in made.items() if found}
    if not kept:
        return ()
    first = next(iter(kept.values()))
    rows = tuple(
        (_label(name, summary), *(shown(name, found["figures"].get(name)) for found in kept.values()))
        for name in first["figures"]
    )
    caption = "From sums over all sites."
    if first["auc_bounds"] is not None:
        low, high = first["auc_bounds"]
        caption += f" AUC is between {low:.5f} and {high:.5f}: scores were summed in {first['bins']} bins."
    if summary.get("cross_validation"):
        caption += f" Held out: {summary['cross_validation']['by']}, each row judged by a model that never saw it."
        if summary["settings"].get("standardize"):
            caption += " Columns keep the scales of all rows."
    else:
        caption += " On the rows of the fit itself a model looks better than on new ones: --cv holds rows out."
    series = {}
    for name, found in kept.items():
        curve = found["calibration"]
        if curve and curve["predicted"]:
            series[name] = tuple(zip(curve["predicted"], curve["observed"], curve["weight"], strict=True))
    plot: tuple[Agreement, ...] = ()
    if series:
        what = _label("base_rate", summary) if summary["classes"] else "means of ten groups of rows"
        plot = (Agreement(f"Predicted and observed: {what}", series, share=summary["classes"] is not None),)
    table = Table(("", *kept), rows)
    return (Chapter("quality", "How good is it?", caption, table=table, drawings=plot),)


def _label(name: str, summary: Mapping[str, Any]) -> str:
    classes = summary["classes"]
    return f"share of {name_of(str(classes[1]))}" if name == "base_rate" and classes else LABELS[name]


def sites(summary: Mapping[str, Any]) -> Chapter:
    """Rows and figures of every site."""
    blocks, labelled = summary["blocks"], summary["classes"] is not None
    found = summary.get("quality") or {"sites": [], "notes": []}
    held = summary.get("cross_validation")
    keys = [n for n in ("accuracy", "auc", "concordance", "events", "r2", "deviance_explained", "rmse",
                          "calibration_slope", "log_loss")
            if any(site.get(n) is not None for site in found["sites"])][:4]  # fmt: skip
    per_block = found["sites"] if len(found["sites"]) == len(blocks) else [{}] * len(blocks)
    apart = held["sites"] if held and len(held["sites"]) == len(blocks) else None
    lead = next((n for n in ("auc", "concordance", "r2", "deviance_explained", "accuracy") if n in keys), None)
    rows = []
    for j, (block, name) in enumerate(zip(blocks, short([b["name"] for b in blocks]), strict=True)):
        row = [name_of(name), str(block["rows"]), f"{100 * block['rows'] / summary['rows']:.1f} %"]
        row += [f"{block['classes']} of {len(summary['classes'])}"] if labelled else []
        row += [shown(key, per_block[j].get(key)) for key in keys]
        row += [shown(lead, apart[j].get(lead))] if apart and lead else []
        rows.append(tuple(row))
    heads = ("site", "rows", "share", *(("classes",) if labelled else ()), *(LABELS[key] for key in keys))
    heads += (f"{LABELS[lead]}, held out",) if apart and lead else ()
    caption = f"{counted(len(blocks), 'site')}, {counted(summary['rows'], 'row')} in all; rows stay where they are."
    if keys:
        caption += " Figures are of a single site each, from its own rows."
    caption += "".join(f" {visible(note)}" for note in found["notes"])
    if len(blocks) > SHOWN_SITES:
        caption += f" The first {SHOWN_SITES} are shown."
    return Chapter("sites", "Site by site", caption, table=Table(heads, tuple(rows[:SHOWN_SITES])))


# ---------------------------------------------------------------------- what left each site
def left(
    summary: Mapping[str, Any], history: Sequence[Mapping[str, Any]], encoding: AnyEncoding
) -> tuple[Chapter, ...]:
    """Which sums, how many numbers; never rows."""
    if summary.get("left"):
        return counted_left(summary)
    numbers, categories = len(encoding.numbers), encoding.categories
    words = "names of columns" + (", categories" if categories else "")
    words += ", classes that occur" if summary["classes"] is not None else ""
    sent = history[-1]["bytes_up"] // 8 if history else 0
    of_target = summary["classes"] is None and summary["model"] != "cox"  # a target that is a number has moments too
    fit = f"{ROUNDS.get(summary['method'], OTHER_ROUNDS)}, in {counted(summary['rounds'], 'round')}"
    rows = [
        (
            "before the run",
            f"{words}; rows, and of every number weight, mean and squares",
            str(3 * (numbers + of_target) + 2),
        ),
        ("the run", fit, str(sent)),
    ]
    found = summary.get("quality")
    if found:
        ranks = "concordance" in found["figures"]
        own = sum(len(site) - 1 for site in found["sites"][:1])
        rows.append(
            (
                "quality",
                "pairs of rows in order, and events"
                if ranks
                else f"errors and scores in bins, in {counted(found['rounds'], 'round')}",
                str(found["numbers"] - own),
            )
        )
        if own:
            rows.append(
                (
                    "figures of the site",
                    f"{'concordance and events' if ranks else 'accuracy and the like'}, of its own rows",
                    str(own),
                )
            )
    held = summary.get("cross_validation")
    if held:
        rows.append(
            (
                "cross-validation",
                f"the same for {held['by']}; their runs, each like the one above, are not counted",
                str(held["numbers"]),
            )
        )
    stats = summary.get("inference")
    if stats:
        own = 2 * len(stats["names"]) if stats["sites"] else 0
        rows.append(("standard errors", "information and products of slopes", str(stats["numbers"] - own)))
        if own:
            rows.append(("estimates of the site", "coefficients and their errors, of its own rows", str(own)))
    caption = (
        "What one site sent, in all. Each is a sum over its rows, but for the figures and estimates that are named as "
        "the site's own; no row ever leaves. Sums over few rows say much about them."
    )
    return (Chapter("left", "What left each site", caption, table=Table(("when", "what", "numbers"), tuple(rows))),)


def counted_left(summary: Mapping[str, Any]) -> tuple[Chapter, ...]:
    """Of a fit over sites: every message, as the coordinator counted it, by site and by what was asked for."""
    sites = summary["left"]
    total, messages, masked = (sum(site[name] for site in sites) for name in ("bytes", "messages", "masked"))
    caption = (
        f"{counted(messages, 'message')} and {total} bytes, as counted here when they came in; {masked} of them held "
        "masked sums, of which only the total over all sites can be read. Numbers are those in arrays, before masks; "
        "no row ever leaves. Each site has a line for each of these messages in its audit file, with the same SHA-256."
    )
    if len(sites) > SHOWN_SITES:
        caption += f" The first {SHOWN_SITES} sites are shown; summary.json has all."
    by_site = tuple((name_of(site["site"]), *_amounts(site)) for site in sites[:SHOWN_SITES])
    sums: dict[str, dict[str, int]] = {}
    for each in (each for site in sites for each in site["by"]):
        before = sums.setdefault(each["what"], dict.fromkeys(AMOUNTS, 0))
        sums[each["what"]] = {name: before[name] + each[name] for name in AMOUNTS}
    by_what = tuple((visible(what), *_amounts(amounts)) for what, amounts in sums.items())
    more = "Of all sites together, in the order in which it was first asked for; summary.json has it by site."
    return (
        Chapter("left", "What left each site", caption, table=Table(("site", *AMOUNTS), by_site)),
        Chapter("asked", "What it was", more, table=Table(("what", *AMOUNTS), by_what)),
    )


AMOUNTS = ("messages", "numbers", "bytes", "masked")


def _amounts(what: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(what[name]) for name in AMOUNTS)


# ---------------------------------------------------------------------- text
def name_of(text: str) -> str:
    return quoted(text, ANSWER_NAME)[1:-1]


def _finite(x: float | None) -> float | None:
    return None if x is None or not math.isfinite(x) else x


def _n(x: float | None, digits: int = 4) -> str:
    if x is None or not math.isfinite(x):
        return "–"
    text = f"{x:.{digits}g}"
    text = f"{float(text):.0f}" if 1e3 <= abs(x) < 1e6 and "e" in text else text
    return text.replace("-", "−", 1) if x < 0 else text


def _p(p: float | None) -> str:
    if p is None:
        return "–"
    return "<\u00a00.001" if p < 0.001 else f"{p:.3f}"
