"""The tables of what `auto` costs, and of seconds on tables, from results/auto and results/tables."""

from __future__ import annotations

import json
from typing import Any

import tables_base as base
from tables_base import Table, grid

COSTS = {"4000": "4k", "32000": "32k", "256000": "256k"}
CASES = {
    "enet-cv": "elastic net by cross-validation",
    "enet": "elastic net",
    "logistic": "logistic regression",
    "sparse-logistic": "the same, sparse",
    "sparse-lasso": "lasso, sparse",
    "sparse-l1-logistic": "l1 logistic regression, sparse",
    "sparse-l1-logistic-weak": "the same, a weak penalty",
}


def auto(file: str) -> Table:
    """Rounds and numbers of single methods to a gap of 1e-6, and what `auto` costs beside the best of them."""
    found = json.loads((base.ROOT / file).read_text(encoding="utf-8"))
    rows = [row for row in found["rows"] if "single" in row]
    names = list(rows[0]["single"])
    head = ["workload", "unknowns", *names, *(f"auto, {short}" for short in COSTS.values())]
    made = []
    for row in rows:
        singles = [_single(row["single"][name]) for name in names]
        made.append([row["workload"], f"{row['unknowns']}", *singles, *(_ours(row["auto"][cost]) for cost in COSTS)])
    about = found["about"]
    return Table(grid(head, made), (file,), f"commit {about['commit']}, {about['device']}, {about['date']}")


def _single(found: dict[str, Any]) -> str:
    return f"{found['rounds']} ({found['numbers'] / 1000:.3g})" if "rounds" in found else "–"


def _ours(found: dict[str, Any]) -> str:
    if found.get("ratio") is None:
        return f"– {found.get('method', '')}"
    return f"{found['ratio']:.2f} {found['method']}"


def seconds() -> Table:
    """Seconds on tables beside scikit-learn, celer and skglm."""
    file = "results/tables/tables.json"
    cases = json.loads((base.ROOT / file).read_text(encoding="utf-8"))["cases"]
    made, commits = [], []
    for name, words in CASES.items():
        if name not in cases:
            continue
        case = cases[name]
        times = {who: f"{run['seconds']:.3f}" for who, run in case["solvers"].items() if "seconds" in run}
        ours = case["solvers"].get("auqadmm", {})
        shape = " × ".join(f"{n}" for n in case["shape"])
        ratio = "–" if case.get("ratio") is None else f"{case['ratio']:.2f}"
        others = [times.get(who, "–") for who in ("auqadmm", "scikit-learn", "celer", "skglm")]
        made.append([words, shape, f"{ours.get('rounds') or '–'}", *others, ratio])
        commits.append(case["about"]["commit"])
    head = ["model", "rows × columns", "rounds", "auqadmm", "scikit-learn", "celer", "skglm", "ratio"]
    about = cases[name]["about"]
    return Table(grid(head, made), (file,), f"commit {', '.join(dict.fromkeys(commits))}; {about['date']}")
