"""The codec by itself: values and tensors come back as they were, and unknown classes are refused."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from auqadmm.checkpoint.codec import CheckpointError, Reader, Registry, Writer, is_instance
from auqadmm.metrics.lowrank import LowRank
from auqadmm.states import REGISTRY

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Pair:
    a: torch.Tensor
    b: float | None = None


def there_and_back(value, registry=REGISTRY, refs=None):
    writer = Writer(registry, refs or {}, CPU)
    tree = json.loads(json.dumps(writer.encode(value, "x"), allow_nan=False))
    return Reader(registry, refs or {}, CPU, writer.arrays).decode(tree), writer


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)


@given(PLAIN)
def test_plain_values_come_back_equal(value):
    assert repr(there_and_back(value)[0]) == repr(value)


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.mT,
    "expanded": lambda x: x[:1].expand(7, -1, -1),
    "sliced": lambda x: x[..., 1:],
    "row": lambda x: x[1],
    "column": lambda x: x[..., 1:2],
    "every other": lambda x: x[:, ::2],
    "scalar": lambda x: x[0, 0, 0],
    "empty": lambda x: x[:, :0],
    "window on something large": lambda x: x.expand(3, 4, 5).reshape(-1)[::30],
    "overlapping": lambda x: x.reshape(-1).unfold(0, 4, 1),
    "odd strides of one": lambda x: x[:, :, :1].mT,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.bool])
def test_tensors_come_back_in_the_same_layout(layout, dtype):
    x = LAYOUTS[layout]((torch.arange(60) % 2 if dtype == torch.bool else torch.arange(60)).to(dtype).reshape(3, 4, 5))
    y, writer = there_and_back(x)
    assert y.dtype == x.dtype
    assert torch.equal(x, y)
    assert sum(a.numel() for a in writer.arrays.values()) <= max(x.numel(), 1)
    if layout not in ("empty", "window on something large", "overlapping"):
        assert y.stride() == x.stride()
        assert y.data_ptr() % 64 == x.data_ptr() % 64


def test_a_tensor_in_two_places_is_stored_once():
    x = torch.randn(5)
    (a, b), writer = there_and_back((x, x))
    assert a is b
    assert len(writer.arrays) == 1


def test_floats_and_nan_bits_are_exact():
    values = (0.1, 1 / 3, 5e-324, -0.0, math.inf, -math.inf)
    assert [x.hex() for x in there_and_back(values)[0]] == [x.hex() for x in values]
    nan = torch.tensor([math.nan, -math.nan, math.inf], dtype=torch.float64)
    assert torch.equal(there_and_back(nan)[0].view(torch.int64), nan.view(torch.int64))


def test_a_renamed_field_keeps_its_name_in_files():
    registry = Registry({"Pair": Pair}, renamed={Pair: {"b": "old"}})
    writer = Writer(registry, {}, CPU)
    tree = writer.encode(Pair(torch.ones(2), 3.0), "x")
    assert list(tree["fields"]) == ["a", "old"]
    reader = Reader(registry, {}, CPU, writer.arrays)
    assert reader.decode(tree).b == 3.0
    with pytest.raises(CheckpointError, match=r"the fields of Pair are not those of this version \(b\)"):
        reader.decode({"is": "Pair", "fields": {"a": tree["fields"]["a"], "b": 3.0}})
    with pytest.raises(CheckpointError, match=r"Pair\.old is a str"):
        reader.decode({"is": "Pair", "fields": {"a": tree["fields"]["a"], "old": "text"}})


def test_classes_outside_the_registry_are_refused_on_both_sides():
    registry = Registry({"Pair": Pair})
    pair, writer = there_and_back(Pair(torch.ones(2), 3.0), registry)
    assert pair.b == 3.0
    with pytest.raises(CheckpointError, match="A Pair at x cannot be saved"):
        Writer(REGISTRY, {}, CPU).encode(Pair(torch.ones(2)), "x")
    for value in (object(), {1: 2}, {"a": {3}}, print, b"bytes"):
        with pytest.raises(CheckpointError, match="cannot be saved"):
            Writer(registry, {}, CPU).encode(value, "x")
    tree = {"is": "Pair", "fields": {"a": {"tensor": "x.a", "shape": [2]}, "b": 1.0}}
    with pytest.raises(CheckpointError, match="'Pair', which is not among the registered ones"):
        Reader(REGISTRY, {}, CPU, writer.arrays).decode(tree)
    reader = Reader(registry, {}, CPU, writer.arrays)
    assert reader.decode(tree).b == 1.0
    assert reader.decode({"is": "Pair", "fields": {"a": tree["fields"]["a"]}}).b is None  # a field that came later
    for fields, words in (
        ({"a": 1, "b": 1.0}, r"Pair\.a is a int"),
        ({"a": {"tensor": "x.a", "shape": [2]}, "b": "text"}, r"Pair\.b is a str"),
        ({"b": 1.0}, r"the fields of Pair are not those of this version \(a\)"),
        ({"a": {"tensor": "x.a", "shape": [2]}, "c": 1.0}, r"the fields of Pair are not those of this version \(c\)"),
        ({"a": {"tensor": "x.a", "shape": [3]}, "b": None}, r"is \(2,\), not \(3,\)"),
    ):
        with pytest.raises(CheckpointError, match=words):
            reader.decode({"is": "Pair", "fields": fields})


def test_kinds_of_annotations():
    one = torch.ones(1)
    assert is_instance((one, one), tuple[torch.Tensor, torch.Tensor])
    assert not is_instance((one,), tuple[torch.Tensor, torch.Tensor])
    assert is_instance((1, 2, 3), tuple[int, ...])
    assert not is_instance((1, True), tuple[int, ...])
    assert is_instance(3, float)
    assert not is_instance(True, float)
    assert is_instance(None, int | None)
    assert not is_instance("x", int | None)
    assert not is_instance(one, LowRank)
