"""What the coordinator knows of its sites, and what it answers to their requests; all of it in the server's loop.

A site's request `turn` carries its last answer and waits for the next ask, so a round is one request per site. Beats,
on a second connection, tell a site that computes from one that is gone. Whatever is cut is simply asked again: a
site keeps its last answer.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from auqadmm.sites.keys import PublicKey
from auqadmm.sites.ledger import Ledger
from auqadmm.sites.refusals import Displaced, Malformed, NotJoined, Refusal, Stranger
from auqadmm.sites.settings import HubSettings
from auqadmm.sites.web import Request, Response, application
from auqadmm.sites.wire import (
    SMALL,
    Label,
    Once,
    announced,
    digest,
    label_of,
    received,
    sealed,
    small_json,
    told,
    verified,
)
from auqadmm.words import quoted

if TYPE_CHECKING:
    from starlette.types import ASGIApp

LONGEST_POLL = 300.0  # seconds
TICK = 0.25  # seconds between looks at who is quiet
FAREWELL = 1.0  # seconds for sites to hear that a run has ended
ANEW, LEFT = "was started anew", "left"


@dataclass(frozen=True)
class SiteStatus:
    """What is known of a site: `absent`, `left`, `quiet`, `waiting` (for an ask), `working` (on one) or `joined`.

    `since`: seconds since its last sign of life; `received`, `sent`: bytes of its answers, and of what it was asked.
    """

    name: str
    state: str
    since: float | None
    received: int
    sent: int


@dataclass
class _Ask:
    """One ask to one site, until it is answered."""

    kind: str
    run: str
    number: int
    body: bytes
    sha256: str
    answer: bytes | str | None = None


@dataclass
class _Site:
    """One line of the list of sites, as the loop sees it."""

    key: PublicKey
    polls: Once = field(default_factory=Once)
    beats: Once = field(default_factory=Once)
    seat: str = ""
    seats: dict[str, str] = field(default_factory=dict)  # seats of this site, and the process each was given to
    here: bool = False  # it has taken its seat, and not left
    poll: float = 20.0
    heard: float | None = None
    run: str = ""  # the run that its process takes part in
    ask: _Ask | None = None
    turn: asyncio.Future[None] | None = None  # its request that waits
    received: int = 0
    sent: int = 0

    def wake(self) -> None:
        if self.turn is not None and not self.turn.done():
            self.turn.set_result(None)


class Desk:
    """The list of sites, with one run at most."""

    def __init__(self, settings: HubSettings) -> None:
        self.settings = settings
        self.run, self.number, self.closing = "", 0, False
        self.sites = {name: _Site(key) for name, key in settings.sites.items()}
        self.refused: list[str] = []  # the last few, for a status page
        self.news, self.ledger = asyncio.Event(), Ledger()

    def app(self) -> ASGIApp:
        """The ASGI application."""
        kinds = {"/join": self._join, "/turn": self._turn, "/beat": self._beat, "/leave": self._leave}
        return application(kinds, self._refuse)

    def _refuse(self, refusal: Refusal) -> None:
        self.refused[:] = [*self.refused[-99:], f"{type(refusal).__name__}: {refusal}"]

    def wake_all(self) -> None:
        for site in self.sites.values():
            site.wake()

    async def status(self) -> dict[str, SiteStatus]:
        now = time.monotonic()
        return {name: self._status(name, site, now) for name, site in sorted(self.sites.items())}

    async def begun(self, names: list[str], body: bytes, timeout: float) -> dict[str, bytes | str]:
        """A new run, and what these sites say to its opening."""
        self.run, self.number = secrets.token_hex(16), 0
        for name in names:
            self.sites[name].run = self.run
        return await self.asked("open", dict.fromkeys(names, body), timeout)

    # ------------------------------------------------------------------ asks
    async def asked(self, kind: str, messages: Mapping[str, bytes], timeout: float) -> dict[str, bytes | str]:
        self.number += 1
        digests = {id(body): digest(body) for body in {id(b): b for b in messages.values()}.values()}
        asks = {name: _Ask(kind, self.run, self.number, b, digests[id(b)]) for name, b in messages.items()}
        began = time.monotonic()
        for name, ask in asks.items():
            self.sites[name].ask = ask
            self.sites[name].wake()
        try:
            while waiting := [name for name, ask in asks.items() if ask.answer is None]:
                self.news.clear()
                for name in waiting:
                    asks[name].answer = self._lost(self.sites[name], asks[name], began, timeout)
                if all(ask.answer is not None for ask in asks.values()):
                    break
                left = max(0.0, began + timeout - time.monotonic())
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.news.wait(), min(TICK, left + 0.01))
        finally:
            for name, ask in asks.items():
                if self.sites[name].ask is ask:
                    self.sites[name].ask = None
        return {name: ask.answer for name, ask in asks.items() if ask.answer is not None}

    def _lost(self, site: _Site, ask: _Ask, began: float, timeout: float) -> str | None:
        """Why no answer will come, if none will."""
        now, quiet = time.monotonic(), self.settings.quiet
        if not site.here and site.heard is not None:
            return LEFT
        if site.run != ask.run:
            return ANEW
        if now - (began if site.heard is None else site.heard) > quiet:
            return f"no sign of life for {quiet:g} s"
        return f"no answer within {timeout:g} s" if now - began > timeout else None

    async def released(self) -> None:
        ended, self.run = self.run, ""
        members = [site for site in self.sites.values() if site.run == ended and site.here]
        self.wake_all()
        end = time.monotonic() + FAREWELL
        while time.monotonic() < end and any(site.run == ended and site.turn is not None for site in members):
            await asyncio.sleep(0.01)
        for site in self.sites.values():
            site.run = ""

    def _status(self, name: str, site: _Site, now: float) -> SiteStatus:
        since = None if site.heard is None else now - site.heard
        if not site.here:
            state = "absent" if since is None else "left"
        elif since is not None and since > self.settings.quiet:
            state = "quiet"
        elif site.ask is not None:
            state = "working"
        else:
            state = "waiting" if site.turn is not None else "joined"
        return SiteStatus(name, state, since, site.received, site.sent)

    # ------------------------------------------------------------------ requests
    async def _message(self, request: Request, kinds: tuple[str, ...], most: int) -> tuple[_Site, Label, bytes]:
        """A message that is whole, new, and signed by a site of the list; all but its bytes is checked first."""
        label, signature = label_of(request.headers)
        if label.site not in self.sites:
            raise Stranger(f"there is no site {quoted(label.site)} on the coordinator's list.")
        site = self.sites[label.site]
        verified(label, signature, site.key, kinds)
        request.verified()
        announced(request.headers, most)
        (site.beats if label.kind in ("beat", "leave") else site.polls).accept(label)
        body = await received(request.parts, label, most)
        site.received += len(body) if label.kind == "answer" else 0
        return site, label, body

    def _seated(self, site: _Site, label: Label) -> str:
        """The run that a message belongs to; its process has to have the seat."""
        seat, _, run = label.run.partition("/")
        if not seat or seat not in site.seats:
            raise NotJoined("this site has not joined since the coordinator was started.")
        if seat != site.seat:
            if site.seat and site.seats[seat] != site.seats.get(site.seat):
                raise Displaced(f"another process has joined as site {quoted(site.key.name)} since.")
            raise NotJoined("this site has joined again since.")
        site.heard = time.monotonic()
        return run

    async def _join(self, request: Request) -> Response:
        site, label, body = await self._message(request, ("join",), SMALL)
        found = small_json(body)
        process, poll = found.get("process"), found.get("poll")
        if not isinstance(process, str) or len(process) != 32 or not isinstance(poll, int | float) or not poll > 0:
            raise Malformed("this is no request to join.")
        seat = secrets.token_hex(16)
        # the seat is taken by the first turn, so that a recorded request to join changes nothing
        site.seats = dict(list(site.seats.items())[-7:]) | {seat: process}
        site.poll = min(float(poll), LONGEST_POLL)
        welcome = {"seat": seat, "quiet": self.settings.quiet}
        return self._reply("welcome", label, "", 0, json.dumps(welcome).encode())

    async def _turn(self, request: Request) -> Response:
        site, label, body = await self._message(request, ("turn", "answer", "failed"), self.settings.largest)
        self._take_seat(site, label)
        try:
            run = self._seated(site, label)
        except Displaced as displaced:
            return self._reply("displaced", label, "", 0, str(displaced).encode())
        ask = site.ask
        if label.kind != "turn":
            self.ledger.took(label.site, run, label.number, body, told(body) if label.kind == "failed" else "")
        if label.kind != "turn" and ask is not None and (run, label.number) == (ask.run, ask.number):
            ask.answer = body if label.kind == "answer" else told(body)
            site.ask = None
            if not any(other.ask for other in self.sites.values()):
                self.news.set()  # the last of them
        site.wake()  # a request that waits still lost its connection
        if site.ask is None and (not run or run == self.run) and not self.closing:
            mine = site.turn = asyncio.get_running_loop().create_future()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(mine, site.poll)
            if site.turn is not mine:
                return Response()
            site.turn = None
        if site.ask is not None and site.here:
            ask = site.ask
            site.sent += len(ask.body)
            return self._reply(ask.kind, label, ask.run, ask.number, ask.body, ask.sha256)
        if run and run != self.run:
            if site.run == run:
                site.run = ""
            return self._reply("end", label, run, 0, b"")
        return Response()

    def _take_seat(self, site: _Site, label: Label) -> None:
        """The newest seat is taken by its first turn; another process than before knows nothing of the run."""
        seat = label.run.partition("/")[0]
        if seat and seat != site.seat and seat == next(reversed(site.seats), ""):
            if site.seats.get(site.seat) != site.seats[seat]:
                site.run = ""
                self.news.set()
            site.seat = seat
        if seat and seat == site.seat:
            site.here = True

    async def _beat(self, request: Request) -> Response:
        site, label, _ = await self._message(request, ("beat",), 0)
        self._seated(site, label)
        return Response()

    async def _leave(self, request: Request) -> Response:
        site, label, _ = await self._message(request, ("leave",), 0)
        self._seated(site, label)
        site.here, site.run = False, ""
        site.wake()
        self.news.set()
        return Response()

    def _reply(self, kind: str, label: Label, run: str, number: int, body: bytes, sha256: str = "") -> Response:
        headers = sealed(self.settings.key, kind, label.site, run, number, label.stamp, body, sha256)
        return Response(200, body, {"content-type": "application/octet-stream", **headers})
