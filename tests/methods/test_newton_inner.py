"""The inner solve of Newton's method on a working set, and the sums it is made of, against dense loops of numpy."""

import math

import numpy as np
import pytest
import scipy.sparse
import torch

import auqadmm as aq
from auqadmm.blocks import exact_rows
from auqadmm.estimators.fitting import WeightedElasticNet
from auqadmm.methods.newton.model import ActiveFactor, RestrictedRegularizer, minimise_model
from auqadmm.metrics.sums import pack, unpack
from auqadmm.problem.wrappers import FreeIntercept, ScaledRegularizer


def model(seed, p=120, rows=150):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, p)) * 10.0 ** rng.uniform(-2, 2, p)
    H, G = X.T @ X / rows, X.T @ rng.normal(size=rows) / 5
    v = np.where(rng.random(p) < 0.3, rng.normal(size=p), 0.0) / np.sqrt(H.diagonal())
    return H, G, v


def descended(H, G, v, l1, l2, sweeps=20_000):
    """Coordinate descent on the same model, until nothing changes."""
    x, w = v.copy(), G.copy()
    for _ in range(sweeps):
        far = 0.0
        for i in range(len(x)):
            s = H[i, i] * x[i] - w[i]
            new = math.copysign(max(abs(s) - l1[i], 0.0), s) / (H[i, i] + l2)
            if new != x[i]:
                far = max(far, abs(new - x[i]) * math.sqrt(H[i, i]))
                w += H[:, i] * (new - x[i])
                x[i] = new
        if far < 1e-13:
            break
    return x


@pytest.mark.parametrize("free", [False, True], ids=["", "intercept"])
@pytest.mark.parametrize(("l1", "l2"), [(0.5, 0.0), (0.05, 0.0), (0.2, 0.3), (1e3, 0.0)])
def test_the_minimiser_is_that_of_coordinate_descent(l1, l2, free):
    H, G, v = model(seed=3)
    g = FreeIntercept(aq.ElasticNet(l1, l2)) if free else aq.ElasticNet(l1, l2)
    strengths = np.full(len(v), l1)
    lifted = H + l2 * np.eye(len(v))
    if free:
        strengths[-1], lifted[-1, -1] = 0.0, H[-1, -1]
    found = minimise_model(g, torch.from_numpy(H), *columns(G, v), enough=1e-24, share=0.0)
    assert found is not None
    # l2 as curvature, which leaves the intercept out
    x = descended(lifted, G + (lifted - H) @ v, v, strengths, 0.0)
    scale = np.sqrt(H.diagonal())
    np.testing.assert_allclose(found.x[:, 0].numpy() * scale, x * scale, atol=1e-7 * max(1e-3, np.abs(x * scale).max()))
    assert found.value <= 1e-12


def test_a_share_may_be_missing_and_a_singular_model_is_refused():
    H, G, v = model(seed=5)
    whole = minimise_model(aq.L1(0.05), torch.from_numpy(H), *columns(G, v), enough=1e-24, share=0.0)
    loose = minimise_model(aq.L1(0.05), torch.from_numpy(H), *columns(G, v), enough=1e-24, share=0.01)
    assert whole.value <= loose.value <= 0.97 * whole.value < 0
    twice = np.block([[H, H], [H, H]])
    again = minimise_model(
        aq.L1(0.05), torch.from_numpy(twice), *columns(np.r_[G, G], np.r_[v, v]), enough=0.0, share=0.0
    )
    assert again is None


def columns(*xs):
    return [torch.from_numpy(x)[:, None] for x in xs]


@pytest.mark.parametrize(("came", "left"), [(0, 0), (3, 0), (0, 4), (5, 6)])
def test_a_factor_serves_for_sets_that_differ_by_few(came, left):
    rng = np.random.default_rng(came + 10 * left)
    H, _, _ = model(seed=1)
    first = np.arange(len(H)) < 90
    factor = ActiveFactor.of(torch.from_numpy(H), torch.from_numpy(first), torch.zeros(len(H), dtype=torch.float64))
    now = first.copy()
    now[rng.choice(90, left, replace=False)] = False
    now[90 : 90 + came] = True
    b = rng.normal(size=len(H)) * np.sqrt(H.diagonal())
    found = factor.solve(torch.from_numpy(now), torch.zeros(len(H), dtype=torch.float64), torch.from_numpy(b * now))
    expected = np.zeros(len(H))
    expected[now] = np.linalg.solve(H[np.ix_(now, now)], b[now])
    scale = np.sqrt(H.diagonal())
    np.testing.assert_allclose(found.numpy() * scale, expected * scale, rtol=1e-6, atol=1e-8)
    far = torch.from_numpy(np.arange(len(H)) >= 60)
    assert factor.solve(far, torch.zeros(len(H), dtype=torch.float64), torch.from_numpy(b)) is None


RNG = np.random.default_rng(2)
WEIGHTS = [torch.from_numpy(RNG.uniform(0.1, 2, (9, 1))) for _ in range(2)]
SOME = {
    "l1": aq.L1(0.7),
    "elastic net": aq.ElasticNet(0.7, 0.3),
    "weighted": WeightedElasticNet(*WEIGHTS),
    "scaled": ScaledRegularizer(aq.ElasticNet(0.7, 0.3), torch.tensor([1.0, 2, 4, 8, 0.5, 1, 2, 0.25, 1])),
}


@pytest.mark.parametrize("rows", [[1, 4, 9], [0, 2, 8]], ids=["with the intercept", "without"])
@pytest.mark.parametrize("free", [False, True], ids=["", "intercept"])
@pytest.mark.parametrize("name", SOME)
def test_g_of_some_rows_is_g_with_the_others_at_rest(name, free, rows):
    g, m = (FreeIntercept(SOME[name]), 10) if free else (SOME[name], 9)
    index = torch.tensor(rows if free else [min(r, 8) for r in rows])
    on, few = RestrictedRegularizer(g, torch.zeros(m, 1, dtype=torch.float64), index), g.some(index, m)
    t, there, K = (torch.from_numpy(RNG.uniform(-3, 3, (3, 1))) for _ in range(3))
    assert torch.equal(on.prox(t, K.abs()), few.prox(t, K.abs()))
    torch.testing.assert_close(on.fall(t, there)[0], few.fall(t, there)[0])


def test_an_intercept_that_is_not_last_and_a_box_are_left_to_the_whole():
    assert FreeIntercept(aq.L1(1.0)).some(torch.tensor([4, 0]), 5) is None
    assert aq.Box(0.0, 1.0).some(torch.tensor([0, 1]), 5) is None


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("adds_up", [False, True])
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("filled", [0.0, 0.03, 0.3])
def test_products_of_sparse_columns_are_those_of_the_matrix(filled, centred, adds_up, monkeypatch):
    if adds_up and not exact_rows.ADDS_UP:
        pytest.skip("no library here adds products of sparse matrices up in a full one")
    monkeypatch.setattr(exact_rows, "ADDS_UP", adds_up)
    rng = np.random.default_rng(7)
    S = scipy.sparse.random(300, 400, filled, format="csc", random_state=7)
    mu = np.asarray(S.mean(0))[0] if centred else np.zeros(400)
    rows = exact_rows.SparseRows(None, None, 1, torch.from_numpy(mu), None, None, lambda: S)
    h, some = rng.uniform(0, 1, 300), torch.arange(0, 400, 2)
    taken = rows.take(some)
    found = rows.between(taken, torch.from_numpy(h), taken).numpy()
    A = (S.toarray() - mu)[:, ::2]
    expected = A.T @ (h[:, None] * A)
    np.testing.assert_allclose(np.triu(found), np.triu(expected), atol=1e-12 * np.abs(expected).max())
    other = rows.take(torch.arange(5))
    B = (S.toarray() - mu)[:, :5]
    np.testing.assert_allclose(
        rows.between(other, torch.from_numpy(h), taken).numpy(), B.T @ (h[:, None] * A), atol=1e-11
    )


@pytest.mark.parametrize("p", [0, 1, 5, 128, 300])
def test_triangles_are_packed_and_unpacked(p):
    H = torch.from_numpy(np.random.default_rng(p).normal(size=(3, p, p)))
    H = H + H.mT
    upper = pack(H)
    assert upper.shape == (3, p * (p + 1) // 2)
    assert torch.equal(upper[1], torch.from_numpy(H[1].numpy()[np.triu_indices(p)]))
    assert torch.equal(unpack(upper), H)


@pytest.mark.parametrize("columns", [1, 3])
def test_sparse_blocks_as_one_matrix_sum_up_to_what_they_do_apart(columns):
    """A round that asks for a Hessian joins blocks; one that asks for none takes them as they are."""
    rng = np.random.default_rng(3)
    X = scipy.sparse.random(90, 40, 0.2, format="csr", random_state=3, data_rvs=rng.standard_normal)
    y = rng.integers(0, 3, 90) if columns == 3 else rng.choice([-1.0, 1.0], 90)
    loss = aq.Multinomial() if columns == 3 else aq.Logistic()
    problem = aq.Problem(loss, aq.L1(1.0), [(X[j::3], y[j::3]) for j in range(3)], intercept=True)
    shard = problem.shard(torch.float64, torch.device("cpu"))
    centre = torch.from_numpy(np.append(np.asarray(X.mean(0))[0], 0.0))
    v, d = (torch.from_numpy(rng.normal(size=(41, columns))) for _ in range(2))
    exact = shard.exact(centre)
    asked = exact.step(v, d, (0.5,), torch.arange(4), None, (0.5,), columns == 1, True)
    plain = exact.step(v, d, (0.5,), torch.arange(0), None, (0.5,), columns == 1, True)
    assert "H" in asked
    assert "foreseen_G" in plain
    for name, x in plain.items():
        torch.testing.assert_close(asked[name], x, rtol=1e-12, atol=1e-12)
