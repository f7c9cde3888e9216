"""The coordinator while it runs: a server in a thread of its own, to which sites come; bytes out, bytes back."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from auqadmm.errors import InputError
from auqadmm.sites.desk import Desk, SiteStatus
from auqadmm.sites.ledger import Ledger
from auqadmm.sites.refusals import SitesError
from auqadmm.sites.settings import HubSettings
from auqadmm.sites.web import protocol
from auqadmm.sites.wire import SMALL
from auqadmm.words import counted, listed, quoted

if TYPE_CHECKING:
    import uvicorn

T = TypeVar("T")


class Hub:
    """Carries bytes to sites and back: `with Hub(settings) as hub`. One run at a time, one call at a time."""

    def __init__(self, settings: HubSettings) -> None:
        self.settings, self.port = settings, settings.port
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._desk: Desk
        self._server: uvicorn.Server

    @property
    def run(self) -> str:
        """The number of the run that is open, empty if none is."""
        return self._desk.run

    @property
    def ledger(self) -> Ledger:
        """What sites have sent."""
        return self._desk.ledger

    # ------------------------------------------------------------------ the server's life
    def __enter__(self) -> Hub:
        import uvicorn

        at, self._desk = self.settings, Desk(self.settings)
        config = uvicorn.Config(
            self._desk.app(), ssl_certfile=at.certificate, ssl_keyfile=at.certificate_key, log_config=None,
            access_log=False, timeout_keep_alive=120, timeout_graceful_shutdown=1, lifespan="off", server_header=False,
            date_header=False, ws="none", http=protocol(), loop="asyncio", log_level="critical",
        )  # fmt: skip
        try:
            config.load()
        except (OSError, ValueError) as error:
            raise InputError(
                f"{at.file}: {at.certificate.name} and {at.certificate_key.name} are no certificate with its key "
                f"({type(error).__name__})."
            ) from None
        self._server = uvicorn.Server(config)
        family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
        # asyncio sends small packets at once only where the socket says that it is TCP
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((at.host, at.port))
        except OSError as error:
            listening.close()
            raise InputError(f"{at.file}: cannot listen on {at.host}:{at.port} ({error.strerror}).") from None
        self.port = listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, args=(listening,), name="hub", daemon=True)
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.005)
        return self

    def _serve(self, listening: socket.socket) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[listening])
            for connection in list(self._server.server_state.connections):  # of sites that do not answer
                connection.transport.abort()
            await asyncio.sleep(0.05)

        with listening:
            asyncio.run(serve())

    def __exit__(self, *error: object) -> None:
        if self._thread is None:
            return
        with suppress(SitesError):
            self.release()
        self._desk.closing = self._server.should_exit = True
        with suppress(RuntimeError):  # its loop may have ended
            self._loop.call_soon_threadsafe(self._desk.wake_all)
        self._thread.join(5)
        self._thread = None

    def _do(self, job: Coroutine[Any, Any, T]) -> T:
        """The result of a job in the server's loop; Ctrl-C ends the job too."""
        if self._thread is None or not self._thread.is_alive():
            job.close()
            raise SitesError("the coordinator does not listen any more.")
        future = asyncio.run_coroutine_threadsafe(job, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    # ------------------------------------------------------------------ for the coordinator
    def wait(
        self,
        names: Iterable[str],
        timeout: float | None = None,
        on_change: Callable[[dict[str, SiteStatus]], object] | None = None,
    ) -> None:
        """Until these sites have joined; `on_change` is called whenever the state of one has changed."""
        wanted, limit = self._known(names), self.settings.join if timeout is None else timeout
        end, before = time.monotonic() + limit, None
        while True:
            status = self.status()
            states = {name: one.state for name, one in status.items()}
            if on_change is not None and states != before:
                on_change(status)
            before = states
            missing = [name for name in wanted if states[name] in ("absent", "left", "quiet")]
            if not missing:
                return
            if time.monotonic() > end:
                many = "has" if len(missing) == 1 else "have"
                raise SitesError(
                    f"{counted(len(missing), 'site')} {many} not joined within {limit:g} s: {listed(missing, 20)}; "
                    "start `auqadmm site site.toml` there."
                )
            time.sleep(0.05)

    def begin(self, data: str, names: Iterable[str], timeout: float | None = None) -> dict[str, bytes | str]:
        """Open a new run at these sites, under the number `run`; a text is the reason why a site does not take part."""
        wanted = self._known(names)
        self.release()
        limit = self.settings.open if timeout is None else timeout
        body = json.dumps({"data": data, "sites": wanted}).encode()
        if len(body) > SMALL:
            raise InputError("the names of these sites are too long for one run.")
        return self._do(self._desk.begun(wanted, body, limit))

    def call(self, messages: Mapping[str, bytes], timeout: float | None = None) -> dict[str, bytes | str]:
        """What these sites answer to their messages; a text says why a site is lost."""
        self._known(messages)
        if not self.run:
            raise SitesError("no run is open; `begin` opens one.")
        for name, body in messages.items():
            if len(body) > self.settings.largest:
                raise InputError(f"the message to site {quoted(name)} has {len(body)} bytes; `largest` is lower.")
        return self._do(self._desk.asked("ask", messages, self.settings.round if timeout is None else timeout))

    def ping(self, name: str, reply: int = 0, pad: int = 0, timeout: float = 30.0) -> bytes | str:
        """What a site answers to a question of this many bytes with so many more; no data set has a part in it."""
        self._known([name])
        if self.run:
            raise SitesError("a run is open; sites are pinged between runs.")
        body = json.dumps({"reply": reply, "pad": "x" * pad}).encode()
        self.ledger.asking("ping")
        return self._do(self._desk.asked("ping", {name: body}, timeout))[name]

    def release(self, run: str | None = None) -> None:
        """End the run: sites drop what they hold for it."""
        if run in (None, self.run) and self.run:
            self._do(self._desk.released())

    def status(self) -> dict[str, SiteStatus]:
        """What is known of every site, by name."""
        return self._do(self._desk.status())

    def refusals(self) -> tuple[str, ...]:
        """The last few messages that were not accepted, and why."""
        return tuple(self._desk.refused)

    def _known(self, names: Iterable[str]) -> list[str]:
        wanted = sorted(names)
        if unknown := [name for name in wanted if name not in self.settings.sites]:
            raise InputError(f"{self.settings.file}: {listed(unknown)} is not among the sites there.")
        return wanted
