"""The table of what verdicts cost, from results/verdict."""

from __future__ import annotations

import json

import tables_base as base
from tables_base import Table, grid

FILE = "results/verdict/h200.json"


def verdict() -> Table:
    found = json.loads((base.ROOT / FILE).read_text(encoding="utf-8"))
    head = ["workload", "rounds", "of them for the verdict", "gap at most", "evidence", "true gap", "seconds, ratio"]
    rows = [row for row in found["rows"] if "ratio" in row]
    made = [
        [
            row["workload"],
            f"{row['rounds']}",
            f"{row['rounds_verdict']}",
            f"{row['relative']:.1e}",
            row["evidence"],
            "–" if row["true"] is None else f"{row['true']:.1e}",
            f"{row['ratio']:.2f}",
        ]
        for row in rows
    ]
    whole = sum(row["seconds"] for row in rows) / sum(row["seconds_without"] for row in rows)
    made.append(["all of them", *[""] * 5, f"{whole:.2f}"])
    about = found["about"]
    return Table(grid(head, made), (FILE,), f"commit {about['commit']}, {about['device']}, {about['date']}")
