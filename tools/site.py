"""What the documentation site adds to the pages in docs/, as hooks of MkDocs.

    places      `core/consensus.py:ConsensusADMM.step` in the paper map becomes a link to the line where it stands today
    sources     the files that are linked so become pages, with a number at every line
    neighbours  a page or file outside docs/ that a page links to becomes part of the site
    nothing     of what a page or a style sheet loads comes from elsewhere or is missing, and no anchor leads nowhere:
                else the build fails

A name that does not exist fails the build, and `make test` as well.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "auqadmm"
MAP = "paper-map.md"
PLACE = re.compile(r"`([\w/]+\.py):([\w.]+)`")
LINK = re.compile(r"\]\((?![a-z]+:)([\w./-]+\.\w+)((?:#[^)]*)?)\)")
STYLED = re.compile(r"""url\(["']?([^"')]+)["']?\)""")
HOME = "repository"  # where neighbours are put


def places(text: str) -> list[tuple[str, str]]:
    """The (file, name) pairs that a page refers to."""
    return PLACE.findall(text)


def line_of(file: str, name: str) -> int:
    """The line on which `name` (Class, Class.method, function or constant) is defined in `file`."""
    try:
        return _definitions(file)[name]
    except FileNotFoundError:
        raise LookupError(f"{MAP}: there is no file {path_of(file).relative_to(ROOT)}.") from None
    except KeyError:
        raise LookupError(f"{MAP}: {path_of(file).relative_to(ROOT)} defines no {name}.") from None


def path_of(file: str) -> Path:
    """Of tests from the root, of all else from the package."""
    return (ROOT if file.startswith("tests/") else PACKAGE) / file


@cache
def _definitions(file: str) -> dict[str, int]:
    found: dict[str, int] = {}

    def look(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[prefix + node.name] = node.lineno
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            found.update({prefix + t.id: node.lineno for t in targets if isinstance(t, ast.Name)})
            if isinstance(node, ast.ClassDef):
                look(node.body, f"{prefix}{node.name}.")

    look(ast.parse(path_of(file).read_text(encoding="utf-8")).body, "")
    return found


def with_lines(text: str) -> str:
    """The paper map with a link for every place."""

    def link(match: re.Match[str]) -> str:
        file, name = match.groups()
        line = line_of(file, name)
        return f'<a href="source/{file}.html#__codelineno-0-{line}"><code>{file}:{line}</code></a> `{name}`'

    return PLACE.sub(link, text)


def repository_path(uri: str) -> str:
    """Where the page `uri` of the site lies in the repository."""
    return uri.removeprefix(f"{HOME}/") if uri.startswith(f"{HOME}/") else f"docs/{uri}"


def site_uri(path: str) -> str:
    """Where a page or file of the repository lies on the site."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{HOME}/{path}"


def linked(text: str, uri: str) -> Iterator[str]:
    """The pages and files of the repository that a page links to."""
    folder = posixpath.dirname(repository_path(uri))
    for target, _ in LINK.findall(text):
        path = posixpath.normpath(posixpath.join(folder, target))
        if (ROOT / path).exists():  # else: a broken link, which MkDocs tells
            yield path


def moved(text: str, uri: str) -> str:
    """The links of a page as they are on the site."""
    folder, here = posixpath.dirname(repository_path(uri)), posixpath.dirname(uri) or "."

    def link(match: re.Match[str]) -> str:
        target, anchor = match.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        return f"]({posixpath.relpath(site_uri(path), here)}{anchor})" if (ROOT / path).exists() else match.group()

    return LINK.sub(link, text)


# ------------------------------------------------------------------ hooks
def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File, InclusionLevel

    def add(uri: str, content: str | bytes) -> Any:
        files.append(File.generated(config, uri, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
        return files.get_file_from_path(uri)

    waiting = list(files.documentation_pages())
    while waiting:
        page = waiting.pop()
        for path in linked(page.content_string, page.src_uri):
            if files.get_file_from_path(site_uri(path)) is None:
                new = add(site_uri(path), (ROOT / path).read_bytes())
                waiting += [new] if new.is_documentation_page() else []
    for file in sorted({file for file, _ in places((ROOT / "docs" / MAP).read_text(encoding="utf-8"))}):
        code = path_of(file).read_text(encoding="utf-8")
        head = f"---\ntitle: {file}\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n# {file}\n\n"
        add(f"source/{file}.md", f'{head}~~~~~~ {{.python linenums="1"}}\n{code}~~~~~~\n')
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    if page.file.src_uri == MAP:
        markdown = with_lines(markdown)
    return moved(markdown, page.file.src_uri)


def on_post_build(config: Any) -> None:
    from mkdocs.exceptions import PluginError

    complaints = list(broken(Path(config.site_dir)))
    if complaints:
        raise PluginError("\n".join(complaints))


# ------------------------------------------------------------------ the built pages
class _Page(HTMLParser):
    """The anchors of a page, its links, and what it loads."""

    LOADED = frozenset({("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")})

    def __init__(self) -> None:
        super().__init__()
        self.ids, self.links, self.loads = {""}, set[str](), set[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name in ("id", "name"):
                self.ids.add(value)
            if (tag, name) == ("a", "href"):
                self.links.add(value)
            if (tag, name) in self.LOADED:
                self.loads.add(value)


def broken(site: Path) -> Iterator[str]:
    """A sentence for every link without a target, and for everything that is loaded from elsewhere."""
    pages = {path.resolve(): _read(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        for url in sorted(page.loads):
            if urlsplit(url).netloc:
                yield f"{name} loads {url}: readers may be offline."
            elif not urlsplit(url).scheme and not (path.parent / unquote(urlsplit(url).path)).exists():
                yield f"{name} loads {url}, which is not there."
        for url in sorted(page.links):
            to = urlsplit(url)
            if to.scheme or to.netloc:
                continue
            target = (path.parent / unquote(to.path)).resolve() if to.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{name} links to {url}, which is not there."
            elif target in pages and unquote(to.fragment) not in pages[target].ids:
                yield f"{name} links to {url}, but there is no such anchor."
    for sheet in sorted(site.rglob("*.css")):
        for url in sorted(set(STYLED.findall(sheet.read_text(encoding="utf-8")))):
            to = urlsplit(url)
            if to.netloc:
                yield f"{sheet.relative_to(site)} loads {url}: readers may be offline."
            elif not to.scheme and to.path and not (sheet.parent / unquote(to.path)).exists():
                yield f"{sheet.relative_to(site)} loads {url}, which is not there."


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page
