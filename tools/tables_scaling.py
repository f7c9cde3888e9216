"""Tables of docs/scaling.md and docs/measurements.md, from results/scaling; benchmarks/scaling_tables.py makes most."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence

import scaling_model
import scaling_tables
import tables_base as base
from scaling import write as write_csv
from tables_base import ROUNDS, Table, grid
from tables_rounds import Rounds, origin

SCALING = "results/scaling"


def scaling(name: str) -> Table:
    """What is modelled follows from measured.csv and from the rounds of the same rows over 2 to 50 workers."""
    files = {name: f"{SCALING}/{name}.csv" for name in ("measured", "modelled", "links", "server")}
    about = json.loads((base.ROOT / SCALING / "run.json").read_text(encoding="utf-8"))
    if name == "server":
        with (base.ROOT / files["server"]).open(newline="", encoding="utf-8") as file:
            text = _server(list(csv.DictReader(file)))
    else:
        read = {k: scaling_model.read(base.ROOT / files[k]) for k in ("measured", "modelled", "links")}
        text = scaling_tables.tables(read["measured"], read["modelled"], read["links"])[name]
    source = name if name in about["commit"] else "measured"
    used, commit = (
        (files[source],),
        f"commit {about['commit'][source]}; {about['dates'].get(source, about['started'][:10])}",
    )
    if name in ("modelled", "spent", "wins"):
        more = [x for x in Rounds(ROUNDS).lines if x.workload.startswith("mnist-multinomial-sum")]
        return Table(text, (*used, ROUNDS), f"{commit}; {origin(more)}")
    return Table(text, used, commit)


def _server(rows: Sequence[Mapping[str, str]]) -> str:
    """Milliseconds of one step, one renewal or one round each; Newton's step is what is left of its round."""
    head = ["unknowns", "method", "N", "step with new weights, ms", "parts side by side, ms", "other steps, ms"]
    head += ["Anderson, ms", "adding up, ms", "a round, ms", "per worker, ms", "MB", "at most, MB", "numbers a round"]
    names = {"auq-lr": "AUQ-LR", "newton": "Newton"}
    made = []
    for text in sorted(rows, key=lambda row: (int(row["columns"]), row["method"], int(row["workers"]))):
        row = {name: float(x) for name, x in text.items() if name != "method"}
        N, rounds, lowrank = int(row["workers"]), row["rounds"], text["method"] == "auq-lr"
        each = [row["setup_ms"] / row["setups"], row["parts_ms"] / row["renewals"]] if lowrank else []
        step = row["steps_ms"] / row["steps"] if lowrank else row["rest_ms"] / rounds
        always = [row["sums_ms"] / rounds, row["server_ms"] / rounds]
        cells = [*(_short(x) for x in each), *["–"] * (2 - len(each)), _short(step)]
        cells += [_short(row["anderson_ms"] / rounds) if lowrank else "–", *(_short(x) for x in always)]
        cells += [f"{always[1] / N:.2f}", _short(row["held_mb"]), _short(row["peak_mb"]), f"{row['numbers']:.2g}"]
        made.append([f"784 × {text['columns']}", names[text["method"]], f"{N:,}".replace(",", " "), *cells])
    return grid(head, made, texts=2)


def _short(x: float) -> str:
    return f"{x:.0f}" if x >= 10 else f"{x:.1f}"


def remodel() -> None:
    """modelled.csv again, as it follows from measured.csv and the rounds."""
    measured = scaling_model.read(base.ROOT / SCALING / "measured.csv")
    write_csv(base.ROOT / SCALING / "modelled.csv", scaling_model.modelled(measured))
