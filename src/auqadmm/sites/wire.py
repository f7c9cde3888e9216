"""Signed messages: what is signed, how it is checked, and that nothing large is read before that.

A message is an HTTP body of any bytes, and one header:

    auqadmm: auqadmm/1 KIND SITE RUN NUMBER STAMP SHA-256-of-the-body SIGNATURE

The signature covers the words before it. It is checked before the body is read, so a stranger cannot make anybody
store more than headers. Replays: stamps of a site grow (nanoseconds, and near the coordinator's clock); the
coordinator's replies carry the stamp of the request that they answer, so a recorded reply fits no later request, and a
site needs no clock.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import AsyncIterable, Iterable, Mapping
from dataclasses import dataclass

from auqadmm.checks import strict_json
from auqadmm.sites.keys import NAME, PublicKey, SecretKey
from auqadmm.sites.refusals import Forged, Malformed, Replayed, TooLarge, WrongClock
from auqadmm.words import quoted, visible

PROTOCOL = "auqadmm/1"
HEADER = "auqadmm"
CLOCKS_APART = 300.0  # seconds between the clocks of a site and the coordinator
SMALL = 1 << 16  # bytes of a message that is JSON
_NUMBER = re.compile(r"[0-9]{1,19}")
_WORDS = {
    "kind": r"[a-z]{1,16}",
    "site": NAME.pattern,
    "run": r"-|[0-9a-f]{1,32}|[0-9a-f]{0,32}/[0-9a-f]{0,32}",
    "number": _NUMBER.pattern,
    "stamp": _NUMBER.pattern,
    "sha256": r"[0-9a-f]{64}",
    "signature": r"[0-9a-f]{128}",
}
_MESSAGE = re.compile(" ".join([re.escape(PROTOCOL), *(f"({form})" for form in _WORDS.values())]))
NOTHING = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class Label:
    """What is signed, with the digest of the body."""

    kind: str
    site: str
    run: str
    number: int
    stamp: int
    sha256: str

    @property
    def signed(self) -> bytes:
        words = (PROTOCOL, self.kind, self.site, self.run or "-", self.number, self.stamp, self.sha256)
        return " ".join(map(str, words)).encode("ascii")


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest() if body else NOTHING


def sealed(
    key: SecretKey, kind: str, site: str, run: str, number: int, stamp: int, body: bytes = b"", sha256: str = ""
) -> dict[str, str]:
    """The header of a message; `sha256`: of its body, where it is known."""
    signed = Label(kind, site, run, number, stamp, sha256 or digest(body)).signed
    return {HEADER: f"{signed.decode()} {key.sign(signed).hex()}"}


def label_of(headers: Mapping[str, str]) -> tuple[Label, bytes]:
    """What the header says, not verified, and its signature."""
    found = _MESSAGE.fullmatch(headers.get(HEADER, ""))
    if found is None:
        raise Malformed(f"this is no message of {PROTOCOL}: its header is missing or wrong.")
    kind, site, run, number, stamp, sha256, signature = found.groups()
    label = Label(kind, site, "" if run == "-" else run, int(number), int(stamp), sha256)
    return label, bytes.fromhex(signature)


def verified(label: Label, signature: bytes, key: PublicKey, kinds: Iterable[str]) -> Label:
    """The label of a message that this key signed, of one of these kinds."""
    if label.kind not in kinds:
        raise Malformed(f"a message of the kind {quoted(label.kind)} does not belong here.")
    if not key.signed(signature, label.signed):
        raise Forged(f"this message is not signed with the key of {quoted(key.name)} that is on the list here.")
    return label


# ---------------------------------------------------------------------- bodies
def announced(headers: Mapping[str, str], most: int) -> None:
    """Refuse a body that says it is too long."""
    length = headers.get("content-length")
    if length is None:
        return
    if _NUMBER.fullmatch(length) is None:
        raise Malformed(f"{quoted(length)} is no length of a message.")
    if int(length) > most:
        raise TooLarge(f"a message of {int(length)} bytes is not read here; the limit is {most} bytes.")


class Body:
    """A body as it comes in: never more bytes than allowed, and those that were signed."""

    def __init__(self, label: Label, most: int) -> None:
        self.label, self.most, self.size, self.parts = label, most, 0, list[bytes]()

    def add(self, part: bytes) -> None:
        self.size += len(part)
        if self.size > self.most:
            self.parts.clear()
            raise TooLarge(f"a message of more than {self.most} bytes is not read here.")
        self.parts.append(part)

    def whole(self) -> bytes:
        body = b"".join(self.parts)
        if digest(body) != self.label.sha256:
            raise Malformed(
                "the bytes of this message are not those that were signed; something on the way changed it."
            )
        return body


async def received(parts: AsyncIterable[bytes], label: Label, most: int) -> bytes:
    body = Body(label, most)
    async for part in parts:
        body.add(part)
    return body.whole()


def read(parts: Iterable[bytes], label: Label, most: int) -> bytes:
    body = Body(label, most)
    for part in parts:
        body.add(part)
    return body.whole()


def small_json(body: bytes) -> dict[str, object]:
    """A JSON object of a message of this room's own."""
    try:
        found = strict_json(body) if len(body) <= SMALL else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Malformed("this is no JSON object of a message of auqadmm.")
    return found


def told(body: bytes, longest: int = 500) -> str:
    """A sentence that the other side sent."""
    return visible(body[: 4 * longest].decode("utf-8", "replace")[:longest])


# ---------------------------------------------------------------------- once only
class Stamps:
    """Stamps that grow, for the messages of one end; two threads may take them."""

    def __init__(self) -> None:
        self.last, self.lock = 0, threading.Lock()

    def take(self) -> int:
        with self.lock:
            self.last = max(self.last + 1, time.time_ns())
            return self.last


class Once:
    """The other end of stamps: every message counts once, in its order, and not long after it was signed."""

    def __init__(self, apart: float = CLOCKS_APART) -> None:
        self.last, self.apart = 0, apart

    def accept(self, label: Label) -> None:
        off = label.stamp / 1e9 - time.time()
        if abs(off) > self.apart:
            when = "ago" if off < 0 else "ahead"
            raise WrongClock(
                f"site {quoted(label.site)} signed this {abs(off):.0f} s {when} by the coordinator's clock; "
                "set the clocks."
            )
        if label.stamp <= self.last:
            raise Replayed(f"this message of site {quoted(label.site)} was here before, or a later one was.")
        self.last = label.stamp


class AskNumbers:
    """Numbers of asks within one run: a new one is larger than all before; the last may come again, word for word."""

    def __init__(self) -> None:
        self.last, self.sha256 = 0, ""

    def is_new(self, label: Label) -> bool:
        if label.number == self.last and label.sha256 == self.sha256:
            return False
        if label.number <= self.last:
            raise Replayed(f"ask {label.number} came after ask {self.last}; it is not answered.")
        self.last, self.sha256 = label.number, label.sha256
        return True
