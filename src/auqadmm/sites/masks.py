"""Sums that hide their summands: every two sites share a stream of masks, which one adds and the other subtracts.

A number x becomes the integer nearest to x·2^64, mod 2^128, in two limbs of 64 bits (low, high). Integers add up
exactly and in any order, so a masked and an unmasked sum have the same bits. Site i sends

    y_i = x_i + Σ_{j after i} m_ij − Σ_{j before i} m_ij   (mod 2^128, names in their order)

and the masks cancel in Σ y_i. The key of m_ij comes from two agreements of X25519: of the keys on the rosters, so that
nobody else can have it, and of keys that both sites drew for this run alone, so that a key which is stolen later opens
no sum of today. These travel through the coordinator: one that changes them spoils the sum, and learns nothing. That
every site draws anew also means that no run, whatever it is called, uses a mask twice; within a run a site
refuses to. A lost site ends the sum: its masks are in what the others sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from auqadmm.errors import InputError
from auqadmm.sites.keys import PublicKey, SecretKey
from auqadmm.words import listed, quoted

FRACTION = 64  # bits behind the point
SPARE = 10  # bits for the sum: up to 1024 sites
Limbs = NDArray[np.uint64]  # shape (n, 2): low, high


# ---------------------------------------------------------------------- integers mod 2^128
def encode(values: NDArray[np.float64], fraction: int = FRACTION) -> Limbs:
    """Numbers as integers, rounded to the nearest multiple of 2^-fraction; refused where they are too large."""
    if not 0 <= fraction <= 116:
        raise InputError(f"{fraction} bits behind the point leave no room; take 0 to 116.")
    x = np.ascontiguousarray(values, dtype=np.float64).ravel()
    most = np.ldexp(1.0, 127 - SPARE - fraction)
    if (bad := np.flatnonzero(~(np.abs(x) < most))).size:
        first = int(bad[0])
        what = "too large to be added up in fixed point" if np.isfinite(x[first]) else "not finite"
        limit = f"; numbers have to be below {most:.3g}" if np.isfinite(x[first]) else ""
        raise InputError(f"number {first} of {x.size} is {what}{limit}; nothing is sent.")
    scaled = np.rint(np.ldexp(np.abs(x), fraction))  # an integer: from 2^53 on every double is one
    high = np.floor(np.ldexp(scaled, -64))
    low = scaled - np.ldexp(high, 64)
    out = np.stack([low.astype(np.uint64), high.astype(np.uint64)], axis=1)
    return np.where(x[:, None] < 0, negative(out), out)


def add(a: Limbs, b: Limbs) -> Limbs:
    """a + b mod 2^128."""
    if a.shape != b.shape:
        raise InputError(f"sites sent {len(a)} and {len(b)} numbers for one sum.")
    out = np.empty_like(a)
    np.add(a[:, 0], b[:, 0], out=out[:, 0])
    np.add(a[:, 1], b[:, 1], out=out[:, 1])
    out[:, 1] += out[:, 0] < a[:, 0]  # the carry
    return out


def negative(a: Limbs) -> Limbs:
    """−a mod 2^128."""
    out = ~a
    out[:, 0] += np.uint64(1)
    out[:, 1] += out[:, 0] == 0
    return out


def total(parts: Iterable[Limbs]) -> Limbs:
    """The sum of all; its order does not matter."""
    several = iter(parts)
    out = next(several, None)
    if out is None:
        raise InputError("a sum over no sites has no length.")
    for part in several:
        out = add(out, part)
    return out


def unmasked(summed: Limbs, fraction: int = FRACTION) -> NDArray[np.float64]:
    """The double nearest to each integer·2^-fraction: rounded once, ties to even."""
    minus = summed[:, 1] >> np.uint64(63) == 1
    size = np.where(minus[:, None], negative(summed), summed)
    low, high = size[:, 0], size[:, 1]
    # the leading 64 bits, the last of which also says whether anything follows: that rounds as all 128 would
    bits = np.frexp(high.astype(np.float64))[1]
    left = np.clip(64 - bits, 0, 63).astype(np.uint64)
    leading = (high << left) | ((low >> np.uint64(1)) >> (np.uint64(63) - left))
    leading |= (low << left != 0).astype(np.uint64)
    wide = np.ldexp(leading.astype(np.float64), 64 - left.astype(np.int32) - fraction)
    narrow = np.ldexp(low.astype(np.float64), -fraction)
    x = np.where(high == 0, narrow, wide)
    return np.where(minus, -x, x)


# ---------------------------------------------------------------------- masks
class Masker:
    """The masks of one site in one run: `hello` goes to all others, `meet` takes theirs, `mask` hides numbers.

    `roster`: the public keys of all sites of the run, this one may be among them; `own`: this site's name.
    """

    def __init__(
        self, key: SecretKey, roster: Mapping[str, PublicKey], run: str, own: str, fraction: int = FRACTION
    ) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        if own != key.name:
            raise InputError(f"the key of {quoted(key.name)} masks nothing for site {quoted(own)}.")
        self.key, self.run, self.own, self.fraction = key, run, own, fraction
        self.others = {name: public for name, public in sorted(roster.items()) if name != own}
        if not self.others:
            raise InputError(f"site {quoted(own)} has no other site to mask with; its roster names nobody else.")
        if len(self.others) >= 1 << SPARE:
            raise InputError(
                f"{len(self.others) + 1} sites are more than masks are made for; {1 << SPARE} is the most."
            )
        self._once = X25519PrivateKey.generate()
        self.hello = self._once.public_key().public_bytes_raw()
        self._keys: dict[str, bytes] = {}
        self._number, self._labels = -1, set[str]()

    def meet(self, hellos: Mapping[str, bytes]) -> None:
        """Agree with all others; `hellos`: what every site of the run drew, by name."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        if self._keys:
            raise InputError("the sites of this run have met already; another meeting is another run.")
        if hellos.keys() != self.others.keys() | {self.own} or hellos[self.own] != self.hello:
            off = sorted(hellos.keys() ^ (self.others.keys() | {self.own})) or [self.own]
            raise InputError(f"these are not the sites that {quoted(self.own)} masks with: {listed(off)}.")
        keys = {}
        for name, public in self.others.items():
            pair = sorted((self.own, name))
            try:
                lasting = self.key.x25519.exchange(public.x25519)
                passing = self._once.exchange(X25519PublicKey.from_public_bytes(hellos[name]))
            except ValueError:
                raise InputError(f"what site {quoted(name)} sent to agree on masks is no key.") from None
            info = json.dumps(["auqadmm/1 masks", *pair, *(hellos[each].hex() for each in pair)]).encode()
            made = HKDF(algorithm=SHA256(), length=32, salt=self.run.encode(), info=info)
            keys[name] = made.derive(lasting + passing)
        self._keys = keys

    def mask(self, number: int, label: str, values: NDArray[np.float64], fraction: int | None = None) -> Limbs:
        """Hide numbers. Number and label name the mask: the same on all sites, and never used twice. `fraction`: other
        bits behind the point, for large numbers."""
        if not self._keys:
            raise InputError("the sites of this run have not met yet; there are no masks.")
        if number < self._number or (number == self._number and label in self._labels):
            raise InputError(f"the mask {quoted(label)} of message {number} was used before; it is not used again.")
        out = encode(values, self.fraction if fraction is None else fraction)
        if number > self._number:
            self._number, self._labels = number, set()
        self._labels.add(label)
        low, high = out.T.copy()  # limb by limb in memory, which is faster
        for name, key in self._keys.items():
            more_low, more_high = _stream(key, number, label, len(out))
            if self.own < name:
                low += more_low
                high += more_high
                high += low < more_low  # the carry
            else:
                high -= more_high
                high -= low < more_low  # the borrow
                low -= more_low
        return np.stack([low, high], axis=1)


def _stream(key: bytes, number: int, label: str, size: int) -> NDArray[np.uint64]:
    """Masks of one pair for one message, low limbs and high ones: ChaCha20 under a key of its own."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    info = json.dumps(["auqadmm/1 stream", number, label]).encode()
    once = HKDFExpand(algorithm=SHA256(), length=32, info=hashlib.sha256(info).digest()).derive(key)
    stream = Cipher(ChaCha20(once, bytes(16)), None).encryptor().update(bytes(16 * size))
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64, copy=False).reshape(2, size)
