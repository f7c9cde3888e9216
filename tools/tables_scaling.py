"""Tables of docs/scaling.md, from results/scaling/*.csv; benchmarks/scaling_tables.py makes most of them."""

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
    used, commit = (files[source],), f"commit {about['commit'][source]}; {about['started'][:10]}"
    if name in ("modelled", "spent", "wins"):
        more = [x for x in Rounds(ROUNDS).lines if x.workload.startswith("mnist-multinomial-sum")]
        return Table(text, (*used, ROUNDS), f"{commit}; {origin(more)}")
    return Table(text, used, commit)


def _server(rows: Sequence[Mapping[str, str]]) -> str:
    head = ["workers", "all, ms", "consensus steps with new weights, ms", "the other steps, ms", "iterations of those"]
    made = []
    for row in rows:
        new = f"{float(row['setup_ms']):.0f} in {row['setups']} steps"
        old = f"{float(row['steps_ms']):.0f} in {row['steps']} steps"
        made.append([row["workers"], f"{float(row['server_ms']):.0f}", new, old, row["cg_iterations"]])
    return grid(head, made, texts=0)


def remodel() -> None:
    """modelled.csv again, as it follows from measured.csv and the rounds."""
    measured = scaling_model.read(base.ROOT / SCALING / "measured.csv")
    write_csv(base.ROOT / SCALING / "modelled.csv", scaling_model.modelled(measured))
