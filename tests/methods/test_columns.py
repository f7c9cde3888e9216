"""Columns that are centred and scaled inside a method: the same optimum, the same certificate, fewer rounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse
import torch

import auqadmm as aq
from auqadmm.blocks.parts import framed
from auqadmm.columns import Frame, FramedState
from auqadmm.core.reduce import Reduce
from auqadmm.engines.local import LocalEngine
from auqadmm.problem.wrappers import FreeIntercept, ScaledRegularizer
from auqadmm.verdict.queries import ColumnMoments, moments
from tests.verdict.cases import TABLE

CPU = torch.device("cpu")
METHODS = {
    "auq-lr": aq.methods.AUQLR,
    "lbfgs": aq.baselines.LBFGS,
    "lbfgs-w": aq.baselines.PreconditionedLBFGS,
    "owl-qn": aq.baselines.OWLQN,
}
TIGHT = {"certificate_tol": 1e-9, "max_iter": 400}


def table(seed=0, n=240, m=5, parts=3, classes=0, binary=False):
    """Raw columns: a year, a thousandth, a million, one that is mostly zero, one in order."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, m))
    X = Z * np.array([8, 1e-3, 1e6, 1, 1])[:m] + np.array([2000, 0.5, 3e6, 0, 0])[:m]
    X[:, 3:4] *= rng.random((n, 1)) > 0.8
    truth = rng.normal(size=m)
    y = Z @ truth + 0.3 * rng.normal(size=n)
    if binary:
        y = (Z @ truth + rng.logistic(size=n) > 0).astype(float)
    if classes:
        y = (Z[:, :classes] + rng.gumbel(size=(n, classes))).argmax(1)
    return X, y, [(X[rows], y[rows]) for rows in np.array_split(rng.permutation(n), parts)]


def frame_of(problem):
    """What round 0 says, and the shard."""
    shard = problem.placed().shard(torch.float64, CPU)
    sums = moments(shard, None, None)[1]
    columns = ColumnMoments.of(sums, problem.intercept, problem.loss, shard.shape[2])
    return Frame.of(columns, sums["nonzero"], torch.zeros_like(sums["xx"]), 1.0), shard


# ---------------------------------------------------------------------- the frame
def test_models_and_gradients_there_and_back():
    problem = aq.Problem(aq.LeastSquares(), aq.L2(1e-3), table()[2], intercept=True)
    frame, shard = frame_of(problem)
    inner = framed(shard, frame)
    v = torch.randn(6, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(frame.outside(frame.inside(v))[:-1], v[:-1])  # powers of two round nothing
    torch.testing.assert_close(frame.outside(frame.inside(v)), v, rtol=1e-12, atol=1e-9)
    raw, other = shard.linearize(shard.expand(v)), inner.linearize(inner.expand(frame.inside(v)))
    torch.testing.assert_close(other.value, raw.value, rtol=1e-9, atol=0)
    torch.testing.assert_close(frame.slopes_outside(other.grad), raw.grad, rtol=1e-7, atol=0)
    torch.testing.assert_close(frame.slopes_inside(frame.slopes_outside(other.grad)), other.grad, rtol=1e-7, atol=0)
    torch.testing.assert_close(inner.models(inner.expand(frame.inside(v))), shard.expand(v), rtol=1e-9, atol=1e-12)


def test_scales_are_powers_of_two_of_what_a_column_holds():
    X, _, blocks = table(n=3000)
    frame, _ = frame_of(aq.Problem(aq.LeastSquares(), aq.Zero(), blocks, intercept=True))
    held = np.sqrt(((X - X.mean(0)) ** 2).sum(0) / (X != 0).sum(0))
    ratio = frame.scale[:-1].numpy() / held
    assert ((ratio > 0.7) & (ratio < 1.42)).all()
    assert (torch.frexp(frame.scale)[0] == 0.5).all()
    assert float(frame.scale[-1]) == 1.0
    assert float(frame.centre[-1]) == 0.0


@pytest.mark.parametrize("power", [-600, -30, 7, 500])
def test_no_unit_overflows(power):
    """Squares that overflow or vanish: the column stays as it is, and the others do not care."""
    _, _, blocks = table()
    blocks = [(np.column_stack([X, X[:, 4] * 2.0**power]), y) for X, y in blocks]
    frame, shard = frame_of(aq.Problem(aq.LeastSquares(), aq.Zero(), blocks, intercept=True))
    assert bool(frame.scale.isfinite().all())
    assert bool((frame.scale.square() > 0).all())
    assert bool(frame.scale.square().isfinite().all())
    assert framed(shard, frame).design.pieces[0].X.isfinite().all()


def test_constant_and_empty_columns():
    _, _, blocks = table()
    blocks = [(np.column_stack([X, np.zeros(len(X)), np.full(len(X), 7.5)]), y) for X, y in blocks]
    problem = aq.Problem(aq.LeastSquares(), aq.L2(1e-3), blocks, intercept=True)
    frame, shard = frame_of(problem)
    assert float(frame.scale[5]) == 1.0
    assert float(framed(shard, frame).design.pieces[0].X[..., 6].abs().max()) < 1e-6
    for method in METHODS:
        result = aq.solve(problem, method, **TIGHT)
        assert result.status == "converged"
        assert abs(result.coef[5:]).max() < 1e-9


@pytest.mark.campaign
def test_columns_in_order_are_left_alone():
    """Digits, and a standardised table: the iterates are those of raw columns, to the last bit."""
    datasets = pytest.importorskip("sklearn.datasets")
    X, y = datasets.load_digits(return_X_y=True)
    digits = aq.Problem(aq.Multinomial(), aq.L2(0.1), [(X[i::12], y[i::12]) for i in range(4)], intercept=True)
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(200, 6)) * np.linspace(0.5, 2, 6) + 1
    plain = aq.Problem(aq.LeastSquares(), aq.L2(0.1), [(Z, Z @ np.ones(6) + rng.normal(size=200))], intercept=True)
    for problem in (digits, plain):
        for name in ("auq-lr", "lbfgs"):
            ours, raw = (aq.solve(problem, METHODS[name](columns=c), max_iter=8) for c in ("auto", "raw"))
            assert torch.equal(ours.v, raw.v)
            assert ours.n_iter == raw.n_iter


# ---------------------------------------------------------------------- sparse columns
def test_sparse_columns_stay_sparse_and_multiply_as_dense_ones():
    rng = np.random.default_rng(1)
    X, _, _ = table(n=90)
    X[rng.random(X.shape) < 0.5] = 0
    blocks, dense = ([(kind(X[i::3]), X[i::3, 0]) for i in range(3)] for kind in (scipy.sparse.csr_matrix, np.asarray))
    frames, shards = zip(
        *(frame_of(aq.Problem(aq.LeastSquares(), aq.Zero(), b, intercept=True)) for b in (blocks, dense)), strict=True
    )
    torch.testing.assert_close(frames[0].centre, frames[1].centre, rtol=1e-12, atol=0)
    assert torch.equal(frames[0].scale, frames[1].scale)
    a, b = (framed(shard, frames[0]).design for shard in shards)
    assert a.pieces[0].A.values().numel() == shards[0].design.pieces[0].A.values().numel()
    coins = torch.Generator().manual_seed(0)
    u = torch.randn(3, 6, 2, generator=coins, dtype=torch.float64)
    z = torch.rand(90, 2, generator=coins, dtype=torch.float64)
    F = torch.linalg.qr(torch.randn(6, 6, generator=coins, dtype=torch.float64))[0]
    for name, args in {
        "forward": (u,),
        "adjoint": (z,),
        "adjoint_squared": (z,),
        "forward_squared": (u[..., 0].abs(),),
        "squares": (z,),
        "adjoint_squared_in": (F, z[:, 0]),
    }.items():
        one, other = (getattr(design, name)(*args) for design in (a, b))
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_sparse_equals_dense(method):
    rng = np.random.default_rng(2)
    X, y, _ = table(binary=True)
    X[rng.random(X.shape) < 0.6] = 0
    runs = []
    for kind in (np.asarray, scipy.sparse.csr_matrix):
        blocks = [(kind(X[i::3]), y[i::3]) for i in range(3)]
        runs.append(aq.solve(aq.Problem(aq.Logistic(), aq.L2(1e-2), blocks, intercept=True), method, **TIGHT))
    assert runs[0].status == runs[1].status == "converged"
    assert runs[0].objective == pytest.approx(runs[1].objective, rel=1e-9)


# ---------------------------------------------------------------------- g
@pytest.mark.parametrize(
    "g",
    [
        aq.L1(0.7),
        aq.L2(0.3),
        aq.ElasticNet(0.4, 0.2),
        aq.NonNegative(),
        aq.Box(-0.5, (1.0, 2.0, 0.1, 3.0)),
        aq.GroupLasso(0.6, groups=(0, 0, 1, 1)),
        FreeIntercept(aq.ElasticNet(0.4, 0.2)),
    ],
    ids=lambda g: type(g).__name__,
)
def test_a_regularizer_in_other_columns(g):
    """prox̃ is optimal for g̃, and everything else is g's, carried along."""
    coins = torch.Generator().manual_seed(0)
    s = torch.tensor([1.0, 0.125, 64.0, 2.0], dtype=torch.float64)
    scaled = ScaledRegularizer(g, s)
    t, v = (torch.randn(4, 2, generator=coins, dtype=torch.float64) for _ in range(2))
    K = 0.5 + torch.rand(4, 2, generator=coins, dtype=torch.float64)
    x = scaled.prox(t, K)

    def model(x):
        return float(scaled.value(x) + 0.5 * (K * x * x).sum() - (t * x).sum())

    assert math.isfinite(model(x))
    for _ in range(200):
        there = x + 1e-3 * torch.randn(4, 2, generator=coins, dtype=torch.float64)
        assert model(there) >= model(x) - 1e-12
    w = t - K * x  # ∈ ∂g̃(x)
    assert float(scaled.subgradient_distance(x, -w)) < 1e-9
    if math.isfinite(float(scaled.conjugate(w))):
        assert float(scaled.value(x) + scaled.conjugate(w)) == pytest.approx(float((w * x).sum()), abs=1e-9)
    value = scaled.value(v)
    assert torch.equal(value, g.value(v / s[:, None]))
    assert torch.equal(scaled.convexity(v), g.convexity(v) / s.square()[:, None])
    assert (scaled.separable, scaled.quadratic) == (g.separable, g.quadratic)
    if math.isfinite(float(value)) and math.isfinite(float(scaled.value(x))):
        assert float(scaled.fall(v, x)[0]) == pytest.approx(float(value - scaled.value(x)), abs=1e-9)


# ---------------------------------------------------------------------- optima
def least_squares_optimum(X, y, l2):
    """Of Σ½(y − Xu − b)² + l2/2‖u‖², b free."""
    mu = X.mean(0)
    A = np.vstack([X - mu, math.sqrt(l2) * np.eye(X.shape[1])])
    d = np.sqrt((A**2).sum(0))
    u = np.linalg.lstsq(A / d, np.concatenate([y - y.mean(), np.zeros(X.shape[1])]), rcond=None)[0] / d
    return u, y.mean() - mu @ u


@pytest.mark.parametrize("method", METHODS)
def test_squares_on_a_raw_table(method):
    X, y, blocks = table()
    problem = aq.Problem(aq.LeastSquares(reduction="sum"), aq.L2(1e-3), blocks, intercept=True)
    result = aq.solve(problem, method, certificate_tol=1e-12)
    u, b = least_squares_optimum(X, y, 1e-3)
    assert result.status in ("converged", "rounding")
    assert result.method == method
    assert result.coef * X.std(0) == pytest.approx(u * X.std(0), rel=1e-5, abs=1e-5)
    assert result.intercept == pytest.approx(b, rel=1e-5)
    assert result.certificate.evidence == "proved"


@pytest.mark.parametrize("method", METHODS)
def test_logistic_regression_on_a_raw_table(method):
    linear_model = pytest.importorskip("sklearn.linear_model")
    X, y, blocks = table(binary=True)
    result = aq.solve(aq.Problem(aq.Logistic(reduction="sum"), aq.Zero(), blocks, intercept=True), method, **TIGHT)
    scale, mu = X.std(0), X.mean(0)
    there = linear_model.LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit((X - mu) / scale, y)
    assert result.status == "converged"
    assert result.coef * scale == pytest.approx(there.coef_[0], rel=1e-3)


CASES = {
    "l1": (aq.Logistic(reduction="sum"), aq.L1(2.0), {"binary": True}),
    "elastic net": (aq.LeastSquares(reduction="sum"), aq.ElasticNet(2.0, 0.1), {}),
    "nonneg": (aq.LeastSquares(reduction="sum"), aq.NonNegative(), {}),
    "box": (aq.Logistic(reduction="sum"), aq.Box(-0.05, (0.02, 10.0, 1.0, 0.1, 0.3)), {"binary": True}),
    "group lasso": (aq.LeastSquares(reduction="sum"), aq.GroupLasso(1.0, groups=(0, 0, 1, 2, 2)), {}),
    "multinomial": (aq.Multinomial(reduction="sum"), aq.L2(0.01), {"classes": 3}),
    "hinge": (aq.SmoothedHinge(reduction="sum"), aq.L2(0.01), {"binary": True}),
    "poisson": (aq.Poisson(reduction="sum"), aq.L2(0.01), {"classes": 3}),
    "huber": (aq.Huber(0.5, reduction="sum"), aq.L2(0.01), {}),
    "quantile": (aq.Quantile(0.7, eps=0.2, reduction="sum"), aq.L2(0.01), {}),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_problem(name):
    """The optimum of raw columns is that of the same table, standardised and with its penalty carried along."""
    loss, g, kind = CASES[name]
    _, _, blocks = table(**kind)
    if name == "hinge":
        blocks = [(X, 2 * y - 1) for X, y in blocks]
    problem = aq.Problem(loss, g, blocks, intercept=True)
    result = aq.solve(problem, "auq-lr", certificate_tol=1e-8, max_iter=400)
    assert result.status == "converged", result.message
    assert result.certificate.evidence in ("proved", "estimated")
    if name in ("l1", "elastic net"):
        other = aq.solve(problem, "owl-qn", certificate_tol=1e-8, max_iter=2000)
    elif name in ("multinomial", "hinge", "poisson", "huber", "quantile"):
        other = aq.solve(problem, "lbfgs", certificate_tol=1e-8, max_iter=2000)
    else:
        return
    assert other.status == "converged", other.message
    assert result.objective == pytest.approx(other.objective, rel=1e-6)


# ---------------------------------------------------------------------- what was hard
HARD = [
    case
    for case in TABLE
    if not any(word in case.name for word in ("separable", "infinite", "no intercept")) and case.loss != "custom"
]


@pytest.mark.parametrize("method", ["auq-lr", "lbfgs", "lbfgs-w"])
@pytest.mark.parametrize("case", HARD, ids=[case.name for case in HARD])
def test_raw_tables_converge_with_evidence(case, method):
    result = aq.solve(case.problem(), method, warm_start=case.start)
    assert result.status == "converged", result.message
    assert result.certificate.evidence == "proved"
    assert float(case.oracle.relative(result.v)) <= 1.1e-5
    assert result.n_iter <= 15


@pytest.mark.parametrize("method", METHODS)
def test_other_units_change_nothing(method):
    """Columns times powers of two: the same rounds, and the same iterates in those units, to the last bit."""
    _, _, blocks = table(binary=True)
    units = 2.0 ** np.array([3, -8, 40, -2, 11])
    runs = []
    for factor in (np.ones(5), units):
        moved = [(X * factor, y) for X, y in blocks]
        runs.append(aq.solve(aq.Problem(aq.Logistic(), aq.Zero(), moved, intercept=True), method))
    one, other = runs
    assert one.n_iter == other.n_iter
    assert np.array_equal(one.coef, other.coef * units)
    assert one.intercept == other.intercept
    assert one.history[-1].rounds == other.history[-1].rounds


def test_fewer_rounds_on_breast_cancer():
    datasets = pytest.importorskip("sklearn.datasets")
    X, y = datasets.load_breast_cancer(return_X_y=True)
    blocks = [(X[i::4], y[i::4].astype(float)) for i in range(4)]
    problem = aq.Problem(aq.Logistic(reduction="sum"), aq.L2(0.01), blocks, intercept=True)
    result = aq.solve(problem, "auq-lr", certificate_tol=1e-6)
    assert result.status == "converged"
    assert result.n_iter <= 25  # raw: 112


def test_single_precision():
    """Transformed in double precision, then rounded: a year column keeps its digits."""
    _, _, blocks = table()
    problem = aq.Problem(aq.LeastSquares(reduction="sum"), aq.L2(1e-3), blocks, intercept=True)
    single, double = (aq.solve(problem, "auq-lr", dtype=kind, certificate_tol=1e-5) for kind in ("float32", "float64"))
    assert single.status == "converged"
    assert single.objective == pytest.approx(double.objective, rel=1e-3)


# ---------------------------------------------------------------------- around the loop
@pytest.mark.parametrize("method", METHODS)
def test_a_warm_start_from_a_result(method):
    _, _, blocks = table(binary=True)
    problem = aq.Problem(aq.Logistic(reduction="sum"), aq.L2(0.01), blocks, intercept=True)
    first = aq.solve(problem, method, **TIGHT)
    again = aq.solve(problem, method, warm_start=first, **TIGHT)
    assert again.status == "converged"
    assert again.n_iter <= 2


def test_multipliers_are_those_of_the_problem():
    """At the optimum λ_j = ∇f_j(v), in the columns of the problem: another method can start from them."""
    _, _, blocks = table(binary=True)
    problem = aq.Problem(aq.Logistic(reduction="sum"), aq.L2(0.01), blocks, intercept=True)
    result = aq.solve(problem, "auq-lr", certificate_tol=1e-12)
    shard = problem.placed().shard(torch.float64, CPU)
    grad = shard.linearize(shard.expand(result.v)).grad
    size = torch.tensor([2000, 1, 3e6, 1, 1, 1], dtype=torch.float64)[:, None]
    torch.testing.assert_close(result.lam / size, grad / size, rtol=1e-4, atol=1e-4)
    raw = aq.solve(problem, METHODS["lbfgs-w"](columns="raw"), warm_start=result)
    assert raw.n_iter <= 2


@pytest.mark.parametrize("method", METHODS)
def test_killed_and_resumed(method, tmp_path):
    """To the same iterates: the frame is part of the state."""
    _, _, blocks = table(binary=True)
    problem = aq.Problem(aq.Logistic(reduction="sum"), aq.L2(1e-4), blocks, intercept=True)
    whole = aq.solve(problem, method, certificate_tol=1e-10)
    assert whole.n_iter > 4
    kept = aq.Checkpoint(tmp_path, every=1)
    aq.solve(problem, method, certificate_tol=1e-10, max_iter=3, checkpoint=kept)
    resumed = aq.solve(problem, method, certificate_tol=1e-10, checkpoint=kept)
    assert torch.equal(resumed.v, whole.v)
    assert resumed.n_iter == whole.n_iter


def test_the_inner_data_are_dropped_and_belong_to_their_run():
    _, _, blocks = table()
    problem = aq.Problem(aq.LeastSquares(reduction="sum"), aq.L2(1e-3), blocks, intercept=True)
    engine = LocalEngine(problem.placed().shard(torch.float64, CPU))
    seen = []

    def look(event):
        seen.append((isinstance(event.state.shared.memory, FramedState), "_inner" in vars(engine.shard)))

    aq.solve(problem, "auq-lr", engine, callbacks=[look])
    assert all(framed and held for framed, held in seen)
    assert "_inner" not in vars(engine.shard)
    engine.shard.enter(frame_of(problem)[0], "another run")
    raw = aq.solve(problem, METHODS["lbfgs"](columns="raw"), engine, max_iter=3)
    assert torch.equal(raw.v, aq.solve(problem, METHODS["lbfgs"](columns="raw"), max_iter=3).v)


def test_without_verdicts_the_columns_are_asked_for_once():
    _, _, blocks = table()
    problem = aq.Problem(aq.LeastSquares(reduction="sum"), aq.L2(1e-3), blocks, intercept=True)
    result = aq.solve(problem, "auq-lr", certificate_tol=0, max_iter=3)
    assert result.history[0].rounds_verdict == 1
    engine = LocalEngine(problem.placed().shard(torch.float64, CPU))
    reduce = Reduce(engine)
    assert reduce.once(moments) is reduce.once(moments)
    assert reduce.traffic.rounds == 1


def test_the_setting_is_checked_and_a_users_own_loss_is_left_alone():
    for method in METHODS.values():
        with pytest.raises(ValueError, match="columns must be one of 'auto', 'raw'"):
            method(columns="centred")

    def squares(u, X, y):
        return 0.5 * (X @ u - y).square()

    _, _, blocks = table(m=3)
    problem = aq.Problem(aq.CustomLoss(squares), aq.L2(1.0), [(X / 1e3, y) for X, y in blocks], intercept=True)
    ours, raw = (aq.solve(problem, METHODS["lbfgs"](columns=c), max_iter=5) for c in ("auto", "raw"))
    assert torch.equal(ours.v, raw.v)
