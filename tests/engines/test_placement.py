"""One process or five: the same iterates to 1e-10, every method and every local solver, with tight local solves.

Single precision and the settings that solve loosely are another matter: sums of one block and of several round
differently, and what they agree to is said below.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.engines.processes import ended, ranks

WORLD = 5
TOLERANCES = {"plain": 1e-10, "large": 1e-10, "light": 1e-10, "default": 1e-6}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The models of all iterations, by the name of the case, of one process and of five."""
    folder = tmp_path_factory.mktemp("placement")
    for world in (1, WORLD):
        with ranks(world, "placement.py", folder) as started:
            for process in started:
                said = ended(process, 280)
                assert process.returncode == 0, said[-3000:]
    return [np.load(folder / f"world{world}.npz") for world in (1, WORLD)]


def test_where_blocks_live_does_not_matter(models):
    one, five = models
    assert one.files == five.files
    off = {}
    for name in one.files:
        size = max(1.0, np.abs(one[name]).max())
        off[name] = float(np.abs(one[name] - five[name]).max() / size)
    wrong = {name: found for name, found in off.items() if not found <= TOLERANCES[name.split()[0]]}
    assert not wrong, wrong


def test_every_method_and_local_solver_is_there(models):
    seen = {tuple(name.split()) for name in models[0].files}
    for method in ("c-admm", "rb-admm", "ac-admm", "uq-admm", "auq-admm", "auq-lr"):
        for solver in ("auto", "newton-cg", "lbfgs", "released", "direct"):
            assert any((m, s) == (method, solver) for _, _, m, s in seen), (method, solver)
    for method in ("lbfgs", "lbfgs-w", "owl-qn", "fista"):
        assert any(m == method for _, _, m, _ in seen), method
