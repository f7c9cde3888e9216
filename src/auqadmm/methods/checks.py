"""Parameters that cannot work are refused where the method is made."""

from __future__ import annotations

import math


def positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number > 0, got {value!r}.")


def above_one(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 1):
        raise ValueError(f"{name} must be a finite number > 1, got {value!r}.")


def at_least_one(name: str, value: int) -> None:
    if isinstance(value, bool) or int(value) != value or value < 1:
        raise ValueError(f"{name} must be a whole number ≥ 1, got {value!r}.")


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}.")


def whole(name: str, value: int) -> None:
    if isinstance(value, bool) or int(value) != value or value < 0:
        raise ValueError(f"{name} must be a whole number ≥ 0, got {value!r}.")
