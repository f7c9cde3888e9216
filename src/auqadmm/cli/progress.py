"""A run as it happens, as a callback of `solve`.

    with Progress(title="elastic net") as progress:
        aq.solve(problem, callbacks=[progress])

On a terminal two lines are rewritten in place; elsewhere (a file, a pipe, a log), or without `with`, a plain line
without control characters is printed every few seconds.
"""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from auqadmm.core.history import Row
from auqadmm.core.solve import Iteration

REDRAW = 0.1
MISSING = "–"


class Progress:
    """Shows iteration, objective, KKT residual, both residuals against their tolerances, and the rate.

    Parameters
    ----------
    console
        Where to; standard error by default, so that standard output keeps only results.
    title
        In front of every line; the method's name by default.
    interval
        Seconds between plain lines where there is no terminal.
    """

    def __init__(self, console: Console | None = None, *, title: str = "", interval: float = 5.0) -> None:
        self.console = console if console is not None else Console(stderr=True)
        self.title = title
        self.interval = interval
        self._live: Live | None = None
        self._began = self._shown = time.monotonic()

    def __enter__(self) -> Progress:
        self._began = self._shown = time.monotonic()
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            # refreshed by hand: a thread that redraws would take its time from the run it shows
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, event: Iteration) -> None:
        now = time.monotonic()
        if event.row.iteration == 1 and self._live is None:
            self._began = self._shown = now
        due = REDRAW if self._live is not None else self.interval
        if now - self._shown < due:
            return
        self._shown = now
        rate = event.row.iteration / max(now - self._began, 1e-9)  # the clock may not have moved yet
        if self._live is not None:
            self._live.update(self._drawing(event, rate), refresh=True)
        else:
            self.console.print(self._line(event, rate), highlight=False, markup=False, soft_wrap=True)

    # ------------------------------------------------------------------ what is shown
    def _line(self, event: Iteration, rate: float) -> str:
        row = event.row
        parts = [
            f"{self.title or event.method}: iteration {row.iteration}/{event.stopping.max_iter}",
            f"objective {_number(row.objective, '.6g')}",
            f"KKT {_number(row.kkt)}",
            f"primal {_number(row.primal_residual)} (tolerance {_number(row.eps_primal)})",
            f"dual {_number(row.dual_residual)} (tolerance {_number(row.eps_dual)})",
            f"{rate:.0f} it/s",
        ]
        return ", ".join(parts)

    def _drawing(self, event: Iteration, rate: float) -> Group:
        row, limit = event.row, event.stopping.max_iter
        first = Table.grid(padding=(0, 2))
        first.add_row(
            Text(self.title or event.method, style="bold"),
            ProgressBar(total=limit, completed=row.iteration, width=20),
            Text(f"{row.iteration}/{limit}"),
            Text(f"{rate:.0f} it/s", style="dim"),
        )
        return Group(first, _residuals(row))


def _residuals(row: Row) -> Text:
    text = Text("  ")
    text.append(f"objective {_number(row.objective, '.6g')}  KKT {_number(row.kkt)}")
    for name, value, tolerance in (
        ("primal", row.primal_residual, row.eps_primal),
        ("dual", row.dual_residual, row.eps_dual),
    ):
        within = value is not None and tolerance is not None and value <= tolerance
        text.append(f"  {name} ")
        text.append(_number(value), style="green" if within else "")
        text.append(f"/{_number(tolerance)}", style="dim")
    return text


def _number(x: float | None, spec: str = ".1e") -> str:
    return MISSING if x is None else f"{x:{spec}}"
