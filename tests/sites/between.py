"""A proxy that ends TLS with a certificate which sites trust: it reads everything, and may change or repeat it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from auqadmm.sites.wire import HEADER, Label, label_of
from tests.sites.places import Place, free_port, until

KEPT = ("auqadmm", "content-type")


@dataclass(frozen=True)
class Passed:
    """One request with its reply."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int
    reply_headers: dict[str, str]
    reply: bytes

    @property
    def label(self) -> Label:
        """Of the reply; of one without a message, that of an empty one."""
        return label_of(self.reply_headers)[0] if HEADER in self.reply_headers else Label("", "", "", 0, 0, "")


def ours(headers: Any) -> dict[str, str]:
    return {k: v for k, v in headers.items() if k.startswith(KEPT)}


class Between:
    """`up` changes what goes to the coordinator, `down` what comes back; `passed` holds all of it."""

    def __init__(self, place: Place) -> None:
        self.place, self.port = place, free_port()
        self.up: Callable[[str, bytes], bytes] = lambda path, body: body
        self.down: Callable[[Passed], Passed] = lambda passed: passed
        self.passed: list[Passed] = []
        app = Starlette(routes=[Route("/{path}", self._pass, methods=["POST"])])
        folder = place.folder
        self.server = uvicorn.Server(
            uvicorn.Config(
                app,
                "127.0.0.1",
                self.port,
                ssl_certfile=folder / "127.0.0.1.crt",
                ssl_keyfile=folder / "127.0.0.1.key",
                log_config=None,
                log_level="critical",
                lifespan="off",
                timeout_graceful_shutdown=1,
            )
        )

    async def _pass(self, request: Request) -> Response:
        path, body = request.url.path, await request.body()
        async with httpx.AsyncClient(verify=False, trust_env=False, timeout=60) as client:
            url = f"https://127.0.0.1:{self.place.port}{path}"
            found = await client.post(url, headers=ours(request.headers), content=self.up(path, body))
        passed = Passed(path, ours(request.headers), body, found.status_code, ours(found.headers), found.content)
        self.passed.append(passed)
        told = self.down(passed)
        return Response(told.reply, told.status, told.reply_headers)

    def __enter__(self) -> Between:
        self.thread = threading.Thread(target=lambda: asyncio.run(self.server.serve()), daemon=True)
        self.thread.start()
        until(lambda: self.server.started)
        return self

    def __exit__(self, *error: object) -> None:
        self.server.should_exit = True
        self.thread.join(10)
