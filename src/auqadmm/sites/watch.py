"""A page on this machine that shows a fit while it runs: 127.0.0.1 only, read only, nothing from elsewhere.

A page of somebody else's, open in the same browser, may not look in: the Host header has to name this machine (a name
that was pointed at 127.0.0.1 afterwards does not), and no header allows another origin to read an answer.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from auqadmm.errors import InputError

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp, Receive, Scope, Send

LONGEST_FAREWELL = 3.0  # seconds that a page which is open is given to fetch the last state
POLLED = 4.0  # seconds since its last question after which a page counts as closed
NAMES = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Watch:
    """Serves a view, which `start` is given, until `stop`; `url` is empty before."""

    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        if not _loopback(host):
            raise InputError(f"the page of watch is for this machine only: {host!r} is not 127.0.0.1.")
        if isinstance(port, bool) or not 0 <= port <= 65535:
            raise InputError(f"watch: {port} is no port; give one from 1 to 65535, or True for any that is free.")
        self.host, self.port, self.url = host, port, ""
        self.view: Callable[[], Mapping[str, Any]] = dict
        self.polled, self.told = -math.inf, False  # when a page last asked; whether it knows how it ended
        self._thread: threading.Thread | None = None
        self._server: uvicorn.Server

    def start(self, view: Callable[[], Mapping[str, Any]]) -> None:
        import uvicorn

        self.view = view
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self.host, self.port))
        except OSError as error:
            listening.close()
            raise InputError(f"watch: port {self.port} of this machine cannot be used ({error.strerror}).") from None
        self.port = listening.getsockname()[1]
        shown = f"[{self.host}]" if ":" in self.host else self.host
        config = uvicorn.Config(
            self.app(), log_config=None, access_log=False, lifespan="off", server_header=False, date_header=False,
            ws="none", http="h11", loop="asyncio", log_level="critical", timeout_graceful_shutdown=1,
            proxy_headers=False,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, args=(listening,), name="watch", daemon=True)
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.005)
        self.url = f"http://{shown}:{self.port}/"

    def _serve(self, listening: socket.socket) -> None:
        with listening:
            asyncio.run(self._server.serve(sockets=[listening]))

    def stop(self) -> None:
        """Once a page that is open knows how it ended."""
        if self._thread is None:
            return
        self.told = False
        end = time.monotonic() + LONGEST_FAREWELL
        while time.monotonic() < end and not self.told and time.monotonic() - self.polled < POLLED:
            time.sleep(0.05)
        self._server.should_exit = True
        self._thread.join(5)
        self._thread, self.url = None, ""

    # ------------------------------------------------------------------ requests
    def app(self) -> ASGIApp:
        """The application: GET of the page and of its numbers."""
        from starlette.applications import Starlette
        from starlette.responses import HTMLResponse, Response
        from starlette.routing import Route

        from auqadmm.report.live import live_page

        html, policy = live_page()

        async def page(request: object) -> Response:
            return HTMLResponse(html, headers={**HEADERS, "content-security-policy": policy})

        async def numbers(request: object) -> Response:
            found = await asyncio.to_thread(self.view)
            text = json.dumps(_plain(found), allow_nan=False)
            self.polled, self.told = time.monotonic(), found.get("outcome") is not None
            return Response(text, media_type="application/json", headers=HEADERS)

        routes = [Route("/", page, methods=["GET"]), Route("/status.json", numbers, methods=["GET"])]
        return _Guarded(Starlette(routes=routes), self)


class _Guarded:
    """Nothing but requests of this machine, to this machine by name, that read."""

    def __init__(self, app: ASGIApp, watch: Watch) -> None:
        self.app, self.watch = app, watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.responses import PlainTextResponse

        if scope["type"] != "http":
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self.app(scope, receive, send)
            return
        await PlainTextResponse(refusal[1], refusal[0], headers=HEADERS)(scope, receive, send)

    def _refusal(self, scope: Mapping[str, Any]) -> tuple[int, str] | None:
        client = scope.get("client")
        if client is None or not _loopback(client[0]):
            return 403, "This page is for the machine that it runs on."
        hosts = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in {f"{name}:{self.watch.port}" for name in NAMES}:
            return 421, "This page is found at 127.0.0.1 or localhost only."
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "This page can be read, and nothing else."
        return None


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _plain(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _plain(x) for name, x in value.items()}
    return [_plain(x) for x in value] if isinstance(value, list | tuple) else value
