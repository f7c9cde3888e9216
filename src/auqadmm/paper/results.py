"""Results as small CSV files, one per figure: all that is needed to draw it again.

Of each run the file keeps iterations 1 to 20, then about twenty more evenly spaced on a logarithmic axis, the last
one, and the first iteration within each of the gaps 1e-1 … 1e-9, so that tables read from it are exact.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from auqadmm.paper.optimum import Optimum
from auqadmm.paper.spec import Figure, PanelSpec, RunSpec
from auqadmm.paper.store import Record

FIRST_ITERATIONS = 20  # all of them are kept
MORE = 20  # iterations after them, evenly spaced on a logarithmic axis
KEPT_GAPS = tuple(10.0**-k for k in range(1, 10))


@dataclass(frozen=True)
class CurveLine:
    """One iteration of one run in one panel; None: not measured. Counters are cumulative, `bytes` of one worker."""

    figure: str
    panel: str
    protocol: str
    reduction: str
    dataset: str
    method: str
    control: str
    iteration: int
    rounds: int
    bytes: int
    seconds: float
    objective: float | None
    gap: float | None
    primal: float | None
    dual: float | None


NAMES = tuple(f.name for f in fields(CurveLine))
WHOLE = ("iteration", "rounds", "bytes")
REAL = {"seconds": ".4g", "objective": ".13g", "gap": ".5g", "primal": ".5g", "dual": ".5g"}


def lines(figure: Figure, panel: PanelSpec, run: RunSpec, record: Record) -> list[CurveLine]:
    """The lines of one run, thinned."""
    columns = record.columns
    values: dict[str, Any] = {
        "figure": figure.id,
        "panel": panel.name,
        "protocol": panel.protocol,
        "reduction": panel.reduction,
        "dataset": panel.dataset,
        "method": run.method,
        "control": run.control,
    }
    return [
        CurveLine(**values, **{name: columns[name][k] for name in NAMES if name in columns})
        for k in thinned(columns["iteration"], columns["gap"])
    ]


def thinned(iterations: Sequence[int], gaps: Sequence[float | None]) -> list[int]:
    """Indices of the rows to keep."""
    count = len(iterations)
    spaced = np.geomspace(FIRST_ITERATIONS, max(count, FIRST_ITERATIONS + 1), MORE).round().astype(int) - 1
    kept = {*range(min(FIRST_ITERATIONS, count)), *(k for k in spaced.tolist() if k < count), count - 1}
    for target in KEPT_GAPS:
        kept |= {next((k for k, gap in enumerate(gaps) if gap is not None and gap <= target), 0)}
    return sorted(k for k in kept if 0 <= k < count)


# ---------------------------------------------------------------------- files
def write_lines(path: Path, rows: Iterable[CurveLine]) -> Path:
    """One CSV file, written completely or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(NAMES)
    for line in rows:
        writer.writerow([_cell(name, value) for name, value in asdict(line).items()])
    return _write(path, text.getvalue())


def read_lines(path: Path) -> list[CurveLine]:
    """What `write_lines` wrote; `ValueError` names the file and what is wrong with it."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            entries = list(csv.DictReader(file, strict=True))
        return [CurveLine(**{name: _value(name, entry[name]) for name in NAMES}) for entry in entries]
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"{path}: is no file of results ({type(error).__name__}: {error}).") from None


def write_optima(path: Path, optima: Mapping[str, Optimum]) -> Path:
    return _write(path, json.dumps({name: asdict(optima[name]) for name in sorted(optima)}, indent=2) + "\n")


def read_optima(path: Path) -> dict[str, Optimum]:
    """Optima by the name of the problem; none where there is no such file."""
    if not path.is_file():
        return {}
    return {name: Optimum(**entry) for name, entry in json.loads(path.read_text(encoding="utf-8")).items()}


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
    return path


def _cell(name: str, value: object) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return f"{value:{REAL[name]}}" if name in REAL else str(value)


def _value(name: str, text: str) -> Any:
    if name in WHOLE:
        return int(text)
    if name in REAL:
        return float(text) if text else None
    return text
