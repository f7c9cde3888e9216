"""The batched loop walks where torch's own optimizer walks, one block at a time."""

from __future__ import annotations

import pytest
import torch

from auqadmm.local import Released
from tests.local.cases import EVEN, UNEVEN, local_problem, oracle, problem_of, start_of

CPU = torch.device("cpu")


def f_of(loss, X, y, c):
    """f of one block for autograd, written out."""

    def f(u):
        z = X @ u
        if loss == "LeastSquares":
            return 0.5 * (c * (z[:, 0] - y) ** 2).sum()
        if loss == "Multinomial":
            return (c * torch.nn.functional.cross_entropy(z, y.long(), reduction="none")).sum()
        t = 1 - y * z[:, 0]
        return (c * (t + torch.sqrt(t**2 + (1 / 5000) ** 2)) / 2).sum()

    return f


def by_torch(problem, local, u0, calls, loss, **options):
    """One fresh torch.optim.LBFGS per block, `step` called `calls` times."""
    models = []
    for j, block in enumerate(problem.blocks):
        c = torch.from_numpy(block.weight)
        if problem.loss.reduction == "mean" and len(c):
            c = c / c.sum()
        f = f_of(loss, torch.from_numpy(block.X), torch.from_numpy(problem._targets[j]), c)
        U = u0[j].clone().requires_grad_()
        W = local.W.dense()[j]
        optimizer = torch.optim.LBFGS([U], **options)

        def closure(U=U, f=f, W=W, j=j, optimizer=optimizer):
            optimizer.zero_grad()
            d = (U - local.v[j]).flatten()
            F = f(U) - local.lam[j].flatten() @ d + 0.5 * d @ W @ d
            F.backward()
            return F

        for _ in range(calls):
            optimizer.step(closure)
        models.append(U.detach())
    return torch.stack(models)


def compare(loss, sizes, kind, calls, u0=None, dtype=torch.float64, **options):
    problem = problem_of(loss, sizes)
    local = local_problem(problem.shard(dtype, CPU), kind)
    u0 = start_of(local.shard) if u0 is None else u0
    history = options.pop("history", 20)
    found = Released(calls=calls, history=history, **options).solve(local, u0, None, None)
    expected = by_torch(problem, local, u0, calls, loss, history_size=history, **options)
    assert found.converged.all()
    torch.testing.assert_close(found.u, expected, rtol=1e-10, atol=1e-12)
    return found


@pytest.mark.thin(3)
@pytest.mark.parametrize("calls", [1, 2, 7, 30])
@pytest.mark.parametrize("sizes", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("loss", ["LeastSquares", "Multinomial", "SmoothedHinge"])
def test_the_release_is_followed_to_the_letter(loss, sizes, calls):
    found = compare(loss, sizes, "diagonal", calls, lr=1e-3, max_iter=4)
    assert (found.iterations == 4 * calls).all()
    assert found.hvps.sum() == 0


@pytest.mark.parametrize("max_iter", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("loss", ["LeastSquares", "Multinomial"])
def test_any_number_of_iterations_per_call(loss, max_iter):
    """Up to three iterations the optimizer's limit on evaluations (5/4 of them) ends a call early."""
    compare(loss, UNEVEN, "dense", 5, lr=1e-2, max_iter=max_iter)


@pytest.mark.parametrize("lr", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("history", [1, 3])
def test_short_histories_and_early_exits(lr, history):
    """Long steps converge, block by block, and leave by every exit the optimizer has."""
    found = compare("LeastSquares", UNEVEN, "diagonal", 12, lr=lr, max_iter=4, history=history)
    assert found.iterations.min() < found.iterations.max() or lr == 0.05


@pytest.mark.parametrize("distance", [0.0, 1e-9, 1e-6, 1e-4])
def test_starts_at_and_near_the_solution(distance):
    u0 = oracle("Multinomial", UNEVEN, "scalar") + distance * start_of(
        problem_of("Multinomial", UNEVEN).shard(torch.float64, CPU)
    )
    found = compare("Multinomial", UNEVEN, "scalar", 6, u0=u0, lr=1e-3, max_iter=4)
    if distance == 0.0:
        assert found.iterations.sum() == 0


def test_inexact_by_design_and_honest_about_it():
    local = local_problem(problem_of("LeastSquares").shard(torch.float64, CPU))
    u0 = start_of(local.shard)
    found = Released().solve(local, u0, 1e-12, None)
    norm = local.grad(local.shard.linearize(found.u)).flatten(1).norm(dim=1)
    assert found.converged.all()  # by definition
    assert (found.grad_norm > 0.1).all()
    torch.testing.assert_close(found.grad_norm, norm)
    assert torch.equal(found.u, Released().solve(local, u0, None, None).u)  # the reference changes nothing


def test_single_precision():
    shard = problem_of("Multinomial", UNEVEN).shard(torch.float32, CPU)
    local = local_problem(shard, "diagonal")
    found = Released().solve(local, start_of(shard), None, None)
    double = problem_of("Multinomial", UNEVEN).shard(torch.float64, CPU)
    expected = Released().solve(local_problem(double, "diagonal"), start_of(double), None, None)
    assert found.u.dtype == torch.float32
    torch.testing.assert_close(found.u.double(), expected.u, rtol=1e-4, atol=1e-4)
