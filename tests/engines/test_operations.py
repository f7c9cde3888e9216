"""The list of operations: complete, and nothing else can be asked."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import pickle
import pkgutil
import sys

import numpy as np
import pytest
import scipy.sparse
import torch

import auqadmm as aq
from auqadmm.blocks.rows import Loss
from auqadmm.columns import InFrame
from auqadmm.core.consensus import ConsensusADMM
from auqadmm.core.reduce import _flag, score
from auqadmm.engines import operations, protocol
from auqadmm.engines.driver import Holder
from auqadmm.local import NewtonCG, direct_suits
from auqadmm.methods import AUQ
from auqadmm.problem.regularizers import Regularizer

# bases, and what holds a user's function
NOT_SENT = {"RowLoss", "_Elastic", "CustomLoss", "CustomRegularizer"}


@functools.cache
def library():
    """Every module but commands and the paper's experiments."""
    for found in pkgutil.walk_packages(aq.__path__, "auqadmm."):
        if not any(part in found.name for part in (".cli", ".paper", "__main__")):
            importlib.import_module(found.name)
    return [m for name, m in sys.modules.items() if name.startswith("auqadmm.") and ".paper" not in name]


def derived(base):
    return [
        c for child in base.__subclasses__() for c in (child, *derived(child)) if c.__module__.startswith("auqadmm")
    ]


@pytest.mark.parametrize("table", ["FUNCTIONS", "QUERIES", "STEPS", "CLASSES", "CONSTANTS"])
def test_every_name_stands_for_something(table):
    for name, place in getattr(operations, table).items():
        assert operations.thing(place) is not None, name


def test_the_fields_of_every_listed_class_can_be_checked():
    for place in operations.ARGUMENTS.values():
        assert protocol.ARGUMENT_CLASSES.hints_of(operations.thing(place)) is not None


def test_names_are_unique():
    tables = (operations.FUNCTIONS, operations.QUERIES, operations.STEPS)
    names = [name for table in tables for name in table]
    assert len(names) == len(set(names))
    assert len(set(operations.ARGUMENTS.values())) == len(operations.ARGUMENTS)


@pytest.mark.parametrize("base", [Loss, Regularizer, ConsensusADMM])
def test_every_part_of_the_library_can_be_sent(base):
    library()
    missing = [c for c in derived(base) if operations.place_of(c) not in operations.ARGUMENT_NAMES]
    assert [c.__qualname__ for c in missing if c.__name__ not in NOT_SENT and ".paper" not in c.__module__] == []


def test_every_map_over_blocks_is_in_the_list():
    """Functions of (shard, blocks, …), and objects that are called so."""
    missing = []
    for module in library():
        for x in vars(module).values():
            if getattr(x, "__module__", None) != module.__name__:
                continue
            if inspect.isclass(x) and "__call__" in vars(x):
                taken = list(inspect.signature(vars(x)["__call__"]).parameters)[1:2]
                if taken == ["shard"] and operations.place_of(x) not in operations.ARGUMENT_NAMES:
                    missing.append(operations.place_of(x))
            if inspect.isfunction(x):
                taken = list(inspect.signature(x).parameters)
                follows = taken[taken.index("shard") + 1 :][:1] if "shard" in taken else []
                if follows == ["blocks"] and operations.place_of(x) not in operations.FUNCTION_NAMES:
                    missing.append(operations.place_of(x))
    assert missing == []


# ---------------------------------------------------------------------- there and back
X = np.arange(6.0).reshape(2, 3)
VALUES = [
    score,
    functools.partial(_flag, direct_suits),
    AUQ().dual,
    InFrame(AUQ().dual_primal, "run"),
    NewtonCG(tol=1e-9),
    aq.GroupLasso(0.1, [0, 0, 1]),
    torch.float32,
    b"bytes",
    b"",
    range(2, 9, 3),
    {1, 2},
    {1: "a", 2.5: None},
    np.array(["a", "ä"]),
    np.array(["2020-01-01"], dtype="datetime64[D]"),
    np.array(["a", None, 1], dtype=object),
    np.zeros((0, 3)),
    np.array(2.0),
    X.T,
    float("nan"),
    torch.arange(6.0).reshape(2, 3).T,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_values_come_back(value):
    back = protocol.loads(protocol.dumps(value))
    if isinstance(value, np.ndarray):
        assert back.dtype == value.dtype
        np.testing.assert_array_equal(back, value)
    elif isinstance(value, torch.Tensor):
        assert back.stride() == value.stride()
        assert torch.equal(back, value)
    elif isinstance(value, functools.partial):
        assert (back.func, back.args) == (value.func, value.args)
    else:
        assert repr(back) == repr(value)


def test_sparse_matrices_come_back():
    A = scipy.sparse.random(5, 4, 0.4, random_state=0, format="csr")
    assert (protocol.loads(protocol.dumps(A)) != A).nnz == 0


@pytest.mark.parametrize("value", [lambda shard, blocks: None, abs, aq.CustomLoss(torch.sum), object(), pickle.loads])
def test_what_is_not_listed_cannot_be_sent(value):
    with pytest.raises(aq.InputError, match=r"own_code=True"):
        protocol.dumps(value)
    assert protocol.loads(protocol.dumps(value, own_code=True), own_code=True) is not None


def test_pickles_are_not_read_where_they_are_not_asked_for():
    sent = protocol.dumps(lambda: 1, own_code=True)
    with pytest.raises(protocol.ProtocolError):
        protocol.loads(sent)


def test_an_engine_says_how_to_allow_own_code():
    """Of a driver engine without `own_code`: nothing was sent."""
    from tests.engines.test_driver import InHere

    problem = aq.Problem(aq.CustomLoss(lambda z, y: (z[:, 0] - y) ** 2), aq.L2(1.0), [(X, [1.0, 2.0])])
    with pytest.raises(aq.InputError, match="own_code=True"):
        aq.solve(problem, "c-admm", InHere(1))


# ---------------------------------------------------------------------- hostile messages
def asked(tree, arrays=None):
    return protocol.message({"number": 1, "alive": [], "setup": None, "knows": None, **tree}, arrays or {})


def deep(levels):
    tree = 1
    for _ in range(levels):
        tree = {"list": [tree]}
    return tree


HOSTILE = {
    "nothing": b"",
    "garbage": b"\x80\x04\x95" + b"x" * 100,
    "a pickle": pickle.dumps(sorted),
    "too long a head": (2**62).to_bytes(8, "little") + b"{}",
    "no json": (4).to_bytes(8, "little") + b"{{{{",
    "deep json": (200_000).to_bytes(8, "little") + b"[" * 200_000,
    "no request": protocol.message({"hello": 1}, {}),
    "unknown request": asked({"do": "shell", "with": []}),
    "a private method": asked({"do": "_version", "with": [1]}),
    "dunder": asked({"do": "_init__", "with": []}),
    "a function by its path": asked({"do": "sum", "with": [{"op": "os:system"}, None, "true", 1]}),
    "a class by its path": asked(
        {"do": "sum", "with": [{"is": "subprocess.Popen", "fields": {"args": "true"}}, None, None, 1]}
    ),
    "a pickle inside": asked(
        {"do": "put", "with": [{"pickle": "p"}, 1]}, {"p": np.frombuffer(pickle.dumps(sorted), np.uint8)}
    ),
    "nested": asked({"do": "put", "with": [deep(100), 1]}),
    "very nested": asked({"do": "put", "with": [deep(300), 1]}),
    "a huge array": asked(
        {"do": "put", "with": [{"tensor": "t", "shape": [2**39], "stride": [0]}, 1]}, {"t": np.zeros(1)}
    ),
    "wrong field": asked({"do": "sum", "with": [{"is": "null", "fields": {"logits": "text"}}, None, None, 1]}),
    "a step of another object": asked(
        {"do": "sum", "with": [{"op": "dual", "of": {"is": "L2", "fields": {"l2": 1.0}}}, None, None, 1]}
    ),
    "numbers as text": asked({"do": "make", "with": ["x"]}),
    "an object array of objects": asked(
        {"do": "put", "with": [{"array": "a", "shape": [1], "kind": "|O"}, 1]}, {"a": np.zeros(8, np.uint8)}
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_messages_are_answered_with_an_error(name):
    answer = protocol.loads(Holder()(HOSTILE[name]))
    assert "error" in answer
    assert len(answer["error"]) < 500


def test_a_message_cut_anywhere_is_refused():
    whole = protocol.dumps({"a": np.arange(5.0), "b": [1, 2, {"c": 3}]})
    for length in range(0, len(whole), 7):
        with pytest.raises(protocol.ProtocolError):
            protocol.loads(whole[:length])


def test_random_changes_run_nothing():
    """Any change of a byte is a value or a refusal, never another exception."""
    rng = np.random.default_rng(5)
    sent = protocol.dumps((score, NewtonCG(), np.arange(4.0), {"x": 1.5}))
    for _ in range(400):
        changed = bytearray(sent)
        for at in rng.integers(0, len(sent), 3):
            changed[at] = rng.integers(0, 256)
        with contextlib.suppress(aq.InputError):
            protocol.loads(bytes(changed))


def test_text_is_json():
    sent = protocol.dumps({"op": score})
    assert json.loads(sent[8 : 8 + int.from_bytes(sent[:8], "little")]) == {"dict": {"op": {"op": "score"}}}
