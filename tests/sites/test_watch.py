"""The page that shows a fit over sites while it runs: who may read it, what it says, and what a browser makes of it."""

from __future__ import annotations

import json
import math
import re
import socket
import time
from types import SimpleNamespace

import httpx
import pytest

import auqadmm as aq
from auqadmm.core.history import Row
from auqadmm.errors import InputError
from auqadmm.sites.board import Board, _gap, _headline, _site
from auqadmm.sites.watch import Watch
from tests.report.browser import chromium
from tests.sites.inside import DATA, posed
from tests.sites.people import NAMES, command, town

pytestmark = pytest.mark.timeout(180)
WIDE, SLIM = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture
def served():
    watch = Watch()
    watch.start(lambda: {"outcome": None, "gap": math.inf})
    yield watch
    watch.polled = -math.inf
    watch.stop()


def asked(watch, path="/", method="GET", **headers):
    with httpx.Client(trust_env=False) as client:
        return client.request(method, f"http://127.0.0.1:{watch.port}{path}", headers=headers)


# ---------------------------------------------------------------------- who may read it
def test_it_is_for_this_machine(served):
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org", ""):
        with pytest.raises(InputError, match="this machine only"):
            Watch(host=host)
    listening = socket.socket()
    with listening, pytest.raises(OSError, match="refused"):  # of another address of this machine, nothing listens
        listening.connect(("127.0.0.2", served.port))
    assert served.url == f"http://127.0.0.1:{served.port}/"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.nip.io:{port}", "localhost.:{port}"],
)
def test_a_name_that_was_pointed_here_is_refused(served, host):
    for path in ("/", "/status.json", "/nowhere"):
        answer = asked(served, path, host=host.format(port=served.port))
        assert answer.status_code == 421
        assert "outcome" not in answer.text


def test_it_can_be_read_and_nothing_else(served):
    assert asked(served, host=f"LOCALHOST:{served.port}").status_code == 200
    assert asked(served, "/status.json").json() == {"outcome": None, "gap": None}
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert asked(served, "/status.json", method).status_code == 405
    assert asked(served, "/../../etc/passwd").status_code == 404
    page = asked(served)
    assert "access-control-allow-origin" not in page.headers
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["cross-origin-resource-policy"] == "same-origin"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert re.findall(r"""(?:src|href)=["'](?!#|data:)([^"']*)""", page.text) == ["status.json"]
    assert "http" not in re.sub(r"https?://www\.w3\.org/\S+", "", page.text.replace("http-equiv", ""))


def test_two_host_headers_are_refused(served):
    with socket.create_connection(("127.0.0.1", served.port)) as s:
        s.sendall(f"GET /status.json HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nHost: evil\r\n\r\n".encode())
        assert s.recv(100).split()[1] in (b"400", b"421")


def test_a_port_that_is_taken_or_none(served):
    with pytest.raises(InputError, match=f"port {served.port} of this machine cannot be used"):
        Watch(served.port).start(dict)
    with pytest.raises(InputError, match="is no port"):
        aq.Sites("sites.toml", watch=70000)


def test_an_open_page_hears_the_outcome():
    watch, view = Watch(), {"outcome": None}
    watch.start(lambda: view)
    asked(watch, "/status.json")
    view["outcome"] = {"good": True}
    began = time.monotonic()
    watch.stop()  # nobody asks again: it waits, and not for long
    assert 2 < time.monotonic() - began < 6
    with pytest.raises(httpx.ConnectError):
        asked(watch)


# ---------------------------------------------------------------------- what it says
def test_states_in_words():
    said = {
        ("absent", None, "", False): ("absent", "has not joined yet"),
        ("left", 3.0, "sum", False): ("left", "has left"),
        ("quiet", 9.4, "sum", False): ("quiet", "quiet for 9 s"),
        ("working", 0.1, "plan", True): ("approval", "a person there has to approve"),
        ("working", 0.1, "plan", False): ("working", "computing"),
        ("waiting", 0.1, "plan", True): ("joined", "here"),
    }
    for (state, since, request, asks), told in said.items():
        site = _site("b", state, since, request, asks, None)
        assert (site["state"], site["words"]) == told
    assert _site("b", "quiet", 9.0, "sum", False, {"good": False})["state"] == "lost"
    assert _site("b", "left", 9.0, "sum", False, {"good": True})["state"] == "left"


def test_headlines():
    def sites(**states):
        return [{"name": name, "state": state} for name, state in states.items()]

    idle, row = ("sum", "newton", 0.0), {"iteration": 3, "method": "newton"}
    assert _headline([], None, {}, idle) == "The coordinator starts."
    assert _headline(sites(a="joined", b="absent"), None, {}, idle) == "Waiting for b to join."
    assert _headline(sites(a="joined", b="quiet"), None, row, idle) == "No sign of life from b."
    waits = _headline(sites(a="joined", b="approval"), None, {}, idle)
    assert waits == "Waiting for b: a person there has to approve."
    slow = _headline(sites(a="joined", b="working"), None, row, ("sum", "newton", 5.0))
    assert slow == "Waiting for the answer of b (newton)."
    assert _headline(sites(a="working", b="working"), None, row, idle) == "Iteration 3 by newton."


def test_a_guess_is_not_called_a_bound():
    board = Board()

    def after(iteration, relative, expected):
        row = Row(iteration, *[None] * 6, 0.0, iteration + 1, 0, 0, 0, 0, relative=relative, expected=expected)
        board.iteration(SimpleNamespace(row=row, method="c-admm"))
        return _gap(board.row)

    assert after(1, None, None) == {"value": None, "words": "no bound yet"}
    assert after(2, None, 0.1) == {"value": 0.1, "words": "expected; no bound yet"}
    assert after(3, 0.01, 0.02) == {"value": 0.01, "words": "at most, judged in iteration 3"}
    assert after(4, None, 0.001) == {"value": 0.01, "words": "at most, judged in iteration 3"}


def test_from_python(tmp_path):
    with town(tmp_path, dict.fromkeys(NAMES, 'masks = "required"')) as t, aq.Sites(t.file, watch=True) as sites:
        address = httpx.URL(sites.url)
        assert address.host == "127.0.0.1"
        with httpx.Client(trust_env=False) as client:
            assert client.get(sites.url + "status.json").json()["headline"] == "The coordinator starts."
            found = aq.solve(posed(DATA), "newton", sites)
            told = client.get(sites.url + "status.json").json()
        assert told["outcome"] == {"good": True, "words": found.message}
        assert told["gap"]["value"] == found.certificate.relative
        assert told["gap"]["words"] == f"at most ({found.certificate.evidence})"
        assert told["row"]["rounds"] == found.history[-1].rounds
        assert {s["name"]: s["bytes"] for s in told["sites"]} == {s["site"]: s["bytes"] for s in sites.received()}
        assert told["total"]["messages"] == sum(s["messages"] for s in sites.received())
        sites.board.page.polled = -math.inf  # nobody looks on
    assert sites.url == ""
    assert aq.Sites("nowhere.toml").url == ""


# ---------------------------------------------------------------------- in a browser
def inside(page, width):
    """Nothing sticks out to the side."""
    for part in page.locator("h1, .figures, table, .badge, #sites .number").all():
        box = part.bounding_box()
        assert box is None or (box["x"] >= 0 and box["x"] + box["width"] <= width + 0.5), (part.inner_text(), box)


def test_a_person_watches_a_real_run(tmp_path):
    """One site is late, one waits for a person; then it goes on to the end."""
    rules = {"berlin": 'masks = "required"', "oslo": 'approve = "ask"'}
    with town(tmp_path, rules, start=("berlin", "lyon")) as t, chromium() as browser:
        words = f"fit --sites {t.file} --data heart --family binomial --target sick --watch --quiet --out"
        ran = command(*words.split(), tmp_path / "study")
        try:
            url = re.search(r"http://127\.0\.0\.1:\d+/", ran.stderr.readline())[0]
            pages = {size["width"]: browser.new_page(viewport=size) for size in (WIDE, SLIM)}
            complaints, requests = [], []
            for page in pages.values():
                page.on("pageerror", lambda error: complaints.append(str(error)))
                page.on("request", lambda request: requests.append(request.url))
                page.goto(url)

            def sees(text, timeout=60_000):
                for width, page in pages.items():
                    page.wait_for_selector(f"h1:has-text('{text}')", timeout=timeout)
                    inside(page, width)

            sees("Waiting for oslo to join.")
            t.start("oslo")
            sees("Waiting for oslo: a person there has to approve.")
            assert pages[1280].locator("#sites tr").all_inner_texts()[2].split("\t")[:2] == [
                "oslo", "a person there has to approve"
            ]  # fmt: skip
            assert pages[390].title() == "Waiting for oslo: a person there has to approve. · auqadmm"
            t.approve("oslo")
            sees("The fit has converged.")
            told = pages[1280]
            assert ran.wait(60) == 0
            summary = json.loads((tmp_path / "study" / "summary.json").read_text())
            assert told.inner_text("#outcome") == summary["message"]
            assert told.inner_text("#iteration") == str(summary["iterations"])
            assert told.inner_text("#rounds") == str(summary["rounds"])
            assert told.inner_text("#gap-note") == f"at most ({summary['certificate']['evidence']})"
            for page in pages.values():
                page.wait_for_selector("#connection:has-text('this is the last it said')")
                page.locator("summary").click()
            for width, page in pages.items():
                inside(page, width)
            assert complaints == []
            assert {link.removeprefix(url) for link in requests} <= {"", "status.json"}
        finally:
            ran.kill()
            ran.communicate()
