"""What the library shows when asked to, and that it shows nothing otherwise."""

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import auqadmm as aq
from auqadmm.callbacks import Progress
from auqadmm.callbacks.progress import duration, speed
from auqadmm.diagnosis.evidence import trend
from auqadmm.words import visible
from tests.problems import least_squares, multinomial, regression_blocks

EVIL = "site\x1b[31m\n[bold]7[/bold]\u202e"


def run(progress, problem=None, method="c-admm", **options):
    settings = {"max_iter": 12, "abs_tol": 0, "rel_tol": 0} | options
    return aq.solve(problem or least_squares(), method, callbacks=[progress], **settings)


def far_block(name="outlier"):
    """Six blocks; the third has its own opinion, and local solves of one step are too few."""
    blocks = regression_blocks(sizes=(12, 9, 15, 7, 11, 14))
    X, y = blocks[2]
    blocks[2] = (10 * X, -10 * y)
    problem = least_squares(blocks)
    named = [name if j == 2 else f"block {j}" for j in range(6)]
    return problem, named


class Renamed:
    """Hands on iterations with other names of blocks, as an engine with a hostile site would."""

    def __init__(self, progress, names):
        self.progress, self.names = progress, tuple(names)

    def __call__(self, event):
        row = replace(event.row, failed_blocks=(self.names[2],))
        return self.progress(replace(event, names=self.names, row=row))


def test_the_library_is_silent_unless_asked(capfd):
    aq.solve(least_squares(), max_iter=3)
    assert capfd.readouterr() == ("", "")


def test_quiet_is_quiet(capfd):
    with Progress(mode="quiet") as progress:
        run(progress)
    assert capfd.readouterr() == ("", "")


def test_a_json_line_per_iteration_on_standard_output(capfd):
    with Progress(mode="json", title="ridge") as progress:
        result = run(progress, certificate_tol=0, evaluate_every=2)
    shown = capfd.readouterr()
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert shown.err == ""
    assert [row["iteration"] for row in rows] == list(range(1, 13))
    assert all(row["title"] == "ridge" and row["method"] == "c-admm" and row["max_iter"] == 12 for row in rows)
    for row, kept in zip(rows, result.history, strict=True):
        assert (row["objective"], row["kkt"], row["hvps"]) == (kept.objective, kept.kkt, kept.hvps)
    assert rows[0]["objective"] is None


def test_json_knows_no_nan():
    to = io.StringIO()
    progress = Progress(to, mode="json")
    run(lambda event: progress(replace(event, row=replace(event.row, objective=float("nan")))), max_iter=1)
    assert json.loads(to.getvalue(), parse_constant=pytest.fail)["objective"] is None


def test_a_plain_file_needs_no_rich():
    code = (
        "import sys, io\n"
        "sys.modules['rich'] = None\n"
        "import auqadmm as aq, numpy as np\n"
        "to = io.StringIO()\n"
        "X = np.eye(3)\n"
        "problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X, X[0]), (X, X[1])])\n"
        "with aq.callbacks.Progress(to, every=2) as progress:\n"
        "    aq.solve(problem, 'c-admm', max_iter=4, abs_tol=0, rel_tol=0, callbacks=[progress])\n"
        "assert len(to.getvalue().splitlines()) == 2, to.getvalue()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_names_and_titles_are_data_in_plain_lines_and_json():
    problem, names = far_block(EVIL)
    plain, lines = io.StringIO(), io.StringIO()
    run(Renamed(Progress(plain, title=EVIL, every=1), names), problem)
    run(Renamed(Progress(lines, mode="json", title=EVIL), names), problem)
    text = plain.getvalue()
    assert len(text.splitlines()) == 12
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "furthest from consensus: site\\x1b[31m\\n[bold]7[/bold]\\u202e" in text
    assert "local solve inaccurate: site\\x1b" in text
    assert json.loads(lines.getvalue().splitlines()[-1])["furthest_block"] == EVIL
    assert lines.getvalue().isascii()


def test_names_are_no_markup_and_no_control_in_the_live_display(monkeypatch):
    monkeypatch.setattr("auqadmm.callbacks.progress.REDRAW", 0.0)
    monkeypatch.delenv("TERM", raising=False)
    problem, names = far_block(EVIL)
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    with Progress(console) as progress:
        run(Renamed(progress, names), problem)
    text = console.file.getvalue()
    assert "[bold]7[/bold]" in text
    assert "\x1b[31m" not in text
    assert "\u202e" not in text


def test_the_rest_is_told_where_there_is_a_trend_and_only_there():
    steady, short = io.StringIO(), io.StringIO()
    run(Progress(steady, every=1), multinomial(), max_iter=40, abs_tol=1e-4, rel_tol=1e-5)
    lines = steady.getvalue().splitlines()
    assert not any(" left" in line for line in lines[:8])  # too few to tell
    assert re.search(r"about \d+ s (left|to the limit)", lines[30])
    run(Progress(short, every=1), multinomial(), "c-admm", max_iter=12, abs_tol=0, rel_tol=0)
    assert " left" not in short.getvalue()  # a tolerance of zero is never met


def test_a_limit_that_comes_first_is_called_that():
    to = io.StringIO()
    run(Progress(to, every=1), multinomial(), max_iter=25, abs_tol=1e-4, rel_tol=1e-5)
    assert "to the limit" in to.getvalue().splitlines()[20]


def test_the_trend_is_right_about_a_linear_sequence():
    line = trend([(k, 100 * 0.9**k) for k in range(20)])
    assert line.rate == pytest.approx(0.9)
    assert line.left == pytest.approx(np.log(100 * 0.9**19) / -np.log(0.9))
    assert trend([(k, 2.0 + (-1) ** k) for k in range(20)]) is None
    assert trend([(k, 1.1**k) for k in range(20)]) is None


def test_ascii_files_and_closed_files_do_not_end_a_run(tmp_path):
    with (tmp_path / "log.txt").open("w", encoding="ascii") as file:
        assert run(Progress(file, title="Größe", every=1), certificate_tol=0).n_iter == 12
    assert (tmp_path / "log.txt").read_text(encoding="ascii").startswith("Gr??e: iteration 1/12, objective ?")
    assert run(Progress(file, every=1)).n_iter == 12


def test_two_runs_with_one_display_start_anew():
    to = io.StringIO()
    progress = Progress(to, every=12)
    run(progress)
    run(progress)
    assert to.getvalue().count("iteration 12/12") == 2


def test_input():
    with pytest.raises(ValueError, match="mode must be one of 'auto', 'plain', 'json', 'quiet'; got 'loud'"):
        Progress(mode="loud")
    with pytest.raises(ValueError, match="text file or a rich Console, got int"):
        Progress(3)


def test_words():
    assert [duration(x) for x in (0.2, 59, 185, 7800)] == ["1 s", "59 s", "3:05", "2:10:00"]
    assert [speed(x) for x in (123.4, 2.34, 0.1)] == ["123 it/s", "2.3 it/s", "10.0 s/it"]
    assert visible("a\tb[i]\x07") == "a\\tb[i]\\x07"


def test_a_real_terminal_is_left_as_it_was():
    """In a pseudo-terminal of its own: drawn in place, nothing left over, the cursor back."""
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "import auqadmm as aq, auqadmm.callbacks.progress as p\n"
        "from tests.problems import multinomial\n"
        "p.REDRAW = 0\n"
        "with p.Progress() as progress:\n"
        "    aq.solve(multinomial(), 'c-admm', max_iter=30, callbacks=[progress])\n"
        "print('done')\n"
    )
    parent, child = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "110", "NO_COLOR": ""}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=child, stderr=child, stdin=child, env=env)
    os.close(child)
    ending = threading.Timer(100, process.kill)
    ending.start()
    shown = b""
    try:
        while select.select([parent], [], [], 100)[0]:
            try:
                shown += os.read(parent, 65536)
            except OSError:  # the other end is closed
                break
    finally:
        ending.cancel()
        os.close(parent)
    text = shown.decode()
    assert process.wait(20) == 0, text
    assert "30/30" in text
    assert "gap" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert text.rstrip().endswith("done")
