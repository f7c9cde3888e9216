"""Checks of parameters: one that cannot work is refused, in one sentence, where the object is made.

And of JSON that came over a network.
"""

from __future__ import annotations

import json
import math
from numbers import Integral, Real
from typing import Any

from auqadmm.errors import InputError


def is_number(value: object) -> bool:
    """A real number, not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def whole_number(name: str, value: float, least: int = 0) -> int:
    """`value` as an int, or one clear sentence."""
    if not is_number(value) or not math.isfinite(value) or int(value) != value or value < least:
        raise InputError(f"{name} must be a whole number ≥ {least}, got {value!r}.")
    return int(value)


def at_least_one(name: str, value: int) -> None:
    whole_number(name, value, least=1)


def check_integer(name: str, value: object, least: int | None = None) -> None:
    """Refuse a parameter that is not an integer, or is below `least`; 2.0 is none."""
    ok = isinstance(value, Integral) and not isinstance(value, bool)
    if not ok or (least is not None and int(value) < least):  # type: ignore[call-overload]
        bound = "" if least is None else f" of at least {least}"
        raise InputError(f"{name} must be an integer{bound}, got {value!r}.")


def check_count(name: str, value: int) -> None:
    """Refuse limits below one."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} must be a positive integer; got {value!r}.")


def positive(name: str, value: float) -> None:
    if not (is_number(value) and math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a finite number > 0, got {value!r}.")


def above_one(name: str, value: float) -> None:
    if not (is_number(value) and math.isfinite(value) and value > 1):
        raise InputError(f"{name} must be a finite number > 1, got {value!r}.")


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}.")


def relaxation(value: float) -> None:
    if not (is_number(value) and 1.0 <= value < 2.0):
        raise InputError(f"relaxation must lie in [1, 2), got {value!r}.")


def round_cost(value: object) -> None:
    if not (is_number(value) and 0 <= float(value) < math.inf):  # type: ignore[arg-type]
        raise InputError(f"round_cost must be a number ≥ 0, got {value!r}.")


def strict_json(text: bytes) -> Any:
    """JSON in which no object has a name twice, since readers disagree on which counts; no NaN, no infinity."""
    return json.loads(text, object_pairs_hook=_once_each, parse_constant=_no_number)


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    once = dict(pairs)
    if len(once) < len(pairs):
        raise ValueError("a name occurs twice")
    return once


def _no_number(constant: str) -> float:
    raise ValueError(f"{constant} is no number of JSON")
