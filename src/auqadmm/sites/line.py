"""A site's requests to the coordinator: two connections that stay open, one for turns, one for beats.

The standard library's client: one that does more costs a site a millisecond per answer. A proxy of the environment
(HTTPS_PROXY, NO_PROXY) is used by CONNECT. Redirects are not followed, and nothing is decompressed.
"""

from __future__ import annotations

import base64
import select
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import SplitResult, unquote, urlsplit

from auqadmm.errors import InputError
from auqadmm.sites.refusals import Malformed, Replayed
from auqadmm.sites.settings import SiteSettings
from auqadmm.sites.wire import HEADER, SMALL, Label, Stamps, announced, label_of, read, sealed, verified
from auqadmm.words import quoted, visible

CONNECT = 5.0  # seconds
PART = 1 << 16  # bytes


class Away(Exception):
    """The coordinator cannot be reached; the text says why."""


@dataclass(frozen=True)
class Reply:
    status: int
    label: Label | None
    body: bytes


class SiteLine:
    """`with SiteLine(settings) as line: line.post(…)`; turns and beats may be posted by two threads."""

    def __init__(self, settings: SiteSettings) -> None:
        self.settings, self.turns, self.beats = settings, Stamps(), Stamps()
        try:
            trusted = ssl.create_default_context(cafile=settings.ca)
        except (OSError, ssl.SSLError):
            raise InputError(f"{settings.file}: {settings.ca} holds no certificate of an authority.") from None
        self.long = _Connection(settings, trusted, settings.limits.poll + 10)
        self.short = _Connection(settings, trusted, CONNECT)

    def post(self, kind: str, run: str, number: int, body: bytes, kinds: tuple[str, ...]) -> Reply:
        """The coordinator's reply, verified before its body is read."""
        quick = kind in ("beat", "leave")
        at, connection = self.settings, self.short if quick else self.long
        stamp = (self.beats if quick else self.turns).take()
        headers = sealed(at.key, kind, at.name, run, number, stamp, body)
        path = {"answer": "/turn", "failed": "/turn"}.get(kind, f"/{kind}")
        whole = False
        try:
            response = connection.sent(path, body, headers)
            reply = self._read(response, kind, stamp, kinds)
            whole = response.isclosed()
        except (OSError, HTTPException) as error:
            raise Away(visible(str(error))[:200] or type(error).__name__) from None
        finally:
            if not whole:
                connection.close()
        return reply

    def _read(self, response: HTTPResponse, kind: str, stamp: int, kinds: tuple[str, ...]) -> Reply:
        if response.status == 204:
            response.read()
            return Reply(204, None, b"")
        if response.status != 200:
            return Reply(response.status, None, response.read(512))
        at, headers = self.settings, _headers(response)
        label = verified(*label_of(headers), at.coordinator, kinds)
        if label.site != at.name:
            raise Malformed(f"this reply is to site {quoted(label.site)}.")
        if label.stamp != stamp:
            raise Replayed("this reply belongs to another request.")
        most = SMALL if kind == "join" else at.limits.largest
        announced(headers, most)
        return Reply(200, label, read(iter(lambda: response.read(PART), b""), label, most))

    def __enter__(self) -> SiteLine:
        return self

    def __exit__(self, *error: object) -> None:
        self.long.close()
        self.short.close()


def _headers(response: HTTPResponse) -> dict[str, str]:
    found = {}
    for name in (HEADER, "content-length"):
        given = response.headers.get_all(name, [])
        if len(given) > 1:
            raise Malformed(f"the header {name} occurs twice.")
        if given:
            found[name] = str(given[0])
    return found


class _Connection:
    """One connection at a time, opened where there is none, or where the other end has closed it."""

    def __init__(self, settings: SiteSettings, trusted: ssl.SSLContext, patience: float) -> None:
        self.url, self.trusted, self.patience = urlsplit(settings.url), trusted, patience
        self.proxy = _proxy(self.url)
        self.open: HTTPSConnection | None = None

    def sent(self, path: str, body: bytes, headers: Mapping[str, str]) -> HTTPResponse:
        if self.open is not None and _stale(self.open):
            self.close()
        if self.open is None:
            self.open = self._connected()
        # to a connection that breaks now nothing is sent again: the loop does that, under a new stamp
        self.open.request("POST", path, body, {"accept-encoding": "identity", **headers})
        return self.open.getresponse()

    def _connected(self) -> HTTPSConnection:
        host, port = str(self.url.hostname), self.url.port or 443
        at = self.proxy
        if at is None:
            made = HTTPSConnection(host, port, timeout=CONNECT, context=self.trusted)
        else:
            made = HTTPSConnection(str(at.hostname), at.port or 80, timeout=CONNECT, context=self.trusted)
            who = f"{unquote(at.username or '')}:{unquote(at.password or '')}".encode()
            secret = {"Proxy-Authorization": f"Basic {base64.b64encode(who).decode()}"} if at.username else {}
            made.set_tunnel(host, port, secret)
        try:
            made.connect()
        except BaseException:
            made.close()
            raise
        made.sock.settimeout(self.patience)
        return made

    def close(self) -> None:
        if self.open is not None:
            self.open.close()
        self.open = None


def _stale(connection: HTTPSConnection) -> bool:
    """A connection that waits for a request has nothing to read, unless the other end has closed it."""
    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _proxy(url: SplitResult) -> SplitResult | None:
    """The proxy of the environment for this address."""
    found = urllib.request.getproxies()
    proxy = found.get("https") or found.get("all")
    if not proxy or urllib.request.proxy_bypass(url.netloc):
        return None
    at = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if at.scheme != "http" or not at.hostname:
        raise InputError(
            f"the environment names a proxy of the kind {quoted(at.scheme)}; sites reach their coordinator directly, "
            "or by an http:// proxy."
        )
    return at
