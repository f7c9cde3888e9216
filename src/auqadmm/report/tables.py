"""A comparison in numbers: rows for a table, a summary, files for machines (summary.json, history.csv, compare.csv)."""

from __future__ import annotations

import csv
import json
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from auqadmm import __version__
from auqadmm.comparison import COUNTED, GAPS, Comparison, Entry, MethodRun, curve
from auqadmm.core.history import History
from auqadmm.files import atomic
from auqadmm.report.style import method_style

MISSING = "–"
LIBRARIES = ("numpy", "scipy", "scikit-learn", "torch", "matplotlib")


@dataclass(frozen=True)
class TableRow:
    """One method: iterations (and rounds) to each relative objective gap, then how the run ended."""

    method: str
    iterations: tuple[int | None, ...]
    rounds: int | None
    seconds: float
    kkt: float
    relative_gap: float | None
    status: str

    def cells(self) -> list[str]:
        """As text, "–" where something was not reached or does not exist."""
        return [
            method_style(self.method).label,
            *(_whole(k) for k in self.iterations),
            _whole(self.rounds),
            f"{self.seconds:.1f}",
            f"{self.kkt:.1e}",
            MISSING if self.relative_gap is None else f"{self.relative_gap:.1e}",
            self.status,
        ]


def headers(gaps: Sequence[float] = GAPS) -> list[str]:
    """Names of the cells, two lines each."""
    return [
        "\nmethod",
        *(f"it. to\n{power(gap)}" for gap in gaps),
        f"rounds\n{power(gaps[-1])}",
        "\nseconds",
        "\nKKT",
        "gap at\nmost",
        "\nstatus",
    ]


def table_row(run: MethodRun, gaps: Sequence[float] = GAPS) -> TableRow:
    """The row of one run; rounds are those to the last of `gaps`."""
    reached = [run.first_within(gap) for gap in gaps]
    history, certificate = run.result.history, run.result.certificate
    return TableRow(
        method=run.method,
        iterations=tuple(None if row is None else row.iteration for row in reached),
        rounds=None if reached[-1] is None else reached[-1].rounds,
        seconds=history[-1].seconds if len(history) else 0.0,
        kkt=certificate.kkt,
        relative_gap=certificate.relative_gap,
        status=str(run.result.status),
    )


def run_summary(run: MethodRun, gaps: Sequence[float] = GAPS) -> dict[str, Any]:
    """One run as plain values, for summary.json. Counters are zero when no iteration was complete."""
    result, history = run.result, run.result.history
    last = history[-1] if len(history) else None
    return {
        "model": run.model,
        "method": run.method,
        "status": str(result.status),
        "message": result.message,
        "iterations": result.n_iter,
        "rounds": last.rounds if last else 0,
        "bytes": last.bytes if last else 0,
        "seconds": last.seconds if last else 0.0,
        "objective": result.objective,
        "optimum": run.optimum,
        "kkt": result.certificate.kkt,
        "gap": result.certificate.relative_gap,
        "evidence": result.certificate.evidence,
        "reached": {power(gap): _when(run, gap) for gap in gaps},
    }


def history_rows(runs: Sequence[MethodRun]) -> Iterator[dict[str, Any]]:
    """All iterations of all runs, for one flat file: `HISTORY_COLUMNS`."""
    for run in runs:
        for row, gap in zip(run.result.history, run.gaps.tolist(), strict=True):
            values = asdict(row) | {"failed_blocks": ";".join(row.failed_blocks)}
            yield {"model": run.model, "method": run.method, **values, "relative_gap": gap}


HISTORY_COLUMNS = ("model", "method", *History.columns, "relative_gap")


def versions() -> dict[str, str]:
    """What produced a result: auqadmm, Python and the libraries that compute."""
    return {"auqadmm": __version__, "python": platform.python_version()} | {name: version(name) for name in LIBRARIES}


def _when(run: MethodRun, gap: float) -> dict[str, Any] | None:
    row = run.first_within(gap)
    if row is None:
        return None
    return {"iteration": row.iteration, "rounds": row.rounds, "bytes": row.bytes, "seconds": row.seconds}


def _whole(count: int | None) -> str:
    return MISSING if count is None else f"{count}"


def power(gap: float) -> str:
    """1e-06 without the leading zero: 1e-6."""
    mantissa, exponent = f"{gap:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path for a file that is renamed when complete: a full disk leaves no partial file."""
    with atomic.part(path.parent, path.name) as part:
        yield part
        atomic.keep(part, path)


def write_summary(path: Path, summary: Mapping[str, object]) -> Path:
    """Indented JSON; NaN and infinity, which JSON lacks, become null."""
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
    """Values that JSON can encode."""
    if isinstance(x, Mapping):
        return {key: finite(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [finite(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


# ---------------------------------------------------------------------- at equal gap
GAP_HEADERS = ("\nmethod", "\nit.", "\nrounds", "\nbytes", "Hessian\nproducts", "\nseconds", "\nresult")
GAP_COLUMNS = ("method", "status", "iterations", *COUNTED, "gap", "best_in", "note")
WON = " ◀"
MARKED = ("rounds", "bytes", "seconds")  # not Hessian products: gradient methods take none, which is no merit


def gap_table(comparison: Comparison) -> list[list[str]]:
    """One list of cells per method, under `HEADERS`; the least of each column is marked, and the winner's name."""
    winner = comparison.winner
    rows = []
    for entry in comparison.entries:
        name = method_style(entry.method).label + (WON if entry is winner else "")
        if entry.at is None:
            rows.append([name, *[MISSING] * (len(COUNTED) + 1), gap_outcome(entry, comparison.gap)])
            continue
        counts = [_cell(comparison, entry, name) for name in COUNTED]
        rows.append([name, str(entry.at.iteration), *counts, gap_outcome(entry, comparison.gap)])
    return rows


def _cell(comparison: Comparison, entry: Entry, name: str) -> str:
    value = getattr(entry.at, name)
    text = f"{value:.3g}" if name == "seconds" else f"{value:,}".replace(",", " ")
    return f"{text} *" if name in MARKED and value == comparison.least(name) else text


def gap_outcome(entry: Entry, gap: float) -> str:
    """The progress of the method."""
    if entry.at is not None:
        return f"within {power(gap)}"
    gaps = None if entry.run is None else entry.run.gaps
    if gaps is None or not np.isfinite(gaps).any():
        return entry.status
    return f"{entry.status} at {np.nanmin(gaps):.1e}"


def gap_verdict(comparison: Comparison) -> str:
    """One sentence: who needed least of what."""
    winner = comparison.winner
    if winner is None or winner.at is None:
        return f"No method came within {power(comparison.gap)} of the optimum; raise --max-iter or --gap."
    parts = [f"Fewest rounds to a gap of {power(comparison.gap)}: {method_style(winner.method).label}"]
    parts[0] += f" ({winner.at.rounds})"
    for name, words in (("bytes", "fewest bytes"), ("seconds", "least time")):
        least = next(e for e in comparison.reached if getattr(e.at, name) == comparison.least(name))
        parts.append(f"{words}: {method_style(least.method).label}")
    return "; ".join(parts) + "."


def write_comparison(path: Path, comparison: Comparison) -> Path:
    """One line per method; counters are those at the gap, empty where it was not reached."""
    with whole(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, GAP_COLUMNS)
        writer.writeheader()
        writer.writerows(_values(comparison, entry) for entry in comparison.entries)
    return path


def _values(comparison: Comparison, entry: Entry) -> dict[str, Any]:
    best = [name for name in MARKED if entry.at and getattr(entry.at, name) == comparison.least(name)]
    gaps = None if entry.run is None else entry.run.gaps
    values: dict[str, Any] = {"method": entry.method, "status": entry.status, "note": entry.note}
    values |= {"gap": None if gaps is None or not len(gaps) else float(gaps[-1]), "best_in": ";".join(best)}
    if entry.at is not None:
        values |= {"iterations": entry.at.iteration} | {name: getattr(entry.at, name) for name in COUNTED}
    return values


def gap_summary(comparison: Comparison) -> dict[str, Any]:
    """Everything as plain values, the curves included."""
    entries = []
    for entry in comparison.entries:
        curves = {} if entry.run is None else {"curve": curve(entry.run)}
        entries.append(_values(comparison, entry) | curves)
    winner = comparison.winner
    return {
        "gap": comparison.gap,
        "optimum": comparison.best.objective,
        "optimum_from": comparison.best.how,
        "winner": None if winner is None else winner.method,
        "methods": entries,
        "versions": versions(),
    }
