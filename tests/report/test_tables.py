"""Numbers out of runs."""

import csv
import json
import math

import pytest

from auqadmm.report.tables import (
    HISTORY_COLUMNS,
    headers,
    power,
    run_summary,
    table_row,
    versions,
    write_history,
    write_summary,
)


def test_row_counts_the_first_iteration_within_each_gap(run_of):
    row = table_row(run_of(factor=0.1, count=5))  # 0.1, 0.01, …, 1e-5
    assert row.iterations[0] in (2, 3)  # 0.1**2 may round above 0.01
    assert row.iterations[1] in (4, 5)
    assert row.iterations[2] is None
    assert row.rounds is None
    assert row.seconds == 2.5


def test_row_has_the_rounds_of_the_last_gap(run_of):
    row = table_row(run_of(factor=0.5))
    assert row.iterations == (7, 14, 20)
    assert row.rounds == 41


def test_cells_match_headers_and_mark_what_is_missing(run_of):
    row = table_row(run_of(factor=0.999))
    cells = row.cells()
    assert len(cells) == len(headers())
    assert cells[:5] == ["C-ADMM", "–", "–", "–", "–"]
    assert cells[-2:] == ["–", "max_iter"]  # no duality gap in the certificate


def test_a_run_without_iterations_has_a_row_and_a_summary(run_of):
    run = run_of(count=0)
    assert table_row(run).iterations == (None, None, None)
    assert run_summary(run)["rounds"] == 0


@pytest.mark.parametrize(("gap", "text"), [(1e-2, "1e-2"), (1e-6, "1e-6"), (2.5e-4, "2.5e-4"), (1.0, "1e0")])
def test_power(gap, text):
    assert power(gap) == text


def test_summary_round_trips_through_json(run_of, tmp_path):
    summary = {"versions": versions(), "x": math.nan, "runs": [run_summary(run_of())]}
    path = write_summary(tmp_path / "summary.json", summary)
    read = json.loads(path.read_text())
    assert read["x"] is None
    run = read["runs"][0]
    keys = "model method status iterations rounds bytes seconds objective optimum kkt gap reached"
    assert set(keys.split()) <= set(run)
    assert run["reached"]["1e-2"] == {"iteration": 7, "rounds": 15, "bytes": 2100, "seconds": 3.5}


def test_history_has_one_line_per_iteration(run_of, tmp_path):
    path = write_history(tmp_path / "history.csv", [run_of(count=3), run_of(method="uq-admm", count=2)])
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == HISTORY_COLUMNS
    assert [row["method"] for row in rows] == ["c-admm"] * 3 + ["uq-admm"] * 2
    assert rows[1]["failed_blocks"] == "block 1;block 3"
    assert float(rows[1]["relative_gap"]) == pytest.approx(0.25)
