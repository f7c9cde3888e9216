"""The site: every page has a place in it, links lead somewhere, names exist."""

from __future__ import annotations

import importlib.util
import re
import sys

import markdown
import pytest

import auqadmm as aq
from tests.docs.pages import DOCS, ROOT


def _module(path):
    spec = importlib.util.spec_from_file_location("auqadmm_site", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site = _module(ROOT / "tools" / "site.py")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]


def read(path):
    """A page as the site's builder reads it: its anchors, links and what it loads."""
    html = markdown.markdown(path.read_text(), extensions=["tables", "toc", "fenced_code", "attr_list"])
    page = site._Page()
    page.feed(html)
    return page


# ------------------------------------------------------------------ pages
def test_every_page_is_in_the_navigation_and_every_entry_is_a_page():
    entries = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(entries) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_the_menu_calls_pages_by_their_titles():
    for name, page in re.findall(r"- (.+): ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE):
        title = re.search(r"^# (.+)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert title is not None, page
        assert title[1] == name, page


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_formulas_are_closed(path):
    text = path.read_text(encoding="utf-8")
    lines = [k for k, line in enumerate(text.splitlines()) if line == "$$"]
    assert len(lines) % 2 == 0
    for first, last in zip(lines[::2], lines[1::2], strict=True):
        tex = "\n".join(text.splitlines()[first + 1 : last])
        assert tex.strip()
        assert "\n\n" not in tex  # a paragraph ends there
        bare = re.sub(r"\\[{}|]", "", tex)
        assert bare.count("{") == bare.count("}"), tex
        assert re.findall(r"\\begin\{(\w+)\}", tex) == re.findall(r"\\end\{(\w+)\}", tex), tex
        assert len(re.findall(r"\\left\b", tex)) == len(re.findall(r"\\right\b", tex)), tex


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.name)
def test_files_of_code_that_a_page_names_exist(path):
    """From the root of the repository, or from that of the package."""
    for name in re.findall(r"`([\w/]+\.py)(?::[\w.]+)?`", path.read_text(encoding="utf-8")):
        assert (ROOT / name).is_file() or (site.PACKAGE / name).is_file(), name


def test_formulas_are_typeset_by_what_lies_beside_them():
    folder = DOCS / "assets" / "katex"
    fonts = re.findall(r"url\(([^)]+)\)", (folder / "katex.min.css").read_text(encoding="utf-8"))
    assert fonts
    assert all((folder / font).is_file() for font in fonts)
    assert "MIT License" in (folder / "LICENSE").read_text(encoding="utf-8")
    assert sum(path.stat().st_size for path in folder.rglob("*")) < 1_500_000


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    page = read(path)
    for url in page.links | page.loads:
        target, _, anchor = url.partition("#")
        if re.match(r"[a-z]+:", url):
            continue
        to = (path.parent / target) if target else path
        assert to.exists(), url
        if anchor:
            assert anchor in read(to).ids, url


def test_the_reference_names_everything_public():
    text = (DOCS / "api.md").read_text()
    named = set(re.findall(r"^::: auqadmm\.([\w.]+)$", text, re.MULTILINE))
    modules = {name for name in aq.__all__ if not hasattr(getattr(aq, name), "__module__")}
    assert set(aq.__all__) - modules == {name for name in named if "." not in name}
    for name in named:
        found = aq
        for part in name.split("."):
            found = getattr(found, part)
        assert found.__doc__, name
    for module in (aq.methods, aq.baselines):
        assert {f"{module.__name__.partition('.')[2]}.{method.__name__}" for method in module.KNOWN.values()} <= named


# ------------------------------------------------------------------ the paper map
def test_every_place_of_the_paper_map_exists():
    found = site.places((DOCS / site.MAP).read_text())
    assert len(found) > 70
    for file, name in found:
        line = site.path_of(file).read_text().splitlines()[site.line_of(file, name) - 1]
        assert name.split(".")[-1] in line


def test_every_equation_and_line_of_the_paper_is_in_the_map():
    text = (DOCS / site.MAP).read_text()
    told = set()
    for section, first, last in re.findall(r"\((\w)\.(\d+)\)(?: – \(\w\.(\d+)\))?", text):
        told |= {(section, k) for k in range(int(first), int(last or first) + 1)}
    equations = {"1": 2, "2": 15, "3": 5, "4": 9, "5": 3, "A": 6}
    assert told == {(section, k) for section, count in equations.items() for k in range(1, count + 1)}
    for title, lines in (("Algorithm 1", 5), ("Algorithm 2", 20)):
        box = text[text.index(f"**{title}**") :]
        rows = re.findall(r"^\| (\d+)(?:–(\d+))? \|", box[: box.index("\n\n", box.index("|---"))], re.MULTILINE)
        assert [k for a, b in rows for k in range(int(a), int(b or a) + 1)] == list(range(1, lines + 1))


@pytest.mark.parametrize(
    ("place", "words"),
    [(("core/gone.py", "f"), "no file src/auqadmm/core/gone.py"), (("core/solve.py", "gone"), "defines no gone")],
)
def test_a_place_that_is_gone_is_told(place, words):
    with pytest.raises(LookupError, match=words):
        site.line_of(*place)


# ------------------------------------------------------------------ what the build refuses
def test_links_of_pages_that_move():
    assert site.moved("[a](../README.md#b)", "tutorials/own-parts.md") == "[a](../README.md#b)"  # docs/README.md: none
    assert site.moved("[a](../CHANGELOG.md#b)", "index.md") == "[a](repository/CHANGELOG.md#b)"
    assert site.moved("[a](../pyproject.toml)", "math.md") == "[a](repository/pyproject.toml)"
    assert site.moved("![a](../images/report.png)", "tutorials/own-parts.md") == "![a](../images/report.png)"
    assert site.moved("[a](docs/math.md)", "repository/CONTRIBUTING.md") == "[a](../math.md)"
    assert site.moved("[a](https://example.org/x.md)", "index.md") == "[a](https://example.org/x.md)"


def test_broken_anchors_missing_pages_and_foreign_scripts_are_told(tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="x">A</h1><a href="#x"></a><a href="#y"></a><a href="b.html"></a><a href="https://example.org"></a>'
        '<script src="https://example.org/m.js"></script><script src="n.js"></script>'
    )
    (tmp_path / "a.css").write_text("a { b: url(https://example.org/f.woff2); c: url('g.woff2'); d: url(data:x) }")
    told = "\n".join(site.broken(tmp_path))
    assert told.count("\n") == 5
    for words in ("loads https://example.org/m.js", "loads n.js, which", "links to #y", "links to b.html"):
        assert words in told
    for words in ("a.css loads https://example.org/f.woff2", "a.css loads g.woff2, which"):
        assert words in told


def test_parameters_that_share_a_description_stand_apart_in_the_reference():
    pytest.importorskip("griffe", reason="needs the extra 'docs'")
    groups = _module(ROOT / "tools" / "griffe_groups.py")
    text = "Words, more.\n\nParameters\n----------\na, b\n    Both.\n\n    More.\nc : int\n    One.\n\n"
    text += "Notes\n-----\nx, y\n"
    apart = text.replace("a, b\n    Both.\n\n    More.\n", "a\n    Both.\n\n    More.\nb\n    Both.\n\n    More.\n")
    assert groups.apart(text) == apart
    assert groups.apart("Words.") == "Words."


def test_the_site_builds(tmp_path):
    """Needs `make docs` to have set itself up; runs nothing from elsewhere."""
    pytest.importorskip("mkdocs", reason="needs the extra 'docs'")
    import subprocess

    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    text = (tmp_path / "site" / "paper-map.html").read_text()
    assert re.search(r'href="source/core/consensus.py.html#__codelineno-0-\d+"', text)
    assert '<div class="arithmatex">' in (tmp_path / "site" / "math.html").read_text()
    for page in (tmp_path / "site").rglob("*.html"):  # ‖x‖_{A} = ‖y‖_{B}: emphasis, and B its attributes
        assert not re.search(r"<(?:em|strong) ", page.read_text(encoding="utf-8")), page.name
    api = (tmp_path / "site" / "api.html").read_text()
    assert re.search(
        r"<b>time_limit</b>.{0,200}?float \| None", re.sub(r"</?(?:span|code|a)[^>]*>", "", api), re.DOTALL
    )
