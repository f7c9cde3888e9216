"""Code in the documentation runs as printed and prints what the pages say."""

from __future__ import annotations

import re

import pytest

import auqadmm as aq
from tests.docs.pages import DOCS, ROOT, execute, matches

PAGES = [
    "getting-started.md",
    "tutorials/four-hospitals.md",
    "tutorials/hospital-study.md",
    "tutorials/rates.md",
    "tutorials/survival.md",
    "reliability.md",
    "statistics.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = execute(DOCS / page, capsys)
    assert names["aq"] is aq


def test_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    execute(ROOT / "README.md", capsys)


def test_an_own_method_takes_the_rounds_that_the_page_tells(capsys):
    page = DOCS / "tutorials/own-parts.md"
    names = execute(page, capsys)
    told = re.search(r"When we ran it: (\d+), (\d+), (\d+) and (\d+) rounds", page.read_text())
    assert told is not None
    # a round or two may hang on rounding
    assert list(names["rounds"].values()) == [pytest.approx(int(n), rel=0.05, abs=1) for n in told.groups()]


def test_what_counts_as_printed():
    assert matches("a … c\n", "a b c\n")
    assert matches("a\n…\nc\n", "a\nb\nb\nc\n")
    assert not matches("a\nc\n", "a\nb\nc\n")
    assert not matches("a b\n", "a\n")
