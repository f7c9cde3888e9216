"""The loss: its laws, sums written out one by one, extreme logits, sparse rows, single precision, and what is sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
import torch

import auqadmm as aq
from auqadmm.testing import LossSuite
from tests.cox.rows import study

CPU = torch.device("cpu")


class Times(LossSuite):
    coupled = True

    def targets(self, rng, rows):
        time = np.ceil(rng.gamma(2.0, 3.0, size=rows))
        entry = time - rng.integers(1, 6, size=rows)
        return np.column_stack([time, rng.integers(2, size=rows), entry, rng.integers(2, size=rows)])


class TestBreslow(Times):
    loss = aq.Cox("breslow")


class TestEfron(Times):
    loss = aq.Cox("efron")

    def test_a_row_of_weight_two_counts_twice(self):
        """Not with this rule of ties, nor in R: two rows share a risk set that one does not."""


def written_out(z, y, c, ties):
    """One event after the other, in longdouble and in logarithms."""
    z, total, slopes = z.astype(np.longdouble), np.longdouble(0), np.zeros(len(z), dtype=np.longdouble)
    for s in np.unique(y[:, 3]):
        for t in np.unique(y[(y[:, 1] == 1) & (y[:, 3] == s) & (c > 0), 0]):
            here = (y[:, 3] == s) & (c > 0)
            risk = here & (y[:, 2] < t) & (t <= y[:, 0])
            dead = here & (y[:, 0] == t) & (y[:, 1] == 1)
            d = int(dead.sum())
            for k in range(d if ties == "efron" else 1):
                share = np.where(dead, 1 - (k / d if ties == "efron" else 0), 1.0)[risk] * c[risk]
                mass = c[dead].sum() / (d if ties == "efron" else 1)
                top = z[risk].max()
                S = (share * np.exp(z[risk] - top)).sum()
                total += mass * (np.log(S) + top)
                slopes[risk] += mass * share * np.exp(z[risk] - top) / S
            total -= (c * z)[dead].sum()
            slopes[dead] -= c[dead]
    return float(total), slopes.astype(float)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("scale", [1.0, 700.0])
def test_sums_written_out(ties, scale):
    """Also where logits are ±700, and late comers outweigh by far those at risk before."""
    rng = np.random.default_rng(3)
    suite = Times()
    blocks = []
    for n in (40, 7, 1, 0):
        z = scale * rng.choice([-1.0, 1.0], size=n) + rng.normal(size=n)
        weight = np.where(rng.random(n) < 0.2, 0.0, rng.uniform(0.3, 3.0, size=n))
        blocks.append((z[:, None], suite.targets(rng, n), weight))
    shard = aq.Problem(aq.Cox(ties), aq.Zero(), blocks).shard(torch.float64, CPU)
    point = shard.linearize(torch.ones(4, 1, 1, dtype=torch.float64))
    for j, (X, y, c) in enumerate(blocks):
        value, slopes = written_out(X[:, 0], y, c, ties)
        assert float(point.value[j]) == pytest.approx(value, rel=1e-12, abs=1e-9)
        assert float(point.grad[j]) == pytest.approx(slopes @ X[:, 0], rel=1e-9, abs=1e-9 * scale)
    assert bool(point.hvp(point.u).isfinite().all())
    assert bool((point.hessian_diagonal() >= -1e-9).all())


def test_single_precision_keeps_times_apart():
    """Times that are equal in float32 only are no ties; values have the accuracy of float32."""
    data = study()
    y = data.y(True, True)
    y[:, 0] += 1e9
    y[:, 0] += np.linspace(0, 1e-3, len(y))
    blocks = [(data.X / 50, y)]
    shards = [aq.Problem(aq.Cox(), aq.Zero(), blocks).shard(kind, CPU) for kind in (torch.float64, torch.float32)]
    exact, rough = (s.linearize(torch.full((1, 3, 1), 0.5, dtype=s.dtype)) for s in shards)
    assert rough.value.dtype == rough.grad.dtype == torch.float32
    assert float(rough.value) == pytest.approx(float(exact.value), rel=1e-6)
    np.testing.assert_allclose(rough.grad, exact.grad, atol=1e-4)
    fits = [aq.solve(aq.Problem(aq.Cox(), aq.L2(1.0), blocks), dtype=kind).coef for kind in ("float64", "float32")]
    np.testing.assert_allclose(*fits, atol=2e-3)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_sparse_rows_other_splits_and_rows_of_weight_zero(ties):
    data = study()
    blocks = data.blocks(True, True, True)
    sparse = [(scipy.sparse.csr_matrix(b[0]), *b[1:]) for b in blocks]
    padded = [(np.r_[b[0], 9 + b[0]], np.r_[b[1], b[1]], np.r_[b[2], 0 * b[2]]) for b in blocks]
    at = torch.tensor([0.04, -0.5, 0.3], dtype=torch.float64)[:, None]
    points = []
    for made in (blocks, sparse, padded):
        shard = aq.Problem(aq.Cox(ties), aq.Zero(), made).shard(torch.float64, CPU)
        points.append(shard.linearize(shard.expand(at)))
    for other in points[1:]:
        np.testing.assert_allclose(other.value, points[0].value, rtol=1e-12)
        np.testing.assert_allclose(other.grad, points[0].grad, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(other.hessian_diagonal(), points[0].hessian_diagonal(), rtol=1e-9, atol=1e-9)


def test_sites_are_strata():
    """A block for every site, or one block with a stratum for every site."""
    data = study()
    one = replace(data, stratum=data.site, site=np.zeros(len(data.site)))
    shards = [
        aq.Problem(aq.Cox(), aq.Zero(), d).shard(torch.float64, CPU) for d in (data.blocks(), one.blocks(strata=True))
    ]
    many, single = (s.linearize(s.expand(torch.full((3, 1), 0.02, dtype=torch.float64))) for s in shards)
    assert float(many.value.sum()) == pytest.approx(float(single.value[0]), rel=1e-13)
    np.testing.assert_allclose(many.grad.sum(0), single.grad[0], rtol=1e-9)


@pytest.mark.parametrize("reduction", ["pooled", "mean"])
def test_reductions_are_multiples_of_the_sum(reduction):
    data = study()
    blocks = data.blocks(weights=reduction == "pooled")
    totals = [float(b[2].sum()) if len(b) > 2 else float(len(b[1])) for b in blocks]
    u = torch.full((3, 1), 0.02, dtype=torch.float64)
    sums, other = (
        (s := aq.Problem(loss, aq.Zero(), blocks).shard(torch.float64, CPU)).linearize(s.expand(u)).value.numpy()
        for loss in (aq.Cox(), aq.Cox(reduction=reduction))
    )
    by = sum(totals) if reduction == "pooled" else np.array(totals)
    np.testing.assert_allclose(other, sums / by, rtol=1e-12)


def test_no_sum_of_times_is_sent():
    data = study()
    a, b = (
        aq.Problem(aq.Cox(), aq.Zero(), replace(data, time=t).blocks()).shard(torch.float64, CPU).exact().moments()
        for t in (data.time, data.time**2)
    )
    assert all(torch.equal(a[name], b[name]) for name in a if name != "G0")
    np.testing.assert_allclose(a["G0"], b["G0"], rtol=1e-12)
    assert float(a["y"]) == float(a["yy"]) == 0


Y = np.array([[3.0, 1], [2, 0], [1, 1], [4, 1]])
X = np.arange(4.0)[:, None]


def spoiled(row, column, value, width=2):
    y = np.column_stack([Y, np.zeros((4, width - 2))])
    y[row, column] = value
    return y


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        (spoiled(1, 0, 0), "block 1, row 1: time is 0; times must be above zero"),
        (spoiled(2, 0, -4), "block 1, row 2: time is -4; times must be above zero"),
        (spoiled(3, 1, 2), r"block 1, row 3: event is 2; it must be 1 \(an event\) or 0 \(censored\)"),
        (spoiled(0, 2, 3, 3), "block 1, row 0: entry is 3 and time 3; a row must enter before its time"),
        (spoiled(0, 0, np.nan), r"block 1: y\[0, 0\] is nan"),
        (spoiled(2, 1, np.inf), r"block 1: y\[2, 1\] is inf"),
        (Y[:, 0], r"block 1: y must have the columns time, event .* got an array of shape \(4,\)"),
        (np.zeros((4, 5)), r"block 1: y must have the columns time, event .* shape \(4, 5\)"),
        (Y[:3], r"block 1: X has 4 rows but y has 3|one value per row"),
        ([["a", 1]] * 4, "block 1: y holds"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(y, sentence):
    with pytest.raises(aq.InputError, match=sentence):
        aq.Problem(aq.Cox(), aq.Zero(), [(X, Y), (X, y)])


def test_other_refusals():
    still = Y * [1, 0]
    with pytest.raises(aq.InputError, match="No row of positive weight has an event"):
        aq.Problem(aq.Cox(), aq.Zero(), [(X, still), (X, Y, np.zeros(4))])
    aq.Problem(aq.Cox(), aq.Zero(), [(X, still), (X, Y)])
    with pytest.raises(aq.InputError, match="intercept=True has no place beside Cox"):
        aq.Problem(aq.Cox(), aq.Zero(), [(X, Y)], intercept=True)
    with pytest.raises(aq.InputError, match=r"needs a loss of rows.*Cox is none"):
        aq.Problem(aq.Cox(), aq.Zero(), [(X, Y)], site_intercepts=True)
    with pytest.raises(aq.InputError, match="ties must be 'efron' or 'breslow', got 'exact'"):
        aq.Cox("exact")
    with pytest.raises(aq.InputError, match="y must have one value per row"):
        aq.Problem(aq.Poisson(), aq.Zero(), [(X, Y)])
    with pytest.raises(aq.InputError, match="y must have one value per row"):
        aq.Problem(aq.Logistic(), aq.Zero(), [(X, Y)])
