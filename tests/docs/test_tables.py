"""Tables of README.md and docs/ are those that results/ make, and none of them goes without its file and commit."""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest

from tests.docs.pages import DOCS, ROOT


def _module(path):
    spec = importlib.util.spec_from_file_location("auqadmm_tables", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


tables = _module(ROOT / "tools" / "tables.py")
PUBLISHED = [ROOT / "README.md", DOCS / "performance.md", DOCS / "scaling.md"]
# others join as soon as one of their tables is made here; the report of the paper's runs makes docs/reproduction.md
PUBLISHED += [p for p in tables.pages() if p not in PUBLISHED and tables.MARKED.search(p.read_text(encoding="utf-8"))]


def named(path):
    return str(path.relative_to(ROOT))


# ------------------------------------------------------------------ pages
@pytest.mark.parametrize("page", PUBLISHED, ids=named)
def test_a_page_agrees_with_the_results(page):
    text = page.read_text(encoding="utf-8")
    assert tables.MARKED.search(text)
    assert tables.filled(page) == text, "run `python tools/tables.py --write`"


@pytest.mark.parametrize("page", PUBLISHED, ids=named)
def test_no_table_of_numbers_goes_without_markers(page):
    assert unmarked(page.read_text(encoding="utf-8")) == []


def unmarked(text: str) -> list[str]:
    """The first line of every table that holds numbers, is not between markers and is not of formulas."""
    rest = tables.MARKED.sub("", text)
    found = []
    for table in re.finditer(r"(<!-- formulas -->\n\n)?((?:^\|.*\n)+)", rest, re.MULTILINE):
        head, *body = table[2].splitlines()
        if table[1] is None and any(re.search(r"\d", line) for line in body):
            found.append(head)
    return found


def test_what_counts_as_a_table_without_markers():
    table = "| a | b |\n|---|---|\n| x | 3 |\n"
    assert unmarked(f"words\n\n{table}\nwords") == ["| a | b |"]
    assert unmarked(table.replace("3", "three")) == []
    assert unmarked(f"<!-- formulas -->\n\n{table}") == []
    assert unmarked(f"<!-- table: rounds -->\n{table}<!-- end -->\n") == []


@pytest.mark.parametrize("page", PUBLISHED, ids=named)
def test_every_table_names_its_files_and_the_code(page):
    for name, body in tables.MARKED.findall(page.read_text(encoding="utf-8")):
        last = body.strip().splitlines()[-1]
        assert re.fullmatch(r"\*From .*\]\(.*results/.*\): commit [0-9a-f]{7}.*\*", last), name
        for link in re.findall(r"\]\(([^)]+)\)", last):
            assert (page.parent / link).is_file(), link


def test_the_readme_is_short_and_links_to_the_whole():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    ((name, body),) = tables.MARKED.findall(text)
    rows = [line for line in body.splitlines() if line.startswith("|")]
    assert name == "rounds-short"
    assert len(rows) - 2 <= 5
    assert "(docs/performance.md)" in text[text.index("<!-- end -->") :]


def test_every_table_is_made():
    for name, make in tables.TABLES.items():
        table = make()
        assert table.text.startswith("| "), name
        assert len({line.count("|") for line in table.text.splitlines()}) == 1, name
        assert table.origin.startswith("commit "), name


def test_a_table_nobody_knows_is_named():
    with pytest.raises(LookupError, match="no table 'rounds-of-applause'"):
        tables.block("rounds-of-applause", ROOT / "README.md")


# ------------------------------------------------------------------ a file of rounds
def line(method, prior, rounds, numbers, workload=None, status="reached"):
    known = (None,) * 7 if rounds is None else (rounds, rounds, 8 * numbers, 8, numbers, 0, 0.5)
    ended = (2e-4, 2000, status, "", "1234567", "2026-01-02")
    w = workload or tables.tables_rounds.SHORT[0]
    return [
        tables.tables_rounds.lines_of.Line(w, method, prior, "", t, *known, *ended)
        for t in tables.tables_rounds.lines_of.TARGETS
    ]


@pytest.fixture
def measured(tmp_path, monkeypatch):
    def put(*lines):
        path = tmp_path / tables.base.ROUNDS
        path.parent.mkdir(parents=True, exist_ok=True)
        tables.tables_rounds.lines_of.write_csv(path, [x for some in lines for x in some])

    monkeypatch.setattr(tables.base, "ROOT", tmp_path)
    return put


def test_the_plain_problem_comes_first_and_numbers_stand_beside_rounds(measured):
    measured(
        line("auq-lr", "image", 12, 30_156),
        line("auq-lr", "", 34, 99_949),
        line("newton", "", 1, 308_505),
        line("gram", "", 1, 308_504),
        line("lbfgs", "", None, None, status="not applicable"),
        line("lbfgs-50", "", None, None, status="not applicable"),
        line("fista", "", None, None, status="max_rounds"),
    )
    head, _, row, *_ = tables.tables_rounds.rounds_short().text.splitlines()
    assert head == "| workload | AUQ-LR | AUQ-LR, image | best of L-BFGS, OWL-QN, FISTA | Newton or Gram |"
    assert row == "| mnist-elastic-mean | 34 (100) | 12 (30) | – [2e-4 after 2000] FISTA | 1 (309) Gram |"
    assert tables.tables_rounds.rounds_short().origin == "commit 1234567; 2026-01-02"
    summary = tables.tables_rounds.rounds_summary().text
    assert "| AUQ-LR, image | 1 | 1 | 1 | 0 | 1 |" in summary
    assert "| Newton | 1 | 1 | 1 | 1 | 0 |" in summary
    assert "| L-BFGS | 1 | 0 | 0 | 0 | 0 |" in summary


def test_what_was_not_measured_is_not_shown(measured):
    measured(line("auq-lr", "image", 12, 30_156), line("lbfgs", "", 20, 1_000))
    head, _, row, *_ = tables.tables_rounds.rounds_short().text.splitlines()
    assert head == "| workload | AUQ-LR, image | best of L-BFGS, OWL-QN, FISTA |"
    assert row == "| mnist-elastic-mean | 12 (30) | 20 (1.0) L-BFGS |"


def test_a_page_that_disagrees_is_told_and_written(measured, tmp_path, monkeypatch, capsys):
    measured(line("auq-lr", "", 34, 99_949))
    page = tmp_path / "README.md"
    (tmp_path / "docs").mkdir()
    page.write_text("before\n\n<!-- table: rounds-short -->\n| old |\n<!-- end -->\n\nafter\n", encoding="utf-8")
    monkeypatch.setattr(tables.tables_scaling, "remodel", lambda: None)
    assert tables.main(["--check"]) == 1
    assert "README.md: disagrees" in capsys.readouterr().out
    assert tables.main(["--write"]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n\n<!-- table: rounds-short -->\n\n| workload |")
    assert text.endswith("<!-- end -->\n\nafter\n")
    assert tables.main(["--check"]) == 0
