"""Functions that a GPU replays: the same numbers as the functions themselves, whatever they are given.

Recording needs CUDA; without it a program is a call, and so says the first test.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import auqadmm as aq
from auqadmm import runtime
from auqadmm.local import LBFGS, Direct, NewtonCG, Released, descent
from auqadmm.runtime import Programs
from tests.problems import class_blocks, regression_blocks

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
GPU = torch.device("cuda")


@dataclass(frozen=True)
class Pair:
    x: Tensor
    y: Tensor
    factor: float = 2.0

    @cached_property
    def product(self) -> Tensor:
        return self.factor * self.x * self.y


def work(pair: Pair, more: tuple[Tensor, ...], data: Any = None) -> tuple[Pair, Tensor]:
    total = pair.product + sum(more)
    return Pair(total, pair.y, pair.factor), total.sum()


def test_without_a_gpu_a_program_is_a_call():
    run = Programs(torch.device("cpu"))
    seen = []
    assert run(lambda x: seen.append(x) or x, 3) == 3
    assert run.repeat(lambda x, y: x + y, 4, 1, 2) == 9
    assert seen == [3]
    assert not run.recorded


def recorded(run: Programs) -> int:
    return sum(recording is not None for recording in run.recorded.values())


@cuda
def test_a_recording_gives_what_the_function_gives():
    run = Programs(GPU)
    for k in range(6):
        pair = Pair(torch.full((3, 2), 1.0 + k, device=GPU), torch.arange(6.0, device=GPU).reshape(3, 2))
        more = (torch.ones(1, 2, device=GPU).expand(3, 2) * k, torch.full((), float(k), device=GPU))
        expected, total = work(pair, more)
        found, number = run(work, pair, more)
        assert torch.equal(found.x, expected.x)
        assert found.y is pair.y  # handed back, not copied
        assert torch.equal(found.product, expected.product)
        assert torch.equal(number, total)
    assert recorded(run) == 1


@cuda
def test_what_a_call_returned_stays():
    """The next call writes to other memory."""
    run = Programs(GPU)
    calls = [run(torch.add, torch.full((4,), float(k), device=GPU), torch.ones(4, device=GPU)) for k in range(6)]
    assert [float(x[0]) for x in calls] == [1, 2, 3, 4, 5, 6]


@cuda
def test_outputs_that_are_parts_of_inputs():
    """Outputs are written where inputs were read: not before all of them are safe."""
    run = Programs(GPU)

    def turned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return y.view(4), x.view(4), x + y

    for k in range(5):
        x, y = torch.full((4,), float(k), device=GPU), torch.arange(4.0, device=GPU) + k
        for found, expected in zip(run(turned, x, y), turned(x, y), strict=True):
            assert torch.equal(found, expected)
        assert torch.equal(x, torch.full((4,), float(k), device=GPU))
    assert recorded(run) == 1


@cuda
def test_recordings_of_a_large_tensor_can_be_dropped(monkeypatch):
    monkeypatch.setattr(runtime, "READ_IN_PLACE", 10)
    run = Programs(GPU)
    big = torch.arange(20.0, device=GPU)
    for k in range(3):
        run(total, big, torch.full((2,), float(k), device=GPU))
    assert recorded(run) == 1
    run.drop([big])
    assert recorded(run) == 0
    assert torch.equal(run(total, big, torch.ones(2, device=GPU))[1], total(big, torch.ones(2, device=GPU))[1])


@cuda
def test_expanded_inputs_and_caches_are_part_of_the_form():
    run = Programs(GPU)
    y = torch.ones(3, 2, device=GPU)
    for k in range(4):
        pair = Pair(torch.full((1, 2), float(k), device=GPU).expand(3, 2), y)
        if k % 2:
            _ = pair.product
        assert torch.equal(run(work, pair, ())[0].x, work(pair, ())[0].x)
    assert recorded(run) == 2


@cuda
def test_a_loop_is_the_function_over_and_over():
    run = Programs(GPU)

    def double(state: Pair, step: Tensor) -> Pair:
        return Pair(2 * state.x + step, state.y + 1)

    step = torch.ones(5, device=GPU)
    for times in (1, 3, 0, 7):
        state = Pair(torch.arange(5.0, device=GPU), torch.zeros(2, device=GPU))
        expected = state
        for _ in range(times):
            expected = double(expected, step)
        found = run.repeat(double, times, state, step)
        assert torch.equal(found.x, expected.x)
        assert torch.equal(found.y, expected.y)
    assert recorded(run) == 1


@cuda
def test_a_function_that_looks_at_numbers_is_called():
    run = Programs(GPU)

    def looks(x: Tensor) -> Tensor:
        return x + 1 if bool(x.sum() > 2) else x - 1

    for k in range(5):
        x = torch.full((2,), float(k), device=GPU)
        assert torch.equal(run(looks, x), looks(x))
    assert recorded(run) == 0
    assert torch.equal(run(torch.add, x, x), x + x)  # the device is in order


@cuda
def test_large_tensors_are_not_copied(monkeypatch):
    monkeypatch.setattr(runtime, "READ_IN_PLACE", 10)
    run = Programs(GPU)
    for start in (0.0, 100.0):
        big = torch.arange(20.0, device=GPU) + start
        for k in range(4):
            small = torch.full((2,), float(k), device=GPU)
            expected, found = total(big, small), run(total, big, small)
            assert found[0] is big
            assert torch.equal(found[1], expected[1])
    assert len(run.recorded) == 1  # the one that holds the old tensor was forgotten


def total(big: Tensor, small: Tensor) -> tuple[Tensor, Tensor]:
    return big, big.sum() + small


@cuda
def test_a_run_gives_its_memory_back():
    blocks = [(np.ones((2000, 500)), np.ones(2000)) for _ in range(4)]
    before = torch.cuda.memory_allocated()
    aq.solve(aq.Problem(aq.LeastSquares(), aq.L2(1.0), blocks), "c-admm", max_iter=10, device="cuda")
    assert torch.cuda.memory_allocated() - before < 2**20


@cuda
@pytest.mark.parametrize("method", ["c-admm", "auq-admm", "auq-lr"])
@pytest.mark.parametrize(
    ("loss", "local"),
    [
        (aq.Multinomial(), NewtonCG()),
        (aq.SmoothedHinge(), NewtonCG(tol=1e-8)),
        (aq.LeastSquares(), Direct()),
        (aq.LeastSquares(), NewtonCG()),
        (aq.Logistic(), LBFGS()),
        (aq.Multinomial(), Released(calls=3)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_a_run_is_the_same_to_the_last_bit(method, loss, local, monkeypatch):
    classes = 2 if loss.target_kind == "binary" else 3
    blocks = regression_blocks() if loss.quadratic else class_blocks(classes, one_class=False)
    problem = aq.Problem(loss, aq.L2(0.1), blocks)
    results = []
    for graphs in ("0", "1"):
        monkeypatch.setenv("AUQADMM_GRAPHS", graphs)
        results.append(aq.solve(problem, method, local=local, max_iter=12, abs_tol=0, rel_tol=0, device="cuda"))
    plain, replayed = results
    assert replayed.status == plain.status
    assert torch.equal(plain.v, replayed.v)
    assert [(row.rounds, row.hvps) for row in plain.history] == [(row.rounds, row.hvps) for row in replayed.history]


def many_classes(blocks=10, rows=300, features=400, classes=10):
    """Sums over blocks of mostly one class: long local solves, many recordings."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, features))
    made = []
    for j in range(blocks):
        y = np.where(rng.random(rows) < 0.8, j % classes, rng.integers(classes, size=rows))
        made.append((0.3 * centres[y] + rng.normal(size=(rows, features)), y))
    return aq.Problem(aq.Multinomial(reduction="sum"), aq.L2(1.0), made)


@cuda
@pytest.mark.parametrize("method", ["c-admm", "auq-admm", "auq-lr"])
def test_a_longer_run_is_the_same_but_for_rounding(method, monkeypatch):
    """Large enough that recordings share memory, hand over results and are dropped when weights change. Sums of that
    size are added up in an order that depends on where numbers lie; accurate local solves do not blow it up."""
    problem, results = many_classes(), []
    for graphs in ("0", "1"):
        monkeypatch.setenv("AUQADMM_GRAPHS", graphs)
        local = NewtonCG(tol=1e-9)
        results.append(aq.solve(problem, method, local=local, max_iter=10, abs_tol=0, rel_tol=0, device="cuda"))
    plain, replayed = results
    torch.testing.assert_close(plain.v, replayed.v, rtol=1e-7, atol=1e-8)
    assert replayed.history[-1].hvps == pytest.approx(plain.history[-1].hvps, rel=0.02)


@cuda
@pytest.mark.parametrize("method", ["c-admm", "auq-lr"])
def test_blocks_that_are_done_leave_on_a_gpu_too(method, monkeypatch):
    """Which they do beyond a gibibyte of data."""
    problem = many_classes(6, 200, 50, 3)
    stay = aq.solve(problem, method, max_iter=15, abs_tol=0, rel_tol=0, device="cuda")
    monkeypatch.setattr(descent, "LEAVE_GPU", 0)
    left = []
    known = descent.blocks_to_keep
    monkeypatch.setattr(descent, "blocks_to_keep", lambda *given: left.append(known(*given)) or left[-1])
    leave = aq.solve(problem, method, max_iter=15, abs_tol=0, rel_tol=0, device="cuda")
    assert any(some is not None for some in left)
    torch.testing.assert_close(leave.v, stay.v, rtol=1e-4, atol=1e-5)
