"""Downloads against a real server: the published bytes, or one sentence and an untouched cache."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from auqadmm.files import atomic
from auqadmm.paper.data import DataError
from auqadmm.paper.data.fetch import Source, fetch
from tests.data.serving import answer, redirect, tar_gz

CONTENT = bytes(range(256)) * 2000


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def refuse(site, tmp_path):
    """A download that fails: one sentence with the address, the remedy and these words; no file."""

    def check(served, *words: str, content=CONTENT, timeout=5.0, **more) -> None:
        source = site.source("x.bin", content, served, **more)
        with pytest.raises(DataError) as caught:
            fetch(source, tmp_path / "cache", timeout=timeout)
        message = str(caught.value)
        assert "\n" not in message
        assert all(word in message for word in ("x.bin", source.url, *words)), message
        assert files(tmp_path) == []

    return check


REMEDY = ("nothing was kept", "--data DIR", "AUQADMM_DATA")


# ---------------------------------------------------------------------- what arrives
@pytest.mark.parametrize("announced", [True, False])
def test_the_published_file(site, tmp_path, announced):
    source = site.source("x.bin", CONTENT, None if announced else partial(answer, content=CONTENT))
    seen = []
    fetch(source, tmp_path / "new" / "cache", lambda *event: seen.append(event))
    assert files(tmp_path) == ["new/cache/x.bin"]
    assert (tmp_path / "new/cache/x.bin").read_bytes() == CONTENT
    assert {(name, total) for name, _, total in seen} == {("x.bin", len(CONTENT))}
    done = [count for _, count, _ in seen]
    assert (done[0], done[-1]) == (0, len(CONTENT))
    assert done == sorted(set(done))


def test_redirections_are_followed(site, tmp_path):
    site.pages["/there"] = CONTENT
    fetch(site.source("x.bin", CONTENT, redirect("/there")), tmp_path)
    assert files(tmp_path) == ["x.bin"]
    assert site.asked == ["/x.bin", "/there"]


def test_an_archive_is_unpacked_and_not_kept(site, tmp_path):
    fetch(site.source("x.tar.gz", tar_gz({"in/a": b"1"}), members={"in/a": 1}), tmp_path)
    assert files(tmp_path) == ["in/a"]


def test_a_hostile_archive_with_the_right_checksum(refuse):
    refuse(None, "leads out of its folder", content=tar_gz({"in/a": b"1", "../b": b"2"}), members={"in/a": 1})


# ---------------------------------------------------------------------- what does not
def test_truncated(refuse):
    refuse(partial(answer, content=CONTENT[:-100], length=len(CONTENT)), "ended after 511900 of 512000 bytes", *REMEDY)
    refuse(partial(answer, content=CONTENT[:-100]), "ended after 511900 of 512000 bytes", *REMEDY)
    refuse(CONTENT[:-100], "there has 511900 bytes, the published one 512000", *REMEDY)
    refuse(partial(answer, content=b""), "ended after 0 of")


def test_oversized_is_stopped_early(refuse, site):
    def endless(handler):
        handler.send_response(200)
        handler.end_headers()
        while not site.release.is_set():
            handler.wfile.write(CONTENT)

    refuse(endless, "more than the 512000 bytes", *REMEDY)
    refuse(CONTENT * 2, "1024000 bytes", *REMEDY)


def test_corrupt_and_wrong(refuse):
    refuse(CONTENT[:-1] + b"?", "SHA-256", *REMEDY)
    refuse(b"<html>Please log in</html>", "26 bytes", *REMEDY)


@pytest.mark.parametrize("code", [403, 404, 500, 503])
def test_http_errors(refuse, code):
    refuse(lambda handler: handler.send_error(code), f"answers {code}", *REMEDY)


@pytest.mark.parametrize("to", ["/x.bin", "file:///etc/passwd", "http://127.0.0.1:x/", "http://127.0.0.1:1/", ""])
def test_redirections_to_nowhere(refuse, to):
    refuse(redirect(to), *REMEDY)


def test_a_redirection_to_no_address(refuse):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # urllib forgets to close the answer
        refuse(redirect("http://["), *REMEDY)
        gc.collect()


def test_what_a_server_says_does_not_reach_the_terminal_as_it_is(refuse):
    refuse(lambda handler: handler.send_response(418, "\x1b[2J\x07gone") or handler.end_headers(), "418 ([2J gone)")


def test_a_server_that_speaks_something_else(refuse):
    refuse(lambda handler: handler.wfile.write(b"SSH-2.0-hello\r\n\r\n"), *REMEDY)
    refuse(lambda handler: None, *REMEDY)


def test_a_server_that_falls_silent(refuse, site):
    def half(handler):
        answer(handler, CONTENT[:1000], len(CONTENT))
        site.release.wait(20)

    began = time.monotonic()
    refuse(half, "nothing arrived for 0.3 s", *REMEDY, timeout=0.3)
    refuse(lambda handler: site.release.wait(20), "nothing arrived for 0.3 s", *REMEDY, timeout=0.3)
    assert time.monotonic() - began < 10


def test_a_slow_server_is_no_silent_one(site, tmp_path):
    def slow(handler):
        answer(handler, b"", 800)
        for _ in range(8):
            time.sleep(0.15)
            handler.wfile.write(bytes(100))

    seen = []
    fetch(site.source("x.bin", bytes(800), slow), tmp_path, lambda *event: seen.append(event), timeout=1.0)
    assert len(seen) >= 4
    assert files(tmp_path) == ["x.bin"]


def test_offline(refuse, monkeypatch, tmp_path):
    def no_network(*args, **kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    source = Source("http://127.0.0.1:9/x.bin", 10, "0" * 64)
    with pytest.raises(
        DataError, match=r"x\.bin cannot be downloaded from http://127\.0\.0\.1:9/x\.bin: no connection"
    ):
        fetch(source, tmp_path, timeout=5.0)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    refuse(None, "Name or service not known", *REMEDY)


# ---------------------------------------------------------------------- the cache stays whole
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_leaves_nothing(site, tmp_path, error):
    def stop(name, done, total):
        if done:
            raise error

    with pytest.raises(error):
        fetch(site.source("x.bin", CONTENT), tmp_path, stop)
    assert files(tmp_path) == []


def test_a_failed_download_leaves_the_older_file(site, tmp_path):
    (tmp_path / "x.bin").write_bytes(b"older")
    with pytest.raises(DataError):
        fetch(site.source("x.bin", CONTENT, b"?"), tmp_path)
    assert (tmp_path / "x.bin").read_bytes() == b"older"
    fetch(site.source("x.bin", CONTENT), tmp_path)
    assert (tmp_path / "x.bin").read_bytes() == CONTENT


def test_downloads_at_the_same_time(site, tmp_path):
    archive = tar_gz({"in/a": CONTENT})
    sources = [site.source("x.bin", CONTENT), site.source("x.tar.gz", archive, members={"in/a": len(CONTENT)})] * 6
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda source: fetch(source, tmp_path), sources))
    assert files(tmp_path) == ["in/a", "x.bin"]
    assert (tmp_path / "x.bin").read_bytes() == (tmp_path / "in/a").read_bytes() == CONTENT


def test_a_killed_process_leaves_nothing_that_counts(site, tmp_path):
    def half(handler):
        answer(handler, CONTENT[:300_000], len(CONTENT))
        site.release.wait(60)

    source = site.source("x.bin", CONTENT, half)
    code = (
        "from pathlib import Path; from auqadmm.paper.data.fetch import fetch;"
        "from auqadmm.paper.data.fetch import Source;"
        f"fetch(Source({source.url!r}, {source.size}, {source.sha256!r}), Path({str(tmp_path)!r}),"
        " lambda name, done, total: print(done, flush=True))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while int(process.stdout.readline() or 10**9) < 300_000:
            pass
        process.kill()
    [left] = files(tmp_path)
    assert left.startswith(".x.bin.")
    assert left.endswith(".part")
    assert not source.in_cache(tmp_path)
    old = time.time() - 2 * atomic.ABANDONED
    os.utime(tmp_path / left, (old, old))
    site.pages["/x.bin"] = CONTENT
    fetch(source, tmp_path)
    assert files(tmp_path) == ["x.bin"]


def test_a_part_of_another_process_is_left_alone(site, tmp_path):
    (tmp_path / ".x.bin.other.part").write_bytes(b"...")
    fetch(site.source("x.bin", CONTENT), tmp_path)
    assert files(tmp_path) == [".x.bin.other.part", "x.bin"]


def test_a_folder_that_cannot_be_written_to(site, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match=r"file.cache: cannot be written to \(.*--data DIR"):
        fetch(site.source("x.bin", CONTENT), tmp_path / "file" / "cache")
    assert site.asked == []


def test_a_full_disk(site, tmp_path, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(DataError, match="No space left"):
        fetch(site.source("x.bin", CONTENT), tmp_path)
    assert files(tmp_path) == []
