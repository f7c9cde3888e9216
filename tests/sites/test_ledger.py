"""What left each site: the coordinator's count against the sites' own lines, and against what a result says it cost."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch

import auqadmm as aq
from auqadmm.sites.audit import read_audit
from auqadmm.sites.ledger import Amount, Ledger, arrays_of
from tests.sites.inside import DATA, posed
from tests.sites.people import NAMES, town

pytestmark = pytest.mark.timeout(120)
BEFORE = {("add", ""), ("minmax", "holds")}  # of the common scale, and settings of a run: no part of its cost
SAME = ("run", "number", "request", "operation", "bytes", "sha256", "masked", "error")


def compared(folder, ledger):
    """Line by line: the same messages, in the same order, at both ends."""
    for name in NAMES:
        ours = [entry for entry in ledger.lines if entry.site == name]
        theirs = list(read_audit(folder / f"{name}.jsonl"))
        assert len(ours) == len(theirs) > 10
        for here, there in zip(ours, theirs, strict=True):
            assert {key: getattr(here, key) for key in SAME} == {key: getattr(there, key) for key in SAME}
            assert {key: list(shape) for key, shape in here.shapes.items()} == there.shapes
        total = ledger.by_site()[name]
        assert total.messages == len(theirs)
        assert total.bytes == sum(line.bytes for line in theirs)
        assert total.masked == sum(line.masked for line in theirs)
        assert total.errors == sum(bool(line.error) for line in theirs)


def new_since(ledger, before):
    """Of one site, by operation."""
    return {
        what: Amount(*((a - b) // len(NAMES) for a, b in zip(asdict(now).values(), asdict(then).values(), strict=True)))
        for what, now in ledger.by_operation().items()
        for then in [before.get(what, Amount())]
        if now != then
    }


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_both_ends_count_the_same_and_results_say_it(tmp_path, masked):
    methods = ["newton", "c-admm", "lbfgs"] + ([] if masked else ["auq-lr"])
    with town(tmp_path, {"lyon": 'masks = "required"'} if masked else None) as t, aq.Sites(t.file) as sites:
        before: dict[tuple[str, str], Amount] = {}
        for method in methods:
            found = aq.solve(posed(DATA), method, sites, max_iter=8, inference=method == "newton")
            ledger = sites.board.ledger
            new = new_since(ledger, before)
            before = ledger.by_operation()
            run = {what: amount for what, amount in new.items() if what not in BEFORE}
            last = found.history[-1]
            assert sum(amount.numbers for amount in run.values()) == last.bytes_up / 8, method
            # a sum without arrays sets a state, which costs nothing; extremes of nothing are a round all the same
            rounds = [n.messages for (do, _), n in run.items() if do == "minmax" or (do == "sum" and n.numbers)]
            assert sum(rounds) == last.rounds, method
        with pytest.raises(aq.InputError, match="no column 'patient'"):
            aq.solve(posed(aq.SiteData("heart", target="sick", features=("patient",))), "newton", sites)
    compared(tmp_path, ledger)
    assert any(entry.error for entry in ledger.lines)
    assert {entry.masked for entry in ledger.lines if entry.request == "sum" and entry.shapes} == {masked}


def test_summary_and_page_of_a_fit(tmp_path):
    from auqadmm.cli import main

    with town(tmp_path, dict.fromkeys(NAMES, 'masks = "required"')) as t:
        words = f"fit --sites {t.file} --data heart --family binomial --target sick --inference --quiet --out"
        with pytest.raises(SystemExit) as ended:
            main([*words.split(), str(tmp_path / "study")])
    assert not ended.value.code
    summary = json.loads((tmp_path / "study" / "summary.json").read_text())
    assert [site["site"] for site in summary["left"]] == list(NAMES)
    for site in summary["left"]:
        lines = list(read_audit(tmp_path / f"{site['site']}.jsonl"))
        assert (site["messages"], site["bytes"]) == (len(lines), sum(line.bytes for line in lines))
        assert site["masked"] == sum(line.masked for line in lines) == sum(what["masked"] for what in site["by"])
        asked = {what["operation"]: what["numbers"] for what in site["by"] if what["operation"]}
        quality = sum(numbers for name, numbers in asked.items() if name.startswith("quality"))
        assert quality == summary["quality"]["numbers"]
        assert asked["statistics"] == summary["inference"]["numbers"]
    page = (tmp_path / "study" / "report.html").read_text()
    for site in summary["left"]:
        assert f'<td class="number">{site["bytes"]}</td>' in page
    assert "What left each site" in page
    assert "sum: quality second" in page


# ---------------------------------------------------------------------- counting
def test_a_message_that_comes_twice_counts_once():
    ledger = Ledger()
    ledger.asking("sum", "newton")
    ledger.took("a", "r", 2, b"four")
    ledger.took("a", "r", 2, b"four")
    ledger.took("b", "r", 2, b"")
    ledger.read({"a": {"message": [True, {"G": torch.zeros(3, 2), "f": torch.tensor(1.0)}, 0.1]}, "c": {}})
    ledger.took("a", "r", 2, b"four")
    ledger.took("a", "r", 3, b"four")
    assert ledger.by_site() == {"a": Amount(2, 7, 8)}
    assert [line.number for line in ledger.lines] == [2, 3]
    assert ledger.summary()[0]["by"][0]["what"] == "sum: newton"


def test_numbers_are_those_before_masks():
    limbs = {"limbs": {"G": torch.zeros(6, 2)}, "shapes": {"G": [3, 2], "f": []}}
    assert arrays_of([False, limbs, 0.0]) == ({"G": (3, 2), "f": ()}, True)
    assert arrays_of(torch.zeros(2, 5)) == ({"": (2, 5)}, False)
    assert arrays_of({"site": "a", "rows": 3}) == ({}, False)
    assert arrays_of(None) == ({}, False)


def test_lines_are_bounded_and_sums_are_not(monkeypatch):
    monkeypatch.setattr("auqadmm.sites.ledger.MOST_LINES", 2)
    ledger = Ledger()
    for number in range(5):
        ledger.took("a", "r", number, b"xyz", error="no" if number == 4 else "")
        ledger.read({"a": {"message": torch.zeros(2)}} if number < 4 else {})
    assert len(ledger.lines) == 2
    assert ledger.by_site()["a"] == Amount(5, 8, 15, 0, 1)
