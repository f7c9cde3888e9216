"""Whole runs: no method, engine, estimator or command calls converged what is not."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import auqadmm as aq
from tests.verdict.cases import CASES, TABLE, TOL

METHODS = ("auto", "lbfgs", "fista", "owl-qn", "c-admm", "rb-admm", "ac-admm", "auq-admm", "uq-admm", "lbfgs-w")
SMOOTH = ("lbfgs", "lbfgs-w")
QUICK = {"max_iter": 40, "time_limit": 3.0}


def run(case, method, **settings):
    problem = case.problem()
    try:
        return aq.solve(problem, method, warm_start=case.start, **{**QUICK, **settings})
    except ValueError as error:  # a method that cannot handle this regularizer says so
        assert "needs" in str(error)  # noqa: PT017
        pytest.skip(str(error))


def honest(case, result):
    """Converged within ten times its bound; proved bounds hold."""
    found = result.certificate
    assert str(result.status) in ("converged", "max_iter", "time_limit", "rounding", "diverged", "undecided")
    if result.status == "converged":
        slack = 4e-16 * abs(found.objective) / found.scale
        assert float(case.oracle.relative(result.v)) <= 10 * found.relative + slack
        assert found.relative <= TOL
        assert f"within {found.words().split()[1]} of the optimum ({found.evidence})" in result.message
    if result.status == "undecided":
        assert case.singular or not case.has_minimiser
        assert "collinear" in result.message or "separable" in result.message or "bends" in result.message
        assert not case.has_minimiser or float(case.oracle.relative(result.v)) <= 1e-4
    if found.evidence == "proved":
        gap = float(case.oracle.gap(result.v))
        assert gap <= found.gap_bound + 4e-16 * abs(found.objective)
    if result.status in ("max_iter", "time_limit"):
        assert result.message.startswith("Not converged")
        assert result.message.count(".") >= 2  # how far, and why or what to do


@pytest.mark.parametrize("method", ["auto", "lbfgs", "auq-admm"])
@pytest.mark.parametrize("case", TABLE, ids=[case.name for case in TABLE])
@pytest.mark.thin(3)
def test_the_raw_tables(case, method):
    honest(case, run(case, method))


@pytest.mark.thin(4)
@pytest.mark.parametrize("k", range(len(CASES)))
def test_a_method_each(k):
    """Every case with a method drawn for it."""
    case = CASES[k]
    honest(case, run(case, METHODS[(7 * k) % len(METHODS)]))


def test_most_plain_runs_converge():
    """Not flattering is easy for who never says yes."""
    plain = [case for case in CASES if case.has_minimiser and not case.singular and case.start is None][26:66]
    yes = sum(run(case, "auto", max_iter=200).status == "converged" for case in plain)
    assert yes >= 0.6 * len(plain)


# ---------------------------------------------------------------------- what people see
def blocks(X, y, parts=3):
    return [(X[i], y[i]) for i in np.array_split(np.arange(len(y)), parts)]


def numbers(seed=0, rows=90, columns=4):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns))
    return X, X @ rng.standard_normal(columns) + 0.3 * rng.standard_normal(rows), rng


def test_residuals_are_called_by_their_name():
    X, y, _ = numbers()
    problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), blocks(X, y))
    result = aq.solve(problem, "c-admm", stop="residuals", abs_tol=1e-3, rel_tol=1e-2)
    assert result.status == "residuals"
    assert "residuals within tolerance" in result.message
    assert result.certificate.evidence == "proved"  # and it is known how good they are
    assert f"{result.certificate.words()}" in result.message


def test_a_fit_without_error_ends_at_the_floor_of_rounding():
    X, _, rng = numbers()
    y = X @ rng.standard_normal(4)
    result = aq.solve(aq.Problem(aq.LeastSquares(), aq.Zero(), blocks(X, y)), "lbfgs", max_iter=500)
    assert result.status == "rounding"
    assert "floor of rounding" in result.message
    assert result.certificate.evidence == "rounding"
    assert result.objective < 1e-20


def test_separable_classes_are_named():
    X, _, _ = numbers()
    y = np.sign(X[:, 2])
    for method in ("auto", "lbfgs"):
        result = aq.solve(aq.Problem(aq.Logistic(), aq.Zero(), blocks(X, y), intercept=True), method)
        assert result.status != "converged"
        assert "separable" in result.message
        assert "column 2" in result.message
        assert "grow" in result.message


@pytest.mark.parametrize("method", ["auto", "lbfgs", "c-admm"])
def test_collinear_columns_are_named(method):
    import pandas

    X, y, _ = numbers()
    frame = pandas.DataFrame(np.column_stack([X, 2 * X[:, 1]]), columns=["age", "weight", "height", "dose", "pounds"])
    parts = [(frame.iloc[i], y[i]) for i in np.array_split(np.arange(len(y)), 3)]
    result = aq.solve(aq.Problem(aq.LeastSquares(), aq.Zero(), parts, intercept=True), method, max_iter=80)
    assert result.status != "converged"
    assert "'weight' and column 'pounds' are collinear" in result.message


def test_columns_of_odd_sizes_are_named():
    X, y, _ = numbers()
    X = X * [1.0, 1.0, 1e6, 1.0]
    result = aq.solve(aq.Problem(aq.LeastSquares(), aq.L2(1e-6), blocks(X, y)), "fista", max_iter=20)
    assert result.status != "converged"
    assert "column 2 is" in result.message.lower()
    assert "standard deviations" in result.message


def test_an_infinite_loss_names_block_and_row():
    X, _, rng = numbers()
    X[41] *= 1e4
    y = rng.poisson(1.0, len(X)).astype(float)
    problem = aq.Problem(aq.Poisson(), aq.L2(1.0), blocks(X, y))
    for method in ("lbfgs", "fista"):
        result = aq.solve(problem, method, warm_start=np.sign(X[41])[:, None])
        assert result.status == "diverged"
        assert result.objective == np.inf
        assert "block 1, row 11," in result.message
    own = aq.Problem(aq.CustomLoss(lambda u, X, y: y / (X @ u)), aq.L2(1.0), blocks(X, y))
    result = aq.solve(own, "fista")
    assert result.status != "converged"
    assert "block 0" in result.message


ODD = {
    "a column of zeros": lambda X: np.column_stack([X, np.zeros(len(X))]),
    "a constant beside the intercept": lambda X: np.column_stack([X, np.full(len(X), 0.1)]),
}


@pytest.mark.parametrize("method", ["auto", "lbfgs", "c-admm", "fista"])
@pytest.mark.parametrize("how", ODD)
def test_columns_without_a_say_do_no_harm(how, method):
    """F does not depend on them (a constant's part is the intercept's): the verdict is that of the other columns."""
    X, y, _ = numbers()
    odd = aq.Problem(aq.LeastSquares(), aq.L2(0.1), blocks(ODD[how](X), y), intercept=True)
    result = aq.solve(odd, method, max_iter=3000, certificate_tol=1e-10)
    assert result.status == "converged"
    assert "column 4 is" in result.message.lower()
    assert "no say" in result.certificate.notes
    best = aq.solve(
        aq.Problem(aq.LeastSquares(), aq.L2(0.1), blocks(X, y), intercept=True), "lbfgs", certificate_tol=1e-12
    )
    assert abs(result.objective - best.objective) <= 2e-10 * best.objective


def test_one_row_and_weights_of_zero():
    one = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(np.ones((1, 2)), np.ones(1))], intercept=True)
    assert aq.solve(one).status in ("converged", "rounding")
    X, y, _ = numbers()
    with pytest.raises(aq.InputError, match="weight is zero"):
        aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X, y, np.zeros(len(y)))])


# ---------------------------------------------------------------------- what it costs
class Counting:
    """An engine that counts what it is asked."""

    def __init__(self, engine):
        self.engine, self.calls = engine, []

    def __getattr__(self, name):
        found = getattr(self.engine, name)
        if name not in ("map_sum", "map_minmax", "map_concat", "gather"):
            return found

        def counted(*arguments):
            answer = found(*arguments)
            sums = answer[1] if name in ("map_sum", "map_minmax") else answer
            self.calls.append((name, len(sums)))
            return answer

        return counted


@pytest.mark.parametrize("method", ["auto", "c-admm", "rb-admm", "lbfgs", "fista", "lbfgs-w"])
@pytest.mark.parametrize("max_iter", [3, 400])
def test_the_history_holds_all_that_the_workers_did(method, max_iter):
    from auqadmm.engines import LocalEngine

    X, y, _ = numbers()
    problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), blocks(X, y), intercept=True)
    engine = Counting(LocalEngine(problem.shard(torch.float64, torch.device("cpu"))))
    # "auto" asks once, while placing, which local solver suits
    result = aq.solve(problem, method, engine, local="newton-cg", max_iter=max_iter)
    last = result.history[-1]
    travelled = [call for call in engine.calls if call[1] > 0]
    sums = [call for call in travelled if call[0] in ("map_sum", "map_minmax")]
    assert last.rounds == len(sums)  # no reduction is free
    assert last.reductions == len(travelled)
    assert 1 <= last.rounds_verdict < last.rounds
    assert all(a.rounds <= b.rounds for a, b in zip(result.history, list(result.history)[1:], strict=False))


def test_nothing_is_asked_where_nothing_is_wanted():
    X, y, _ = numbers()
    problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), blocks(X, y))
    bare = aq.solve(problem, "c-admm", stop="residuals", certificate_tol=0.0, abs_tol=0.0, rel_tol=0.0, max_iter=5)
    assert [row.objective for row in bare.history] == [None] * 5
    scored = aq.solve(
        problem, "c-admm", stop="residuals", certificate_tol=0.0, abs_tol=0.0, rel_tol=0.0, max_iter=5, evaluate_every=1
    )
    assert all(row.objective is not None for row in scored.history)
    assert [r.rounds for r in scored.history][:-1] == [r.rounds for r in bare.history][:-1]
    assert scored.history[-1].reductions > bare.history[-1].reductions


# ---------------------------------------------------------------------- the same everywhere
def test_estimators_and_the_path_show_the_kind():
    from auqadmm.estimators import ConsensusElasticNet, ConsensusLogisticRegression, enet_path

    X, y, rng = numbers(rows=120)
    X = X * 10.0 ** rng.uniform(-3, 3, 4) + 1000
    net = ConsensusElasticNet(alpha=0.01, n_blocks=3).fit(X, y)
    assert net.certificate_.evidence == "proved"
    assert net.certificate_.relative <= net.tol
    logistic = ConsensusLogisticRegression(n_blocks=3).fit(X, y > np.median(y))
    assert logistic.status_ in ("converged", "rounding")
    path = enet_path(X, y, alphas=8, n_blocks=2)
    assert all(result.certificate.evidence in ("proved", "rounding") for result in path.results)


def test_the_command_line_says_it_in_one_sentence(tmp_path):
    from typer.testing import CliRunner

    from auqadmm.cli import app

    X, y, _ = numbers()
    lines = ["a,b,c,d,y"] + [",".join(f"{x:.6f}" for x in (*row, t)) for row, t in zip(X, y, strict=True)]
    (tmp_path / "site.csv").write_text("\n".join(lines))
    out = tmp_path / "out"
    done = CliRunner().invoke(
        app, ["fit", str(tmp_path / "site.csv"), "--model", "elastic-net", "--target", "y", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    summary = json.loads((out / "summary.json").read_text())
    sentence = f"Converged: {summary['certificate']['verdict']}"
    assert sentence in done.output
    assert sentence in summary["message"]
    assert summary["certificate"]["evidence"] == "proved"
    assert sentence in (out / "report.html").read_text()
    assert summary["rounds_verdict"] >= 1
