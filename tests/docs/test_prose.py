"""Prose of the pages: lines that fit an editor, and pages that speak to a reader and not of their own making."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import DOCS, ROOT

LONGEST = 120
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCED = re.compile(r"^(```|~~~|\$\$).*?^\1$", re.DOTALL | re.MULTILINE)
TARGET = re.compile(r"\]\([^)\s]*\)|<a [^>]*>")


def named(path):
    return str(path.relative_to(ROOT))


def too_long(text: str) -> list[str]:
    """Lines of prose over the limit; tables, code, formulas, pictures and the targets of links do not count."""
    blank = FENCED.sub(lambda found: "\n" * found[0].count("\n"), text)
    found = []
    for line in blank.splitlines():
        exempt = line.startswith(("|", "    ", "![", "*From ")) or line.lstrip().startswith("<!--")
        if not exempt and len(TARGET.sub("]", line)) > LONGEST:
            found.append(line)
    return found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_lines_of_prose_are_short(page):
    assert too_long(page.read_text(encoding="utf-8")) == []


def test_what_counts_as_a_long_line():
    long = "word " * 30
    assert too_long(f"short\n{long}\nshort") == [long]
    for exempt in (
        f"| {long}|",
        f"    {long}",
        f"```\n{long}\n```",
        f"$$\n{long}\n$$",
        f"[a]({'x' * 130})",
        f"![a]({'x' * 130})",
    ):
        assert too_long(exempt) == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_pages_do_not_speak_of_what_was_wished_for(page):
    assert not re.search(r"(was|were|is|what) asked for|^Asked for|\(asked for", page.read_text(encoding="utf-8"))


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_page_of_speed_is_one_page():
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    assert len(re.sub(r"^<!-- table.*?^<!-- end -->$", "", text, flags=re.DOTALL | re.MULTILINE).split()) <= 1500
