"""Files that other programs read: summary.json and history.csv."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from auqadmm.comparison.runs import MethodRun
from auqadmm.files import atomic
from auqadmm.report.tables import HISTORY_COLUMNS, history_rows


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write a file that gets its name when it is complete: a full disk leaves no half of it."""
    with atomic.part(path.parent, path.name) as part:
        yield part
        atomic.keep(part, path)


def write_summary(path: Path, summary: Mapping[str, object]) -> Path:
    """Indented JSON; NaN and infinity, which JSON does not know, become null."""
    with whole(path) as part:
        part.write_text(json.dumps(finite(summary), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return path


def write_history(path: Path, runs: Sequence[MethodRun]) -> Path:
    """One line per iteration of every run; empty where something was not evaluated."""
    with whole(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, HISTORY_COLUMNS)
        writer.writeheader()
        writer.writerows(history_rows(runs))
    return path


def finite(x: object) -> Any:
    """Plain values that JSON can hold."""
    if isinstance(x, Mapping):
        return {key: finite(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [finite(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
