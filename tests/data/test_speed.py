"""benchmarks/speed.py where data are missing: rows that need them are skipped with the reason, the others are kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))
import speed  # noqa: E402
import speed_cases  # noqa: E402
import workloads  # noqa: E402

sys.path.remove(str(FOLDER))


@pytest.fixture
def digits_only(tmp_path, monkeypatch):
    """An empty folder of data, and workloads of which one needs none."""
    monkeypatch.setenv("AUQADMM_DATA", str(tmp_path / "empty"))
    monkeypatch.setattr(workloads, "BESIDE", tmp_path / "nothing")
    monkeypatch.setattr(speed_cases, "NAMES", ("digits-svm", "svhn-svm", "digits-elastic-mean"))
    monkeypatch.setattr(speed_cases, "normal", lambda rows, features: workloads.WORKLOADS["digits-svm"].make())
    workloads.dataset.cache_clear()
    yield
    workloads.dataset.cache_clear()


@pytest.mark.campaign
def test_finished_rows_are_kept(digits_only, tmp_path, capsys):
    parts = ["roofline", "uneven", "growth"]
    speed.main(["--parts", *parts, "--threads", "1", "--commit", "abc", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "speed.json").read_text())
    first, missing, last = found["roofline"]
    assert first["microseconds"] > 0
    assert last["microseconds"] > 0
    assert missing["workload"] == "svhn-svm"
    assert "No data for svhn" in missing["skipped"]
    assert "No data for mnist" in found["uneven"][0]["skipped"]
    kept = [row for row in found["growth"] if "milliseconds" in row]
    assert {row["along"] for row in kept} == {
        "features, 10 blocks of 200 rows",
        "rows of each of 10 blocks, 100 features",
    }
    assert any("No data for mnist" in row.get("skipped", "") for row in found["growth"])
    assert found["about"]["commit"] == "abc"
    assert "No data for svhn" in (tmp_path / "speed.md").read_text()
    assert (tmp_path / "speed.png").is_file()


def test_a_part_that_fails_keeps_what_it_had(monkeypatch, tmp_path, capsys):
    def half(device):
        yield {"what": "first", "value": 1.0}
        raise ArithmeticError("on purpose")

    monkeypatch.setitem(speed.PARTS, "ceilings", half)
    speed.main(["--parts", "ceilings", "--threads", "1", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "speed.json").read_text())["ceilings"]
    assert rows == [{"what": "first", "value": 1.0}, {"error": "ArithmeticError: on purpose"}]
