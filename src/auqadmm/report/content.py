"""What a report says, as plain frozen values: `page.py` turns them into one HTML file, experiments make them.

A `Report` is verdicts on claims, then figures. A figure has panels of curves and, or, pictures, its parameters, and a
table of what each method needed to reach each gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OUTCOMES = ("better", "equal", "worse")


@dataclass(frozen=True)
class Cell:
    """One comparison of a claim: where it was made, which of `OUTCOMES` it had, and the numbers compared."""

    where: str
    outcome: str
    number: str


@dataclass(frozen=True)
class ClaimVerdict:
    """One claim, and whether it holds: `holds` is "yes", "no", "partly", "tie" or "open".

    `cells` are the comparisons that decided it; claims without comparisons have none.
    """

    claim: str
    protocol: str
    holds: str
    number: str
    why: str
    figure: str = ""
    cells: tuple[Cell, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many comparisons were strictly better, equal, worse."""
        return {outcome: sum(cell.outcome == outcome for cell in self.cells) for outcome in OUTCOMES}

    @property
    def tally(self) -> str:
        """The counts in words; empty without comparisons."""
        return ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items()) if self.cells else ""


@dataclass(frozen=True)
class Curve:
    """One run in one panel. `x` and `y` map the name of an axis to equally long columns; None: not measured.

    `method` is a key of `report.style.METHODS` where it is one of ours; `control` marks a control of S11.
    """

    method: str
    label: str
    x: Mapping[str, tuple[float | None, ...]]
    y: Mapping[str, tuple[float | None, ...]]
    control: bool = False


@dataclass(frozen=True)
class Panel:
    """Curves on common axes. `x_axes` and `y_axes` map a key of `Curve.x`, `Curve.y` to its label, with units; the
    first of each is shown first. `log_x`, `log_y` name the axes that are logarithmic; `floors` maps a logarithmic y
    axis to the value below which values are rounding error: points below are drawn there."""

    title: str
    curves: tuple[Curve, ...]
    x_axes: Mapping[str, str]
    y_axes: Mapping[str, str]
    log_x: tuple[str, ...] = ()
    log_y: tuple[str, ...] = ()
    floors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Picture:
    """A PNG, with its alternative text."""

    png: bytes
    alt: str
    title: str = ""


@dataclass(frozen=True)
class Table:
    """Cells as text; `best` are the (row, column) cells to mark."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Interval:
    """One estimate: `value` with its ends `low` and `high` as they are drawn (None: not known), and `cells`, the words
    beside it. `common`: of all sites together."""

    label: str
    value: float | None
    low: float | None
    high: float | None
    cells: tuple[str, ...]
    common: bool = False


@dataclass(frozen=True)
class Forest:
    """Estimates below each other on one axis. `header` names the cells, `reference` is the value of no effect, `axis`
    says what is drawn; `log`: on a logarithmic axis."""

    title: str
    header: tuple[str, ...]
    rows: tuple[Interval, ...]
    reference: float
    axis: str
    log: bool = False


@dataclass(frozen=True)
class Agreement:
    """What was predicted and what was seen, in groups of rows: one list of (predicted, observed, weight) per label."""

    title: str
    series: Mapping[str, tuple[tuple[float, float, float], ...]]
    share: bool = False  # of a class: both axes from 0 to 1


@dataclass(frozen=True)
class Chapter:
    """One figure of the report: what it shows, with which parameters, in curves, pictures, drawings and a table."""

    id: str
    title: str
    caption: str
    panels: tuple[Panel, ...] = ()
    pictures: tuple[Picture, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    table: Table | None = None
    drawings: tuple[Forest | Agreement, ...] = ()
    more: tuple[Forest, ...] = ()  # drawings that are folded away at first


@dataclass(frozen=True)
class Report:
    """The whole page. `about` is its provenance: versions, device, seed, command; `parts`: what a chapter is called."""

    title: str
    lead: str
    verdicts: tuple[ClaimVerdict, ...] = ()
    chapters: tuple[Chapter, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    parts: str = "Figure"
