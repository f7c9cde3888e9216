"""Text on its way into HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence


def escape(text: str) -> str:
    """Safe in an element and in a quoted attribute; characters that no file can hold become question marks."""
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"), quote=True)


def lines(text: str) -> str:
    """Line breaks stay line breaks."""
    return "<br>".join(escape(line) for line in text.split("\n"))


def paragraphs(text: str, kind: str) -> str:
    """An empty line begins a new paragraph."""
    parts = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    return "\n".join(f'<p class="{kind}">{escape(part)}</p>' for part in parts)


def slugs(names: Sequence[str]) -> list[str]:
    """Names as anchors: letters, digits and hyphens, no two alike."""
    found: list[str] = []
    for name in names:
        base = "figure-" + (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "x")
        slug, count = base, 1
        while slug in found:
            count += 1
            slug = f"{base}-{count}"
        found.append(slug)
    return found
