"""Hits, misses, damage, other versions of the code."""

import numpy as np
import pytest

from auqadmm.paper import store as store_module
from auqadmm.paper.store import COLUMNS, Record, Store
from tests.experiments.specs import run_spec

RECORD = Record({name: [1, 2] if name == "iteration" else [0.5, None] for name in COLUMNS}, {"name": "x", "n": 3})


@pytest.fixture(params=["parquet", "json"])
def store(tmp_path, request, monkeypatch):
    if request.param == "json":
        monkeypatch.setattr(store_module, "_pyarrow", lambda: None)
    return Store(tmp_path)


def test_what_is_put_is_got(store):
    path = store.put(run_spec(), RECORD)
    assert path.suffix in (".parquet", ".json")
    found = store.get(run_spec())
    assert dict(found.columns) == dict(RECORD.columns)
    assert found.about == RECORD.about
    assert found.rows()[1]["gap"] is None
    assert store.get(run_spec("rb-admm")) is None
    assert [p.name for p in store.folder.iterdir()] == [path.name]  # nothing half-written


@pytest.mark.parametrize("damage", [b"", b"PAR1 nonsense", b"{}"])
def test_a_damaged_entry_is_a_miss_and_is_replaced(store, damage):
    path = store.put(run_spec(), RECORD)
    path.write_bytes(damage)
    assert store.get(run_spec()) is None
    store.put(run_spec(), RECORD)
    assert store.get(run_spec()) is not None


def test_an_entry_that_fails_to_be_written_leaves_nothing(store, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    for name in ("_write_parquet", "_write_json"):
        monkeypatch.setattr(store_module, name, fail)
    with pytest.raises(OSError, match="disk full"):
        store.put(run_spec(), RECORD)
    assert list(store.folder.iterdir()) == []


def test_other_code_is_a_miss_unless_any_will_do(store, monkeypatch):
    store.put(run_spec(), RECORD)
    monkeypatch.setattr(store_module, "code", lambda: "00000000")
    assert store.get(run_spec()) is None
    assert Store(store.folder, any_code=True).get(run_spec()) is not None


def test_arrays(store):
    assert store.get_arrays(run_spec()) is None
    path = store.put_arrays(run_spec(), {"a": np.arange(3), "b": np.array("text")})
    found = store.get_arrays(run_spec())
    assert found["a"].tolist() == [0, 1, 2]
    assert str(found["b"]) == "text"
    path.write_bytes(b"broken")
    assert store.get_arrays(run_spec()) is None


def test_the_code_has_one_digest():
    assert store_module.code() == store_module.code()
    assert len(store_module.code()) == 8
