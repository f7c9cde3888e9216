"""Runs without solvers: histories that fall by a constant factor per iteration."""

import pytest
import torch

from auqadmm import Certificate, History, Result, Status
from auqadmm.comparison import MethodRun
from auqadmm.core.history import Row

OPTIMUM = 10.0


def make_run(model="elastic net", method="c-admm", factor=0.5, count=30, evaluated=True):
    """A run whose relative objective gap after iteration k is factor**k."""
    rows = tuple(
        Row(
            iteration=k,
            objective=OPTIMUM * (1 + factor**k) if evaluated else None,
            primal_residual=0.1,
            dual_residual=0.1,
            eps_primal=0.01,
            eps_dual=0.01,
            kkt=0.1 * factor**k if evaluated else None,
            seconds=0.5 * k,
            rounds=2 * k + 1,
            bytes=300 * k,
            bytes_up=200 * k,
            bytes_down=100 * k,
            hvps=7 * k,
            failed_blocks=("block 1", "block 3") if k == 2 else (),
        )
        for k in range(1, count + 1)
    )
    certificate = Certificate(OPTIMUM * (1 + factor**count), 1e-7, None)
    v = torch.zeros(4, 1, dtype=torch.float64)
    result = Result(v, Status.max_iter, "Stopped.", count, History(rows), certificate, method)
    return MethodRun(model, result, OPTIMUM)


@pytest.fixture
def run_of():
    return make_run
