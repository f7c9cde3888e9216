"""The process at a site: it joins, waits for what the coordinator asks, and answers, run after run.

Connections only go out. One request at a time carries the last answer up and waits for the next ask; beats from a
second thread say that this process is alive. What is asked has to be signed by the coordinator that the settings
name, in reply to this very request. What is answered is kept until the next ask, and sent again where it was lost on
the way; nothing is computed twice. No error of a session ends this loop, and no text of an error leaves the site
unless it was raised as `Declined`.
"""

from __future__ import annotations

import hashlib
import json
import platform
import random
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from auqadmm import __version__
from auqadmm.sites.audit import Audit, AuditError
from auqadmm.sites.keys import checked_name
from auqadmm.sites.line import CONNECT, Away, Reply, SiteLine
from auqadmm.sites.refusals import Declined, Malformed, NotJoined, Refusal, Replayed, SitesError, TooLarge
from auqadmm.sites.settings import Data, SiteSettings
from auqadmm.sites.wire import AskNumbers, Label, small_json, told
from auqadmm.words import quoted, visible

SHORT_WAIT, LONG_WAIT = 0.2, 5.0  # seconds between attempts to reach a coordinator that is away
BEATS = 4  # per time of quiet
LONGEST_PONG = 1 << 20  # bytes
TURNS = ("open", "ask", "ping", "end", "displaced")  # kinds of replies


@dataclass(frozen=True)
class RunInfo:
    """A run that begins: its number, the data set that it asks for, all sites that take part, where to write lines."""

    run: str
    data: Data
    sites: tuple[str, ...]
    coordinator: str
    audit: Audit


class Session(Protocol):
    """One run at this site: bytes in, bytes out; `Declined` for what the coordinator may be told."""

    def __call__(self, number: int, body: bytes) -> bytes: ...

    def close(self) -> None: ...


def serve(
    settings: SiteSettings,
    open_run: Callable[[RunInfo], Session],
    stop: threading.Event,
    log: Callable[[str], object],
) -> None:
    """Until `stop` is set, or Ctrl-C: then the coordinator is told that this site leaves."""
    with Audit(settings.audit) as audit, SiteLine(settings) as line:
        daemon = _Daemon(settings, open_run, stop, log, audit, line)
        beats = threading.Thread(target=daemon.beat, name="beats", daemon=True)
        beats.start()
        try:
            daemon.loop()
        finally:
            stop.set()
            daemon.drop("this site leaves")
            beats.join(CONNECT + 2)


@dataclass(frozen=True)
class _Answer:
    kind: str
    number: int
    body: bytes


_NOTHING = _Answer("turn", 0, b"")


class _Daemon:
    def __init__(
        self,
        settings: SiteSettings,
        open_run: Callable[[RunInfo], Session],
        stop: threading.Event,
        log: Callable[[str], object],
        audit: Audit,
        line: SiteLine,
    ) -> None:
        self.at, self.open_run, self.stop, self.log, self.audit, self.line = settings, open_run, stop, log, audit, line
        self.process = secrets.token_hex(16)
        self.seat, self.quiet = "", 8.0
        self.run = ""
        self.session: Session | None = None
        self.numbers = AskNumbers()
        self.last = _NOTHING  # the last answer, for an ask that comes again
        self.carried = False  # it has arrived
        self.heard = self.posted = time.monotonic()  # a verified reply, and the last request of this thread
        self.said = ""

    # ------------------------------------------------------------------ the loop
    def loop(self) -> None:
        wait = SHORT_WAIT
        while not self.stop.is_set():
            try:
                self.step()
                wait, self.said = SHORT_WAIT, ""
                continue
            except Away as away:
                self.note(f"{self.at.url} cannot be reached ({away}); trying again.")
            except NotJoined:
                self.seat = ""
            except Refusal as refusal:
                self.note(f"refused: {refusal}")
            if self.run and time.monotonic() - self.heard > self.at.limits.quiet:
                self.drop(f"the coordinator has been silent for {self.at.limits.quiet:g} s")
            self.stop.wait(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, LONG_WAIT)

    def step(self) -> None:
        """One request, and what its reply asks for."""
        if not self.seat:
            self.join()
        carry = _NOTHING if self.carried else self.last
        self.posted = time.monotonic()
        reply = self.line.post(carry.kind, f"{self.seat}/{self.run}", carry.number, carry.body, TURNS)
        self.understood(reply)
        self.carried = True
        if reply.label is not None:
            self.heard = time.monotonic()
            getattr(self, f"on_{reply.label.kind}")(reply.label, reply.body)

    def join(self) -> None:
        body = json.dumps({"process": self.process, "poll": self.at.limits.poll}).encode()
        reply = self.line.post("join", "", 0, body, ("welcome",))
        self.understood(reply)
        found = small_json(reply.body)
        seat, quiet = found.get("seat"), found.get("quiet")
        if not isinstance(seat, str) or not isinstance(quiet, int | float) or not quiet > 0:
            raise Malformed("this is no welcome of a coordinator.")
        self.seat, self.quiet, self.heard = seat, float(quiet), time.monotonic()
        self.carried = False  # the last answer may be what is waited for
        self.log(f"joined {self.at.url} as {quoted(self.at.name)}; waiting for a run.")

    def understood(self, reply: Reply) -> None:
        """Raise what a status of HTTP means; such replies are not signed, so none of them ends a run."""
        if reply.status == NotJoined.status:
            raise NotJoined(told(reply.body, 200))
        if reply.status == TooLarge.status and not self.carried and self.last.kind == "answer":
            why = f"the answer has {len(self.last.body)} bytes, more than the coordinator takes."
            self.last = _Answer("failed", self.last.number, why.encode())  # else it would be sent for ever
        if reply.status not in (200, 204):
            raise Refusal(f"the coordinator answers {reply.status}: {told(reply.body, 200)}")

    def note(self, text: str) -> None:
        """Once, not at every attempt."""
        if text != self.said:
            self.log(text)
        self.said = text

    # ------------------------------------------------------------------ replies
    def on_open(self, label: Label, body: bytes) -> None:
        if label.run == self.run:
            self.numbers.is_new(label)
            self.carried = False
            return
        self.drop("the coordinator begins another run")
        self.run, self.numbers = label.run, AskNumbers()
        self.numbers.is_new(label)
        self.log(f"run {label.run[:8]} begins.")
        self.answered(label, "open", lambda: self.opened(label, body))

    def opened(self, label: Label, body: bytes) -> bytes:
        found = small_json(body)
        data, sites = found.get("data"), found.get("sites")
        if not isinstance(data, str) or not isinstance(sites, list):
            raise Malformed("this is no opening of a run.")
        names = tuple(checked_name(name, "the opening of a run") for name in sites)
        if self.at.name not in names or len(set(names)) < len(names):
            raise Declined(f"site {quoted(self.at.name)} is not among the sites of this run, or one is named twice.")
        if data not in self.at.data:
            raise Declined(f"site {quoted(self.at.name)} offers no data set {quoted(data)}.")
        info = RunInfo(label.run, self.at.data[data], names, self.at.coordinator.name, self.audit)
        self.session = self.open_run(info)
        return b""

    def on_ask(self, label: Label, body: bytes) -> None:
        if label.run != self.run:
            raise Replayed(f"an ask of the run {label.run[:8]}, which is not open here.")
        if not self.numbers.is_new(label):
            self.carried = False  # asked again: answered again, not computed again
            return
        session = self.session
        if session is None:
            self.answered(label, "ask", _not_open)
        else:
            self.answered(label, "ask", lambda: session(label.number, body))

    def answered(self, label: Label, request: str, job: Callable[[], bytes]) -> None:
        """Compute an answer, and see to it that it has a line before it can be sent."""
        began, kind, why = time.perf_counter(), "answer", ""
        try:
            body = job()
            if not isinstance(body, bytes):
                raise TypeError(f"an answer has to be bytes, not {type(body).__name__}")
            if len(body) > self.at.limits.largest:
                raise Declined(f"the answer has {len(body)} bytes, more than this site sends at once.")
        except Exception as error:
            kind = "failed"
            why = (
                str(error) if isinstance(error, Declined) else f"failed with {type(error).__name__}; its log says more."
            )
            self.log(f"ask {label.number} of run {label.run[:8]}: {type(error).__name__}: {visible(str(error))}")
            body = why.encode()
        try:
            if body and not self.audit.covers(body):
                seconds = time.perf_counter() - began
                self.audit.write(label.run, label.number, body, request=request, seconds=seconds, error=why)
        except AuditError as error:  # this one sentence is all that is told
            self.log(f"{self.audit.path}: {error}")
            kind, body = "failed", str(error).encode()
        self.last, self.carried = _Answer(kind, label.number, body), False

    def on_ping(self, label: Label, body: bytes) -> None:
        if self.run:
            raise Malformed("a ping does not belong into a run.")
        self.answered(label, "ping", lambda: pong(label, body))

    def on_end(self, label: Label, body: bytes) -> None:
        if label.run == self.run:
            self.drop("the coordinator ended it")

    def on_displaced(self, label: Label, body: bytes) -> None:
        raise SitesError(
            f"another process has joined as site {quoted(self.at.name)}, so this one ends; "
            "see what else runs with this key."
        )

    def drop(self, why: str) -> None:
        """Forget a run and all that is held for it."""
        if not self.run:
            return
        self.log(f"run {self.run[:8]} is over: {why}.")
        session, self.session = self.session, None
        self.run, self.last, self.carried = "", _NOTHING, True
        if session is not None:
            try:
                session.close()
            except Exception as error:
                self.log(f"closing a run: {type(error).__name__}: {visible(str(error))}")

    # ------------------------------------------------------------------ the second thread
    def beat(self) -> None:
        """Say that this process is alive, and at the end that it leaves, which also wakes the request that waits."""
        while not self.stop.wait(every := min(2.0, self.quiet / BEATS)):
            if self.seat and time.monotonic() - self.posted > every / 2:  # an answer is a sign of life too
                with suppress(Away, Refusal):
                    self.line.post("beat", f"{self.seat}/{self.run}", 0, b"", ())
        if self.seat:
            with suppress(Away, Refusal):
                self.line.post("leave", f"{self.seat}/", 0, b"", ())


def pong(label: Label, body: bytes) -> bytes:
    """This end's version and clock, and as many bytes as were asked for: made from the question, not from data."""
    more = small_json(body).get("reply")
    if not isinstance(more, int) or not 0 <= more <= LONGEST_PONG:
        raise Malformed("this is no ping.")
    head = json.dumps({"version": __version__, "python": platform.python_version(), "time": time.time()})
    return head.encode() + b"\n" + hashlib.shake_256(label.sha256.encode()).digest(more)


def _not_open() -> bytes:
    raise Declined("this run was not opened here.")
