"""Parameters that cannot work are refused where the method is made."""

from __future__ import annotations

import math

from auqadmm.core.stopping import is_number, whole_number
from auqadmm.errors import InputError


def positive(name: str, value: float) -> None:
    if not (is_number(value) and math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a finite number > 0, got {value!r}.")


def above_one(name: str, value: float) -> None:
    if not (is_number(value) and math.isfinite(value) and value > 1):
        raise InputError(f"{name} must be a finite number > 1, got {value!r}.")


def at_least_one(name: str, value: int) -> None:
    whole_number(name, value, least=1)


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}.")


def whole(name: str, value: int) -> None:
    whole_number(name, value)


def relaxation(value: float) -> None:
    if not (is_number(value) and 1.0 <= value < 2.0):
        raise InputError(f"relaxation must lie in [1, 2), got {value!r}.")


def round_cost(value: object) -> None:
    if not (is_number(value) and 0 <= float(value) < math.inf):  # type: ignore[arg-type]
        raise InputError(f"round_cost must be a number ≥ 0, got {value!r}.")
