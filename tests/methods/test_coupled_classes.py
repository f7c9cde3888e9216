"""AUQ-LR with classes coupled inside its directions: what travels, where it arrives, and that it saves rounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.datasets import load_digits

import auqadmm as aq
from auqadmm.core.state import Setup
from auqadmm.methods.auq_lr import method as lowrank
from auqadmm.methods.auq_lr.method import AUQLR, coupled_directions
from auqadmm.metrics.coupled import Coupled

TIGHT = {"certificate_tol": 1e-12, "max_iter": 300}


@pytest.fixture
def coupled(monkeypatch):
    """Classes are coupled, however small the data, in some twenty directions."""
    monkeypatch.setattr(lowrank, "COUPLING_PRODUCTS", 1e6)
    monkeypatch.setattr(lowrank, "COUPLING_WORTH", 50.0)


def digits(split="one", l2=1.0, g=None, rows=600, **options):
    X, y = load_digits(return_X_y=True)
    X, y = X[:rows] / 16, y[:rows]
    order = np.argsort(y, kind="stable") if split == "one" else np.random.default_rng(0).permutation(rows)
    parts = np.array_split(order, 10)
    return aq.Problem(aq.Multinomial(), g or aq.L2(l2), [(X[i], y[i]) for i in parts], **options)


def history(problem, method, steps):
    seen = []
    aq.solve(problem, method, max_iter=steps, certificate_tol=0, callbacks=[lambda e: seen.append(e.state) and False])
    return seen


@pytest.mark.parametrize("image", [None, (8, 8)])
def test_the_server_has_the_sum_of_the_blocks(coupled, image):
    for state in history(digits(image=image), AUQLR(), 5):
        W, K = state.blocks.W, state.shared.metric
        assert isinstance(W, Coupled)
        v = torch.from_numpy(np.random.default_rng(1).normal(size=(64, 10)))
        torch.testing.assert_close(K.apply(v), W.apply(v.expand(10, 64, 10)).sum(0))


def test_inside_the_directions_it_is_the_hessian(coupled):
    problem = digits()
    state = history(problem, AUQLR(refresh=(2, 4)), 3)[-1]
    W, v = state.blocks.W, state.shared.v_prev.numpy()
    X, r = np.asarray(problem.blocks[0].X), W.U.shape[2]
    Z = X @ state.shared.v.numpy()
    for point in (v, state.shared.v.numpy()):
        Z = X @ point
        p = np.exp(Z - Z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        XU = X @ W.U[0].numpy()
        H = np.einsum("ir,ic,is->rcs", XU, p, XU)[:, :, :, None] * np.eye(10)[None, :, None, :]
        H = H - np.einsum("ir,ic,is,id->rcsd", XU, p, XU, p)
        if np.allclose(H.reshape(r * 10, -1), W.H[0], atol=1e-6 * np.abs(H).max()):
            return
    raise AssertionError("H_0 is the projected Hessian at neither point")


@pytest.mark.parametrize("split", ["one", "mixed"])
@pytest.mark.parametrize("g", [aq.L2(0.5), aq.ElasticNet(0.2, 0.1)], ids=["l2", "elastic"])
@pytest.mark.thin(2)
def test_it_arrives_where_newton_does(coupled, split, g):
    problem = digits(split, g=g)
    run, other = (aq.solve(problem, method, **TIGHT) for method in ("auq-lr", "newton"))
    assert isinstance(run.weights, Coupled)
    assert run.status == "converged", run.message
    assert run.objective == pytest.approx(other.objective, rel=1e-9)


def test_it_arrives_where_scipy_does(coupled):
    problem = digits("mixed", rows=200)
    X, y = (np.concatenate([np.asarray(getattr(b, name)) for b in problem.blocks]) for name in ("X", "y"))

    def F(u):
        V = u.reshape(64, 10)
        Z = X @ V
        top = Z.max(1, keepdims=True)
        e = np.exp(Z - top)
        value = (np.log(e.sum(1)) + top[:, 0] - Z[np.arange(len(y)), y]).sum() + 0.5 * u @ u
        return value, (X.T @ (e / e.sum(1, keepdims=True) - np.eye(10)[y]) + V).ravel()

    best = minimize(
        F, np.zeros(640), jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9}
    )
    assert aq.solve(problem, "auq-lr", **TIGHT).objective == pytest.approx(best.fun, rel=1e-8)


def test_mixed_blocks_take_fewer_rounds(coupled, monkeypatch):
    problem = digits("mixed", rows=1797)
    run = aq.solve(problem, "auq-lr", certificate_tol=1e-8, max_iter=300)
    monkeypatch.setattr(lowrank, "coupled_directions", lambda *setup: 0)
    alike = aq.solve(problem, "auq-lr", certificate_tol=1e-8, max_iter=300)
    assert run.n_iter < 0.95 * alike.n_iter


def test_a_stopped_run_goes_on_to_the_same_bits(coupled, tmp_path):
    problem = digits()
    whole = aq.solve(problem, "auq-lr", certificate_tol=1e-10)
    aq.solve(problem, "auq-lr", certificate_tol=1e-10, max_iter=5, checkpoint=tmp_path)
    rest = aq.solve(problem, "auq-lr", certificate_tol=1e-10, checkpoint=tmp_path)
    assert torch.equal(rest.v, whole.v)
    assert rest.history[-1].bytes_up == whole.history[-1].bytes_up


def test_bytes_are_those_of_pairs(coupled):
    """A renewal sends 45 triangles, d, the triangle of S and φ; the directions go once."""
    problem = digits()
    seen = []
    aq.solve(problem, AUQLR(rank=4, refresh=(2,), skip=0.0), max_iter=3, certificate_tol=0, callbacks=[seen.append])
    up = [event.row.bytes_up // 8 for event in seen]
    again = up[1] - up[0] - (up[2] - up[1])
    scalars = 4  # of acceleration, one more every round
    assert abs(again - (45 * 10 + 64 + 55 + 1)) <= scalars


@pytest.mark.parametrize(
    ("columns", "rows", "round_cost", "least", "most"),
    [
        (1, 10**5, 32_000, 0, 0),
        (10, 20_000, 32_000, 50, 60),
        (10, 20_000, 256_000, 130, 150),
        (10, 500, 32_000, 0, 45),  # little data: a renewal would take longer than the rest
        (1000, 10**5, 32_000, 0, 10),  # half a million pairs
    ],
)
def test_how_many_directions_can_be_coupled(columns, rows, round_cost, least, most):
    setup = Setup(10, 784, columns, False, aq.L2(1.0), None, rows=rows)
    assert least <= coupled_directions(setup, round_cost) <= most


def test_few_rows_have_classes_alike():
    X = np.random.default_rng(0).normal(size=(30, 5))
    run = aq.solve(aq.Problem(aq.Multinomial(), aq.L2(1.0), [(X, np.arange(30) % 3)]), "auq-lr", max_iter=2)
    assert not isinstance(run.weights, Coupled)


def test_a_cost_that_is_none_is_refused():
    with pytest.raises(ValueError, match="round_cost must be a number"):
        AUQLR(round_cost=-1.0)
