"""One iteration as a plain line, or as a drawing for rich, with what a `Glance` adds to its row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from auqadmm.columns.method import FramedState
from auqadmm.core.solve import Iteration
from auqadmm.core.state import Blocks
from auqadmm.words import visible

if TYPE_CHECKING:
    from rich.console import Group


MISSING = "–"


def line(title: str, event: Iteration, glance: Glance) -> str:
    row, stopping = event.row, event.stopping
    parts = [f"{title}: iteration {row.iteration}/{stopping.max_iter}", f"objective {number(row.objective, '.6g')}"]
    for name, value, tolerance in measured(event):
        against = f" (tolerance {number(tolerance)})" if tolerance else ""
        parts.append(f"{name} {number(value)}{against}")
    parts.append(speed(glance.rate))
    parts += [text for text in (rest(glance), far(glance), slow(event), failed(event)) if text]
    return ", ".join(parts)


def drawing(title: str, event: Iteration, glance: Glance) -> Group:
    """For `rich.live`. Text, never markup: names are data."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    row, stopping = event.row, event.stopping
    first = Table.grid(padding=(0, 2))
    first.add_row(
        Text(title, style="bold"),
        ProgressBar(total=stopping.max_iter, completed=row.iteration, width=20),
        Text(f"{row.iteration}/{stopping.max_iter}"),
        Text(speed(glance.rate), style="dim"),
        Text(rest(glance), style="cyan"),
    )
    second = Text(f"  objective {number(row.objective, '.6g')}")
    for name, value, tolerance in measured(event):
        within = value is not None and value <= tolerance
        second.append(f"  {name} ")
        second.append(number(value), style="green" if within else "")
        second.append(f"/{number(tolerance)}" if tolerance else "", style="dim")
    notes = "  ".join(text for text in (far(glance), slow(event), failed(event)) if text)
    third = [Text(f"  {notes}", style="yellow", no_wrap=True, overflow="ellipsis")] if notes else []
    return Group(first, second, *third)


def measured(event: Iteration) -> list[tuple[str, float | None, float]]:
    """Name, value and tolerance (0: none) of the stopping quantities; no residuals where a method has none."""
    row, tol = event.row, event.stopping.certificate_tol
    values: list[tuple[str, float | None, float]] = []
    if row.relative is not None or row.expected is not None:  # an estimate is marked as one
        values.append(("gap", row.relative, tol) if row.relative is not None else ("gap about", row.expected, tol))
    else:
        values.append(("KKT", row.kkt, 0.0))
    for name, value, tolerance in (
        ("primal", row.primal_residual, row.eps_primal),
        ("dual", row.dual_residual, row.eps_dual),
    ):
        if value is not None and not math.isnan(value):
            values.append((name, value, tolerance or 0.0))
    return values


def rest(glance: Glance) -> str:
    if glance.left is None:
        return ""
    return f"about {duration(glance.left)} {'left' if glance.meets else 'to the limit'}"


def far(glance: Glance) -> str:
    if glance.furthest is None:
        return ""
    name, share = glance.furthest
    return f"furthest from consensus: {visible(name)} ({share:.0%})"


def slow(event: Iteration) -> str:
    if event.slowest is None:
        return ""
    name, seconds = event.slowest
    return f"slowest: {visible(name)}, {seconds:.2g} s"


def failed(event: Iteration) -> str:
    names = event.row.failed_blocks
    if not names:
        return ""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"local solve inaccurate: {visible(names[0])}{more}"


def speed(rate: float) -> str:
    return f"{rate:.0f} it/s" if rate >= 10 else f"{rate:.1f} it/s" if rate >= 1 else f"{1 / rate:.1f} s/it"


def duration(seconds: float) -> str:
    """12 s, 3:05, 2:10:00."""
    whole = max(round(seconds), 1)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def number(x: float | None, spec: str = ".1e") -> str:
    return MISSING if x is None else f"{x:{spec}}"


FURTHEST_SHARE = 0.5  # of all squared distances: from this share on a block is named


@dataclass(frozen=True)
class Glance:
    """Iterations per second; seconds left, to the tolerances if `meets`, else to the limit of iterations (None: no
    trend); the block furthest from consensus with its share of Σ‖u_j − v‖², where one has most of it."""

    rate: float
    left: float | None
    meets: bool
    furthest: tuple[str, float] | None


def furthest(event: Iteration) -> tuple[str, float] | None:
    """Known only where all blocks are in this process."""
    blocks, shared = event.state.blocks, event.state.shared
    if not isinstance(blocks, Blocks) or shared.residuals is None:
        return None
    count = blocks.u.shape[0]
    if count != shared.setup.blocks or count != len(event.names) or count < 3:
        return None
    v = shared.memory.shared.v if isinstance(shared.memory, FramedState) else shared.v  # in the columns of u
    squares = (blocks.u - v.to(blocks.u)).flatten(1).double().square().sum(1)
    total, j = float(squares.sum()), int(squares.argmax())
    if not (total > 0 and math.isfinite(total)):
        return None
    share = float(squares[j]) / total
    return (event.names[j], share) if share >= FURTHEST_SHARE else None
