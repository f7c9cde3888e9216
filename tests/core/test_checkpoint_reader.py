"""The reader meets hostile files: whatever they hold, it restores or refuses, soon and in little memory."""

from __future__ import annotations

import copy
import hashlib
import json
import resource
import shutil
import struct
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import auqadmm as aq
from auqadmm import api
from auqadmm.checkpoint.codec import CheckpointError
from auqadmm.checkpoint.settings import Saved
from tests.core.checkpoints import image, no_waiting
from tests.problems import least_squares

__all__ = ["no_waiting"]  # a fixture

FUZZ = settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)


class Captured(Exception):
    """Carries what `solve` was about to run."""


@pytest.fixture(scope="module", params=["c-admm", "auq-lr"])
def saved(request, tmp_path_factory):
    """One checkpoint, and a function that restores from a folder as `solve` would."""
    folder = tmp_path_factory.mktemp("fuzz")
    problem = least_squares() if request.param == "c-admm" else image()
    keep = aq.Checkpoint(folder / "run", keep=1)
    aq.solve(problem, request.param, max_iter=5, checkpoint=keep)
    (good,) = folder.glob("run/checkpoint-*")

    def restore():
        def capture(method, setup, reduce, stopping, callbacks, evaluate_every, keeper, clock):
            raise Captured(keeper, setup)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(api, "run", capture)
            with pytest.raises(Captured) as caught:
                aq.solve(problem, request.param, checkpoint=aq.Checkpoint(folder / "bad", resume=True))
        keeper, setup = caught.value.args
        try:
            return keeper.begin(setup)
        finally:
            keeper.close()

    def attempt(files):
        """The restored state, or None where the reader refused; anything else is a failure of the reader."""
        shutil.rmtree(folder / "bad", ignore_errors=True)
        (folder / "bad" / "checkpoint-000001").mkdir(parents=True)
        for name, data in files.items():
            (folder / "bad" / "checkpoint-000001" / name).write_bytes(data)
        began, memory = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            found = restore()
        except CheckpointError:
            found = None
        assert time.perf_counter() - began < 20
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 200_000, "kilobytes"
        return found

    attempt.files = {path.name: path.read_bytes() for path in good.iterdir()}
    return attempt


def forged(files):
    """The files with checksums that fit."""
    held = json.loads(files["checkpoint.json"])["content"]
    others = {name: data for name, data in files.items() if name != "checkpoint.json"}
    held["files"] = {n: {"size": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in others.items()}
    return {**others, "checkpoint.json": signed(held)}


def signed(content):
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps({"checksum": hashlib.sha256(text.encode()).hexdigest(), "content": content}).encode()


def test_the_fixture_restores_what_it_saved(saved):
    assert isinstance(saved(saved.files), Saved)
    assert isinstance(saved(forged(saved.files)), Saved)


# ------------------------------------------------------------------ damage
@FUZZ
@given(st.data())
def test_bits_flipped(saved, data):
    files = dict(saved.files)
    name = data.draw(st.sampled_from(sorted(files)))
    body = bytearray(files[name])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    found = saved({**files, name: bytes(body)})
    if bytes(body) != files[name] and name != "checkpoint.json":  # white space of the manifest means nothing
        assert found is None


@FUZZ
@given(st.data())
def test_cut_lengthened_or_replaced(saved, data):
    name = data.draw(st.sampled_from(sorted(saved.files)))
    body = saved.files[name]
    cut = body[: data.draw(st.integers(0, len(body)))]
    new = data.draw(st.sampled_from([cut, body + b" ", b"", data.draw(st.binary(max_size=200))]))
    found = saved({**saved.files, name: new})
    assert (found is None) or new.strip() == body.strip()
    saved(forged({**saved.files, name: new}) if name != "checkpoint.json" else {**saved.files, name: new})


# ------------------------------------------------------------------ forgery
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2**31, 2**63, 10**30, 1.5, 1e308, "", "nan", "../../x", [], {}, [[]]]),
    st.builds(lambda name: {"is": name, "fields": {}}, st.sampled_from(["os.system", "Blocks", "LowRank", "", "Row"])),
    st.builds(lambda name: {"ref": name}, st.sampled_from(["setup", "shard", "W", "regularizer", "nothing"])),
    st.builds(
        lambda name, shape, more: {"tensor": name, "shape": shape, **more},
        st.sampled_from(["run.shared.v", "blocks.u", "blocks.lam", "nothing"]),
        st.lists(st.sampled_from([0, 1, 3, 5, 6, 36, -1, 2**40, 2**62, "x", None]), max_size=5),
        st.sampled_from([{}, {"stride": [0, 0]}, {"stride": [0, 0, 0]}, {"lead": 63}, {"lead": -1}, {"host": 3}]),
    ),
    st.builds(lambda text: {"float": text}, st.sampled_from(["nan", "inf", "1e3", "__import__('os')"])),
)


def places(tree, path=()):
    yield path
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, x in inside:
        yield from places(x, (*path, key))


def mutated(tree, path, how, value):
    """A copy with one place replaced, removed, renamed or swapped in."""
    if not path:
        return value
    tree = copy.deepcopy(tree)
    at = tree
    for key in path[:-1]:
        at = at[key]
    last = path[-1]
    if how == "remove":
        del at[last]
    elif how == "add" and isinstance(at, dict):
        at["more"] = value
    elif how == "repeat" and isinstance(at, list):
        at.append(at[last])
    else:
        at[last] = value
    return tree


@FUZZ
@given(st.data())
def test_json_mutated(saved, data):
    name = data.draw(st.sampled_from([name for name in sorted(saved.files) if name.endswith(".json")]))
    tree = json.loads(saved.files[name])
    tree = tree["content"] if name == "checkpoint.json" else tree
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(places(tree))))
        how = data.draw(st.sampled_from(["replace", "remove", "add", "repeat"]))
        tree = mutated(tree, path, how, data.draw(ODD))
    if name == "checkpoint.json":
        saved({**saved.files, name: signed(tree)})
    else:
        saved(forged({**saved.files, name: json.dumps(tree).encode()}))


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"9" * 100_000,
        b"NaN",
        b"\xff\xfe",
        b'{"content": Infinity}',
        b'"' + b"a" * 10**6,
    ],
    ids=lambda text: repr(text[:10]),
)
@pytest.mark.parametrize("name", ["checkpoint.json", "shared.json", "history.json", "blocks-00000.json"])
def test_json_that_no_writer_wrote(saved, name, text):
    files = {**saved.files, name: text}
    assert saved(files if name == "checkpoint.json" else forged(files)) is None


def header(entries, body=b"", length=None):
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def entry(start, end, shape=(1,), dtype="F64"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


HEADERS = {
    "huge header": header({}, length=2**62),
    "header longer than the file": header({}, length=1000),
    "nothing": b"",
    "seven bytes": b"1234567",
    "not JSON": struct.pack("<Q", 4) + b"abcd",
    "huge shape": header({"run.shared.v": entry(0, 8, (2**61,))}, bytes(8)),
    "shape that overflows": header({"run.shared.v": entry(0, 8, (2**33, 2**33))}, bytes(8)),
    "offsets outside": header({"run.shared.v": entry(0, 2**40, (2**37,))}, bytes(8)),
    "offsets backwards": header({"run.shared.v": entry(8, 0)}, bytes(8)),
    "overlap": header({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)),
    "a hole": header({"a": entry(0, 8), "b": entry(16, 24)}, bytes(24)),
    "unknown dtype": header({"run.shared.v": entry(0, 8, dtype="OBJECT")}, bytes(8)),
    "negative": header({"run.shared.v": entry(-8, 0)}, bytes(8)),
    "empty with a shape": header({"run.shared.v": entry(0, 0, (5,))}),
    "deep": struct.pack("<Q", 100_000) + b"[" * 100_000,
    "path": header({"../../../etc/passwd": entry(0, 8)}, bytes(8)),
}


@pytest.mark.parametrize("what", HEADERS)
@pytest.mark.parametrize("name", ["shared.safetensors", "blocks-00000.safetensors"])
def test_hostile_headers(saved, name, what):
    assert saved(forged({**saved.files, name: HEADERS[what]})) is None


@FUZZ
@given(st.data())
def test_safetensors_mutated(saved, data):
    name = data.draw(st.sampled_from(["shared.safetensors", "blocks-00000.safetensors"]))
    body = saved.files[name]
    (length,) = struct.unpack("<Q", body[:8])
    tree = json.loads(body[8 : 8 + length])
    path = data.draw(st.sampled_from(list(places(tree))))
    tree = mutated(tree, path, data.draw(st.sampled_from(["replace", "remove", "add"])), data.draw(ODD))
    saved(forged({**saved.files, name: header(tree, body[8 + length :])}))


@FUZZ
@given(st.data())
def test_arrays_of_other_numbers_restore_or_are_refused(saved, data):
    """Forged numbers are numbers: they run no code and break nothing that reads them."""
    name = data.draw(st.sampled_from(["shared.safetensors", "blocks-00000.safetensors"]))
    body = bytearray(saved.files[name])
    (length,) = struct.unpack("<Q", body[:8])
    for _ in range(20):
        body[data.draw(st.integers(8 + length, len(body) - 1))] = data.draw(st.integers(0, 255))
    saved(forged({**saved.files, name: bytes(body)}))


def test_nothing_is_pickled(saved, monkeypatch):
    """Neither by us nor by what we call."""

    def forbidden(*args, **kwargs):
        raise AssertionError("pickle was used")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(f"pickle.{name}", forbidden)
    for name in ("load", "save"):
        monkeypatch.setattr(f"torch.{name}", forbidden)
    assert isinstance(saved(saved.files), Saved)
