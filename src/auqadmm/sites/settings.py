"""What `site.toml` and `sites.toml` say, read strictly: every wrong key is named with its file."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from auqadmm.errors import InputError
from auqadmm.sites.keys import PUBLIC, PublicKey, SecretKey, checked_name, needed, parse_public, read_key, read_public
from auqadmm.words import listed, quoted

LARGEST_FILE = 1 << 20  # bytes of a settings file


@dataclass(frozen=True)
class Data:
    """A data set that a site offers. `columns`: those that may be used, `None` for all but `never`."""

    name: str
    path: Path
    columns: tuple[str, ...] | None
    never: tuple[str, ...]


@dataclass(frozen=True)
class Limits:
    """The largest message, in bytes; seconds of a poll, and of silence after which a run is dropped."""

    largest: int = 1 << 28
    poll: float = 20.0
    quiet: float = 300.0


@dataclass(frozen=True)
class SiteSettings:
    """`site.toml`. `ca`: of the coordinator's certificate, `None` for those that the system trusts."""

    file: Path
    name: str
    key: SecretKey
    url: str
    coordinator: PublicKey
    ca: Path | None
    data: Mapping[str, Data]
    roster: Mapping[str, PublicKey]
    audit: Path
    policy: Mapping[str, object]
    limits: Limits


@dataclass(frozen=True)
class HubSettings:
    """`sites.toml`. `quiet`: seconds without a sign of life after which a site is lost."""

    file: Path
    host: str
    port: int
    certificate: Path
    certificate_key: Path
    key: SecretKey
    sites: Mapping[str, PublicKey]
    quiet: float = 8.0
    join: float = 600.0
    open: float = 600.0
    round: float = 600.0
    largest: int = 1 << 28


def read_site(path: str | Path) -> SiteSettings:
    """The settings of a site."""
    needed()
    table = _Table.of(Path(path))
    name = checked_name(table.text("name"), f"{path}, name")
    key = read_key(table.path("key"), name)
    with table.inner("coordinator") as at:
        url = at.text("url")
        if urlsplit(url).scheme != "https" or not urlsplit(url).hostname:
            raise at.wrong("url", f"is {quoted(url)}; write https://HOST:PORT")
        coordinator = at.public("key")
        ca = at.path("ca") if "ca" in at.left else None
    data = {}
    with table.inner("data") as sets:
        for each in list(sets.left):
            with sets.inner(each) as one:
                columns = one.texts("columns") if "columns" in one.left else None
                never = one.texts("never") if "never" in one.left else ()
                if both := sorted(set(columns or ()) & set(never)):
                    raise one.wrong("never", f"names {listed(both)}, which `columns` allows; name it once")
                data[each] = Data(each, one.path("path"), columns, never)
    if not data:
        raise table.wrong("data", "names no data set; write a table [data.NAME] with a path")
    with table.inner("roster", empty=True) as others:
        roster = {each: others.public(each, checked_name(each, f"{path}, roster")) for each in list(others.left)}
    if name in roster and roster[name] != key.public:
        raise table.wrong("roster", f"has another key for {quoted(name)}, this site itself, than {table.said('key')}")
    _no_twins(table, "roster", roster)
    if coordinator in roster.values() or coordinator == key.public:
        raise table.wrong("coordinator.key", "is the key of a site; a coordinator has a key of its own")
    audit = table.path("audit", exists=False)
    policy = table.take("policy", dict, "a table") if "policy" in table.left else {}
    with table.inner("limits", empty=True) as few:
        limits = Limits(
            few.whole("largest", Limits.largest, 1 << 16), few.seconds("poll", 20.0), few.seconds("quiet", 300.0)
        )
        if limits.poll > 300:
            raise few.wrong("poll", "is more than 300 s; proxies close connections that are idle for so long")
    table.done()
    return SiteSettings(Path(path), name, key, url, coordinator, ca, data, roster, audit, policy, limits)


def read_hub(path: str | Path) -> HubSettings:
    """The settings of a coordinator."""
    needed()
    table = _Table.of(Path(path))
    listen = table.text("listen")
    host, _, port = listen.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise table.wrong("listen", f"is {quoted(listen)}; write HOST:PORT, such as 0.0.0.0:8443")
    key = read_key(table.path("key"))
    with table.inner("sites") as rows:
        sites = {each: rows.public(each, checked_name(each, f"{path}, sites")) for each in sorted(rows.left)}
    if not sites:
        raise table.wrong("sites", 'names no site; write NAME = "NAME.pub" for each')
    _no_twins(table, "sites", sites)
    if key.public.sign in {site.sign for site in sites.values()}:
        raise table.wrong("key", "is the key of a site; a coordinator has a key of its own")
    found = HubSettings(
        Path(path), host.strip("[]"), int(port), table.path("certificate"), table.path("certificate_key"), key, sites,
        table.seconds("quiet", 8.0), table.seconds("join", 600.0), table.seconds("open", 600.0),
        table.seconds("round", 600.0), table.whole("largest", HubSettings.largest, 1 << 16),
    )  # fmt: skip
    table.done()
    return found


def _no_twins(table: _Table, key: str, keys: Mapping[str, PublicKey]) -> None:
    seen: dict[bytes, str] = {}
    for name, public in keys.items():
        for part in (public.sign, public.agree):
            if (other := seen.setdefault(part, name)) != name:
                raise table.wrong(key, f"has one key under two names, {quoted(other)} and {quoted(name)}")


class _Table:
    """A table of a TOML file: keys are taken out, and what is left at the end is unknown."""

    def __init__(self, file: Path, values: Mapping[str, object], prefix: str = "") -> None:
        self.file, self.left, self.values, self.prefix = file, dict(values), values, prefix

    @classmethod
    def of(cls, file: Path) -> _Table:
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        try:
            with file.open("rb") as opened:
                content = opened.read(LARGEST_FILE + 1)
        except OSError as error:
            raise InputError(f"{file}: cannot be read ({error.strerror}).") from None
        if len(content) > LARGEST_FILE:
            raise InputError(f"{file}: more than {LARGEST_FILE} bytes are no settings.")
        try:
            return cls(file, tomllib.loads(content.decode()))
        except (ValueError, RecursionError) as error:
            why = quoted(str(error), 120) if not isinstance(error, UnicodeDecodeError) else "it is not UTF-8"
            raise InputError(f"{file}: this is no TOML: {why}.") from None

    def wrong(self, key: str, what: str) -> InputError:
        return InputError(f"{self.file}: {self.prefix}{quoted(key)[1:-1]} {what}.")

    def said(self, key: str) -> str:
        return quoted(str(self.values.get(key)))

    def take(self, key: str, kind: type, word: str) -> dict[str, object]:
        return self._taken(key, kind, word)  # type: ignore[return-value]

    def _taken(self, key: str, kind: type | tuple[type, ...], word: str) -> object:
        if key not in self.left:
            raise self.wrong(key, f"is missing; it is {word}")
        value = self.left.pop(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.wrong(key, f"is {quoted(value)}; it has to be {word}")
        return value

    def text(self, key: str) -> str:
        value = self._taken(key, str, "a text")
        if not value:
            raise self.wrong(key, "is empty; it has to be a text")
        return str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        values = self._taken(key, list, "a list of texts")
        assert isinstance(values, list)
        for value in values:
            if not isinstance(value, str):
                raise self.wrong(key, f"holds {quoted(value)}; it has to be a list of texts")
        if len(set(values)) < len(values):
            raise self.wrong(key, f"names {listed([v for v in values if values.count(v) > 1][:1])} twice")
        return tuple(values)

    def path(self, key: str, exists: bool = True) -> Path:
        """A file beside this one, or anywhere."""
        found = self.file.parent / Path(self.text(key)).expanduser()
        if exists and not found.exists():
            raise self.wrong(key, f"is {quoted(str(found), 200)}, which does not exist")
        if not exists and not found.parent.is_dir():
            raise self.wrong(key, f"is {quoted(str(found), 200)}, whose folder does not exist")
        return found

    def public(self, key: str, name: str | None = None) -> PublicKey:
        """A public key: the line itself, or the file that holds it."""
        value = self.values.get(key)
        if isinstance(value, str) and value.split()[:1] == [PUBLIC]:
            return parse_public(self.text(key), f"{self.file}: {self.prefix}{key}", name)
        return read_public(self.path(key), name)

    def seconds(self, key: str, default: float) -> float:
        value = self._taken(key, (int, float), "a number of seconds") if key in self.left else default
        assert isinstance(value, int | float)
        if not (math.isfinite(value) and 0 < value <= 1e7):
            raise self.wrong(key, f"is {value}; it has to be a number of seconds above 0")
        return float(value)

    def whole(self, key: str, default: int, least: int) -> int:
        value = self._taken(key, int, "a whole number") if key in self.left else default
        assert isinstance(value, int)
        if not least <= value <= 1 << 40:
            raise self.wrong(key, f"is {value}; it has to be at least {least}")
        return value

    def inner(self, key: str, empty: bool = False) -> _Table:
        values = {} if empty and key not in self.left else self.take(key, dict, f"a table [{self.prefix}{key}]")
        return _Table(self.file, values, f"{self.prefix}{key}.")

    def done(self) -> None:
        if self.left:
            raise self.wrong(next(iter(self.left)), "is not a key that is known here; correct it or take it out")

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, kind: type | None, *rest: object) -> None:
        if kind is None:
            self.done()
