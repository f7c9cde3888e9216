"""benchmarks/scaling.py and links.py: the stopwatch engine computes what the library does, the formulas are what they
say, the document holds the numbers of the files, and no network namespace is left behind."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import auqadmm as aq

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))


def small():
    rng = np.random.default_rng(0)
    blocks = [(rng.normal(size=(30, 5)), rng.integers(0, 3, 30)) for _ in range(4)]
    return aq.Problem(aq.Multinomial(reduction="sum"), aq.L2(1.0), blocks)


# ------------------------------------------------------------------ measuring
@pytest.mark.parametrize("method", ["auq-lr", "c-admm", "lbfgs", "fista"])
def test_blocks_one_by_one_are_the_same_run(method):
    from rounds import LeftToCallback, resolve
    from scaling_measure import OneByOne, Timed

    problem = small()
    limits = {"max_iter": 5, "abs_tol": 0, "rel_tol": 0, "stop": "residuals"}
    rows, others = [], []
    watch = [lambda event: rows.append(event.row) and False]
    ours = aq.solve(problem, LeftToCallback(resolve(method)), callbacks=watch, **limits)
    engine = OneByOne(problem)
    timed = Timed(resolve(method), engine)
    watch = [lambda event: others.append(event.row) and False]
    theirs = aq.solve(problem, LeftToCallback(timed), engine, callbacks=watch, **limits)
    assert abs(ours.v - theirs.v).max() < 1e-9
    for row, other in zip(rows, others, strict=True):
        assert (row.rounds, row.bytes_up, row.bytes_down) == (other.rounds, other.bytes_up, other.bytes_down)
    assert all(0 <= x.mean <= x.slowest for x in timed.rounds)
    # the last step sends what only the next iterate would need
    sent = [x.summed + x.parts for x in timed.rounds]
    assert sum(sent[:-1]) <= others[-1].bytes_up <= sum(sent)


def test_a_measured_run():
    from scaling_measure import measure

    problem = small()
    best = aq.solve(problem, "lbfgs", stop="certificate", certificate_tol=1e-12).objective
    found = measure("small", 4, "auq-lr", problem, best, 50, 30.0)
    assert found.rounds_4 <= found.rounds_6 == found.rounds_done < 50
    assert found.parts > 0
    assert found.renewals >= 1
    assert 0 < found.mean <= found.slowest


def test_the_clock_leaves_out_what_is_called_by_another_name(monkeypatch):
    import scaling_server

    now = [0.0]
    monkeypatch.setattr(scaling_server.time, "process_time", lambda: now[0])
    watch = scaling_server.Stopwatch()

    def work(seconds):
        now[0] += seconds

    inner = watch.around("inner", work)
    inner(100.0)  # before the method's turn
    with watch.on("step"):
        work(1.0)
        with watch.on("outer"):
            work(2.0)
            inner(4.0)
            work(8.0)
        inner(16.0)
    work(32.0)
    assert watch.seconds == {"step": 1.0, "outer": 10.0, "inner": 20.0}
    assert watch.calls == {"step": 1, "outer": 1, "inner": 2}


@pytest.mark.parametrize("method", ["auq-lr", "newton"])
def test_the_servers_share_of_a_run(method):
    """It is the run of the library, and numbers are those that the library counts for each worker."""
    from scaling_server import Engine, Steps, Stopwatch, split

    problem, watch, rows = small(), Stopwatch(), []
    limits = {"max_iter": 3, "abs_tol": 0, "rel_tol": 0, "stop": "residuals"}
    chosen = aq.methods.resolve(method)
    ours = aq.solve(problem, chosen, callbacks=[lambda event: rows.append(event.row) and False], **limits)
    engine = Engine(problem, watch)
    theirs = aq.solve(problem, Steps(chosen, watch), engine, **limits)
    assert abs(ours.v - theirs.v).max() < 1e-9
    row = split(method, 3, 4, problem, 3)
    spent = ("setup_ms", "steps_ms", "anderson_ms", "sums_ms", "parts_ms", "rest_ms")
    assert row["server_ms"] == pytest.approx(sum(row[name] for name in spent))
    assert row["local_ms"] > 0
    assert row["held_mb"] > 0
    assert row["peak_mb"] > 0
    if method == "newton":
        assert 8 * engine.numbers >= 4 * rows[-1].bytes_up  # and a last round that only the next iterate would need
        assert not row["setups"]
    else:
        assert row["setups"] + row["steps"] >= 3


# ------------------------------------------------------------------ formulas
def test_topologies_by_hand():
    from scaling_model import Link, levels, ring, star, tree

    link = Link("", latency=1.0, up=8.0, down=16.0, server=80.0)  # 1, 2 and 10 bytes per second
    assert star(5, 20, 10, link) == (2.0, 20 + 5)  # the worker's own link is slower
    assert star(50, 20, 10, link) == (2.0, 50 * 20 / 10 + 50 * 10 / 10)  # the server's is
    assert tree(5, 20, 10, link) == star(5, 20, 10, link)  # one level
    assert tree(1024, 20, 10, link) == (4.0, 2 * 32 * (20 + 10) / 10)
    assert [levels(N) for N in (1, 32, 33, 1024, 1025)] == [1, 1, 2, 2, 3]
    latency, transfer = ring(4, 20, 10, link)
    steps = 2 * (4 - 1)  # each sends a quarter of the message
    assert (latency, transfer) == (steps, steps * 5)


def test_parts_are_what_stops_auq_lr():
    from scaling_model import Cost, Link, time_of

    link = Link("", 1.0, 8.0, 16.0, 80.0)
    plain = Cost("a", lambda N: 10, lambda N: 0.0, 1.0, 2.0, 2.0)
    heavy = Cost("b", lambda N: 10, lambda N: 0.0, 1.0, 2.0, 2.0, parts=100.0, renewals=3)
    summed = Cost("c", lambda N: 10, lambda N: 0.0, 1.0, 2.0, 2.0, parts=100.0, renewals=3, summed=True)
    N = 10**6
    extra = {t: time_of(N, heavy, link, t).total - time_of(N, plain, link, t).total for t in ("star", "tree", "ring")}
    assert extra["star"] == pytest.approx(N * 100 / 10)
    assert extra["tree"] == pytest.approx(N * 100 / 10)
    assert extra["ring"] == pytest.approx(3 * (N - 1) + (N - 1) * 100)
    assert time_of(N, summed, link, "tree").parts == pytest.approx(4 * 32 * 100 / 10)


def test_rounds_between_and_beyond_the_measured():
    from scaling_model import costs, exponent

    def row(workers, rounds, method):
        same = {"kind": "x", "slowest": 1.0, "server": 0.1 * workers, "summed": 1.0, "down": 1.0, "renewals": 1}
        return same | {"method": method, "workers": workers, "rounds_6": rounds, "parts": 5 * (method == "auq-lr")}

    assert exponent([(1, 2), (4, 4), (16, 8)]) == pytest.approx(0.5)
    assert exponent([(1, 8), (4, 4)]) == 0
    measured = [row(N, math.sqrt(N), m) for N in (4, 25) for m in ("auq-lr", "lbfgs")] + [row(4, None, "c-admm")]
    found = {cost.method: cost for cost in costs(measured, "x")}
    assert set(found) == {"auq-lr", "auq-lr-summed", "lbfgs"}  # one that did not arrive has no time to be extrapolated
    assert found["auq-lr"].rounds(10) == pytest.approx(math.sqrt(10))
    assert found["auq-lr"].rounds(10**4) == pytest.approx(100)
    assert found["lbfgs"].rounds(10**4) == pytest.approx(5)
    assert found["auq-lr"].server(1000) == pytest.approx(100)
    assert [found["auq-lr"].server(N) for N in (4, 25)] == pytest.approx([0.4, 2.5])  # as measured
    assert found["auq-lr-summed"].server(1000) == pytest.approx(0.4)


# ------------------------------------------------------------------ files
def test_the_document_holds_what_the_files_say():
    from scaling_model import modelled, read
    from scaling_tables import tables

    folder = ROOT / "results" / "scaling"
    measured, kept, links = (read(folder / f"{name}.csv") for name in ("measured", "modelled", "links"))
    fresh = modelled(measured)
    assert len(fresh) == len(kept)
    for new, old in zip(fresh, kept, strict=True):
        assert all(new[k] == old[k] for k in ("kind", "link", "topology", "method", "workers"))
        assert new["seconds"] == pytest.approx(old["seconds"], rel=1e-4)
    text = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("scaling.md", "measurements.md"))
    for name, table in tables(measured, kept, links).items():
        assert table in text, f"run `python benchmarks/scaling.py table`: {name} is out of date"


def test_durations():
    from scaling_tables import duration

    seconds = (0.034, 0.999, 2.04, 119, 121, 3 * 3600, 7 * 86400)
    assert [duration(s) for s in seconds] == ["0.03 s", "1.0 s", "2.0 s", "119 s", "2.0 min", "3.0 h", "7.0 d"]


# ------------------------------------------------------------------ hosts
def names():
    listed = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True, timeout=20).stdout
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True, timeout=20).stdout
    return {word for word in (listed + spaces).replace("@", " ").replace(":", " ").split() if word.startswith("auq")}


def test_hosts_are_limited_and_leave_nothing_behind():
    import links

    if why := links.missing():
        pytest.skip(why)
    inside: list[str] = []

    def use():
        with links.hosts(10) as found:
            inside.extend(found)
            words = ["tc", "-n", found[2], "qdisc", "show", "dev", "eth0"]
            assert "tbf" in subprocess.run(words, capture_output=True, text=True, check=True, timeout=20).stdout
            raise KeyError("in the middle")

    try:
        with pytest.raises(KeyError):
            use()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not permitted: {error.stderr}")
    assert len(inside) == 3
    assert not any(word.startswith(inside[0][:-1]) for word in names())


def test_what_is_missing_is_said(monkeypatch, capsys):
    import links

    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert links.main([]) == 1
    assert "ip and tc" in capsys.readouterr().out
