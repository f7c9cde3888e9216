"""The table of how often intervals hold the truth, from results/statistics."""

from __future__ import annotations

import json

import tables_base as base
from tables_base import Table, grid

FILE = "results/statistics/coverage.json"


def coverage() -> Table:
    found = json.loads((base.ROOT / FILE).read_text(encoding="utf-8"))
    head = ["study", "first column", "second column", "intercept", "all"]
    made = []
    for row in found["rows"]:
        shares = [f"{share:.3f}" for share in row["shares"]]
        made.append([row["study"], *shares, *["–"] * (3 - len(shares)), f"{row['overall']:.3f}"])
    about = found["about"]
    return Table(grid(head, made), (FILE,), f"commit {about['commit']}, {about['date']}")
