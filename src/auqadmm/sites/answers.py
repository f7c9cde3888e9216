"""What the coordinator takes for an answer: to this very ask, whole, of the shape the other sites gave, and finite.

A site that computes wrong numbers of the right kind cannot be told from one with other rows. Everything else that is
wrong ends the run with the name of the site, before it gets into a sum.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from auqadmm.engines import protocol
from auqadmm.files.preprocessing import Summary
from auqadmm.problem.agreement import ProcessError, Tally
from auqadmm.sites.masks import FRACTION, SPARE, total, unmasked
from auqadmm.sites.session import FEWER_BITS
from auqadmm.words import listed, quoted

LARGEST_NUMBER = 1e150  # its square is a number yet; chosen, not measured


class _Wrong(Exception):
    """What is wrong with one answer."""


def understood(replies: Mapping[str, bytes], do: str, number: int) -> list[dict[str, Any]]:
    """The answers of sites to a request, in their order, each checked; `number`: of the message."""
    answers, shapes = {}, {}
    for name, data in replies.items():
        try:
            answers[name] = answer = _whole(data, number)
            if "message" in answer:
                shapes[name] = CHECKS.get(do, _nothing)(answer["message"])
        except _Wrong as wrong:
            raise ProcessError(f"Site {name} gave a wrong answer to {do!r}: {wrong}.") from None
        except Exception as error:  # of a reader, on what is no answer
            raise ProcessError(
                f"Site {name} gave a wrong answer to {do!r}: it cannot be read ({type(error).__name__})."
            ) from None
    _alike(shapes, do)
    return list(answers.values())


def _whole(data: bytes, number: int) -> dict[str, Any]:
    try:
        answer = protocol.loads(data)
    except protocol.ProtocolError as refusal:
        raise _Wrong(str(refusal)) from None
    if not isinstance(answer, dict) or ("message" in answer) == ("error" in answer):
        raise _Wrong("it is no answer")
    if "error" in answer and not (isinstance(answer["error"], str) and isinstance(answer.get("input"), bool)):
        raise _Wrong("it is no answer")
    if "message" in answer and answer.get("to") != number:
        raise _Wrong("it belongs to another ask")
    return answer


def _alike(shapes: Mapping[str, object], do: str) -> None:
    """All sites answer alike; else those that differ from most are named."""
    shapes = {name: shape for name, shape in shapes.items() if shape is not None}
    many = Counter(map(repr, shapes.values())).most_common()
    if len(many) < 2:
        return
    odd = [name for name, shape in shapes.items() if repr(shape) != many[0][0]]
    if many[0][1] == many[1][1]:  # nobody knows who is right
        odd = list(shapes)
    raise ProcessError(f"Sites gave answers of different shapes to {do!r}: see {listed(odd)}.")


# ---------------------------------------------------------------------- by request; returns what has to be alike
def _nothing(message: object) -> object:
    if message is not None:
        raise _Wrong("nothing was asked for")
    return None


def _count(message: object) -> object:
    if not _whole_number(message):
        raise _Wrong("it is not the number of its blocks")
    return None


def _terms(message: Any) -> object:
    fits = message["masks"] in ("required", "allowed", "never") and isinstance(message["sums_only"], bool)
    if not fits or not all(isinstance(name, str) for name in message["columns"]):
        raise _Wrong("these are no terms")
    return None


def _hello(message: object) -> object:
    if not isinstance(message, bytes):
        raise _Wrong("it is no key for masks")
    return len(message)


def _summary(message: Any) -> object:
    told = Summary.read(message)
    _finite(torch.from_numpy(told.moments), "moments")
    if not (_number(told.weight) and _whole_number(told.rows)):
        raise _Wrong("rows and weight are no numbers")
    if not all(isinstance(x, str) for pair in told.kinds.items() for x in pair):
        raise _Wrong("kinds of columns are no words")
    for levels in told.levels.values():
        if not all(isinstance(level, str) and _number(times) for level, times in levels.items()):
            raise _Wrong("levels are no words with numbers")
    return sorted(told.kinds)


def _tally(message: Any) -> object:
    told = Tally.read(message)
    if not (len(told.names) == len(told.rows) == len(told.weights) and all(isinstance(n, str) for n in told.names)):
        raise _Wrong("its lists are not of one length")
    if not (all(map(_whole_number, told.rows)) and all(map(_number, told.weights))):
        raise _Wrong("rows and weights are no numbers")
    return told.features  # none, if it has no blocks


def _names(message: object) -> object:
    if not isinstance(message, list | tuple) or not all(isinstance(name, str) for name in message):
        raise _Wrong("these are no names of columns")
    return list(message)


def _sums(message: object) -> object:
    return _added(message, _finite)


def _mapped(finite: Callable[[Tensor, str], None]) -> Callable[[object], object]:
    def check(message: object) -> object:
        if not isinstance(message, list | tuple) or len(message) != 3:
            raise _Wrong("it has not three parts")
        nothing, out, seconds = message
        if not isinstance(nothing, bool) or not _number(seconds):
            raise _Wrong("it has not the parts of a sum")
        return nothing, _added(out, finite)

    return check


def _added(out: object, finite: Callable[[Tensor, str], None]) -> object:
    if not isinstance(out, dict):
        raise _Wrong("it has no named arrays")
    if "limbs" not in out:
        return {name: _array(x, name, finite) for name, x in out.items()}
    shapes = {name: tuple(shape) for name, shape in out["shapes"].items()}
    if shapes.keys() != out["limbs"].keys():
        raise _Wrong("limbs and shapes are of different arrays")
    for name, limbs in out["limbs"].items():
        fits = isinstance(limbs, np.ndarray) and limbs.dtype == np.uint64
        if not fits or limbs.shape != (math.prod(shapes[name]), 2):
            raise _Wrong(f"the masked numbers {quoted(name)} are not of their shape")
    return "masked", shapes


def _array(x: object, name: str, finite: Callable[[Tensor, str], None]) -> object:
    if not isinstance(x, Tensor):
        raise _Wrong(f"{quoted(name)} is no array")
    finite(x, name)
    return list(x.shape)


def _joined(message: object) -> object:
    """Arrays that are put one after another: all but their lengths is alike."""
    if not isinstance(message, dict):
        raise _Wrong("it has no named arrays")
    if message.keys() == {"sizes", "text", "arrays"}:  # of a checkpoint: it has to be readable one day
        sizes = message["sizes"].tolist()
        if [len(message["text"])] != [row[0] for row in sizes] or max(sizes[0][1], 0) != len(message["arrays"]):
            raise _Wrong("a part of a checkpoint is not of its size")
        if sizes[0][1] >= 0:
            json.loads(message["text"].numpy().tobytes())
    return {name: _rest(x, name) for name, x in message.items()}


def _gathered(message: object) -> object:
    return _rest(message, "it")


def _rest(x: object, name: str) -> object:
    if not isinstance(x, Tensor) or not x.ndim:
        raise _Wrong(f"{quoted(name)} is no array")
    _finite(x, name)
    return [str(x.dtype), *x.shape[1:]]


def _anything(message: object) -> object:
    return None


def _finite(x: Tensor, name: str) -> None:
    if x.is_floating_point() and not bool((x.abs() <= LARGEST_NUMBER).all()):  # nan is not
        what = "holds nan" if bool(x.isnan().any()) else f"holds {x.abs().max().item():.3g}"
        raise _Wrong(f"{quoted(name)} {what}")


def _no_nan(x: Tensor, name: str) -> None:
    if bool(x.isnan().any()):
        raise _Wrong(f"{quoted(name)} holds nan")


def _number(x: object) -> bool:
    return isinstance(x, int | float) and math.isfinite(x)


def _whole_number(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0


CHECKS: Mapping[str, Callable[[Any], object]] = {
    "open": _terms,
    "plan": _hello,
    "columns": _summary,
    "add": _sums,
    "design": _sums,
    "features": _names,
    "encode": _count,
    "make": _count,
    "read": _tally,
    "sum": _mapped(_finite),
    "minmax": _mapped(_no_nan),
    "concat": _joined,
    "gather": _gathered,
    "peek": _anything,
}


# ---------------------------------------------------------------------- sums
def added(parts: Sequence[Any]) -> dict[str, Tensor]:
    """Sums over sites, of answers in the clear or of limbs."""
    if "limbs" not in parts[0]:
        return {name: sum((p[name].double() for p in parts[1:]), x.double()) for name, x in parts[0].items()}
    sums = {}
    for name, shape in parts[0]["shapes"].items():
        bits = FEWER_BITS.get(name, FRACTION)
        values = unmasked(total([p["limbs"][name] for p in parts]), bits)
        if not (np.abs(values) <= len(parts) * math.ldexp(1.0, 127 - SPARE - bits)).all():
            raise ProcessError(
                f"The masks of {name!r} do not cancel, so one of the sites answered something else than was asked; "
                "masks hide which one."
            )
        sums[name] = torch.from_numpy(values).reshape(tuple(shape))
    return sums
