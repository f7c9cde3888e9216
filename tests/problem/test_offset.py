"""Offsets: z = x·u + o in every row, whatever the method, the matrix and the precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
import torch

import auqadmm as aq
from auqadmm.blocks import single_precision
from auqadmm.testing import Shards
from tests.problem.family_cases import CASES, oracle, study

METHODS = [
    "c-admm",
    "rb-admm",
    "ac-admm",
    "uq-admm",
    "auq-admm",
    "auq-lr",
    "newton",
    "lbfgs",
    "lbfgs-w",
    "fista",
    "auto",
]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [0, 7])
def test_coefficients_are_those_of_statsmodels(name, seed):
    case = CASES[name]
    data = study(case, seed)
    for weights in (False, True):
        problem = aq.Problem(case.loss, aq.Zero(), data.blocks(weights, True), intercept=True)
        result = aq.solve(problem, certificate_tol=1e-20)
        assert str(result.status) in ("converged", "rounding"), result.message
        truth = oracle(case, data, weights, offset=True)
        assert np.allclose(np.append(result.coef, result.intercept), truth.params, rtol=1e-8, atol=0)


@pytest.mark.parametrize("name", ["gaussian", "logit", "poisson"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.thin(5)
def test_every_method_takes_them(name, method):
    case = CASES[name]
    problem = aq.Problem(case.loss, aq.L2(0.5), study(case, 1, (60, 50, 40)).blocks(True, True), intercept=True)
    best = aq.solve(problem, "newton", certificate_tol=1e-15)
    result = aq.solve(problem, method, certificate_tol=1e-3, max_iter=3000)
    assert result.status == "converged", result.message
    assert result.objective - best.objective <= 1e-3 * result.certificate.scale


@pytest.mark.parametrize("penalty", [aq.L1(2.0), aq.ElasticNet(1.0, 0.1)])
def test_duality_gaps_know_of_them(penalty):
    case = CASES["logit"]
    problem = aq.Problem(case.loss, penalty, study(case, 1).blocks(True, True), intercept=False)
    a, b = (aq.solve(problem, m, certificate_tol=1e-7, max_iter=4000) for m in ("newton", "fista"))
    assert (a.status, b.status) == ("converged", "converged")
    assert a.objective == pytest.approx(b.objective, rel=1e-6)
    assert a.certificate.evidence == "proved"


def test_a_column_with_a_known_coefficient_is_an_offset():
    """Against the same model with the column in X, held there by a box: all sums of a point."""
    case = CASES["poisson"]
    data = study(case, 2)
    with_column = replace(data, X=np.column_stack([data.X, data.offset]))
    a = aq.Problem(case.loss, aq.Zero(), data.blocks(True, True)).shard(torch.float64, torch.device("cpu"))
    b = aq.Problem(case.loss, aq.Zero(), with_column.blocks(True)).shard(torch.float64, torch.device("cpu"))
    u = 0.3 * torch.from_numpy(np.random.default_rng(0).normal(size=a.shape))
    wide = torch.cat([u, torch.ones_like(u[:, :1])], 1)
    here, there = a.linearize(u), b.linearize(wide)
    assert torch.allclose(here.value, there.value, rtol=1e-13)
    assert torch.allclose(here.grad, there.grad[:, :-1], rtol=1e-12)
    P = torch.ones_like(u)
    assert torch.allclose(here.hvp(P), there.hvp(torch.cat([P, 0 * P[:, :1]], 1))[:, :-1], rtol=1e-12)
    t = torch.linspace(0, 1, a.blocks, dtype=torch.float64)
    assert torch.allclose(here.line(P).at(t).value, a.linearize(u + t[:, None, None] * P).value, rtol=1e-13)


def test_fenchel_holds_with_them():
    for name in ("gaussian", "logit", "poisson", "gamma", "negative-binomial"):
        case = CASES[name]
        shard = aq.Problem(case.loss, aq.Zero(), study(case, 2).blocks(True, True)).shard(torch.float64, "cpu")
        u = 0.2 * torch.from_numpy(np.random.default_rng(0).normal(size=shard.shape))
        point = shard.linearize(u)
        linear = (point.grad * u).flatten(1).sum(1)
        assert torch.allclose(point.value + point.conjugate(1.0), linear, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("method", ["newton", "auq-lr", "lbfgs"])
def test_sparse_and_dense_blocks_give_the_same(method):
    case = CASES["poisson"]
    data = study(case, 3)
    blocks = data.blocks(True, True)
    mixed = [(scipy.sparse.csr_matrix(b[0]), *b[1:]) if j % 2 else b for j, b in enumerate(blocks)]
    a, b = (
        aq.solve(aq.Problem(case.loss, aq.L2(0.1), x, intercept=True), method, certificate_tol=1e-9)
        for x in (blocks, mixed)
    )
    assert (a.status, b.status) == ("converged", "converged")
    assert np.allclose(a.coef, b.coef, rtol=1e-5)


def test_float32():
    case = CASES["poisson"]
    blocks = study(case, 3).blocks(True, True)
    problem = aq.Problem(case.loss, aq.L2(0.1), blocks, intercept=True)
    a, b = (aq.solve(problem, dtype=kind) for kind in ("float64", "float32"))
    assert b.status == "converged"
    assert np.allclose(a.coef, b.coef, atol=1e-3)


@pytest.mark.parametrize("method", ["c-admm", "auq-lr"])
def test_products_in_single_precision(method, monkeypatch):
    case = CASES["logit"]
    problem = aq.Problem(case.loss, aq.L2(1.0), study(case, 4, (300, 200, 100)).blocks(True, True), intercept=True)
    wide = aq.solve(problem, method, certificate_tol=0, max_iter=60)
    monkeypatch.setattr(single_precision, "SMALL_DATA", 0)
    assert problem.shard(torch.float64, torch.device("cpu")).single_precision
    light = aq.solve(problem, method, certificate_tol=0, max_iter=60)
    assert np.allclose(light.coef, wide.coef, rtol=1e-4)


@pytest.mark.parametrize("some", [1, 2, 5])
def test_any_split_into_processes(some):
    """Also where only the last process has offsets: all of them must know."""
    case = CASES["poisson"]
    blocks = study(case, 5).blocks(True, True)
    blocks = [b[:3] if j < 4 else b for j, b in enumerate(blocks)]
    problem = aq.Problem(case.loss, aq.L2(0.1), blocks, intercept=True)
    a, b = aq.solve(problem, certificate_tol=1e-10), aq.solve(problem, engine=Shards(some), certificate_tol=1e-10)
    assert np.allclose(a.coef, b.coef, rtol=1e-8)


def test_exposure_as_offset_is_exposure_as_weight():
    """Poisson: offset log E with counts, or weight E with rates, as `docs/statistics.md` says."""
    case = CASES["poisson"]
    data = study(case, 6)
    E = np.exp(data.offset)
    rates = replace(data, y=data.y / E, weight=E)
    a = aq.solve(aq.Problem(case.loss, aq.Zero(), data.blocks(False, True), intercept=True), certificate_tol=1e-20)
    b = aq.solve(aq.Problem(case.loss, aq.Zero(), rates.blocks(True), intercept=True), certificate_tol=1e-20)
    assert np.allclose(a.coef, b.coef, rtol=1e-9)


def test_a_checkpoint_of_other_offsets_is_refused(tmp_path):
    case = CASES["poisson"]
    data = study(case, 6)
    make = lambda d: aq.Problem(case.loss, aq.L2(0.1), d.blocks(True, True), intercept=True)  # noqa: E731
    whole = aq.solve(make(data), "c-admm", max_iter=40, certificate_tol=0)
    aq.solve(make(data), "c-admm", max_iter=17, certificate_tol=0, checkpoint=tmp_path)
    again = aq.solve(make(data), "c-admm", max_iter=40, certificate_tol=0, checkpoint=tmp_path)
    assert torch.equal(again.v, whole.v)
    other = replace(data, offset=np.where(np.arange(len(data.y)) == 3, 1.0, data.offset))
    with pytest.raises(aq.CheckpointError, match="block 0"):
        aq.solve(make(other), "c-admm", max_iter=40, certificate_tol=0, checkpoint=tmp_path)


def test_chunks_of_dask():
    dask = pytest.importorskip("dask.array")
    case = CASES["poisson"]
    data = study(case, 6, (30, 30, 30))
    X, y, o = (dask.from_array(x, chunks=(30, *x.shape[1:])) for x in (data.X, data.y, data.offset))
    problem = aq.Problem(case.loss, aq.L2(0.1), (X, y, None, o), intercept=True)
    there = aq.Problem(case.loss, aq.L2(0.1), data.blocks(False, True), intercept=True)
    assert np.allclose(aq.solve(problem).coef, aq.solve(there).coef)


X = np.ones((3, 2))
Y = np.array([0.0, 1.0, 2.0])


@pytest.mark.parametrize(
    ("loss", "block", "sentence"),
    [
        (aq.Poisson(), (X, Y, None, [0.0, 1.0]), "block 0: X has 3 rows but offset has 2 values"),
        (aq.Poisson(), (X, Y, None, [0.0, -np.inf, 1.0]), r"block 0: offset\[1\] is -inf; .* exposures are above zero"),
        (aq.Poisson(), (X, Y, None, ["a", "b", "c"]), "block 0: offset holds .* real numbers"),
        (aq.Multinomial(), (X, Y, None, Y), "Multinomial has a logit for every class: leave the offsets out"),
        (aq.CustomLoss(lambda u, X, y: (X @ u - y) ** 2), (X, Y, None, Y), "CustomLoss is not a function of one logit"),
        (aq.Poisson(), (X, Y, None, Y, Y), r"block 0 must be a tuple .* got 5 parts"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(loss, block, sentence):
    with pytest.raises(aq.InputError, match=sentence):
        aq.Problem(loss, aq.Zero(), [block])
