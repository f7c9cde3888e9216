"""All results of some figures, as one folder of small files that needs neither data nor computing to be drawn.

<figure>.csv     curves (results.py)          optima.json   F* of each problem, with its KKT residual
<picture>.npz    arrays (pictures.py)         run.json      commands, versions, device, seconds
cost.json        arithmetic of weights and of local solves, counted by benchmarks/claims.py
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from auqadmm.paper.catalogue import FIGURES
from auqadmm.paper.optimum import Optimum
from auqadmm.paper.results import CurveLine, lines, read_lines, read_optima, write_lines, write_optima
from auqadmm.paper.spec import Figure
from auqadmm.paper.store import Store

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
