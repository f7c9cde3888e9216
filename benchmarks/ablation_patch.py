"""How a heuristic is switched off from outside: names of the library are replaced for the length of one run.

A switch whose name is not there, that changes nothing, or whose code no run ever came by is an error: a table that
says "no effect" must mean it.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

Hit = Callable[[], None]
Make = Callable[[Any, Hit], Any]


class NotReached(RuntimeError):
    """The run never came by the code that was switched off."""


@dataclass(frozen=True)
class Patch:
    """`where`: "package.module:Class.name"; `make` gets what is there, and a function to call when it is used."""

    where: str
    make: Make

    def place(self) -> tuple[Any, str]:
        module, _, path = self.where.partition(":")
        owner: Any = importlib.import_module(module)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        if name not in vars(owner):
            raise LookupError(f"{self.where} is not there")
        return owner, name


@dataclass(frozen=True)
class Switch:
    """One heuristic, off.

    `off` says what is switched off; `code` which files hold it and `lines` about how many lines of them would go.
    `settings` are those of the method; `environment` variables; `probes` functions that a run must call for the switch
    to count as reached. `models`, `priors` and `device` ("" for any) say where it applies; `only` are names of cases.
    """

    name: str
    off: str
    code: str
    lines: int
    settings: dict[str, Any] = field(default_factory=dict)
    patches: tuple[Patch, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    probes: tuple[str, ...] = ()
    method: str = "auq-lr"
    models: tuple[str, ...] = ("elastic", "multinomial", "svm")
    priors: tuple[str, ...] = ("",)
    device: str = ""
    only: tuple[str, ...] = ()

    def check(self) -> None:
        """Is everything there that is to be replaced?"""
        for patch in (*self.patches, *(Patch(path, counted) for path in self.probes)):
            owner, name = patch.place()
            old = vars(owner)[name]
            new = patch.make(old, lambda: None)
            if new is old or (isinstance(new, int | float) and new == old):
                raise LookupError(f"{self.name}: {patch.where} would stay as it is")
        if not (self.settings or self.patches or self.environment):
            raise LookupError(f"{self.name} changes nothing")
        if not (self.settings or self.probes or any(callable(_made(p)) for p in self.patches)):
            raise LookupError(f"{self.name}: nobody would see whether it is reached")


def _made(patch: Patch) -> Any:
    owner, name = patch.place()
    new = patch.make(vars(owner)[name], lambda: None)
    return new.fget if isinstance(new, property) else new


@contextmanager
def switched(switch: Switch) -> Iterator[None]:
    """The library without this heuristic; raises `NotReached` at the end of a run that never asked for it."""
    hits: dict[str, int] = {}

    def hit_of(name: str) -> Hit:
        def hit() -> None:
            hits[name] = hits.get(name, 0) + 1

        return hit

    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, switch.environment))
        for patch in (*(Patch(path, counted) for path in switch.probes), *switch.patches):
            owner, name = patch.place()
            new = patch.make(vars(owner)[name], hit_of(patch.where))
            stack.enter_context(mock.patch.object(owner, name, new))
        yield
    missed = [path for path in switch.probes if path not in hits]
    tried = [patch.where for patch in switch.patches if callable(_made(patch))]
    if missed or (tried and not hits):
        raise NotReached(f"{switch.name}: never came by {', '.join(missed or tried)}")


# ---------------------------------------------------------------------- ways to replace
def instead(value: Any) -> Make:
    """A number in place of another."""
    return lambda old, hit: value


def counted(old: Any, hit: Hit) -> Any:
    """As it was, but seen."""
    return around(lambda old, hit, *args, **kwargs: old(*args, **kwargs))(old, hit)


def around(fn: Callable[..., Any], always: bool = True) -> Make:
    """`fn(old, hit, *arguments)` in place of `old(*arguments)`; each call counts, unless fn says itself which do."""

    def make(old: Any, hit: Hit) -> Any:
        inner = old.fget if isinstance(old, property) else old

        @functools.wraps(inner)
        def new(*args: Any, **kwargs: Any) -> Any:
            if always:
                hit()
            return fn(inner, hit, *args, **kwargs)

        return property(new) if isinstance(old, property) else new

    return make


def returns(fn: Callable[..., Any]) -> Make:
    """`fn(*arguments)` in place of it."""
    return around(lambda old, hit, *args, **kwargs: fn(*args, **kwargs))
