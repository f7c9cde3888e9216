"""What a web server on this machine can answer, and archives for it."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from auqadmm.paper.data.fetch import Source


@dataclass
class Site:
    """`pages` maps a path to bytes, or to a function that answers a request itself."""

    address: str = ""
    pages: dict[str, bytes | Callable] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)

    def source(self, name: str, content: bytes, served: bytes | Callable | None = None, **more) -> Source:
        """A published file, and what the server answers instead of it."""
        self.pages[f"/{name}"] = content if served is None else served
        return Source(f"{self.address}/{name}", len(content), hashlib.sha256(content).hexdigest(), **more)


def answer(handler, content: bytes, length: int | None = None) -> None:
    """200 and these bytes; a length may be announced that is not theirs."""
    handler.send_response(200)
    if length is not None:
        handler.send_header("Content-Length", str(length))
    handler.end_headers()
    handler.wfile.write(content)


def redirect(to: str):
    def page(handler):
        handler.send_response(302)
        handler.send_header("Location", to)
        handler.end_headers()

    return page


def tar_gz(members: dict[str, bytes] | list) -> bytes:
    """An archive of files by name, or of `(TarInfo, contents)`."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as tar:
        for member, content in members.items() if isinstance(members, dict) else members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = info.size or len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()
