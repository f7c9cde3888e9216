"""The page of a fit over sites while it runs: the style of the report, a script that asks for numbers, no words of its
own but labels. What it shows comes as JSON from the server that it came from."""

from __future__ import annotations

from auqadmm.report.page import asset, digest

FIGURES = {"iteration": "Iteration", "rounds": "Rounds", "gap": "Gap to the optimum", "left": "Left the sites",
           "elapsed": "Elapsed"}  # fmt: skip
SITE_COLUMNS = ("Site", "State", "Messages", "Numbers", "Bytes", "Masked")
ASKED_COLUMNS = ("What", "Messages", "Numbers", "Bytes", "Masked")


def live_page() -> tuple[str, str]:
    """The text of the page, and the Content-Security-Policy to serve it with."""
    style, script = asset("page.css") + asset("live.css"), asset("live.js")
    policy = (
        f"default-src 'none'; connect-src 'self'; script-src '{digest(script)}'; style-src '{digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    figures = "".join(
        f'<div><dt>{words}</dt><dd id="{name}">–</dd><dd class="note" id="{name}-note"></dd></div>\n'
        for name, words in FIGURES.items()
    )
    html = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>auqadmm</title>
<style>{style}</style>
</head>
<body>
<main class="live" id="main">
<header class="top">
<p class="eyebrow" id="study">A fit over sites</p>
<h1 id="headline" role="status">Connecting …</h1>
<p class="lead" id="outcome" hidden></p>
<p class="notice" id="connection" role="alert" hidden></p>
<noscript><p class="notice">This page needs its script; <a href="status.json">status.json</a> has the same numbers.</p>
</noscript>
</header>
<dl class="figures" aria-label="Where the fit stands">
{figures}</dl>
<section aria-labelledby="sites-title">
<h2 id="sites-title">Sites</h2>
<p class="caption">What left each site so far, as counted here when it came in.</p>
{_table("sites", SITE_COLUMNS, "sites-title")}
</section>
<details id="asked-part" hidden>
<summary id="asked-title">What it was, of all sites together</summary>
{_table("asked", ASKED_COLUMNS, "asked-title")}
</details>
<section aria-labelledby="refused-title" id="refused-part" hidden>
<h2 id="refused-title">Not accepted</h2>
<p class="caption">The last messages that the coordinator turned away, and why.</p>
<ul id="refused"></ul>
</section>
<p class="note foot">This page is served to this machine only, for as long as the fit runs; it changes nothing.</p>
</main>
<script>{script}</script>
</body>
</html>
"""
    return html, policy


def _table(name: str, columns: tuple[str, ...], title: str) -> str:
    head = "".join(
        f'<th scope="col"{"" if k < (2 if name == "sites" else 1) else chr(32) + "class=number"}>{column}</th>'
        for k, column in enumerate(columns)
    )
    return (
        f'<table class="stacked" aria-labelledby="{title}">\n<thead><tr>{head}</tr></thead>\n'
        f'<tbody id="{name}"></tbody>\n</table>'
    )
