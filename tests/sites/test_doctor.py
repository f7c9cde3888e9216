"""`auqadmm doctor --sites`: what it measures, against what was put there; and what it says of what is missing."""

from __future__ import annotations

import datetime
import json
import time
from types import SimpleNamespace

import pytest

from auqadmm.sites import checkup as module
from auqadmm.sites.checkup import LOAD, SiteCheck, certificate_ends, checkup, measured, per_byte, round_cost
from auqadmm.sites.daemon import LONGEST_PONG, pong
from auqadmm.sites.hub import Hub
from auqadmm.sites.keys import make_certificate
from auqadmm.sites.refusals import Malformed, SitesError
from auqadmm.sites.settings import read_hub
from auqadmm.sites.wire import Label
from tests.cli import files
from tests.sites.people import NAMES, town

aq = files.aq  # fixture
pytestmark = pytest.mark.timeout(120)


class Line:
    """A hub whose sites are so far away, with clocks of their own; time passes only on the way."""

    def __init__(self, monkeypatch, trip, bandwidth, ahead=0.0):
        self.now, self.trip, self.bandwidth, self.ahead, self.asked = 1000.0, trip, bandwidth, ahead, []
        for name in ("time", "perf_counter", "monotonic"):
            monkeypatch.setattr(f"auqadmm.sites.checkup.time.{name}", lambda: self.now)

    def ping(self, name, reply=0, pad=0, timeout=30.0):
        self.asked.append((reply, pad))
        there = self.now + self.trip / 2 + self.ahead
        self.now += self.trip + (reply + pad) / self.bandwidth
        return json.dumps({"version": "9.9", "time": there}).encode() + b"\n" + bytes(reply)


@pytest.mark.parametrize(("trip", "bandwidth"), [(0.08, 1.25e6), (0.004, 1.25e8)])
def test_a_line_of_known_length_and_width(monkeypatch, trip, bandwidth):
    """A round is worth the numbers that the line carries meanwhile: latency × bandwidth / 8."""
    line = Line(monkeypatch, trip, bandwidth, ahead=2.5)
    found = measured(line, "b")
    assert found.trip == pytest.approx(trip)
    assert found.trip_p95 == pytest.approx(trip)
    assert found.typical == pytest.approx(trip + 2 * 5120 / bandwidth)
    assert 1 / found.per_byte == pytest.approx(bandwidth)
    assert found.clock == pytest.approx(2.5, abs=1e-6)
    assert round_cost([found]) == pytest.approx(trip * bandwidth / 8)
    assert (found.version, found.state, found.here) == ("9.9", "here", True)


def test_a_slow_line_is_not_asked_for_ever(monkeypatch):
    line = Line(monkeypatch, 4.0, 1e6)
    assert measured(line, "b").trip == 4.0
    assert len(line.asked) < 10


def test_the_slowest_of_each_decides():
    far, narrow = SiteCheck("a", "here", 0.1, per_byte=1e-8), SiteCheck("b", "here", 0.01, per_byte=1e-6)
    assert round_cost([far, narrow]) == pytest.approx(0.1 / 8e-6)
    assert round_cost([SiteCheck("a", "absent")]) is None
    assert per_byte(0.2, 0.1) is None
    assert per_byte(0.1, 0.2) == pytest.approx(0.1 / LOAD)


def test_an_answer_that_is_none(monkeypatch):
    line = Line(monkeypatch, 0.1, 1e6)
    line.ping = lambda *_: b"hello"
    assert measured(line, "b") == SiteCheck("b", "gave no answer that can be read")
    line.ping = lambda *_: "no sign of life for 8 s"
    assert measured(line, "b").state == "no sign of life for 8 s"


def test_a_ping_is_bounded_and_holds_no_data():
    label = Label("ping", "b", "", 1, 1, "ab" * 32)
    head, _, rest = pong(label, b'{"reply": 100}').partition(b"\n")
    assert json.loads(head).keys() == {"version", "python", "time"}
    assert len(rest) == 100
    assert pong(label, b'{"reply": 100}').partition(b"\n")[2] == rest
    for bad in (LONGEST_PONG + 1, -1, "9", None, 1.5):
        with pytest.raises(Malformed):
            pong(label, json.dumps({"reply": bad}).encode())


# ---------------------------------------------------------------------- sentences
def test_certificates(tmp_path):
    _, path, _ = make_certificate("localhost", tmp_path, days=10)
    ends = certificate_ends(path)
    left = ends - datetime.datetime.now(datetime.timezone.utc)
    assert datetime.timedelta(days=9.9) < left <= datetime.timedelta(days=10)
    assert module._expired(path, -3.2) == [
        "The certificate localhost.crt has expired 3 days ago: sites refuse to connect."
    ]
    assert module._notes([], "1", 10.0) == ["The certificate ends in 10 days: make or get another."]


def test_notes_name_the_site():
    old, late = (
        SiteCheck("a", "here", 0.1, version="0.0.1", clock=0.1),
        SiteCheck("b", "here", 0.1, version="1", clock=-75.0),
    )
    notes = module._notes([old, late], "1", 500.0)
    assert notes == [
        "Site a has auqadmm 0.0.1, and this is 1: install the same at both ends.",
        "The clock of site b is 75 s behind; from 300 s on its messages are refused.",
    ]


# ---------------------------------------------------------------------- real sites
@pytest.mark.campaign
def test_real_sites_and_a_late_one(aq, tmp_path, monkeypatch):
    for name, times in {"TRIPS": 5, "MESSAGES": 3, "LOADS": 1}.items():
        monkeypatch.setattr(module, name, times)
    with town(tmp_path, start=("berlin", "lyon")) as t:
        ran = aq("doctor", "--sites", t.file, "--wait", 7, "--json")
        told = json.loads(ran.out)
        assert ran.code == 1
        assert [site["state"] for site in told["sites"]] == ["here", "here", "absent"]
        assert told["failing"] == [
            "Site oslo has not joined within 7 s: start `auqadmm site site.toml` there; its log says more."
        ]
        t.start("oslo")
        ran = aq("doctor", "--sites", t.file)
        assert ran.code == 0, ran
        for word in (*NAMES, "round trip", "--round-cost", "the certificate ends on", "all 3 sites are here"):
            assert word in ran.out + ran.err
        lines = [json.loads(line) for line in (tmp_path / "lyon.jsonl").read_text().splitlines()]
        assert {(line["request"], line["run"], line["masked"]) for line in lines} == {("ping", "", False)}
        assert max(line["bytes"] for line in lines) < LOAD + 200
        with Hub(read_hub(t.file)) as hub:
            hub.wait(NAMES, 20)
            hub.begin("heart", NAMES)
            with pytest.raises(SitesError, match="a run is open"):
                hub.ping("lyon")
            hub.release()
            assert isinstance(hub.ping("lyon"), bytes)  # and after a run it answers again
            assert hub.ledger.by_operation()["ping", ""].messages == 1


def test_a_delay_is_measured(tmp_path):
    """Every ping of a site whose answers take 50 ms more is 50 ms longer."""
    with town(tmp_path) as t, Hub(read_hub(t.file)) as hub:
        hub.wait(NAMES, 20)
        near = measured(hub, "lyon")
        asked = hub._desk.asked

        async def slow(kind, messages, timeout):
            import asyncio

            await asyncio.sleep(0.05)
            return await asked(kind, messages, timeout)

        hub._desk.asked = slow
        far = measured(hub, "lyon")
    assert far.trip > 0.05
    assert near.trip < far.trip
    assert abs(far.clock) < 0.1  # the same clock


def test_who_was_turned_away(tmp_path, monkeypatch):
    hub = SimpleNamespace(
        settings=read_hub(town_file(tmp_path)), wait=lambda *_: None,
        refusals=lambda: ("WrongClock: site 'lyon' …",) * 2,
        status=lambda: {name: SimpleNamespace(state="absent") for name in NAMES},
    )  # fmt: skip
    found = checkup(hub, 1.0, now=datetime.datetime(2100, 1, 1, tzinfo=datetime.timezone.utc))
    assert len(found.failing) == 5  # three sites, one refusal, the certificate
    assert "Somebody was turned away: WrongClock: site 'lyon' …" in found.failing
    assert "has expired" in found.failing[-1]
    assert found.round_cost is None


def town_file(folder):
    with town(folder, start=()) as t:
        return t.file


def test_plain_json(aq):
    told = json.loads(aq("doctor", "--json").out)
    assert told.keys() == {"versions", "devices", "engines"}
    assert {"name": "local", "there": True, "words": "all workers in this process"} in told["engines"]


def test_settings_that_are_wrong_are_one_sentence(aq, tmp_path):
    assert "cannot be read" in aq("doctor", "--sites", tmp_path / "nowhere.toml").sentence
    began = time.monotonic()
    with town(tmp_path, start=()) as t, Hub(read_hub(t.file)):
        assert f"cannot listen on 127.0.0.1:{t.port}" in aq("doctor", "--sites", t.file).sentence
    assert time.monotonic() - began < 20
