"""All results of some figures, as one folder of small files that needs neither data nor computing to be drawn.

<figure>.csv     curves                       optima.json   F* of each problem, with its KKT residual
<picture>.npz    arrays (pictures.py)         run.json      commands, versions, device, seconds
cost.json        arithmetic of weights and of local solves, counted by benchmarks/claims.py

Of each run a CSV file keeps iterations 1 to 20, then about twenty more evenly spaced on a logarithmic axis, the last
one, and the first iteration within each of the gaps 1e-1 … 1e-9, so that tables read from it are exact.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from auqadmm.paper.optimum import Optimum
from auqadmm.paper.spec import FIGURES, Figure, PanelSpec, RunSpec
from auqadmm.paper.store import Record, Store

# ---------------------------------------------------------------------- one figure
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


# ---------------------------------------------------------------------- all of them
OPTIMA, ABOUT, COST = "optima.json", "run.json", "cost.json"
# which figure a picture belongs to, by the first word of its name
SHOWN_IN = {"samples": "fig-datasets", "denoising": "fig-illustration", "weights": "fig-weights"}


@dataclass(frozen=True, eq=False)
class Bundle:
    """Curves, arrays by the name of their picture, optima by the name of their problem, provenance, and, where
    it was counted, the cost of weights."""

    lines: tuple[CurveLine, ...] = ()
    arrays: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    optima: Mapping[str, Optimum] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    costs: tuple[Mapping[str, Any], ...] = ()

    def of(self, figure: str) -> tuple[CurveLine, ...]:
        return tuple(line for line in self.lines if line.figure == figure)


def gather(figures: Iterable[Figure], store: Store) -> tuple[Bundle, list[str]]:
    """The stored results of some figures, and the names of missing ones."""
    curves: list[CurveLine] = []
    arrays: dict[str, Any] = {}
    optima: dict[str, Optimum] = {}
    systems: dict[str, dict[str, Any]] = {}
    missing: list[str] = []
    for figure in figures:
        for panel in figure.panels:
            for run in panel.runs:
                record = store.get(run)
                if record is None:
                    missing.append(run.name)
                    continue
                curves += lines(figure, panel, run, record)
                optima[run.problem.pooled.name] = Optimum(**record.about["optimum"])
                system = record.about["system"]
                seen = systems.setdefault(json.dumps(system, sort_keys=True), system | {"runs": 0, "wall_seconds": 0.0})
                seen["runs"] += 1
                seen["wall_seconds"] += record.about["wall_seconds"]
        for picture in figure.pictures:
            stored = store.get_arrays(picture)
            if stored is None:
                missing.append(picture.name)
            else:
                arrays[picture.name] = stored
    return Bundle(tuple(curves), arrays, optima, {"systems": list(systems.values())}), list(dict.fromkeys(missing))


def write(folder: Path, bundle: Bundle, about: Mapping[str, Any] | None = None) -> list[Path]:
    """Write the folder; results of earlier calls that are not in this bundle stay."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [
        write_lines(folder / f"{figure}.csv", bundle.of(figure))
        for figure in dict.fromkeys(line.figure for line in bundle.lines)
    ]
    for name, arrays in bundle.arrays.items():
        path = folder / f"{name}.npz"
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        written.append(path)
    if bundle.optima:
        written.append(write_optima(folder / OPTIMA, read_optima(folder / OPTIMA) | dict(bundle.optima)))
    path = folder / ABOUT
    entries = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    path.write_text(json.dumps([*entries, {**(about or {}), **bundle.about}], indent=1) + "\n", encoding="utf-8")
    return [*written, path]


def read(folder: Path, wanted: Sequence[str] = tuple(FIGURES)) -> Bundle:
    """What `write` wrote of some figures; `ValueError` where there is nothing to read."""
    places = [folder, folder / "paper"]
    root = next((p for p in places if any(p.glob("fig-*.csv")) or any(p.glob("*.npz"))), None)
    if root is None:
        raise ValueError(f"No results in {folder}: there are neither fig-*.csv nor *.npz in it or in its folder paper.")
    curves = [line for id in wanted if (path := root / f"{id}.csv").is_file() for line in read_lines(path)]
    arrays = {}
    for path in sorted(p for p in root.glob("*.npz") if SHOWN_IN.get(p.stem.split("-")[0]) in wanted):
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays[path.stem] = {name: archive[name] for name in archive.files}
        except Exception as error:  # zipfile and numpy raise many kinds of errors
            raise ValueError(f"{path}: is no file of pictures ({type(error).__name__}: {error}).") from None
    about = root / ABOUT
    entries = json.loads(about.read_text(encoding="utf-8")) if about.is_file() else []
    return Bundle(tuple(curves), arrays, read_optima(root / OPTIMA), {"runs": entries}, _costs(root / COST, wanted))


def _costs(path: Path, wanted: Sequence[str]) -> tuple[Mapping[str, Any], ...]:
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    return tuple(row for row in rows if row["figure"] in wanted)
