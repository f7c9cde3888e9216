"""Sparse blocks stay sparse: memory follows the numbers that are there, not the shape."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

import auqadmm as aq

FEATURES, DENSITY = 20_000, 0.001


def sparse_blocks(rows, blocks=4, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=FEATURES)
    made = []
    for _ in range(blocks):
        X = scipy.sparse.random(rows, FEATURES, DENSITY, format="csr", random_state=rng)
        made.append((X, np.where(X @ truth > 0, 1.0, -1.0)))
    return made


def test_the_matrices_take_at_most_three_times_the_data():
    blocks = sparse_blocks(2000)
    data = sum(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes for X, _ in blocks)
    shard = aq.Problem(aq.Logistic(), aq.L2(1.0), blocks).placed().shard(torch.float64, torch.device("cpu"))
    (piece,) = shard.design.pieces
    held = sum(
        part.numel() * part.element_size()
        for A in (piece.A, piece.At)
        for part in (A.values(), A.col_indices(), A.crow_indices())
    )
    assert held <= 3 * data


@pytest.mark.thin(2)
@pytest.mark.parametrize("method", ["c-admm", "auq-lr"])
@pytest.mark.parametrize("loss", [aq.Logistic(), aq.LeastSquares()], ids=repr)
def test_same_answer_as_dense(method, loss):
    blocks = sparse_blocks(30, blocks=3)
    dense = [(X.toarray(), y) for X, y in blocks]
    options = {"local": aq.local.NewtonCG(tol=1e-11), "max_iter": 4, "abs_tol": 0, "rel_tol": 0, "evaluate_every": 0}
    one, other = (aq.solve(aq.Problem(loss, aq.L2(1.0), x), method, **options) for x in (blocks, dense))
    assert float((one.v - other.v).abs().max()) <= 1e-7 * float(other.v.abs().max())


PROGRAM = """
import resource, sys
sys.path.insert(0, {path!r})
from tests.problem.test_sparse_scale import sparse_blocks
import auqadmm as aq
problem = aq.Problem(aq.Logistic(), aq.L2(1.0), sparse_blocks(1000))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for method in ("c-admm", "auq-lr"):
    aq.solve(problem, method, max_iter=2)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.campaign
def test_nothing_is_made_dense_on_the_way():
    """4000 × 20 000 numbers would be 640 MB; vectors of 20 000 features and the low-rank parts are allowed."""
    command = [sys.executable, "-c", PROGRAM.format(path=str(Path(__file__).parents[2]))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < 300e6
