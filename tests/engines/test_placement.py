"""One process or five: the same iterates to 1e-10, every method and every local solver, with tight local solves."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engines.processes import ended, ranks

WORLD, CLOSE = 5, 1e-10
# products of one block and of several round differently; the weights that AUQ-LR makes of them then too, by 1e-7
SINGLE = 1e-7


# one run of five processes serves all tests here: they stay together, and may take their time on busy cores
pytestmark = [pytest.mark.timeout(1200), pytest.mark.campaign]


@pytest.fixture(scope="module", params=[30])
def off(tmp_path_factory, request):
    """How far the models of one process and of five are apart in each iteration, by the name of the case."""
    folder = tmp_path_factory.mktemp("placement")
    for world in (1, WORLD):
        with ranks(world, "placement.py", folder, LENGTH=request.param) as started:
            for process in started:
                said = ended(process, 900)
                assert process.returncode == 0, said[-3000:]
    with np.load(folder / "world1.npz") as one, np.load(folder / f"world{WORLD}.npz") as five:
        assert one.files == five.files
        return {name: apart(one[name], five[name]) for name in one.files}


def apart(a, b):
    """By iteration; a run whose residuals are zero has ended, and stays where it is."""
    length = max(len(a), len(b))
    a, b = (np.concatenate([x, np.repeat(x[-1:], length - len(x), 0)]) for x in (a, b))
    return np.abs(a - b).reshape(length, -1).max(1) / max(1.0, np.abs(a).max())


def far(off, limit, *kinds):
    return {name: float(x.max()) for name, x in off.items() if name.split()[0] in kinds and not x.max() <= limit}


def test_tight_local_solves(off):
    assert not far(off, CLOSE, "tight")


def test_the_default_settings(off):
    """A block stops where it would stop alone."""
    assert not far(off, CLOSE, "default")


def test_single_precision_on_the_way(off):
    assert not far(off, SINGLE, "light")
    assert not far({name: x[-1:] for name, x in off.items()}, CLOSE, "light")


def test_auq_lr_on_top_of_the_released_solver(off):
    """Acceleration built on solves that are not solved: rounding grows tenfold and more per iteration."""
    (found,) = (x for name, x in off.items() if name.startswith("chaos"))
    assert found[:2].max() <= CLOSE


def test_every_method_and_local_solver_is_there(off):
    seen = {tuple(name.split()) for name in off}
    for method in ("c-admm", "rb-admm", "ac-admm", "uq-admm", "auq-admm", "auq-lr"):
        for solver in ("auto", "newton-cg", "lbfgs", "released", "direct"):
            assert any(case[2:] == (method, solver) for case in seen if case[0] == "tight"), (method, solver)
    for method in ("lbfgs", "lbfgs-w", "owl-qn", "fista"):
        assert any(case[2] == method for case in seen), method
