"""Functions of tensors that a GPU runs as one CUDA graph: launched once, not operation by operation.

The tensors of a local solve are small, and starting a kernel takes longer than running it. A function that was called
a few times with arguments of the same form (types, shapes, settings) is recorded, and replayed from then on: inputs
are copied to the buffers of the recording, outputs to new tensors, so that a call stays a pure function. One program
runs at a time, so all of them read and write the same few buffers, and use the same memory in between. Without
CUDA, with autograd, or where a recording is not possible (an operation that waits for the host), the function is
simply called.

What a function may do: anything that needs no tensor values on the host. Numbers among its arguments, and whatever
is listed in `Programs.fixed` (the data), belong to its form. Objects are flattened by their attributes, caches
included.
"""

from __future__ import annotations

import gc
import os
import types
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

# calls before the recording: libraries initialise in the first
WARM_CALLS = 1
# forms of arguments that are recorded for one function; a function never called twice with one form has none
FORMS = 16
# larger tensors are read in place instead of being copied: a call with others is another form
READ_IN_PLACE = 2**22
R = TypeVar("R")
CODE = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType)


class Programs:
    """Recordings of one owner, kept until `clear`. `fixed`: objects that are never copied."""

    def __init__(self, device: torch.device, fixed: tuple[object, ...] = ()) -> None:
        self.fixed = {id(x): x for x in fixed}
        self.active = device.type == "cuda" and os.environ.get("AUQADMM_GRAPHS", "1") != "0"
        self.calls: dict[Hashable, tuple[int, list[weakref.ref[Tensor]]]] = {}
        self.recorded: dict[Hashable, _Recording | None] = {}
        self.forms: dict[Callable[..., object], int] = {}
        self.large: dict[Callable[..., object], Hashable] = {}
        self.pool: Any = None
        self.buffers = Buffers()
        self.notes: dict[Hashable, int] = {}  # speed hints of callers; no result may depend on it

    def __call__(self, fn: Callable[..., R], *args: object) -> R:
        """fn(*args)."""
        recording, taken = self._recording(fn, args, loop=False)
        return fn(*args) if recording is None else recording(taken)

    def repeat(self, fn: Callable[..., R], times: int, state: R, *args: object) -> R:
        """state ← fn(state, *args), that many times; fn returns a state of the same form."""
        recording, taken = self._recording(fn, (state, *args), loop=True)
        if recording is not None:
            return recording(taken, times)
        for _ in range(times):
            state = fn(state, *args)
        return state

    def _recording(
        self, fn: Callable[..., object], args: tuple[object, ...], loop: bool
    ) -> tuple[_Recording | None, list[Tensor]]:
        """The recording of such a call, if there is one or it is due; and its input tensors."""
        if not self.active or torch.cuda.is_current_stream_capturing():
            return None, []
        taken = _Taken(self.fixed)
        first = (taken.form(args[0]),) if loop else ()
        taken.spare = True
        form = (fn, *first, *map(taken.form, args[len(first) :]))
        if form in self.recorded:
            return self.recorded[form], taken.tensors
        # large tensors are identified by their ids, which are reused after deletion
        seen, large = self.calls.get(form, (0, []))
        seen = seen + 1 if all(ref() is not None for ref in large) else 1
        self.calls[form] = seen, [weakref.ref(x) for x in taken.large]
        if seen <= WARM_CALLS or self.forms.get(fn, 0) >= FORMS:
            return None, []
        self.forms[fn] = self.forms.get(fn, 0) + 1
        if taken.large:  # of the recordings with references to large tensors only the last is kept
            self.forget(self.large.pop(fn, None))
            self.large[fn] = form
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        made = {key: len(tensors) for key, tensors in self.buffers.made.items()}
        try:
            self.recorded[form] = _Recording.of(fn, args, taken, self.pool, self.buffers, loop)
        except RuntimeError:  # synchronises with the host, or out of memory
            self.recorded[form] = None
            for key, tensors in self.buffers.made.items():  # the memory of a recording that failed
                del tensors[made.get(key, 0) :]
        return self.recorded[form], taken.tensors

    def clear(self) -> None:
        """Free the memory of recordings and data, which refer to each other, and of the matrix library,
        which keeps some for the stream that was recorded on."""
        if self.recorded and hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
            torch._C._cuda_clearCublasWorkspaces()
        self.active, self.fixed = False, {}
        self.recorded.clear()
        self.calls.clear()
        self.forms.clear()
        self.large.clear()
        self.buffers = Buffers()

    def drop(self, tensors: list[Tensor]) -> None:
        """Drop the recordings that refer to one of these large tensors."""
        ids = {id(x) for x in tensors}
        for fn, form in list(self.large.items()):
            recording = self.recorded.get(form)
            if recording is not None and ids & recording.fixed.keys():
                self.forget(self.large.pop(fn))

    def forget(self, form: Hashable) -> None:
        if self.recorded.pop(form, None) is not None:
            self.forms[form[0]] -= 1  # type: ignore[index]


class _Taken:
    """Flattened arguments: a hashable form, and the tensors in it, each once.

    `spare`: large tensors count as fixed.
    """

    def __init__(self, fixed: dict[int, object]) -> None:
        self.fixed = fixed
        self.large: list[Tensor] = []
        self.spare = False
        self.tensors: list[Tensor] = []
        self.kept: list[object] = []
        self.places: dict[int, int] = {}

    def form(self, x: object) -> Hashable:
        if isinstance(x, Tensor):
            return self._tensor(x)
        if x is None or isinstance(x, bool | int | float | str | torch.dtype | torch.device | torch.Size):
            return x
        if isinstance(x, tuple | list):
            return (type(x), *map(self.form, x))
        if isinstance(x, dict):
            return (dict, *((key, self.form(value)) for key, value in x.items()))
        if id(x) in self.fixed or isinstance(x, CODE) or not hasattr(x, "__dict__"):
            self.kept.append(x)
            return ("fixed", id(x))
        return (type(x), *((name, self.form(value)) for name, value in vars(x).items()))

    def _tensor(self, x: Tensor) -> Hashable:
        if self.spare and x.numel() > READ_IN_PLACE and id(x) not in self.places:
            self.fixed = {**self.fixed, id(x): x}
            self.large.append(x)
        if id(x) in self.fixed:
            return ("fixed", id(x))
        place = self.places.setdefault(id(x), len(self.tensors))
        if place == len(self.tensors):
            self.tensors.append(x)
        return place, form_of(x)


def _rebuilt(x: Any, fixed: dict[int, object], tensors: Iterator[Tensor], known: dict[int, Tensor]) -> Any:
    """A copy of x with other tensors in it, taken in the order in which `_Taken` found them."""
    if id(x) in fixed:
        return x
    if isinstance(x, Tensor):
        if id(x) not in known:
            known[id(x)] = next(tensors)
        return known[id(x)]
    if isinstance(x, tuple | list):
        parts = [_rebuilt(part, fixed, tensors, known) for part in x]
        return type(x)(parts) if not hasattr(x, "_fields") else type(x)(*parts)
    if isinstance(x, dict):
        return {key: _rebuilt(value, fixed, tensors, known) for key, value in x.items()}
    if x is None or isinstance(x, CODE) or not hasattr(x, "__dict__") or isinstance(x, torch.Size):
        return x
    twin = object.__new__(type(x))
    twin.__dict__.update({name: _rebuilt(value, fixed, tensors, known) for name, value in vars(x).items()})
    return twin


@dataclass
class _Recording:
    """One recorded call: where it reads, the graph, where it writes; the state of a loop in the same place."""

    fixed: dict[int, object]
    kept: list[object]  # other objects identified by id: kept alive, else ids would be reused
    buffers: Buffers
    read: list[Tensor]  # the memory behind each input, without expanded axes
    graph: torch.cuda.CUDAGraph
    result: Any
    wrote: list[Tensor]
    given: list[int | None]  # for every output: the input that it aliases, returned instead of copied
    state: int  # how many inputs are the state of a loop
    made: list[Hashable]  # the forms of new tensors like those written

    @classmethod
    def of(
        cls, fn: Callable[..., object], args: tuple[object, ...], taken: _Taken, pool: Any, buffers: Buffers, loop: bool
    ) -> _Recording:
        read = buffers.like([dense(x) for x in taken.tensors], "in")
        buffers.fill(read, taken.tensors)
        inputs = [base.expand(x.shape) for base, x in zip(read, taken.tensors, strict=True)]
        own = _rebuilt(args, taken.fixed, iter(inputs), {})
        graph = torch.cuda.CUDAGraph()
        stream, aside = torch.cuda.current_stream(), _aside(taken.tensors[0].device)
        aside.wait_stream(stream)
        with warnings.catch_warnings(), _uncollected(), torch.cuda.stream(aside):
            warnings.simplefilter("ignore")  # a failed recording is empty, and reports it
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                result = fn(*own)
                outputs = _Taken(taken.fixed)
                outputs.form(result)
                given = [None if loop else _place(x, inputs) for x in outputs.tensors]
                new = [x for x, place in zip(outputs.tensors, given, strict=True) if place is None]
                if loop:
                    wrote = read[: len(new)]
                    _back(wrote, own[0], new, taken.fixed)
                else:
                    wrote = buffers.like(new, "out")
                    copy(wrote, new)
            finally:
                graph.capture_end()
        stream.wait_stream(aside)
        result = _rebuilt(result, taken.fixed, _outputs(given, wrote, inputs), {})
        made = [form_of(torch.empty_like(x, memory_format=torch.preserve_format)) for x in wrote]
        state = len(wrote) if loop else 0
        return cls(taken.fixed, taken.kept, buffers, read, graph, result, wrote, given, state, made)

    def __call__(self, tensors: list[Tensor], times: int = 1) -> Any:
        self.buffers.fill(self.read, tensors)
        self.buffers.spoiled(self.read[: self.state])
        for _ in range(times):
            self.graph.replay()
        out = [torch.empty_like(x, memory_format=torch.preserve_format) for x in self.wrote]
        copy(out, self.wrote)
        for new, form in zip(out, self.made, strict=True):
            new._auqadmm_form = form  # type: ignore[attr-defined]
        return _rebuilt(self.result, self.fixed, _outputs(self.given, out, tensors), {})


def _place(x: Tensor, inputs: list[Tensor]) -> int | None:
    """Which of the inputs x is."""
    return next((i for i, y in enumerate(inputs) if y is x), None)


def _outputs(given: list[int | None], new: list[Tensor], inputs: list[Tensor]) -> Iterator[Tensor]:
    """All outputs in their order: aliased inputs, and new ones."""
    fresh = iter(new)
    return (next(fresh) if place is None else inputs[place] for place in given)


def _back(read: list[Tensor], state: object, new: list[Tensor], fixed: dict[int, object]) -> None:
    """Write the new state where the old one is read."""
    old = _Taken(fixed)
    old.form(state)
    if [x.shape for x in old.tensors] != [x.shape for x in new]:
        raise RuntimeError("the state changed its form")
    copy(read, new)


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection: deleting a graph while another is recorded invalidates the recording."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    """The stream on which everything is recorded: libraries keep a workspace per stream."""
    return torch.cuda.Stream(device)


# ---------------------------------------------------------------------- memory of recordings


class Buffers:
    """Memory that recordings read from and write to, by form; each takes as many of a form as it needs."""

    def __init__(self) -> None:
        self.made: dict[Hashable, list[Tensor]] = {}
        self.holds: dict[int, Callable[[], Tensor | None]] = {}  # what was last copied there

    def like(self, tensors: list[Tensor], use: str) -> list[Tensor]:
        out: list[Tensor] = []
        taken: dict[Hashable, int] = {}
        for x in tensors:
            form = (use, form_of(x))
            made, i = self.made.setdefault(form, []), taken.get(form, 0)
            if i == len(made):
                made.append(torch.empty_like(x, memory_format=torch.preserve_format))
            out.append(made[i])
            taken[form] = i + 1
        return out

    def fill(self, buffers: list[Tensor], tensors: list[Tensor]) -> None:
        """Copy; tensors are never written to, so unchanged contents need not be copied again."""
        news = [i for i, x in enumerate(tensors) if self.holds.get(id(buffers[i]), _nothing)() is not x]
        copy([buffers[i] for i in news], [dense(tensors[i]) for i in news])
        for i in news:
            self.holds[id(buffers[i])] = weakref.ref(tensors[i])

    def spoiled(self, buffers: list[Tensor]) -> None:
        for x in buffers:
            self.holds.pop(id(x), None)


def _nothing() -> None:
    return None


def form_of(x: Tensor) -> Hashable:
    """Shape, strides and dtype, cached on the tensor: querying them takes longer than comparing them."""
    known = getattr(x, "_auqadmm_form", None)
    if known is None:
        known = (x.shape, x.stride(), x.dtype, x.device)
        x._auqadmm_form = known  # type: ignore[attr-defined]
    return known


def dense(x: Tensor) -> Tensor:
    """x without its expanded axes: every entry once."""
    if 0 not in x.stride():
        return x
    return x.as_strided([1 if s == 0 else n for n, s in zip(x.shape, x.stride(), strict=True)], x.stride())


def copy(to: list[Tensor], source: list[Tensor]) -> None:
    """Many copies in few launches, one per dtype."""
    for dtype in {x.dtype for x in to}:
        pairs = [(a, b) for a, b in zip(to, source, strict=True) if a.dtype == dtype]
        torch._foreach_copy_([a for a, _ in pairs], [b for _, b in pairs])
