"""Names of local solvers, and what "auto" chooses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import auqadmm as aq
import auqadmm.local as local
from auqadmm.local import LBFGS, Direct, Mixed, NewtonCG, Released, resolve
from tests.local.cases import CPU, UNEVEN, problem_of, shard_of, sparse


def test_names_and_objects():
    shard = shard_of("LeastSquares")
    assert resolve("direct", shard) == Direct()
    assert resolve("newton-cg", shard) == NewtonCG()
    assert resolve("lbfgs", shard) == LBFGS()
    assert resolve("mixed", shard) == Mixed()
    assert resolve("released", shard) == Released()
    mine = NewtonCG(tol=1e-3)
    assert resolve(mine, shard) is mine


def test_auto_is_direct_where_it_applies():
    assert resolve("auto", shard_of("LeastSquares", UNEVEN)) == Direct()
    assert resolve("auto", shard_of("Multinomial")) == Mixed()
    assert resolve("auto", shard_of("Huber")) == Mixed()
    assert resolve("auto", sparse(problem_of("LeastSquares")).shard(torch.float64, CPU)) == Mixed()


def test_auto_avoids_factors_that_are_too_large(monkeypatch):
    monkeypatch.setattr(local, "LARGEST_FACTOR", 6)
    X = np.ones((8, 7))

    def shard(rows):
        blocks = [(X[:rows], X[:rows, 0]), (X[:3], X[:3, 0])]
        return aq.Problem(aq.LeastSquares(), aq.Zero(), blocks).shard(torch.float64, CPU)

    assert resolve("auto", shard(6)) == Direct()
    assert resolve("auto", shard(8)) == Mixed()


@pytest.mark.parametrize("wrong", ["newton", "Direct", "", 3, None])
def test_unknown_names_list_the_known_ones(wrong):
    with pytest.raises(ValueError, match="'auto', 'direct', 'newton-cg', 'lbfgs', 'mixed', 'released'"):
        resolve(wrong, shard_of("LeastSquares"))
