"""Strangers, repeated messages, changed bytes, and coordinators that are not the one: refused, and nothing runs."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from auqadmm.errors import InputError
from auqadmm.sites.daemon import serve
from auqadmm.sites.hub import Hub
from auqadmm.sites.keys import SecretKey, make_certificate, make_key, read_key
from auqadmm.sites.line import SiteLine
from auqadmm.sites.settings import read_site
from auqadmm.sites.wire import HEADER, label_of, sealed
from tests.sites.between import Between, Passed
from tests.sites.places import Place, place, until
from tests.sites.program import Upper

pytestmark = pytest.mark.timeout(60)
JOIN = json.dumps({"process": "0" * 32, "poll": 0.1}).encode()


@contextmanager
def client(made: Place) -> Iterator[httpx.Client]:
    trusted = ssl.create_default_context(cafile=made.folder / "ca.crt")
    url = f"https://127.0.0.1:{made.port}"
    with httpx.Client(base_url=url, verify=trusted, trust_env=False, timeout=10) as opened:
        yield opened


@contextmanager
def site(made: Place, name: str, **other: object) -> Iterator[list[str]]:
    """A site in a thread of this process, and what it logs."""
    said: list[str] = []
    stop = threading.Event()
    settings = read_site(made.write_site(name, **other))  # type: ignore[arg-type]
    thread = threading.Thread(target=serve, args=(settings, Upper, stop, said.append), daemon=True)
    thread.start()
    try:
        yield said
    finally:
        stop.set()
        thread.join(15)
        assert not thread.is_alive()


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with place(tmp_path, "ab") as found:
        yield found


@pytest.fixture
def hub(made: Place) -> Iterator[Hub]:
    with made.hub() as opened:
        yield opened


def key(made: Place, name: str) -> SecretKey:
    return read_key(made.folder / f"{name}.key")


def test_messages_of_strangers(made: Place, hub: Hub) -> None:
    make_key("z", made.folder)
    now = time.time_ns
    stranger, a = key(made, "z"), key(made, "a")
    good = sealed(a, "join", "a", "", 0, now(), JOIN)
    cases = {
        "not signed with the key of 'a'": (403, sealed(stranger, "join", "a", "", 0, now(), JOIN), JOIN),
        "no site 'z'": (403, sealed(stranger, "join", "z", "", 0, now(), JOIN), JOIN),
        "not signed with the key of 'b'": (403, {HEADER: good[HEADER].replace(" a ", " b ")}, JOIN),
        "set the clocks": (403, sealed(a, "join", "a", "", 0, now() - 10**12, JOIN), JOIN),
        "s ahead": (403, sealed(a, "join", "a", "", 0, now() + 10**12, JOIN), JOIN),
        "not those that were signed": (400, sealed(a, "join", "a", "", 0, now(), JOIN), JOIN + b" "),
        "the kind 'turn' does not belong here": (400, sealed(a, "turn", "a", "", 0, now(), JOIN), JOIN),
        "its header is missing": (400, {}, JOIN),
        "header is missing or wrong": (400, {HEADER: good[HEADER].replace(" 0 ", f" {'9' * 5000} ")}, JOIN),
        "no request to join": (400, sealed(a, "join", "a", "", 0, now() + 10**9, b"{}"), b"{}"),
    }
    deep = b"[" * 30_000 + b"]" * 30_000
    cases["no JSON object"] = (400, sealed(a, "join", "a", "", 0, now() + 2 * 10**9, deep), deep)
    long = b" " * (1 << 17)
    cases["is not read here; the limit is 65536"] = (413, sealed(a, "join", "a", "", 0, now() + 3 * 10**9, long), long)
    with client(made) as http:
        for says, (status, headers, body) in cases.items():
            found = http.post("/join", headers=headers, content=body)
            assert (found.status_code, says in found.text) == (status, True), (says, found.text)
            assert len(found.text) < 300
        for path in ("/turn", "/beat", "/leave"):
            kind = path[1:]
            found = http.post(path, headers=sealed(a, kind, "a", "0" * 32 + "/", 0, now() + 10**10, b""))
            assert (found.status_code, "has not joined" in found.text) == (409, True)
        assert http.get("/join").status_code == 405
        assert http.post("/../etc/passwd").status_code == 404
    assert {one.state for one in hub.status().values()} == {"absent"}
    assert any(line.startswith("Forged") for line in hub.refusals())


def test_a_recorded_message_counts_once(made: Place) -> None:
    a = key(made, "a")
    with client(made) as http:
        headers = sealed(a, "join", "a", "", 0, time.time_ns(), JOIN)
        with made.hub() as hub:
            seat = json.loads(http.post("/join", headers=headers, content=JOIN).content)["seat"]
            again = http.post("/join", headers=headers, content=JOIN)
            assert (again.status_code, "was here before" in again.text) == (403, True)
            turn = sealed(a, "turn", "a", f"{seat}/", 0, time.time_ns())
            assert http.post("/turn", headers=turn).status_code == 204
            assert hub.status()["a"].state == "joined"
            assert http.post("/turn", headers=turn).status_code == 403
            assert [line.split(":")[0] for line in hub.refusals()] == ["Replayed", "Replayed"]
        with made.hub() as hub:  # a new coordinator has no memory, and takes nobody in by records alone
            assert http.post("/join", headers=headers, content=JOIN).status_code == 200
            assert http.post("/turn", headers=turn).status_code == 409
            assert hub.status()["a"].state == "absent"


def test_nothing_large_is_stored_for_strangers(made: Place, hub: Hub) -> None:
    """The answer comes before the body: of two announced gigabytes, of an endless stream, of garbage."""
    a = key(made, "a")
    trusted = ssl.create_default_context(cafile=made.folder / "ca.crt")

    def talk(head: bytes, more: bytes = b"") -> bytes:
        plain = socket.create_connection(("127.0.0.1", made.port), 5)
        with trusted.wrap_socket(plain, server_hostname="127.0.0.1") as opened:
            try:
                opened.sendall(head)
                for _ in range(64 if more else 0):
                    opened.sendall(more)
                return opened.recv(4096) or b"closed"
            except OSError:
                return b"closed"

    signed = sealed(a, "turn", "a", "", 0, time.time_ns())
    head = "".join(f"{k}: {v}\r\n" for k, v in signed.items())
    tracemalloc.start()
    try:
        start = b"POST /turn HTTP/1.1\r\nhost: x\r\n"
        assert b" 413 " in talk(start + head.encode() + b"content-length: 2147483648\r\n\r\n")
        chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
        chunked = b"transfer-encoding: chunked\r\n\r\n"
        forged = head.replace(signed[HEADER][-128:], "0" * 128).encode()
        assert talk(start + forged + chunked, chunk).startswith((b"HTTP/1.1 403", b"closed"))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    refused = (b"HTTP/1.1 400", b"closed")
    assert talk(b"\x00\xff" * 2000 + b"\r\n\r\n").startswith(refused)
    assert talk(b"POST /turn HTTP/1.1\r\n" + b"x: " + b"y" * 200_000 + b"\r\n\r\n").startswith(refused)
    with socket.create_connection(("127.0.0.1", made.port), 5) as plain:  # no TLS at all
        plain.sendall(b"\x80\x02" * 100)
    with site(made, "a"):
        hub.wait("a", 10)


def test_the_signature_covers_the_limit_of_an_answer(made: Place) -> None:
    """A site of the list is bounded too, where it announces nothing."""
    a = key(made, "a")
    with Hub(replace(made.settings, largest=1 << 16)) as hub, client(made) as http:
        body = bytes(1 << 17)
        headers = sealed(a, "answer", "a", "", 1, time.time_ns(), body)
        found = http.post("/turn", headers=headers, content=iter([body[: 1 << 16], body[1 << 16 :]]))
        assert (found.status_code, "more than 65536 bytes" in found.text) == (413, True)
        assert hub.status()["a"].received == 0


def test_sites_trust_one_authority_and_one_coordinator(made: Place, hub: Hub) -> None:
    other = made.folder / "other"
    other.mkdir()
    make_certificate("127.0.0.1", other)
    make_key("elsewhere", other)
    with (
        site(made, "a", ca="other/ca.crt") as of_a,
        site(made, "b", coordinator="other/elsewhere.pub") as of_b,
    ):
        until(lambda: of_a and of_b, 10)
        time.sleep(0.5)
        assert "certificate verify failed" in of_a[0]
        assert of_b[0] == "refused: this message is not signed with the key of 'elsewhere' that is on the list here."
        assert hub.status()["b"].state == "absent"
        assert not [line for line in (*of_a, *of_b) if "joined" in line]


def test_what_is_changed_or_repeated_on_the_way_is_refused(made: Place, hub: Hub) -> None:
    with Between(made) as between, site(made, "a", port=between.port) as said, site(made, "b"):
        hub.wait("ab")
        hub.begin("x", "ab")
        assert hub.call({"a": b"one", "b": b"one"}) == {"a": b"ONE", "b": b"ONE"}
        asks = [p for p in between.passed if p.label.kind == "ask"]

        # an ask with other bytes, once
        def changed(passed: Passed) -> Passed:
            if passed.reply != b"two":
                return passed
            between.down = lambda passed: passed
            return replace(passed, reply=b"tow")

        between.down = changed
        assert hub.call({"a": b"two"}) == {"a": b"TWO"}
        assert any("not those that were signed" in line for line in said)

        # an old ask instead of the new one, once
        def repeated(passed: Passed) -> Passed:
            if passed.reply != b"three":
                return passed
            between.down = lambda passed: passed
            return replace(passed, reply=asks[0].reply, reply_headers=asks[0].reply_headers)

        between.down = repeated
        assert hub.call({"a": b"three"}) == {"a": b"THREE"}
        assert "refused: this reply belongs to another request." in said

        # answers with other bytes are not taken; the site sends the right ones again
        def spoiled(path: str, body: bytes) -> bytes:
            if body != b"FOUR":
                return body
            between.up = lambda path, body: body
            return b"FIVE"

        between.up = spoiled
        assert hub.call({"a": b"four"}) == {"a": b"FOUR"}
        assert any("not those that were signed" in line for line in hub.refusals())
        # an answer that said "nothing to do" where there was something: asked again, answered from memory
        between.down = lambda passed: replace(passed, status=204, reply=b"", reply_headers={})
        timer = threading.Timer(0.5, lambda: setattr(between, "down", lambda passed: passed))
        timer.start()
        assert hub.call({"a": b"count"}) == {"a": b"5"}


def test_an_ask_to_another_site_and_of_another_run(made: Place, hub: Hub) -> None:
    """Signed by the right coordinator, in reply to this request, and still not for this site or this run."""
    boss = key(made, "coordinator")
    wrong: list[tuple[str, str, str, int]] = []  # kind, site, run, number

    def twisted(passed: Passed) -> Passed:
        if passed.path != "/turn" or not wrong:
            return passed
        kind, name, run, number = wrong.pop()
        stamp = label_of(passed.headers)[0].stamp
        headers = sealed(boss, kind, name, run, number, stamp, b"stolen")
        return replace(passed, status=200, reply=b"stolen", reply_headers=headers)

    with Between(made) as between, site(made, "a", port=between.port, poll=1) as said:
        hub.wait("a")
        hub.begin("x", "a")
        between.down = twisted
        for case, says in {
            ("ask", "b", hub.run, 7): "this reply is to site 'b'",
            ("ask", "a", "f" * 32, 7): "an ask of the run ffffffff, which is not open here",
            ("ask", "a", hub.run, 1): "ask 1 came after ask",
            ("welcome", "a", hub.run, 9): "a message of the kind 'welcome' does not belong here",
        }.items():
            wrong.append(case)
            hub.call({"a": b"x"})
            until(lambda says=says: any(says in line for line in said), 10)  # type: ignore[misc]
        assert hub.call({"a": b"count"}) == {"a": b"5"}
        assert "STOLEN" not in str(between.passed)


# ---------------------------------------------------------------------- strangers who take their time, and many of them
@contextmanager
def connected(made: Place) -> Iterator[ssl.SSLSocket]:
    trusted = ssl.create_default_context(cafile=made.folder / "ca.crt")
    plain = socket.create_connection(("127.0.0.1", made.port), 5)
    with trusted.wrap_socket(plain, server_hostname="127.0.0.1") as opened:
        opened.settimeout(10)
        yield opened


def ended(opened: ssl.SSLSocket) -> bool:
    """Has the other end closed it?"""
    try:
        while opened.recv(4096):
            pass
    except OSError as error:
        return not isinstance(error, TimeoutError)
    return True


def test_a_head_has_to_come_soon(made: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auqadmm.sites.web.HEAD_SECONDS", 0.5)
    with made.hub() as hub, site(made, "a"):
        hub.wait("a", 10)
        hub.begin("x", "a")
        with connected(made) as silent, connected(made) as slow:
            slow.sendall(b"POST /turn HTTP/1.1\r\nhost: x\r\n")
            began = time.monotonic()
            assert ended(silent)
            assert ended(slow)
            assert time.monotonic() - began < 5
        time.sleep(0.6)  # a site that waits for an ask is no slow head
        assert hub.call({"a": b"x"}) == {"a": b"X"}


def test_who_is_not_known_cannot_keep_a_connection(made: Place, hub: Hub) -> None:
    """The rest of a body that nobody reads would be a way to."""
    with connected(made) as opened:
        opened.sendall(b"POST /turn HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\nxxx")
        assert ended(opened)
    assert any(line.startswith("Malformed") for line in hub.refusals())


def test_a_flood_of_strangers_does_not_keep_a_site_out(made: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auqadmm.sites.web.STRANGERS", 8)
    with made.hub() as hub, ExitStack() as stack, site(made, "a") as said:
        hub.wait("a", 10)
        hub.begin("x", "a")
        strangers = [stack.enter_context(connected(made)) for _ in range(20)]
        assert hub.call({"a": b"x"}) == {"a": b"X"}  # its connection is older than all of theirs
        assert all(ended(one) for one in strangers[:12])  # the oldest have made room
        with site(made, "b"):
            hub.wait("b", 10)
        assert not [line for line in said if "cannot be reached" in line]


def test_one_header_of_a_kind(made: Place, hub: Hub) -> None:
    """What a proxy in between reads must not be another message than the one that is verified."""
    a = key(made, "a")
    good, other = (sealed(a, "join", "a", "", 0, time.time_ns() + k, JOIN)[HEADER] for k in range(2))
    with client(made) as http:
        found = http.post("/join", headers=[(HEADER, good), (HEADER, other)], content=JOIN)
        assert (found.status_code, "occurs twice" in found.text) == (400, True)
        for body in (b'{"process": "x", "process": "y"}', b'{"poll": NaN}'):
            headers = sealed(a, "join", "a", "", 0, time.time_ns(), body)
            assert "no JSON object" in http.post("/join", headers=headers, content=body).text


def test_nothing_is_decompressed_or_cut_short(made: Place, hub: Hub) -> None:
    """A reply that says it is compressed is taken as the bytes that it is; one that ends early is asked for again."""
    import gzip

    bomb = gzip.compress(bytes(1 << 20))
    with Between(made) as between, site(made, "a", port=between.port, poll=1) as said:
        hub.wait("a")
        hub.begin("x", "a")
        wrong = [bomb, b"tw", b""]

        def packed(passed: Passed) -> Passed:
            if passed.reply != b"two" or not wrong:
                return passed
            body = wrong.pop(0)
            more = {"content-encoding": "gzip"} if body == bomb else {}
            return replace(passed, reply=body, reply_headers=passed.reply_headers | more)

        between.down = packed
        assert hub.call({"a": b"two"}) == {"a": b"TWO"}
        assert sum("not those that were signed" in line for line in said) >= 1
        assert not wrong


def test_a_proxy_of_the_environment(made: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is asked to connect; one of another kind is refused with a sentence."""
    heard: list[bytes] = []

    def listen(listening: socket.socket) -> None:
        near, _ = listening.accept()
        with near:
            while b"\r\n\r\n" not in b"".join(heard):
                heard.append(near.recv(4096))
            near.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=listen, args=(listening,), daemon=True).start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:se%40cret@127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setenv("NO_PROXY", "")
        with site(made, "a") as said:
            until(lambda: any("403" in line for line in said), 10)
    asked = b"".join(heard)
    assert asked.startswith(f"CONNECT 127.0.0.1:{made.port} ".encode())
    assert b"Basic " + base64.b64encode(b"me:se@cret") in asked
    monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(InputError, match="a proxy of the kind 'socks5'"):
        SiteLine(read_site(made.write_site("a")))
