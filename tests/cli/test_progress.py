"""What a run looks like while it runs."""

import io

import numpy as np
import pytest
from rich.console import Console

import auqadmm as aq
from auqadmm.callbacks.progress import Progress


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), rng.normal(size=40)
    return aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:20], y[:20]), (X[20:], y[20:])])


def screen(terminal):
    return Console(
        file=io.StringIO(), force_terminal=terminal, width=100, color_system="standard" if terminal else None
    )


def solve(problem, progress, **options):
    return aq.solve(problem, "c-admm", max_iter=12, abs_tol=0, rel_tol=0, callbacks=[progress], **options)


def test_plain_lines_where_there_is_no_terminal(problem):
    console = screen(terminal=False)
    with Progress(console, title="ridge", interval=0.0) as progress:
        solve(problem, progress)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 12
    assert lines[-1].startswith("ridge: iteration 12/12, objective ")
    for part in ("gap ", "primal ", "dual ", "tolerance ", "it/s"):
        assert all(part in line for line in lines)
    assert all(character.isprintable() for line in lines for character in line)


def test_plain_lines_come_every_so_often(problem):
    console = screen(terminal=False)
    with Progress(console, interval=3600.0) as progress:
        solve(problem, progress)
    assert console.file.getvalue() == ""


def test_without_with_it_prints_plain_lines_even_on_a_terminal(problem):
    console = screen(terminal=True)
    solve(problem, Progress(console, interval=0.0))
    assert "\x1b" not in console.file.getvalue()
    assert "c-admm: iteration 12/12" in console.file.getvalue()


def test_a_terminal_gets_a_live_display_and_its_cursor_back(problem, monkeypatch):
    monkeypatch.setattr("auqadmm.callbacks.progress.REDRAW", 0.0)
    monkeypatch.delenv("TERM", raising=False)
    console = screen(terminal=True)
    with Progress(console, title="ridge") as progress:
        solve(problem, progress)
    text = console.file.getvalue()
    assert "ridge" in text
    assert "12/12" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # hidden, then shown again


def test_the_display_ends_when_the_run_fails(problem):
    console = screen(terminal=True)
    with pytest.raises(ValueError, match="stop must be"), Progress(console) as progress:
        solve(problem, progress, stop="never")
    assert "\x1b[?25h" in console.file.getvalue()


def test_what_was_not_evaluated_is_a_dash(problem):
    console = screen(terminal=False)
    with Progress(console, interval=0.0) as progress:
        solve(problem, progress, certificate_tol=0)
    assert "objective –, " in console.file.getvalue()


def test_it_never_stops_a_run(problem):
    with Progress(screen(terminal=False)) as progress:
        assert solve(problem, progress).status == "max_iter"
