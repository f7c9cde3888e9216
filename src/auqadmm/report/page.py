"""A report as one HTML file that needs nothing else: no network, no server, no other file.

Everything from a report is escaped. The file allows no connection and only its embedded scripts and styles (a
Content-Security-Policy with their hashes), so that not even injected scripts would run. Curves are JSON (page_data.py);
the style sheet and the scripts, in assets/, are embedded unchanged.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from auqadmm.report.content import Agreement, Chapter, ClaimVerdict, Picture, Report, Table
from auqadmm.report.drawings import drawings_html, escape
from auqadmm.report.page_data import Palette, report_data, script_json
from auqadmm.report.tables import whole

__all__ = ["page_html", "write_page"]

SCRIPTS = ("scale.js", "marks.js", "chart.js", "readout.js", "zoom.js", "page.js")
HOLDS = {"yes": "✓", "no": "✗", "partly": "◐", "tie": "=", "open": "?"}
PNG = b"\x89PNG\r\n\x1a\n"
NUMBER = re.compile(r"^[-+−<>≤≥≈~±]*\s*\d[\d\s.,]*(e[-+]?\d+)?\s*([%×x]|[kMGT]?B|m?s)?$", re.IGNORECASE)
LONG_CELL = 40  # letters of a cell that may take several lines
MISSING = {"", "-", "–", "—", "n/a", "nan", "inf"}


def write_page(report: Report, path: str | Path) -> Path:
    """Write a report as one HTML file that needs no other.

    Parameters
    ----------
    report
        The content. The same report gives the same bytes.
    path
        The file; its folder must exist.

    Returns
    -------
    Path
        `path`.
    """
    path = Path(path)
    text = page_html(report)
    with whole(path) as part:
        part.write_bytes(text.encode("utf-8"))
    return path


def page_html(report: Report) -> str:
    """The text of the file that `write_page` writes."""
    data, palette = report_data(report)
    style = asset("page.css") + _colors(palette)
    script = '"use strict";\n(() => {\n' + "\n".join(asset(name) for name in SCRIPTS) + "})();\n"
    anchors = slugs([chapter.id for chapter in report.chapters])
    links = {chapter.id: anchor for chapter, anchor in zip(report.chapters, anchors, strict=True)}
    chapters = [
        _chapter(f"{report.parts} {number}", number - 1, anchor, chapter)
        for number, (anchor, chapter) in enumerate(zip(anchors, report.chapters, strict=True), start=1)
    ]
    return f"""<!doctype html>
<html lang="en" class="no-js">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(script, style)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(report.title)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<div class="page">
{_contents(report, anchors)}
<main id="main" tabindex="-1">
<header class="top">
<h1>{escape(report.title)}</h1>
{paragraphs(report.lead, "lead")}
<noscript><p class="notice">The charts of this page are drawn by a script, and scripts are switched off.
Verdicts, captions, parameters, pictures and tables are complete without them.</p></noscript>
</header>
{_verdicts(report, links)}
{"".join(chapters)}
{_about(report.about)}
</main>
</div>
<script type="application/json" id="data">{script_json(data)}</script>
<script>{script}</script>
</body>
</html>
"""


def _contents(report: Report, anchors: Sequence[str]) -> str:
    entries = [("verdicts", "", "Verdicts")] if report.verdicts else []
    titles = [chapter.title for chapter in report.chapters]
    entries += [(anchor, str(n), title) for n, (anchor, title) in enumerate(zip(anchors, titles, strict=True), 1)]
    entries += [("about", "", "About this page")] if report.about else []
    items = "".join(
        f'<li><a href="#{anchor}"><span class="number">{number}</span><span>{escape(title)}</span></a></li>\n'
        for anchor, number, title in entries
    )
    contents = f'<p class="eyebrow" id="contents">Contents</p>\n<ol>\n{items}</ol>' if items else ""
    return f'<nav class="contents" aria-label="Contents">\n<div id="theme"></div>\n{contents}\n</nav>'


def _verdicts(report: Report, links: Mapping[str, str]) -> str:
    if not report.verdicts:
        return ""
    titles = {chapter.id: (n, chapter.title) for n, chapter in enumerate(report.chapters, 1)}
    rows = "".join(_verdict(verdict, links, titles) for verdict in report.verdicts)
    count = Counter(verdict.holds for verdict in report.verdicts)
    tally = "".join(f"<li>{_badge(holds, f'{count[holds]} {holds}')}</li>" for holds in HOLDS if count[holds])
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Claim", "Holds", "Number", "Why", "Figure"))
    return f"""<section id="verdicts" aria-labelledby="verdicts-title">
<h2 id="verdicts-title">Verdicts</h2>
<ul class="tally" aria-label="How many claims hold">{tally}</ul>
<table class="verdicts">
<thead><tr>{head}</tr></thead>
<tbody>
{rows}</tbody>
</table>
</section>
"""


def _verdict(verdict: ClaimVerdict, links: Mapping[str, str], titles: Mapping[str, tuple[int, str]]) -> str:
    figure = escape(verdict.figure)
    if verdict.figure in links:
        number, title = titles[verdict.figure]
        figure = f'<a href="#{links[verdict.figure]}" title="{escape(title)}">Figure {number}</a>'
    protocol = f'<span class="protocol">{escape(verdict.protocol)}</span>' if verdict.protocol else ""
    tally = f'<span class="counts">{escape(verdict.tally)}</span>' if verdict.tally else ""
    return (
        f'<tr><th scope="row">{lines(verdict.claim)}{protocol}</th>'
        f'<td data-name="Holds"><div>{_badge(verdict.holds, verdict.holds)}{tally}</div></td>'
        f'<td data-name="Number" class="value">{lines(verdict.number)}</td>'
        f'<td data-name="Why" class="why">{lines(verdict.why)}</td>'
        f'<td data-name="Figure">{figure}</td></tr>\n'
    )


def _badge(holds: str, words: str) -> str:
    known = holds if holds in HOLDS else "open"
    return f'<span class="badge {known}"><span aria-hidden="true">{HOLDS[known]}</span> {escape(words)}</span>'


def _chapter(called: str, place: int, anchor: str, chapter: Chapter) -> str:
    panels = "".join(
        f'<figure class="panel"><figcaption class="panel-title">{escape(panel.title)}</figcaption>'
        '<div class="chart"></div></figure>\n'
        for panel in chapter.panels
    )
    charts = f'<div class="tools"></div>\n<div class="panels">\n{panels}</div>\n' if panels else ""
    pictures = "".join(_picture(picture, chapter) for picture in chapter.pictures)
    pictures = f'<div class="pictures">\n{pictures}</div>\n' if pictures else ""
    drawings = drawings_html(chapter.drawings)
    if chapter.more:
        drawings += f"<details><summary>{len(chapter.more)} more</summary>\n{drawings_html(chapter.more)}</details>\n"
    shown = _table(chapter.table, chapter.title) + drawings
    if chapter.table is not None and any(isinstance(d, Agreement) for d in chapter.drawings):
        shown = f'<div class="beside">\n{shown}</div>\n'
    return f"""<section class="chapter" id="{anchor}" data-chapter="{place}" aria-labelledby="{anchor}-title">
<p class="eyebrow">{escape(called)}</p>
<h2 id="{anchor}-title">{escape(chapter.title)}</h2>
{paragraphs(chapter.caption, "caption")}
{charts}{pictures}{shown}{_parameters(chapter.parameters)}</section>
"""


def _picture(picture: Picture, chapter: Chapter) -> str:
    if not picture.png.startswith(PNG) or len(picture.png) < 24:
        raise ValueError(f"Picture {picture.title or picture.alt!r} of {chapter.title!r} is not a PNG.")
    width, height = (int.from_bytes(picture.png[i : i + 4], "big") for i in (16, 20))  # from the PNG header
    source = base64.b64encode(picture.png).decode("ascii")
    caption = f"<figcaption>{escape(picture.title)}</figcaption>" if picture.title else ""
    return (
        f'<figure class="picture"><button type="button" class="enlarge" aria-haspopup="dialog">'
        f'<img src="data:image/png;base64,{source}" alt="{escape(picture.alt)}" width="{width}" height="{height}">'
        f"</button>{caption}</figure>\n"
    )


def _table(table: Table | None, title: str) -> str:
    if table is None:
        return ""
    columns = len(table.header)
    numeric = [_is_numeric([row[c] for row in table.rows if c < len(row)]) for c in range(columns)]
    long = [any(len(row[c]) > LONG_CELL for row in table.rows if c < len(row)) for c in range(columns)]
    kind = ["number" if yes else "words long" if long[c] else "words" for c, yes in enumerate(numeric)]
    head = "".join(
        f'<th scope="col" class="{kind[c]}">{lines(name.strip())}</th>' for c, name in enumerate(table.header)
    )
    best = set(table.best)
    rows = ""
    for r, row in enumerate(table.rows):
        if len(row) != columns:
            raise ValueError(f"Row {r} of the table of {title!r} has {len(row)} cells, its header {columns}.")
        cells = f'<th scope="row">{_cell(row[0], (r, 0) in best)}</th>' if row else ""
        for c in range(1, columns):
            mark = " best" if (r, c) in best else ""
            cells += f'<td class="{kind[c]}{mark}">{_cell(row[c], bool(mark))}</td>'
        rows += f"<tr>{cells}</tr>\n"
    note = '<p class="note"><span class="best-sign" aria-hidden="true">●</span> best of its column</p>' if best else ""
    return f"""<div class="scroll" role="region" aria-label="Table: {escape(title)}" tabindex="0">
<table class="numbers"><thead><tr>{head}</tr></thead>
<tbody>
{rows}</tbody></table>
</div>
{note}
"""


def _cell(text: str, best: bool) -> str:
    if not best:
        return lines(text)
    sign = '<span class="best-sign" aria-hidden="true">●</span><span class="hidden">best: </span>'
    return f"{sign}<strong>{lines(text)}</strong>"


def _is_numeric(cells: Sequence[str]) -> bool:
    said = [cell.strip() for cell in cells if cell.strip().lower() not in MISSING]
    return bool(said) and all(NUMBER.match(cell) for cell in said)


def _parameters(parameters: Mapping[str, str]) -> str:
    if not parameters:
        return ""
    return f"<details><summary>Parameters</summary>\n{_definitions(parameters)}\n</details>\n"


def _about(about: Mapping[str, Any]) -> str:
    if not about:
        return ""
    return f"""<section id="about" aria-labelledby="about-title">
<h2 id="about-title">About this page</h2>
{_definitions(about)}
</section>
"""


def _definitions(values: Mapping[str, Any]) -> str:
    pairs = "".join(f"<div><dt>{escape(str(k))}</dt><dd>{_value(v)}</dd></div>\n" for k, v in values.items())
    return f"<dl>\n{pairs}</dl>"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return _definitions(value) if value else "–"
    if isinstance(value, list | tuple):
        return ", ".join(_value(part) for part in value)
    return "–" if value is None else lines(str(value))


def _colors(palette: Palette) -> str:
    """One class per colour. A browser without light-dark() keeps the light page."""
    light = "".join(f".c{index}{{--c:{colors[0]}}}" for colors, index in palette.colors.items())
    both = "".join(f".c{index}{{--c:light-dark({','.join(colors)})}}" for colors, index in palette.colors.items())
    return f"{light}\n@supports (color: light-dark(#000, #fff)) {{{both}}}\n" if light else ""


def _policy(script: str, style: str) -> str:
    return (
        f"default-src 'none'; img-src data:; script-src '{digest(script)}'; style-src '{digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def digest(text: str) -> str:
    """As a Content-Security-Policy names a script or a style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def asset(name: str) -> str:
    """A file of assets/."""
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def lines(text: str) -> str:
    """Line breaks stay line breaks."""
    return "<br>".join(escape(line) for line in text.split("\n"))


def paragraphs(text: str, kind: str) -> str:
    """An empty line begins a new paragraph."""
    parts = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    return "\n".join(f'<p class="{kind}">{escape(part)}</p>' for part in parts)


def slugs(names: Sequence[str]) -> list[str]:
    """Names as anchors: letters, digits and hyphens, unique."""
    taken: list[str] = []
    for name in names:
        base = "figure-" + (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "x")
        slug, count = base, 1
        while slug in taken:
            count += 1
            slug = f"{base}-{count}"
        taken.append(slug)
    return taken
