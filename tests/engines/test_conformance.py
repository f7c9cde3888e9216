"""The same problem on any engine and any number of processes: the same iterates, status, rounds and bytes."""

from __future__ import annotations

import pytest

from auqadmm.testing import EngineSuite
from tests.engines.driven import Part
from tests.engines.processes import reports, together


def test_the_local_engine_conforms():
    """Compared with itself: what is left are the primitives, the budget, stops and errors."""
    for name, check in EngineSuite("local").checks().items():
        if not name.startswith(("iterates", "answer")):
            check()


def test_a_part_of_the_suite_has_every_method_and_problem():
    whole = {name for name in EngineSuite("local").checks() if name.startswith("iterates")}
    for first in range(3):
        part = [name for name in Part("local", first).checks() if name.startswith("iterates")]
        assert len(part) <= 16
        for k in (1, 2):
            assert {name.split()[k] for name in part} == {name.split()[k] for name in whole}


@pytest.mark.parametrize(
    ("count", "step"),
    [(3, 3), pytest.param(2, 1, marks=pytest.mark.campaign), pytest.param(3, 1, marks=pytest.mark.campaign)],
)
def test_torch_conforms_with_processes(count, step, tmp_path):
    code, out = together(count, "conformance.py", tmp_path, 0, step)
    assert code == 0, out[-3000:]
    for found in reports(tmp_path, range(count)):
        assert found == {}


def test_torch_without_torchrun_is_a_world_of_one(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    suite = EngineSuite("torch")
    checks = suite.checks()
    for name in ("iterates auq-lr image", "iterates lbfgs logistic", "primitives", "interrupt", "errors", "warm start"):
        checks[name]()


def test_the_suite_notices_a_wrong_engine():
    """A suite that nothing fails proves nothing."""
    from auqadmm.engines import Local, LocalEngine

    class Wrong(LocalEngine):
        def map_sum(self, fn, blocks, shared):
            blocks, sums = super().map_sum(fn, blocks, shared)
            return blocks, {name: x * (1 + 1e-7) for name, x in sums.items()}

        def gather(self, fn, blocks):
            return super().gather(fn, blocks).flip(0)

    class Place(Local):
        def place(self, problem, dtype, device):
            return Wrong(super().place(problem, dtype, device).shard)

    checks = EngineSuite(Place).checks()
    for name in ("iterates c-admm multinomial", "iterates lbfgs multinomial", "primitives"):
        with pytest.raises(AssertionError, match=r"off by"):
            checks[name]()
