"""Files that other programs read: summary.json and history.csv."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from auqadmm.experiments.compare import Run
from auqadmm.report.tables import HISTORY_COLUMNS, history_rows


def write_summary(path: Path, summary: Mapping[str, Any]) -> Path:
    """Indented JSON; NaN and infinity, which JSON does not know, become null."""
    path.write_text(json.dumps(finite(summary), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return path


def write_history(path: Path, runs: Sequence[Run]) -> Path:
    """One line per iteration of every run; empty where something was not evaluated."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, HISTORY_COLUMNS)
        writer.writeheader()
        writer.writerows(history_rows(runs))
    return path


def finite(x: Any) -> Any:
    """Plain values that JSON can hold."""
    if isinstance(x, Mapping):
        return {key: finite(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [finite(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
