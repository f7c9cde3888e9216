"""A coordinator and sites as processes, over TLS: equal bytes, and what happens when one of them is hurt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from auqadmm.errors import InputError
from auqadmm.sites.audit import read_audit
from auqadmm.sites.hub import Hub
from auqadmm.sites.refusals import SitesError
from tests.sites.places import QUIET, ROOT, Place, place, until
from tests.sites.relay import Relay

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as made:
        for name in made.names:
            made.start(name)
        yield made


@pytest.fixture
def hub(three: Place) -> Iterator[Hub]:
    with three.hub() as made:
        made.wait(three.names)
        assert made.begin("x", three.names) == dict.fromkeys("abc", b"")
        yield made


def calling(hub: Hub, message: bytes, names: str = "abc") -> tuple[threading.Thread, dict[str, bytes | str]]:
    """A call in another thread, and where its answers will be."""
    found: dict[str, bytes | str] = {}
    thread = threading.Thread(target=lambda: found.update(hub.call(dict.fromkeys(names, message))))
    thread.start()
    until(lambda: any(hub.status()[name].state == "working" for name in names))
    return thread, found


def test_bytes_arrive_as_they_were_sent(three: Place, hub: Hub) -> None:
    every = bytes(range(256)) * 2000
    assert hub.call({"a": b"one", "b": every, "c": b""}) == {"a": b"ONE", "b": every.upper(), "c": b""}
    assert hub.call({"b": b"count"}) == {"b": b"2"}
    status = hub.status()
    assert (status["b"].sent, status["b"].received) >= (len(every), len(every))
    assert all(one.since is not None and one.since < QUIET for one in status.values())
    # what fails says no more than it may
    assert hub.call({"a": b"fail", "b": b"decline"}) == {
        "a": "failed with ValueError; its log says more.",
        "b": "this is not given out.",
    }
    assert "patient 17" in three.log("a")
    assert hub.call({"a": b"ok"}) == {"a": b"OK"}
    # everything that left has a line, with its digest
    lines = list(read_audit(three.folder / "a.jsonl"))
    assert [(line.bytes, line.error[:6]) for line in lines] == [(3, ""), (42, "failed"), (2, "")]
    # run after run, without a restart
    first = hub.run
    assert hub.begin("x", "ab") == {"a": b"", "b": b""}
    assert hub.run != first
    assert hub.call({"a": b"count", "b": b"count"}) == {"a": b"1", "b": b"1"}
    until(lambda: f"closed {first}" in three.log("c"))
    assert hub.begin("y", "a") == {"a": "site 'a' offers no data set 'y'."}
    assert hub.call({"a": b"count"}) == {"a": "this run was not opened here."}
    hub.release()
    with pytest.raises(SitesError, match="no run is open"):
        hub.call({"a": b""})
    with pytest.raises(InputError, match=r"sites\.toml: 'z' is not among the sites"):
        hub.call({"z": b""})


def test_killed_frozen_slow_and_started_anew(three: Place, hub: Hub) -> None:
    # frozen for a while that is shorter than quiet: the call goes on
    three.processes["b"].send_signal(signal.SIGSTOP)
    thread, found = calling(hub, b"hello")
    time.sleep(QUIET / 2)
    three.processes["b"].send_signal(signal.SIGCONT)
    thread.join(10)
    assert found == dict.fromkeys("abc", b"HELLO")
    # slow, but alive for longer than quiet: waited for, until the timeout
    assert hub.call({"a": b"sleep 2.5"}) == {"a": b"SLEEP 2.5"}
    assert hub.call({"a": b"sleep 1", "b": b"x"}, timeout=0.3) == {"a": "no answer within 0.3 s", "b": b"X"}
    assert hub.call({"a": b"next"}) == {"a": b"NEXT"}  # its late answer is not taken for this one
    # frozen for longer: lost in bounded time; back afterwards
    three.processes["b"].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    found = hub.call(dict.fromkeys("abc", b"hello"))
    assert found == {"a": b"HELLO", "b": f"no sign of life for {QUIET:g} s", "c": b"HELLO"}
    assert time.monotonic() - began < QUIET + 1.5
    assert hub.status()["b"].state == "quiet"
    three.processes["b"].send_signal(signal.SIGCONT)
    until(lambda: hub.status()["b"].state == "waiting")
    assert hub.call({"b": b"back"}) == {"b": b"BACK"}
    # killed
    thread, found = calling(hub, b"sleep 0.5")
    three.kill("c")
    thread.join(10)
    assert found == {"a": b"SLEEP 0.5", "b": b"SLEEP 0.5", "c": f"no sign of life for {QUIET:g} s"}
    # killed and started again: it knows nothing of the run, and takes part in the next one
    thread, found = calling(hub, b"sleep 0.5", "ab")
    three.kill("b")
    three.start("b")
    three.start("c")
    thread.join(10)
    assert found["b"] in ("was started anew", f"no sign of life for {QUIET:g} s")
    hub.wait(three.names)
    assert hub.call({"b": b"x"}) == {"b": "was started anew"}
    assert hub.begin("x", three.names) == dict.fromkeys("abc", b"")
    assert hub.call({"b": b"x"}) == {"b": b"X"}
    # Ctrl-C leaves, and says so
    three.processes["a"].send_signal(signal.SIGINT)
    assert three.processes["a"].wait(10) == 0
    assert three.log("a").endswith("left\n")
    assert hub.call({"a": b"x"}) == {"a": "left"}
    assert hub.status()["a"].state == "left"


def test_a_call_that_is_interrupted_leaves_the_hub_usable(three: Place, hub: Hub) -> None:
    timer = threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        hub.call(dict.fromkeys("abc", b"sleep 1"))
    assert hub.call(dict.fromkeys("abc", b"on")) == dict.fromkeys("abc", b"ON")
    with pytest.raises(InputError, match="cannot listen on"), three.hub():
        pass


def test_cut_connections_are_asked_again_and_computed_once(tmp_path: Path) -> None:
    with place(tmp_path, "a") as made, Relay(made.port) as relay, made.hub() as hub:
        made.start("a", port=relay.port)
        hub.wait("a")
        hub.begin("x", "a")
        for k in range(1, 6):
            timer = threading.Timer(0.1 * k, relay.cut)
            timer.start()
            assert hub.call({"a": b"sleep 0.3"}) == {"a": b"SLEEP 0.3"}
            timer.join()
        assert hub.call({"a": b"count"}) == {"a": b"6"}


def test_a_coordinator_that_is_killed_and_started_again(three: Place) -> None:
    code = (
        "import sys, time\nfrom auqadmm.sites.hub import Hub\nfrom auqadmm.sites.settings import read_hub\n"
        "with Hub(read_hub(sys.argv[1])) as hub:\n    hub.wait('abc')\n    hub.begin('x', 'abc')\n"
        "    hub.call(dict.fromkeys('abc', b'x'))\n    sys.stdout.write('up\\n')\n    sys.stdout.flush()\n"
        "    time.sleep(60)\n"
    )
    env = os.environ | {"PYTHONPATH": f"{ROOT}/src"}
    args = [sys.executable, "-c", code, str(three.folder / "sites.toml")]
    with subprocess.Popen(args, env=env, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"up\n"
        first.kill()
    before = {name: process.pid for name, process in three.processes.items()}
    for _ in range(2):  # after a kill, and after an orderly end
        with three.hub() as hub:
            hub.wait("abc")
            assert hub.begin("x", "abc") == dict.fromkeys("abc", b"")
            assert hub.call(dict.fromkeys("abc", b"count")) == dict.fromkeys("abc", b"1")
    assert {name: process.pid for name, process in three.processes.items() if process.poll() is None} == before
    assert three.log("a").count("closed") >= 2  # what was held for the run that died is let go


def test_two_processes_of_one_site(tmp_path: Path) -> None:
    with place(tmp_path, "a") as made, made.hub() as hub:
        made.start("a")
        hub.wait("a")
        first = made.processes.pop("a")
        made.start("a")
        try:
            assert first.wait(20) != 0
        finally:
            first.kill()
        assert "another process has joined as site 'a', so this one ends" in made.log("a")
        hub.begin("x", "a")
        assert hub.call({"a": b"x"}) == {"a": b"X"}


def test_sites_that_do_not_come(tmp_path: Path) -> None:
    seen: list[str] = []
    with (
        place(tmp_path, "ab") as made,
        made.hub() as hub,
        pytest.raises(SitesError, match=r"2 sites have not joined within 0.2 s: 'a', 'b'; start `auqadmm site"),
    ):
        hub.wait("ab", 0.2, lambda status: seen.append(status["a"].state))
    assert seen == ["absent"]


@pytest.mark.campaign
def test_at_the_usual_time_of_quiet(tmp_path: Path) -> None:
    """Eight seconds: frozen for four the call goes on, frozen for good the site is named right after eight."""
    with place(tmp_path, "ab", quiet=8.0) as made:
        for name in "ab":
            made.start(name)
        with made.hub() as hub:
            hub.wait("ab")
            hub.begin("x", "ab")
            made.processes["b"].send_signal(signal.SIGSTOP)
            timer = threading.Timer(4, made.processes["b"].send_signal, (signal.SIGCONT,))
            timer.start()
            assert hub.call(dict.fromkeys("ab", b"x")) == dict.fromkeys("ab", b"X")
            made.processes["b"].send_signal(signal.SIGSTOP)
            began = time.monotonic()
            assert hub.call(dict.fromkeys("ab", b"x")) == {"a": b"X", "b": "no sign of life for 8 s"}
            assert time.monotonic() - began < 9
