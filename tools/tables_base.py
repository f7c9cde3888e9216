"""What all tables share: where files are, what a table is, how it is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = "results/rounds/h200.csv"


@dataclass(frozen=True)
class Table:
    """Markdown, the files it is made of, and which code they measured."""

    text: str
    files: tuple[str, ...]
    origin: str


def grid(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """The first `texts` columns hold words."""
    rule = ["---"] * texts + ["---:"] * (len(head) - texts)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)) + "\n"
