"""A name's key pair in two files: who signs (Ed25519), and who masks with whom (X25519); certificates for a test.

`NAME.key` and `NAME.pub` hold one line each: the kind, the name, and in base64 both keys with four bytes of a check sum
over the name and the keys, so that a line which was cut off or given another name is noticed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from auqadmm.errors import InputError
from auqadmm.words import quoted

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

PUBLIC, SECRET = "auqadmm-1", "auqadmm-1-secret"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LONGEST_FILE = 4096  # bytes: a key is one line


@dataclass(frozen=True)
class PublicKey:
    """What others know of a name: they verify its signatures, and agree on masks with it."""

    name: str
    sign: bytes
    agree: bytes

    @property
    def line(self) -> str:
        return _line(PUBLIC, self.name, self.sign + self.agree)

    @property
    def fingerprint(self) -> str:
        """Short enough to be compared on the telephone."""
        digest = hashlib.sha256(self.line.encode()).hexdigest()
        return " ".join(digest[i : i + 4] for i in range(0, 32, 4))

    @cached_property
    def _ed25519(self) -> Ed25519PublicKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        return Ed25519PublicKey.from_public_bytes(self.sign)

    @cached_property
    def x25519(self) -> X25519PublicKey:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        return X25519PublicKey.from_public_bytes(self.agree)

    def signed(self, signature: bytes, data: bytes) -> bool:
        """Is this the signature of these bytes by this key?"""
        from cryptography.exceptions import InvalidSignature

        try:
            self._ed25519.verify(signature, data)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class SecretKey:
    """What only its owner has. It is never shown."""

    name: str
    _sign: bytes = field(repr=False)
    _agree: bytes = field(repr=False)

    @cached_property
    def _ed25519(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self._sign)

    @cached_property
    def x25519(self) -> X25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        return X25519PrivateKey.from_private_bytes(self._agree)

    @cached_property
    def public(self) -> PublicKey:
        agree = self.x25519.public_key().public_bytes_raw()
        return PublicKey(self.name, self._ed25519.public_key().public_bytes_raw(), agree)

    def sign(self, data: bytes) -> bytes:
        return self._ed25519.sign(data)


def needed() -> None:
    """Say what to install before anything is begun."""
    for package in ("cryptography", "starlette", "uvicorn"):
        if find_spec(package) is None:
            raise ImportError(f'Sites need {package}, which is not installed: pip install "auqadmm[sites]".')


# ---------------------------------------------------------------------- files
def make_key(name: str, folder: str | Path = ".") -> tuple[Path, Path]:
    """Write a new pair to `NAME.key` (for its owner only) and `NAME.pub` (for everybody); files are never replaced."""
    needed()
    checked_name(name, "a key")
    folder = Path(folder)
    secret = SecretKey(name, os.urandom(32), os.urandom(32))
    paths = folder / f"{name}.key", folder / f"{name}.pub"
    lines = _line(SECRET, name, secret._sign + secret._agree), secret.public.line
    _write_new({path: f"{line}\n".encode() for path, line in zip(paths, lines, strict=True)})
    return paths


def read_key(path: str | Path, name: str | None = None) -> SecretKey:
    """The pair in a file `NAME.key`, which nobody else may be able to read."""
    path = Path(path)
    found, raw = _parsed(_text(path), SECRET, str(path))
    if os.name == "posix" and (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        raise InputError(f"{path}: others may read this key (mode {mode:04o}); run: chmod 600 {path}")
    _same_name(found, name, str(path))
    return SecretKey(found, raw[:32], raw[32:])


def read_public(path: str | Path, name: str | None = None) -> PublicKey:
    """The public key in a file `NAME.pub`."""
    return parse_public(_text(Path(path)), str(path), name)


def parse_public(text: str, where: str, name: str | None = None) -> PublicKey:
    """The public key in a line of text; `where` is named in errors."""
    found, raw = _parsed(text, PUBLIC, where)
    _same_name(found, name, where)
    return PublicKey(found, raw[:32], raw[32:])


def checked_name(name: object, where: str) -> str:
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise InputError(
            f"{where}: {quoted(name)} is no name; take up to 64 letters, digits, dots, dashes and underscores."
        )
    return name


def _line(kind: str, name: str, raw: bytes) -> str:
    return f"{kind} {name} {base64.b64encode(raw + _check(name, raw)).decode()}"


def _check(name: str, raw: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\0" + raw).digest()[:4]


def _parsed(text: str, kind: str, where: str) -> tuple[str, bytes]:
    words = text.split()
    other = {PUBLIC: SECRET, SECRET: PUBLIC}[kind]
    if words[:1] == [other]:
        wrong = "this is the public key" if kind == SECRET else "this is the secret key, which stays with its owner"
        raise InputError(f"{where}: {wrong}; the {'.key' if kind == SECRET else '.pub'} file belongs here.")
    if words[:1] != [kind] or len(words) > 3:
        raise InputError(f"{where}: this is no key of auqadmm; `auqadmm key NAME` makes one.")
    try:
        name, packed = words[1:]
        raw = base64.b64decode(packed, validate=True)
    except (ValueError, binascii.Error):
        raise InputError(f"{where}: the key is cut off or damaged; copy the whole line again.") from None
    if len(raw) != 68 or NAME.fullmatch(name) is None or raw[64:] != _check(name, raw[:64]):
        raise InputError(f"{where}: the key is cut off, damaged, or under another name; copy the whole line again.")
    return name, raw[:64]


def _same_name(found: str, name: str | None, where: str) -> None:
    if name is not None and found != name:
        raise InputError(f"{where}: this is the key of {quoted(found)}, not of {quoted(name)}.")


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LONGEST_FILE).decode("ascii")
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file; `auqadmm key NAME` makes a key.") from None
    except OSError as error:
        raise InputError(f"{path}: the key cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: this is no key of auqadmm; `auqadmm key NAME` makes one.") from None


def _write_new(files: Mapping[Path, bytes]) -> None:
    """Write files that do not exist yet, none if one exists; secrets (.key) for their owner only."""
    for path in files:
        if path.exists():
            raise InputError(f"{path}: this file exists, and keys are never replaced; move it away first.")
    for path, content in files.items():
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if path.suffix == ".key" else 0o644)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror}).") from None


# ---------------------------------------------------------------------- certificates
def make_certificate(host: str, folder: str | Path = ".", days: int = 825) -> tuple[Path, Path, Path]:
    """Write `ca.crt`, `HOST.crt` and `HOST.key`: TLS for a coordinator without a certificate of its own.

    Sites are given `ca.crt`. The key that signed is not kept: this authority signs nothing else.
    """
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    if not host or len(host) > 64 or not re.fullmatch(r"[A-Za-z0-9.:-]+", host):
        raise InputError(f"{quoted(host)} is no host; give the name or the address under which sites reach it.")
    folder, now = Path(folder), datetime.datetime.now(datetime.timezone.utc)
    keys = {kind: ec.generate_private_key(ec.SECP256R1()) for kind in ("ca", "host")}
    names = {
        "ca": x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"auqadmm {host}")]),
        "host": x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)]),
    }
    try:
        known_as: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(host))]
    except ValueError:
        known_as = [x509.DNSName(host)]
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(keys["ca"].public_key())
    certificates = {}
    for kind, key in keys.items():
        made = (
            x509.CertificateBuilder(names["ca"], names[kind], key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=kind == "ca", path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(signer, critical=False)
        )
        if kind == "ca":
            signs = dict.fromkeys(("key_cert_sign", "crl_sign"), True)
            others = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment")
            never = dict.fromkeys((*others, "key_agreement", "encipher_only", "decipher_only"), False)
            made = made.add_extension(x509.KeyUsage(**signs, **never), critical=True)
        else:
            made = made.add_extension(x509.SubjectAlternativeName(known_as), critical=False)
        signed = made.sign(keys["ca"], hashes.SHA256())
        certificates[kind] = signed.public_bytes(serialization.Encoding.PEM)
    secret = keys["host"].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    stem = host.replace(":", "-")
    paths = folder / "ca.crt", folder / f"{stem}.crt", folder / f"{stem}.key"
    _write_new(dict(zip(paths, (certificates["ca"], certificates["host"], secret), strict=True)))
    return paths
