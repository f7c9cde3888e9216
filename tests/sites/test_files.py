"""Keys, settings, certificates and audit files: every way in which they can be wrong is one sentence."""

from __future__ import annotations

import json
import os
import resource
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from auqadmm.errors import InputError
from auqadmm.sites.audit import Audit, AuditError, AuditLine, read_audit, table
from auqadmm.sites.keys import make_certificate, make_key, parse_public, read_key, read_public
from auqadmm.sites.settings import read_hub, read_site


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("north", "south", "boss"):
        make_key(name, tmp_path)
    make_certificate("localhost", tmp_path)
    (tmp_path / "x.csv").write_text("age\n1\n")
    return tmp_path


# ---------------------------------------------------------------------- keys
def test_a_pair_signs_and_agrees(folder: Path) -> None:
    north, south = read_key(folder / "north.key"), read_key(folder / "south.key", "south")
    public = read_public(folder / "north.pub", "north")
    assert public == north.public
    assert public.line == (folder / "north.pub").read_text().strip()
    assert public.line.startswith("auqadmm-1 north ")
    signature = north.sign(b"text")
    assert public.signed(signature, b"text")
    assert not public.signed(signature, b"texts")
    assert not south.public.signed(signature, b"text")
    assert north.x25519.exchange(south.public.x25519) == south.x25519.exchange(public.x25519)
    assert (folder / "north.key").stat().st_mode & 0o777 == 0o600
    assert len(public.fingerprint) == 39
    secret = (folder / "north.key").read_text().split()[2]
    assert secret not in repr(north)
    assert repr(north) == "SecretKey(name='north')"


def test_wrong_keys(folder: Path) -> None:
    line = (folder / "north.pub").read_text().strip()
    cut, renamed = line[:-8], line.replace("north", "south")
    for text, says in {
        cut: "cut off",
        renamed: "under another name",
        line.replace("auqadmm-1", "ssh-ed25519"): "no key of auqadmm",
        "": "no key of auqadmm",
        "auqadmm-1 north": "cut off",
        line + " more": "no key of auqadmm",
        (folder / "north.key").read_text(): "secret key, which stays with its owner",
    }.items():
        with pytest.raises(InputError, match=rf"^here: .*{says}"):
            parse_public(text, "here")
    with pytest.raises(InputError, match="key of 'north', not of 'south'"):
        parse_public(line, "here", "south")
    with pytest.raises(InputError, match="exists, and keys are never replaced"):
        make_key("north", folder)
    with pytest.raises(InputError, match="is no name"):
        make_key("../north", folder)
    with pytest.raises(InputError, match=r"north\.pub: this is the public key"):
        read_key(folder / "north.pub")
    (folder / "north.key").chmod(0o640)
    with pytest.raises(InputError, match=r"others may read this key \(mode 0640\); run: chmod 600"):
        read_key(folder / "north.key")
    with pytest.raises(InputError, match="no such file"):
        read_key(folder / "east.key")
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory\)"):
        read_public(folder)
    (folder / "bin.pub").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="no key of auqadmm"):
        read_public(folder / "bin.pub")
    with pytest.raises(InputError, match="cannot be written"):
        make_key("x", folder / "nowhere")


def test_what_is_not_installed_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auqadmm.sites.keys.find_spec", lambda name: None if name == "uvicorn" else name)
    for job in (lambda: make_key("east", folder), lambda: read_site("site.toml"), lambda: read_hub("sites.toml")):
        with pytest.raises(ImportError, match=r'Sites need uvicorn, .*: pip install "auqadmm\[sites\]"'):
            job()


def test_certificates(folder: Path) -> None:
    assert (folder / "localhost.key").stat().st_mode & 0o777 == 0o600
    found = x509.load_pem_x509_certificate((folder / "localhost.crt").read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    ssl.create_default_context(cafile=folder / "ca.crt")
    with pytest.raises(InputError, match="is no host"):
        make_certificate("a b", folder)
    with pytest.raises(InputError, match=r"ca\.crt: this file exists"):
        make_certificate("other", folder)


# ---------------------------------------------------------------------- settings
SITE = """
name = "north"
key = "north.key"
audit = "sent.jsonl"
[coordinator]
url = "https://localhost:8443"
key = "boss.pub"
ca = "ca.crt"
[data.hearts]
path = "x.csv"
columns = ["age", "sex"]
never = ["id"]
[roster]
south = "south.pub"
[policy]
min_rows = 10
[limits]
largest = 1000000
poll = 5
"""
HUB = """
listen = "127.0.0.1:8443"
certificate = "localhost.crt"
certificate_key = "localhost.key"
key = "boss.key"
quiet = 4
[sites]
south = "south.pub"
north = "north.pub"
"""


def test_settings_are_read(folder: Path) -> None:
    line = (folder / "south.pub").read_text().strip()
    (folder / "site.toml").write_text(SITE.replace("south.pub", line))  # the line itself does as well
    site = read_site(folder / "site.toml")
    assert (site.name, site.url, site.coordinator.name) == ("north", "https://localhost:8443", "boss")
    assert site.data["hearts"].columns == ("age", "sex")
    assert (site.data["hearts"].never, site.policy) == (("id",), {"min_rows": 10})
    assert (site.limits.largest, site.limits.poll, site.limits.quiet) == (1_000_000, 5.0, 300.0)
    assert site.roster == {"south": read_public(folder / "south.pub")}
    assert site.audit == folder / "sent.jsonl"
    (folder / "sites.toml").write_text(HUB)
    hub = read_hub(folder / "sites.toml")
    assert (hub.host, hub.port, hub.quiet, list(hub.sites)) == ("127.0.0.1", 8443, 4.0, ["north", "south"])


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "north"', "", "name is missing"),
        ('name = "north"', "name = 3", "name is 3; it has to be a text"),
        ('name = "north"', 'name = "south"', "key of 'north', not of 'south'"),
        ('name = "north"', 'name = "no rth"', "'no rth' is no name"),
        ("north.key", "east.key", "key is .*east.key', which does not exist"),
        ('audit = "sent.jsonl"', 'audit = "no/sent.jsonl"', "audit is .*whose folder does not exist"),
        ("https:", "http:", r"coordinator\.url is 'http://localhost:8443'; write https"),
        ("boss.pub", "south.pub", r"coordinator\.key is the key of a site"),
        ('ca = "ca.crt"', 'ca = "cb.crt"', r"coordinator\.ca is .* does not exist"),
        ('path = "x.csv"', 'paht = "x.csv"', r"data\.hearts\.path is missing"),
        ('path = "x.csv"', 'path = "x.csv"\nrows = 3', r"data\.hearts\.rows is not a key that is known"),
        ('never = ["id"]', 'never = ["age"]', "never names 'age', which `columns` allows"),
        ('never = ["id"]', 'never = ["id", "id"]', "never names 'id' twice"),
        ('never = ["id"]', 'never = ["id", 3]', "never holds 3"),
        ('south = "south.pub"', 'east = "south.pub"', "key of 'south', not of 'east'"),
        ('south = "south.pub"', 'north = "south.pub"', "key of 'south', not of 'north'"),
        ("poll = 5", "poll = 0", r"limits\.poll is 0; it has to be a number of seconds above 0"),
        ("poll = 5", "poll = true", r"limits\.poll is True; it has to be a number of seconds"),
        ("poll = 5", "poll = nan", r"limits\.poll is nan"),
        ("poll = 5", "poll = 1000", "more than 300 s"),
        ("largest = 1000000", "largest = 10", r"limits\.largest is 10; it has to be at least 65536"),
        ("[policy]\nmin_rows = 10", "", ""),
        ("[limits]", "[limit]", "limit is not a key that is known"),
        ("[policy]", "[policy", "this is no TOML"),
        ('name = "north"', 'name = "north"\nname = "north"', "this is no TOML"),
    ],
)  # fmt: skip
def test_wrong_settings_of_a_site(folder: Path, old: str, new: str, says: str) -> None:
    assert old in SITE
    (folder / "site.toml").write_text(SITE.replace(old, new))
    if not says:
        assert read_site(folder / "site.toml").policy == {}
        return
    with pytest.raises(InputError, match=says) as refused:
        read_site(folder / "site.toml")
    assert "\n" not in str(refused.value)
    assert str(folder) in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("127.0.0.1:8443", "8443", "listen is '8443'; write HOST:PORT"),
        ("127.0.0.1:8443", "x:99999", "write HOST:PORT"),
        ("boss.key", "north.key", "key is the key of a site"),
        ("localhost.crt", "other.crt", "certificate is .* does not exist"),
        ('south = "south.pub"', 'south = "north.pub"', "key of 'north', not of 'south'"),
        ('south = "south.pub"\nnorth = "north.pub"', "", "sites names no site"),
        ("quiet = 4", "quiet = -1", "quiet is -1"),
        ("quiet = 4", 'quiet = "4"', "quiet is '4'"),
        ("quiet = 4", "qiuet = 4", "qiuet is not a key that is known here"),
    ],
)
def test_wrong_settings_of_a_coordinator(folder: Path, old: str, new: str, says: str) -> None:
    assert old in HUB
    (folder / "sites.toml").write_text(HUB.replace(old, new))
    with pytest.raises(InputError, match=says):
        read_hub(folder / "sites.toml")


def test_settings_that_are_no_files(folder: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_site(folder / "none.toml")
    (folder / "x.toml").write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        read_site(folder / "x.toml")
    (folder / "x.toml").write_bytes(b"a = " + b"[" * 5000)
    with pytest.raises(InputError, match="this is no TOML"):
        read_site(folder / "x.toml")
    (folder / "x.toml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(InputError, match="are no settings"):
        read_site(folder / "x.toml")


def test_one_key_under_two_names(folder: Path) -> None:
    """A copied key would cancel its own masks."""
    from auqadmm.sites.keys import _line

    key = read_public(folder / "north.pub")
    twin = _line("auqadmm-1", "twin", key.sign + key.agree)
    (folder / "sites.toml").write_text(HUB + f'twin = "{twin}"\n')
    with pytest.raises(InputError, match="one key under two names, 'north' and 'twin'"):
        read_hub(folder / "sites.toml")


# ---------------------------------------------------------------------- audit
def test_lines_come_back(folder: Path) -> None:
    path = folder / "sent.jsonl"
    with Audit(path) as audit:
        audit.write("ab" * 16, 3, b"bytes", "map", "score", {"g": (64, 10)}, True, 0.25)
        assert audit.covers(b"bytes")
        assert not audit.covers(b"other")
        audit.write("ab" * 16, 4, b"no \x1b", "map", error="no \x1b")
    assert path.stat().st_mode & 0o777 == 0o600
    first, second = read_audit(path)
    assert isinstance(first, AuditLine)
    assert (first.number, first.shapes, first.bytes, first.masked) == (3, {"g": [64, 10]}, 5, True)
    assert json.loads(path.read_text().splitlines()[0])["operation"] == "score"
    text = table(iter([first, second]))
    assert "g:64×10" in text
    assert "\x1b" not in text
    assert [line.split()[3] for line in text.splitlines()[1:]] == ["3", "4"]
    path.write_text('{"time": 1}\n')
    with pytest.raises(InputError, match="line 1: this is no line of an audit file"):
        list(read_audit(path))
    with pytest.raises(InputError, match="cannot be read"):
        list(read_audit(folder / "none"))
    with pytest.raises(InputError, match="audit file cannot be written"):
        Audit(folder)


FULL = """
import resource, signal, sys
from auqadmm.sites.audit import Audit, AuditError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (700, resource.RLIM_INFINITY))
audit = Audit(sys.argv[1])
written = 0
for k in range(9):
    try:
        audit.write("a" * 32, k, b"x")
        written += 1
    except AuditError as error:
        sys.stdout.write(f"{written} {error}")
        break
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
audit.write("a" * 32, 99, b"x")
"""


def test_a_full_disk_stops_sending(folder: Path) -> None:
    """A limit on the size of files cuts a line off; once there is room again, lines go on after it."""
    path = folder / "sent.jsonl"
    found = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    count, _, says = found.stdout.partition(" ")
    assert says == "this site cannot write its audit file, so it sends nothing."
    assert [line.number for line in read_audit(path)] == [*range(int(count)), 99]
    if os.path.exists("/dev/full"):
        with Audit("/dev/full") as audit, pytest.raises(AuditError):
            audit.write("a", 1, b"x")
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
