"""Live display of a run.

    with Progress(title="elastic net") as progress:
        aq.solve(problem, callbacks=[progress])

live    on a terminal, inside `with`: a few lines rewritten in place (by rich)
plain   elsewhere (a file, a pipe, a log): a line every few seconds, without control characters
json    one JSON object per iteration and line, for programs
quiet   nothing

Names of blocks and titles are data: control characters in them are shown as escapes, and brackets are no markup.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from auqadmm.columns import FramedState
from auqadmm.core.solve import Iteration
from auqadmm.core.state import Blocks
from auqadmm.diagnosis.evidence import Trend, excess, trend
from auqadmm.errors import InputError, InputTypeError
from auqadmm.words import visible

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live

# ---------------------------------------------------------------------- one iteration, as a line or as a drawing
MISSING = "–"


def line(title: str, event: Iteration, glance: Glance) -> str:
    row, stopping = event.row, event.stopping
    parts = [f"{title}: iteration {row.iteration}/{stopping.max_iter}", f"objective {number(row.objective, '.6g')}"]
    for name, value, tolerance in measured(event):
        against = f" (tolerance {number(tolerance)})" if tolerance else ""
        parts.append(f"{name} {number(value)}{against}")
    parts.append(speed(glance.rate))
    parts += [text for text in (rest(glance), furthest_words(glance), slow(event), failed(event)) if text]
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
    notes = "  ".join(text for text in (furthest_words(glance), slow(event), failed(event)) if text)
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


def furthest_words(glance: Glance) -> str:
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


# ---------------------------------------------------------------------- the display
MODES = ("auto", "plain", "json", "quiet")
REDRAW = 0.1  # seconds between two redraws
REMEMBERED = 400  # iterations used for the trend, at most


class Progress:
    """Shows iteration, objective, gap, residuals against their tolerances, rate and estimated remaining time.

    Parameters
    ----------
    to
        A text file or a rich `Console`. Standard error by default, so that standard output keeps only results;
        standard output for `mode="json"`.
    title
        In front of every line; the method's name by default.
    mode
        "auto" (live on a terminal, else plain), "plain", "json" or "quiet".
    interval
        Seconds between plain lines.
    every
        A plain line every so many iterations instead.

    Raises
    ------
    ValueError
        `mode` or a number has a value that it cannot have.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> import io
    >>> screen = io.StringIO()
    >>> _ = aq.solve(problem, "lbfgs", callbacks=[aq.callbacks.Progress(screen, mode="plain", every=1)])
    >>> "iteration" in screen.getvalue()
    True
    """

    def __init__(
        self,
        to: TextIO | Console | None = None,
        *,
        title: str = "",
        mode: str = "auto",
        interval: float = 5.0,
        every: int | None = None,
    ) -> None:
        if mode not in MODES:
            raise InputError(f"mode must be one of {', '.join(map(repr, MODES))}; got {mode!r}.")
        if to is None:
            to = sys.stdout if mode == "json" else sys.stderr
        if not callable(getattr(to, "write", None)) and not callable(getattr(to, "print", None)):
            raise InputTypeError(f"Progress writes to a text file or a rich Console, got {type(to).__name__}.")
        if not isinstance(title, str):
            raise InputTypeError(f"title must be a text, got {title!r}.")
        self.to, self.title, self.mode = to, visible(title), mode
        self.interval, self.every = interval, every
        self._live: Live | None = None
        self._begin()

    def _begin(self) -> None:
        self._began = self._shown = time.monotonic()
        self._first = 0
        self._points: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)

    # ------------------------------------------------------------------ with
    def __enter__(self) -> Progress:
        self._begin()
        console = _console(self.to) if self.mode == "auto" else None
        if console is not None:
            from rich.live import Live

            # refreshed explicitly: a redrawing thread would take time from the run
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    # ------------------------------------------------------------------ after each iteration
    def __call__(self, event: Iteration) -> None:
        if self.mode == "quiet":
            return
        now, k = time.monotonic(), event.row.iteration
        if self._first == 0 or k <= self._first:  # a new run, perhaps one resumed from a checkpoint
            if self._live is None:
                self._began = self._shown = now
            self._first = k
            self._points.clear()
        if (x := excess(event.row, event.stopping)) is not None:
            self._points.append((k, x))
        if not self._due(now, k):
            return
        self._shown = now
        self._show(event, self._glance(event, now))

    def _due(self, now: float, k: int) -> bool:
        if self.mode == "json":
            return True
        if self._live is not None:
            return now - self._shown >= REDRAW
        if self.every is not None:
            return k % self.every == 0
        return now - self._shown >= self.interval

    def _glance(self, event: Iteration, now: float) -> Glance:
        k = event.row.iteration
        # iterations since the first one shown; the clock may not have advanced yet
        rate = (k - self._first + 1) / max(now - self._began, 1e-9)
        points = list(self._points)
        heading: Trend | None = trend(points[len(points) // 2 :])
        left = None
        if heading is not None:
            left = min(heading.left, event.stopping.max_iter - k) / rate
        return Glance(
            rate=rate,
            left=left,
            meets=heading is not None and heading.left <= event.stopping.max_iter - k,
            furthest=furthest(event),
        )

    def _show(self, event: Iteration, glance: Glance) -> None:
        if self._live is not None:
            self._live.update(drawing(self.title or visible(event.method), event, glance), refresh=True)
        elif self.mode == "json":
            self._write(_json(event, glance, self.title))
        else:
            self._write(line(self.title or visible(event.method), event, glance))

    def _write(self, text: str) -> None:
        file = cast("IO[str]", self.to if hasattr(self.to, "write") else self.to.file)
        encoding = getattr(file, "encoding", None) or "utf-8"
        try:
            file.write(text.encode(encoding, "replace").decode(encoding) + "\n")
            file.flush()
        except (OSError, ValueError):  # closed output: the run matters more than its display
            self.mode = "quiet"


def _console(to: TextIO | Console | None) -> Console | None:
    """A console that can draw in place; None where there is no terminal."""
    if hasattr(to, "print"):
        console = cast("Console", to)
    elif to is not None and callable(getattr(to, "isatty", None)) and to.isatty():
        from rich.console import Console

        console = Console(file=to)
    else:
        return None
    return console if console.is_terminal and not console.is_dumb_terminal else None


def _json(event: Iteration, glance: Glance, title: str) -> str:
    """All of the row, and derived values; NaN and infinity, which JSON lacks, are null."""
    values: dict[str, Any] = {"method": event.method, **asdict(event.row), "max_iter": event.stopping.max_iter}
    if title:
        values = {"title": title, **values}
    values |= {"certificate_tol": event.stopping.certificate_tol, "seconds_left": glance.left}
    values |= {"furthest_block": glance.furthest and glance.furthest[0]}
    values |= {"slowest_worker": event.slowest and event.slowest[0]}
    return json.dumps({k: None if isinstance(x, float) and not math.isfinite(x) else x for k, x in values.items()})
