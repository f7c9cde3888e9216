"""Single precision between double-precision anchors: solutions as good as without, and few exact products."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.blocks import single_precision
from auqadmm.blocks.design import Design
from auqadmm.local import LBFGS, Mixed, NewtonCG, descent
from tests.core.test_checkpoint_solvers import problem
from tests.local.cases import EVEN, gradient, local_problem, shard_of, start_of

LOSSES = ["Multinomial", "Logistic", "SmoothedHinge", "Huber", "Poisson", "Quantile"]


@pytest.fixture
def small(monkeypatch):
    """Small problems too."""
    monkeypatch.setattr(single_precision, "SMALL_DATA", 0)


@pytest.fixture
def products(small, monkeypatch):
    """Counts products with X, exact and light."""
    calls = {"exact": 0, "light": 0}
    for name in ("forward", "adjoint"):
        plain = getattr(Design, name)

        def spied(self, x, single_precision=False, only=(), plain=plain):
            calls["light" if single_precision else "exact"] += 1
            return plain(self, x, single_precision, only)

        monkeypatch.setattr(Design, name, spied)
    return calls


# ------------------------------------------------------------------ points
@pytest.mark.parametrize("loss", LOSSES)
def test_points_near_an_anchor(loss, small):
    shard = shard_of(loss, EVEN)
    coins = torch.Generator().manual_seed(0)
    a = start_of(shard)
    P = 0.1 * torch.randn(shard.shape, generator=coins, dtype=torch.float64)
    exact, near = shard.linearize(a + P), single_precision.nearby(shard, a + P, a)
    moved = single_precision.change(near)
    torch.testing.assert_close(moved, (near.grad - shard.linearize(a).grad).flatten(1).norm(dim=1))
    assert ((near.grad - exact.grad).flatten(1).norm(dim=1) <= 1e-5 * moved).all()
    assert ((near.grad - exact.grad).abs().max()) > 0  # it is single precision
    torch.testing.assert_close(near.value, exact.value, rtol=1e-5, atol=1e-5)
    Q = torch.randn(shard.shape, generator=coins, dtype=torch.float64)
    torch.testing.assert_close(near.hvp(Q), exact.hvp(Q), rtol=1e-4, atol=1e-4 * float(exact.hvp(Q).abs().max()))
    diagonal = exact.hessian_diagonal()
    torch.testing.assert_close(near.hessian_diagonal(), diagonal, rtol=1e-4, atol=1e-4 * float(diagonal.max()))


@pytest.mark.parametrize("loss", LOSSES)
def test_values_slopes_and_gradients_belong_together(loss, small):
    """What the line search sees along a ray is one convex function, to double precision."""
    shard = shard_of(loss, EVEN)
    coins = torch.Generator().manual_seed(1)
    a = start_of(shard)
    P = 1e-3 * torch.randn(shard.shape, generator=coins, dtype=torch.float64)
    line = single_precision.nearby(shard, a + P, a).line(P)
    t = torch.linspace(0.0, 2.0, 5, dtype=torch.float64)
    points = [line.at(x.expand(shard.blocks)) for x in t]
    slopes = torch.stack([line.slope(p) for p in points])
    for slope, point in zip(slopes, points, strict=True):
        torch.testing.assert_close(slope, (point.grad * P).sum((1, 2)), rtol=1e-6, atol=1e-12)
    values = torch.stack([p.value for p in points])
    # Simpson's rule over the whole way: the values differ by the integral of the slopes
    h = float(t[1])
    integral = h / 3 * (slopes[0] + 4 * slopes[1] + 2 * slopes[2] + 4 * slopes[3] + slopes[4])
    if loss != "SmoothedHinge":  # whose corner is sharper than the steps
        torch.testing.assert_close(values[4] - values[0], integral, rtol=1e-4, atol=1e-10)


def test_an_anchor_is_its_own_point(products):
    shard = shard_of("Logistic", EVEN)
    u = start_of(shard)
    here = single_precision.anchored(shard, u)
    exact = shard.linearize(u)
    assert torch.equal(here.grad, exact.grad)
    assert torch.equal(here.value, exact.value)
    assert (single_precision.change(here) == 0).all()
    assert single_precision.change(exact) is None
    before = dict(products)
    assert single_precision.anchored(shard, u) is here
    assert single_precision.nearby(shard, u + 1, u).anchor is here.anchor
    assert products == before | {"light": before["light"] + 1}


# ------------------------------------------------------------------ solves
@pytest.mark.thin(3)
@pytest.mark.parametrize(("tol", "leaving"), [(1e-2, False), (1e-7, False), (1e-7, True)])
@pytest.mark.parametrize("weights", ["scalar", "diagonal", "curved"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("solver", [LBFGS, NewtonCG], ids=lambda s: s.__name__)
def test_solutions_are_as_accurate_as_asked_for(solver, loss, weights, tol, leaving, products, monkeypatch):
    """The exact gradient decides, whatever the solver believed."""
    if leaving:
        monkeypatch.setattr(descent, "LEAVE_CPU", 0)
    local = local_problem(shard_of(loss, (9, 12, 9, 40)), weights)
    options = {"max_iter": 2000} if solver is LBFGS else {}
    memory, u = None, start_of(local.shard)
    for factor in (30.0, 1.0):
        found = solver(tol=factor * tol, **options).solve(local, u, None, memory)
        assert found.converged.all()
        assert gradient(local, found.u).max() <= 1.05 * factor * tol
        memory, u = found.memory, found.u
    assert products["light"] > 0


@pytest.mark.parametrize("steps", range(1, 8))
def test_out_of_steps_it_says_how_far_it_came(steps, small):
    """The anchor may be too far away by then; what is handed back is known all the same."""
    local = local_problem(shard_of("Logistic", (30, 40)), "diagonal")
    found = NewtonCG(tol=1e-9, max_iter=steps).solve(local, 5 * start_of(local.shard), None, None)
    exact = gradient(local, found.u)
    assert (found.converged == (exact <= 1.05e-9)).all()
    torch.testing.assert_close(found.grad_norm, exact, rtol=2e-2, atol=1e-12)


@pytest.mark.parametrize("method", ["c-admm", "auq-lr"])
def test_runs_arrive_where_they_would_without(method, small, monkeypatch):
    posed = problem(aq.Logistic(), (60, 50, 70), features=4)
    found = aq.solve(posed, method, max_iter=400, certificate_tol=1e-9)
    monkeypatch.setenv("AUQADMM_LIGHT", "0")
    plain = aq.solve(posed, method, max_iter=400, certificate_tol=1e-9)
    assert found.status == plain.status
    assert found.n_iter <= 1.1 * plain.n_iter + 1
    torch.testing.assert_close(found.v, plain.v, rtol=1e-5, atol=1e-7)


def test_few_products_are_exact(products):
    posed = problem(aq.Multinomial(), (300, 300))
    aq.solve(posed, "c-admm", max_iter=30, local="lbfgs", stop="residuals", abs_tol=0.0, rel_tol=0.0, evaluate_every=0)
    assert products["exact"] < 0.25 * products["light"]


@pytest.mark.parametrize(("method", "local"), [("c-admm", "lbfgs"), ("c-admm", "newton-cg"), ("auq-lr", "auto")])
def test_a_run_goes_on_to_the_same_bits(method, local, products, tmp_path):
    posed = problem(aq.Logistic(), (200, 200))
    options = {"local": local, "abs_tol": 0.0, "rel_tol": 0.0, "stop": "residuals"}
    whole = aq.solve(posed, method, max_iter=10, **options)
    aq.solve(posed, method, max_iter=5, checkpoint=tmp_path, **options)
    again = aq.solve(posed, method, max_iter=10, checkpoint=tmp_path, **options)
    assert products["light"] > 0
    assert torch.equal(again.v, whole.v)


def test_anchors_outlive_a_round(products):
    """Weights and their directions are made of light products, and so are most rounds."""
    posed = problem(aq.Logistic(), (300, 300))
    options = {"abs_tol": 0.0, "rel_tol": 0.0, "stop": "residuals", "evaluate_every": 0}
    found = aq.solve(posed, "auq-lr", max_iter=8, **options)
    assert products["exact"] <= 2 * 4 + 4  # four anchors, and the certificate
    assert found.n_iter == 8


# ------------------------------------------------------------------ where it is not used
def shard(X, dtype=torch.float64):
    y = np.where(np.arange(len(X)) % 2, 1.0, -1.0)
    return aq.Problem(aq.Logistic(), aq.L2(1.0), [(X, y), (X, y)]).placed().shard(dtype, torch.device("cpu"))


def test_data_that_single_precision_would_spoil(small):
    X = np.random.default_rng(0).normal(size=(50, 4))
    assert shard(X).single_precision
    offset = X + np.array([0.0, 100.0, 0.0, 0.0])
    assert shard(offset).single_precision
    offset[:, 1] += 1e6  # a standard deviation of one, seen to a sixteenth
    assert not shard(offset).single_precision
    constant = X.copy()
    constant[:, 1] = 1e6
    assert shard(constant).single_precision
    for size in (1e20, 1e-20):
        scaled = X.copy()
        scaled[:, 2] *= size
        assert not shard(scaled).single_precision


def test_only_where_it_pays(small, monkeypatch):
    X = np.random.default_rng(0).normal(size=(50, 4))
    assert not shard(X, torch.float32).single_precision
    monkeypatch.setenv("AUQADMM_LIGHT", "0")
    assert not shard(X).single_precision
    monkeypatch.delenv("AUQADMM_LIGHT")
    monkeypatch.setattr(single_precision, "SMALL_DATA", 401)
    assert not shard(X).single_precision


def test_a_copy_that_memory_has_no_room_for(small, monkeypatch):
    X = np.random.default_rng(0).normal(size=(50, 4))
    assert 2**28 < single_precision.memory() < 2**50
    monkeypatch.setattr(single_precision, "memory", lambda: 16 * 4 * 400)
    assert shard(X).single_precision
    monkeypatch.setattr(single_precision, "memory", lambda: 16 * 4 * 400 - 1)
    assert not shard(X).single_precision


def test_numbers_out_of_the_range_of_single_precision(small):
    """Models and slopes may be larger or smaller than single precision reaches."""
    local = shard(np.random.default_rng(0).normal(size=(50, 4)))
    for size in (1e-60, 1e60):
        u = size * torch.ones(local.shape, dtype=torch.float64)
        exact = local.design.forward(u)
        torch.testing.assert_close(local.design.forward(u, single_precision=True), exact, rtol=1e-4, atol=1e-6 * size)
    assert torch.equal(local.design.forward(torch.zeros(local.shape), single_precision=True), torch.zeros(100, 1))


def test_solutions_of_groups_and_of_all(small):
    """Blocks of very different height, solved in groups, each with anchors of its own."""
    local = local_problem(shard_of("Multinomial", (200, 9, 9, 9)), "scalar")
    found = Mixed(tol=1e-6).solve(local, start_of(local.shard), None, None)
    again = Mixed(tol=1e-7).solve(local, found.u, None, found.memory)
    assert again.converged.all()
    assert gradient(local, again.u).max() <= 1.05e-7
