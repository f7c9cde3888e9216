"""What users hand over: every kind of block works, every bad input gets one clear sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from sklearn.linear_model import LogisticRegression, Ridge

import auqadmm as aq
from auqadmm.blocks.design import PADDING, group_by_height
from tests.problems import class_blocks, pooled, regression_blocks

X = np.arange(12.0).reshape(4, 3)
Y = np.array([1.0, 2.0, 3.0, 4.0])


def ls(blocks, **options):
    return aq.Problem(aq.LeastSquares(), aq.L2(1.0), blocks, **options)


def mn(blocks):
    return aq.Problem(aq.Multinomial(), aq.L2(1.0), blocks)


def with_value(value, row=2, col=1):
    A = X.copy()
    A[row, col] = value
    return A


BAD = [
    (lambda: ls([]), "no blocks: pass at least one"),
    (lambda: ls(X), "list of .* tuples.*got ndarray"),
    (lambda: ls([X]), r"block 0 must be a tuple \(X, y\).*got ndarray"),
    (lambda: ls([(X, Y), (X,)]), r"block 1 must be a tuple.*got 1 parts"),
    (lambda: ls([(X, Y), (X[:, :2], Y)]), "block 1 has 2 features but block 0 has 3.*same columns"),
    (lambda: ls([(X[0], Y)]), r"block 0: X must be a matrix.*shape \(3,\)"),
    (lambda: ls([(X[:, :0], Y)]), "block 0: X has no columns"),
    (lambda: ls([(X, Y[:3])]), "block 0: X has 4 rows but y has 3 values"),
    (lambda: ls([(X, np.ones((4, 2)))]), r"block 0: y must have one value per row.*\(4, 2\)"),
    (lambda: ls([(X, Y), (X, None)]), "block 1: y is missing"),
    (lambda: ls([(X, Y), (with_value(np.nan), Y)]), r"block 1: X\[row 2, column 1\] is nan; remove or impute"),
    (lambda: ls([(with_value(-np.inf, 3, 0), Y)]), r"block 0: X\[row 3, column 0\] is -inf"),
    (lambda: ls([(pd.DataFrame(with_value(np.nan), columns=list("abc")), Y)]), r"column 1\] \(column 'b'\) is nan"),
    (
        lambda: ls([(scipy.sparse.csr_matrix(with_value(np.inf)), Y)]),
        r"block 0: X\[row 2, column 1\] is inf",
    ),
    (lambda: ls([(X, np.array([1, np.nan, 2, 3]))]), r"block 0: y\[1\] is nan; remove or impute"),
    (lambda: ls([(X, np.array(list("abcd")))]), "block 0: y holds .* values but this loss needs numbers"),
    (lambda: ls([(X.astype(np.float16), Y)]), "block 0: X is float16.*convert it to float32 or float64"),
    (lambda: ls([(torch.from_numpy(X).half(), Y)]), "block 0: X is float16"),
    (lambda: ls([(torch.from_numpy(X).bfloat16(), Y)]), "block 0: X is bfloat16"),
    (lambda: ls([(X.astype(str), Y)]), "block 0: X holds .* values; it must hold real numbers"),
    (lambda: ls([(X.astype(complex), Y)]), "block 0: X holds complex128"),
    (lambda: ls([([[1.0, 2.0], [3.0]], Y[:2])]), "block 0: X cannot be read as an array"),
    (lambda: ls([(torch.from_numpy(X).to_sparse(), Y)]), r"sparse torch tensor; convert it to scipy\.sparse"),
    (lambda: ls([(X[:0], Y[:0]), (X[:0], Y[:0])]), "Every block is empty"),
    (lambda: ls([(X, Y, np.array([1, 1, -2, 1]))]), r"sample_weight\[2\] is -2.0; weights must be finite"),
    (lambda: ls([(X, Y, np.array([1, np.nan, 2, 1]))]), r"sample_weight\[1\] is nan"),
    (lambda: ls([(X, Y, np.ones(3))]), "X has 4 rows but sample_weight has 3 values"),
    (lambda: ls([(X, Y, np.zeros(4))]), "Every sample weight is zero"),
    (lambda: mn([(X, np.array(["a", None, "b", "a"], dtype=object))]), r"the label y\[1\] is missing \(None\)"),
    (lambda: mn([(X, np.array([0, 1, np.nan, 1]))]), r"the label y\[2\] is missing \(nan\)"),
    (lambda: mn([(X, np.array(["a", 1, "b", 2], dtype=object))]), "block 0: labels mix types"),
    (lambda: mn([(X, np.array(list("abab"))), (X, Y)]), "Some blocks have numbers and others text as labels"),
    (lambda: mn([(X, np.ones(4))]), "All labels are .*1.0.*at least two classes"),
    (lambda: aq.Problem(aq.Logistic(), aq.L2(1.0), [(X, Y)]), "Logistic separates two classes but the blocks hold 4"),
    (lambda: aq.Problem(aq.Poisson(), aq.L2(1.0), [(X, -Y)]), "block 0.*-1"),
    (lambda: aq.Problem("ls", aq.L2(1.0), [(X, Y)]), "loss must be one of auqadmm's losses"),
    (lambda: aq.Problem(aq.LeastSquares(), "l2", [(X, Y)]), "regularizer must be one of auqadmm's regularizers"),
    (lambda: aq.L2(-1.0), "L2: strength must be a finite number ≥ 0, got -1.0"),
    (lambda: aq.ElasticNet(0.1, float("nan")), "l2 must be a finite number"),
    (lambda: aq.LeastSquares(reduction="median"), "sum.*mean.*pooled"),
    (lambda: aq.SmoothedHinge(eps=0), "eps"),
    (
        lambda: aq.Problem(aq.LeastSquares(), aq.GroupLasso(1.0, groups=[0, 1]), [(X, Y)]),
        "GroupLasso: groups.*2.*3",
    ),
]


@pytest.mark.parametrize(("make", "words"), BAD, ids=[w[:40] for _, w in BAD])
def test_bad_input_gets_one_clear_sentence(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------ every kind of block
def answer(blocks, **options):
    run = aq.solve(ls(blocks, **options), "ac-admm", certificate_tol=1e-15, abs_tol=1e-8, rel_tol=1e-8, max_iter=3000)
    assert run.status == "converged"
    return run


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "convert",
    [
        lambda X: X.astype(np.float32),
        torch.from_numpy,
        scipy.sparse.csr_matrix,
        scipy.sparse.csc_array,
        scipy.sparse.coo_matrix,
        pd.DataFrame,
        lambda X: X.tolist(),
        np.asfortranarray,
        lambda X: np.vstack([X, X])[::2][: len(X)] * 0 + X,
    ],
    ids=["float32", "torch", "csr", "csc", "coo", "frame", "lists", "fortran", "strided"],
)
def test_kinds_of_arrays_agree(convert):
    blocks = [(np.round(X, 3).astype(np.float32).astype(float), y) for X, y in regression_blocks()]
    expected = answer(blocks).coef
    np.testing.assert_allclose(answer([(convert(X), y) for X, y in blocks]).coef, expected, atol=1e-7)


def test_dense_and_sparse_blocks_mix():
    blocks = regression_blocks()
    mixed = [(scipy.sparse.csr_matrix(X) if j % 2 else X, y) for j, (X, y) in enumerate(blocks)]
    a, b = answer(blocks, intercept=True), answer(mixed, intercept=True)
    np.testing.assert_allclose(a.coef, b.coef, atol=1e-7)
    assert a.intercept == pytest.approx(b.intercept, abs=1e-7)


def test_the_callers_arrays_are_not_touched():
    blocks = regression_blocks()
    before = [(X.copy(), y.copy()) for X, y in blocks]
    answer(blocks)
    for (X, y), (X0, y0) in zip(blocks, before, strict=True):
        assert (X == X0).all()
        assert (y == y0).all()


def test_intercept_is_never_penalised():
    blocks = [(X, y + 100.0) for X, y in regression_blocks()]
    run = answer(blocks, intercept=True)
    A, y = pooled(blocks)
    oracle = Ridge(alpha=1.0, tol=1e-12).fit(A, y)
    np.testing.assert_allclose(run.coef, oracle.coef_, atol=1e-6)
    assert run.intercept == pytest.approx(oracle.intercept_, abs=1e-6)
    assert run.coef.shape == (6,)
    assert run.certificate.gap is None


def test_string_labels_missing_classes_and_an_empty_worker():
    names = np.array(["ant", "bee", "cat"])
    blocks = [(X, names[y]) for X, y in class_blocks()]
    blocks.append((np.zeros((0, 5)), np.array([], dtype="<U3")))
    problem = aq.Problem(aq.Multinomial(), aq.L2(1.0), blocks, intercept=True)
    run = aq.solve(problem, "ac-admm", certificate_tol=1e-14, abs_tol=1e-8, rel_tol=1e-8, max_iter=3000)
    assert run.classes.tolist() == ["ant", "bee", "cat"]
    A, y = pooled(blocks[:3])
    oracle = LogisticRegression(C=1.0, tol=1e-10, max_iter=10**4).fit(A, y)
    np.testing.assert_allclose(run.coef.T, oracle.coef_, atol=1e-5)
    # the softmax does not see a constant added to every intercept
    np.testing.assert_allclose(run.intercept - run.intercept.mean(), oracle.intercept_, atol=1e-4)


@pytest.mark.parametrize("labels", [(-1, 1), (0, 1), (3, 7), ("no", "yes"), (False, True)])
def test_any_two_labels(labels):
    blocks = class_blocks(classes=2)
    reference = aq.solve(aq.Problem(aq.Logistic(), aq.L2(1.0), blocks), max_iter=50).coef
    named = [(X, np.array(labels)[y]) for X, y in blocks]
    run = aq.solve(aq.Problem(aq.Logistic(), aq.L2(1.0), named), max_iter=50)
    np.testing.assert_array_equal(run.coef, reference)
    assert run.classes.tolist() == list(labels)


def test_more_workers_than_features_and_workers_of_one_row():
    blocks = regression_blocks(sizes=(1,) * 12, features=3)
    A, y = pooled(blocks)
    np.testing.assert_allclose(answer(blocks).coef, Ridge(alpha=1.0, fit_intercept=False).fit(A, y).coef_, atol=1e-6)


def test_thresholds_do_not_depend_on_how_many_workers_hold_the_same_data():
    """Split in two halves of equal content, a problem stops with the same tolerance per unknown."""
    blocks = regression_blocks(sizes=(20,))
    rows = [
        aq.solve(aq.Problem(aq.LeastSquares(reduction="mean"), aq.L2(0.1), blocks * N), "c-admm", max_iter=1).history[0]
        for N in (1, 4)
    ]
    # √(N·n)·ε_abs + ε_rel·√N·(…): both parts grow like the residuals themselves, with √N
    assert rows[1].eps_primal / rows[0].eps_primal == pytest.approx(2.0, rel=0.05)


# ------------------------------------------------------------------ padding
def test_groups_pad_little_and_never_mix_empty_blocks():
    rng = np.random.default_rng(0)
    for _ in range(50):
        heights = rng.integers(0, 200, size=rng.integers(1, 40)).tolist()
        groups = group_by_height(heights)
        assert sorted(j for g in groups for j in g) == list(range(len(heights)))
        for g in groups:
            tall = max(heights[j] for j in g)
            assert all(tall <= (1 + PADDING) * heights[j] for j in g)
    assert group_by_height([5, 5, 5]) == [[0, 1, 2]]


def test_a_process_that_holds_only_empty_blocks_works():
    """Blocks may be placed so that one process gets nothing but an empty one."""
    from auqadmm.blocks.shard import build_shard

    problem = ls([(X, Y), (X[:0], Y[:0])])
    for empty in (problem.blocks[1:], ls([(X, Y), (scipy.sparse.csr_matrix(X[:0]), Y[:0])]).blocks[1:]):
        shard = build_shard(empty, [np.zeros(0)], problem.loss, problem.census, [1], torch.float64, torch.device("cpu"))
        point = shard.linearize(shard.zeros())
        assert point.value.tolist() == [0.0]
        assert point.grad.shape == (1, 3, 1)
        assert (point.hvp(torch.ones(1, 3, 1, 2, dtype=torch.float64)) == 0).all()
        assert (point.hessian_diagonal() == 0).all()


@pytest.mark.parametrize("convert", [np.asarray, scipy.sparse.csr_matrix])
def test_values_beyond_float32_are_refused(convert):
    problem = ls([(X, Y), (convert(with_value(1e300)), Y)])
    with pytest.raises(aq.InputError, match=r"block 1: X holds 1e\+300, beyond the range of float32"):
        aq.solve(problem, dtype="float32")


def test_dates_as_labels_and_a_missing_one():
    days = np.array(["2020-01-01", "2020-01-02", "2020-01-01", "NaT"], dtype="datetime64[D]")
    with pytest.raises(aq.InputError, match=r"the label y\[3\] is missing \(NaT\)"):
        mn([(X, days)])
