"""HTTP at the coordinator's end: four paths, one header that counts, and little patience with strangers.

A request has a head within `HEAD_SECONDS`, or its connection ends; a connection whose message was not verified ends
with the answer to it; and of those that have never had one that was, the oldest make room for new ones. So strangers
can hold neither memory nor places, however slowly or often they come. What they can do is use up a link or a
processor: that is a firewall's to prevent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from auqadmm.sites.refusals import Malformed, NotJoined, Refusal
from auqadmm.sites.wire import HEADER

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

HEAD_SECONDS = 10.0
STRANGERS = 64  # connections that nobody on the list has used yet
READ = (HEADER.encode(), b"content-length")  # headers


class Gone(Exception):
    """The other end has closed the connection."""


@dataclass
class Request:
    """Headers by name, and the body in parts. `known`: its signature is that of a site."""

    headers: Mapping[str, str]
    parts: AsyncIterator[bytes]
    state: dict[str, Any]

    def verified(self) -> None:
        self.state["known"] = True


@dataclass(frozen=True)
class Response:
    status: int = 204
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Response]]


def application(routes: Mapping[str, Handler], refused: Callable[[Refusal], object]) -> ASGIApp:
    """An ASGI application; a refusal becomes an answer, and is told to `refused`."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        fn = routes.get(scope["path"])
        if fn is None or scope["method"] != "POST":
            await _send(send, Response(404 if fn is None else 405), close=True)
            return
        state = scope.setdefault("state", {})
        try:
            request = Request(_headers(scope["headers"]), _parts(receive), state)
            response = await fn(request)
        except Gone:
            return
        except Refusal as refusal:
            if not isinstance(refusal, NotJoined):
                refused(refusal)
            response = Response(refusal.status, str(refusal).encode(), {"content-type": "text/plain; charset=utf-8"})
        await _send(send, response, close=not state.get("known"))

    return app


def _headers(given: list[tuple[bytes, bytes]]) -> dict[str, str]:
    found = {}
    for name, value in given:
        if name in READ:
            if name.decode() in found:
                raise Malformed(f"the header {name.decode()} occurs twice.")
            found[name.decode()] = value.decode("latin-1")
    return found


async def _parts(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        if part := message.get("body", b""):
            yield part
        if not message.get("more_body", False):
            return


async def _send(send: Send, response: Response, close: bool) -> None:
    headers = [(name.encode(), value.encode("latin-1")) for name, value in response.headers.items()]
    if response.status != 204:
        headers.append((b"content-length", str(len(response.body)).encode()))
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


def protocol() -> type[asyncio.Protocol]:
    """Uvicorn's protocol, with less patience."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Impatient(H11Protocol):
        _known, _alarm = False, None
        _born = 0.0

        @property
        def known(self) -> bool:
            """Has a message that was verified come this way?"""
            self._known = self._known or bool(self.scope and self.scope["state"].get("known"))
            return self._known

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._born = time.monotonic()
            self._expect()
            strangers = [c for c in self.connections if isinstance(c, Impatient) and not c.known]
            if len(strangers) > STRANGERS:
                min(strangers, key=lambda c: c._born).transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE:
                self._expect()
            elif self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None

        def connection_lost(self, exc: Exception | None) -> None:
            if self._alarm is not None:
                self._alarm.cancel()
            super().connection_lost(exc)

        def _expect(self) -> None:
            """A whole head, soon."""
            if self._alarm is None:
                self._alarm = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    return Impatient
