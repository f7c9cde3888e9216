"""Archives: exactly the expected files, all of them or none; a hostile archive is refused in one sentence."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auqadmm.paper.data import DataError
from auqadmm.paper.data.fetch import ALLOWANCE, MOST_FILES, unpack
from tests.data.serving import tar_gz

WANTED = {"in/a.bin": 5, "in/b.bin": 0}
GOOD = {"in/a.bin": b"aaaaa", "in/b.bin": b""}


def info(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size
    return made


def members(*more) -> list:
    return [*more, *((info(name), content) for name, content in GOOD.items())]


@pytest.fixture
def refuse(tmp_path):
    """Unpacking fails with one sentence that holds these words, and leaves no file, inside or outside."""

    def check(content: bytes, *words: str) -> None:
        archive, folder = tmp_path / "x.tar.gz", tmp_path / "here"
        archive.write_bytes(content)
        folder.mkdir(exist_ok=True)
        with pytest.raises(DataError) as caught:
            unpack(archive, folder, WANTED)
        message = str(caught.value)
        assert "\n" not in message
        assert all(word in message for word in (str(archive), "nothing was unpacked", *words)), message
        assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == [archive]

    return check


def test_expected_files_are_written_and_others_are_not(tmp_path):
    archive = tmp_path / "x.tar.gz"
    others = [(info("in", tarfile.DIRTYPE), b""), (info("in/readme"), b"hello"), (info("a.bin"), b"other")]
    archive.write_bytes(tar_gz(members(*others)))
    (tmp_path / "here" / "in").mkdir(parents=True)
    (tmp_path / "here" / "in" / "a.bin").write_bytes(b"older")
    unpack(archive, tmp_path / "here", WANTED)
    found = {str(p.relative_to(tmp_path / "here")): p.read_bytes() for p in (tmp_path / "here").rglob("*.*")}
    assert found == GOOD


def test_names_may_start_with_a_dot(tmp_path):
    (tmp_path / "x").write_bytes(tar_gz({f"./{name}": content for name, content in GOOD.items()}))
    unpack(tmp_path / "x", tmp_path, WANTED)
    assert (tmp_path / "in" / "a.bin").read_bytes() == b"aaaaa"


@pytest.mark.parametrize("name", ["../a.bin", "in/../../a.bin", "/tmp/a.bin", "..", "in\\..\\a.bin", "C:/a.bin"])
@pytest.mark.parametrize("last", [True, False])
def test_paths_that_lead_elsewhere(refuse, name, last):
    bad = [(info(name), b"bad")]
    refuse(tar_gz(members() + bad if last else members(*bad)), ascii(name), "leads out of its folder")


@pytest.mark.parametrize(
    "bad",
    [
        info("in/a.bin", tarfile.SYMTYPE, "/etc/passwd"),
        info("in", tarfile.SYMTYPE, "/tmp"),
        info("other", tarfile.LNKTYPE, "../../etc/passwd"),
        info("in/a.bin", tarfile.CHRTYPE),
        info("device", tarfile.BLKTYPE),
        info("in/pipe", tarfile.FIFOTYPE),
        info("unknown", b"Z"),
    ],
    ids=lambda bad: f"{bad.name}-{bad.type!r}",
)
def test_links_and_devices(refuse, bad):
    refuse(tar_gz(members((bad, b""))), "no plain file")


def test_a_sparse_file(refuse):
    made = info("in/sparse")
    made.pax_headers = {"GNU.sparse.size": "10000000000000", "GNU.sparse.numblocks": "0", "GNU.sparse.map": "0,1"}
    refuse(tar_gz([(made, b"1"), *members()]))


@pytest.mark.parametrize("content", [b"aaaa", b"aaaaaa", b""])
def test_another_size(refuse, content):
    refuse(tar_gz(GOOD | {"in/a.bin": content}), "in/a.bin", f"{len(content)} bytes, not 5")


def test_missing_and_repeated_members(refuse):
    refuse(tar_gz({"in/a.bin": b"aaaaa"}), "holds no in/b.bin")
    refuse(tar_gz({}), "holds no in/a.bin")
    refuse(tar_gz(members((info("in/a.bin"), b"aaaaa"))), "second time")


def test_too_many_members(refuse):
    refuse(tar_gz([(info(f"x{k}"), b"") for k in range(MOST_FILES + 1)]), "more than 1000 files")


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_bomb_is_not_decompressed(refuse, kind):
    """Half a gigabyte of zeros in half a megabyte, as a file or as a header that a parser would read at once."""
    head = info("in/zeros", kind, size=1 << 29).tobuf()
    content = io.BytesIO()
    with gzip.open(content, "wb", compresslevel=1) as file:
        file.write(head)
        for _ in range(1 << 9):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        refuse(content.getvalue(), "far more than it should")
        assert tracemalloc.get_traced_memory()[1] < 10 * ALLOWANCE
    finally:
        tracemalloc.stop()


def test_a_size_that_is_not_there(refuse):
    head = info("in/a.bin", size=5).tobuf()
    refuse(gzip.compress(head + b"aa"), "damaged")
    refuse(gzip.compress(info("in/a.bin", size=2**40).tobuf()), "1099511627776 bytes, not 5")


def test_what_is_no_archive(refuse):
    good = tar_gz(GOOD)
    for content in (b"", b"hello", good[:40], good[:-9], gzip.compress(b""), gzip.compress(b"x" * 2000)):
        refuse(content)


@given(seed=st.integers(0, 2**32))
def test_damage_anywhere_is_refused_or_harmless(tmp_path_factory, seed):
    rng = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("damage")
    plain = bytearray(gzip.decompress(tar_gz(GOOD)))
    for place in rng.integers(0, 2048, rng.integers(1, 5)):
        plain[place] = rng.integers(0, 256)
    (folder / "x").write_bytes(gzip.compress(plain))
    try:
        unpack(folder / "x", folder / "here", WANTED)
        expected = {folder / "here" / name for name in WANTED}
    except DataError:
        expected = set()
    assert {path for path in folder.rglob("*") if path.is_file()} == expected | {folder / "x"}
