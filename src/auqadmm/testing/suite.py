"""What the conformance suites share: laws are methods `test_…`, for pytest or without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


class Suite:
    """Laws as methods whose names begin with `test_`.

    With pytest: a subclass `class TestMine(…Suite)` that sets one attribute is collected like any test class. Without:
    `verify()` raises an AssertionError that names every law that fails, `failures()` returns them.
    """

    def checks(self) -> dict[str, Callable[[], None]]:
        """Every law by name, in the order in which they are written."""
        names = [name for cls in reversed(type(self).__mro__) for name in vars(cls) if name.startswith("test_")]
        return {name.removeprefix("test_").replace("_", " "): getattr(self, name) for name in dict.fromkeys(names)}

    def failures(self) -> dict[str, str]:
        """Check every law; returns failures by name."""
        wrong = {}
        for name, check in self.checks().items():
            try:
                check()
            except Exception as error:
                wrong[name] = f"{type(error).__name__}: {error}"
        return wrong

    def verify(self) -> None:
        """Check every law; an AssertionError that names what failed."""
        wrong = self.failures()
        need(not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items()))

    def under_test(self, name: str) -> Any:
        """The attribute that the subclass set."""
        part = getattr(self, name, None)
        if part is None:
            raise TypeError(f"{type(self).__name__} must set `{name}`: {name} = …")
        return part


def need(fact: bool, otherwise: str) -> None:
    """An assertion that also holds under `python -O`."""
    if not fact:
        raise AssertionError(otherwise)


def close(what: str, a: Tensor, b: Tensor, tolerance: float, scale: float | None = None) -> None:
    """Are two tensors the same, relative to the largest entry of b or to `scale`?"""
    need(a.shape == b.shape, f"{what} has shape {tuple(a.shape)} instead of {tuple(b.shape)}")
    if not b.numel():
        return
    need(bool(a.isfinite().all()) or not bool(b.isfinite().all()), f"{what} is not finite")
    limit = tolerance * (float(b.abs().max()) if scale is None else scale)
    off = float((a - b).abs().max())
    need(off <= limit, f"{what} is off by {off:.1e}, more than {limit:.1e}")
