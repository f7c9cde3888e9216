"""Every finding on a problem built to show it, that its setting helps, and none of them on runs in good order."""

import re
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

import auqadmm as aq
from auqadmm import local, methods
from auqadmm.comparison import digits_elastic_net, digits_multinomial
from auqadmm.diagnosis import diagnosis, evidence
from tests.problems import class_blocks, least_squares, multinomial, pooled, regression_blocks, svm

SETTINGS = {"methods": methods, "local": local, "dict": dict}


def with_setting(problem, finding, **options):
    """The same run with the setting that a finding proposes."""
    given = eval(f"dict({finding.setting})", SETTINGS)
    return aq.solve(problem, **{"method": "c-admm", **options, **given})


def only(diagnosis):
    (finding,) = diagnosis
    return finding


def separable():
    X, y = pooled(class_blocks(classes=2, per_block=20, one_class=False))
    X = X + 3 * (2 * y[:, None] - 1)
    return [(X[i::3], y[i::3]) for i in range(3)]


def outlier():
    """Six workers, the third in other units and with the opposite opinion."""
    blocks = regression_blocks(sizes=(12, 9, 15, 7, 11, 14))
    X, y = blocks[2]
    blocks[2] = (10 * X, -10 * y)
    return least_squares(blocks)


# ---------------------------------------------------------------------- runs in good order
ALL = ("c-admm", "rb-admm", "ac-admm", "uq-admm", "auq-admm", "auq-lr", "lbfgs", "fista")
SMOOTH = [(make, method) for make in (multinomial, svm) for method in ALL]
OTHER = [(least_squares, method) for method in ALL if method != "lbfgs"]
DIGITS = [(digits_multinomial, "c-admm"), (digits_multinomial, "auq-admm"), (digits_elastic_net, "auq-admm")]


@pytest.mark.thin(3)
@pytest.mark.parametrize(("make", "method"), SMOOTH + OTHER + DIGITS)
def test_a_run_in_good_order_that_is_cut_short_lacks_iterations_and_nothing_else(make, method):
    problem = make()
    for limit in (3, 14):
        result = aq.solve(problem, method, max_iter=limit)
        assert {finding.code for finding in result.diagnose(problem)} <= {"budget"}


def test_a_converged_run_has_nothing_to_tell():
    result = aq.solve(multinomial())
    assert result.evidence is None
    assert len(result.diagnose()) == 0
    assert "nothing to diagnose" in str(result.diagnose())


# ---------------------------------------------------------------------- one by one
@pytest.mark.parametrize("make", [least_squares, multinomial, svm])
@pytest.mark.parametrize(("rho", "code"), [(1e-3, "penalty-too-small"), (1e3, "penalty-too-large")])
def test_a_penalty_that_is_far_off(make, rho, code):
    problem = make()
    result = aq.solve(problem, methods.C(rho=rho), max_iter=60)
    finding = only(result.diagnose(problem))
    assert finding.code == code
    better = with_setting(problem, finding, max_iter=60)
    assert better.certificate.kkt < 0.03 * result.certificate.kkt


def test_a_penalty_that_is_an_interval():
    problem = multinomial()
    result = aq.solve(problem, methods.AUQ(interval=(1e-4, 1e-3)), max_iter=30)
    finding = only(result.diagnose())
    assert finding.code == "penalty-too-small"
    assert finding.setting.startswith("method=methods.AUQ(interval=(")
    assert with_setting(problem, finding, max_iter=30).certificate.kkt < 0.03 * result.certificate.kkt


def test_a_block_far_from_consensus():
    problem = outlier()
    result = aq.solve(problem, "c-admm", max_iter=40)
    finding = result.diagnose().findings[0]
    assert finding.code == "far-block"
    assert "'block 2' makes up 9" in finding.sentence
    assert with_setting(problem, finding, max_iter=40).status == "converged"


def test_inaccurate_local_solves():
    problem = multinomial()
    limits = {"max_iter": 96, "certificate_tol": 1e-8}
    result = aq.solve(problem, "c-admm", local=local.NewtonCG(max_iter=1, max_cg=1), **limits)
    finding = only(result.diagnose())
    assert finding.code == "inner-inaccurate"
    assert "in 48 of the last 48 iterations" in finding.sentence
    assert with_setting(problem, finding, **limits).status == "converged"


def crowded(rng):
    """Forty features, one of them thirty times as large: its curvature takes the whole interval."""
    scale = np.ones(40)
    scale[7] = 30.0
    return least_squares([(X * scale, y) for X, y in regression_blocks(sizes=(60, 50, 70), features=40)])


def test_weights_at_the_end_of_the_interval(rng):
    problem = crowded(rng)
    result = aq.solve(problem, methods.UQ(curvature="exact"), max_iter=40)
    diagnosis = result.diagnose(problem)
    assert "weights-at-end" in diagnosis
    finding = next(f for f in diagnosis if f.code == "weights-at-end")
    assert "98% of the weights lie at the lower end 0.1" in finding.sentence
    assert with_setting(problem, finding, max_iter=40).status == "converged"
    even = least_squares(regression_blocks(sizes=(60, 50, 70), features=40))
    assert "weights-at-end" not in aq.solve(even, methods.UQ(curvature="exact"), max_iter=10).diagnose(even)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_features_of_uneven_size(sparse, intercept):
    scale = np.array([1, 1e4, 1, 1, 1, 1])
    make = scipy.sparse.csr_matrix if sparse else np.asarray
    blocks = [(make(X * scale), y) for X, y in regression_blocks()]
    problem = aq.Problem(aq.LeastSquares(reduction="mean"), aq.L2(0.1), blocks, intercept=intercept)
    X = np.vstack([np.asarray(X) for X, _ in regression_blocks()]) * scale
    result = aq.solve(problem, "c-admm", max_iter=20)
    # what round 0 saw: rows weigh as they do in the loss, and an intercept takes up the means
    w = np.concatenate([np.full(len(y), 1 / len(y)) for _, y in blocks]) / len(blocks)
    spread = np.sqrt(w @ (X - intercept * (w @ X)) ** 2)
    for finding in (result.diagnose().findings[0], result.diagnose(problem).findings[0]):
        assert finding.code == "uneven-features"
        times = f"{spread.max() / spread.min():.1e}"
        assert f"column 1 is {times} times as large as column {spread.argmin()}" in finding.sentence
    assert finding.sentence[1:] in result.message
    # without a verdict nobody looked, unless the problem is at hand
    silent = aq.solve(problem, "c-admm", max_iter=20, certificate_tol=0)
    assert "uneven-features" not in silent.diagnose()
    finding = silent.diagnose(problem).findings[0]
    size = np.sqrt((X**2).mean(0))
    assert finding.code == "uneven-features"
    assert f"feature 1 is {size.max() / size.min():.1e} times as large as feature {size.argmin()}" in finding.sentence
    even = aq.Problem(problem.loss, problem.regularizer, regression_blocks(), intercept=intercept)
    assert aq.solve(even, "c-admm", max_iter=60).status == "converged"


def test_a_feature_far_from_zero():
    shift = np.array([0, 0, 0, 1e3, 0, 0])
    problem = aq.Problem(
        aq.LeastSquares(), aq.L2(0.1), [(X + shift, y) for X, y in regression_blocks()], intercept=True
    )
    result = aq.solve(problem, "c-admm", max_iter=20)
    finding = result.diagnose().findings[0]
    assert finding.code == "far-from-zero"
    assert "column 3 lies far from zero (mean 1e+03, spread " in finding.sentence
    assert finding.sentence[1:] in result.message
    near = aq.Problem(aq.LeastSquares(), aq.L2(0.1), regression_blocks(), intercept=True)
    assert "far-from-zero" not in aq.solve(near, "c-admm", max_iter=3).diagnose(near)


def test_a_problem_whose_blocks_are_made_where_they_live():
    blocks = [(X * np.array([1, 1e4, 1, 1, 1, 1]), y) for X, y in regression_blocks()]
    problem = aq.Problem(aq.LeastSquares(reduction="mean"), aq.L2(0.1), lambda rank, world: blocks)
    assert "uneven-features" in aq.solve(problem, "c-admm", max_iter=20).diagnose(problem)


@pytest.mark.parametrize(("make", "method", "limit"), [(multinomial, "c-admm", 20), (least_squares, "c-admm", 12)])
def test_a_budget_that_is_too_small(make, method, limit):
    problem = make()
    finding = only(aq.solve(problem, method, max_iter=limit).diagnose(problem))
    assert finding.code == "budget"
    assert re.search(r"steadily, by \d+\.\d% per iteration, and would need about \d+ more", finding.sentence)
    result = with_setting(problem, finding, method=method)
    assert result.status == "converged"
    assert result.n_iter > 0.7 * int(finding.setting.removeprefix("max_iter="))  # and it was not far too much


def test_a_run_that_slows_down_is_promised_nothing():
    result = aq.solve(digits_elastic_net(), "c-admm", max_iter=100)
    assert "more and more slowly" in only(result.diagnose()).sentence
    assert "at least" in only(result.diagnose()).sentence


def test_a_time_limit_that_is_too_short():
    result = aq.solve(multinomial(), "c-admm", max_iter=20)
    stopping = replace(result.evidence.stopping, time_limit=10.0)
    late = replace(result, status=aq.Status.time_limit, evidence=replace(result.evidence, stopping=stopping))
    assert re.fullmatch(r"time_limit=[2-9]\d", only(late.diagnose()).setting)


@pytest.mark.parametrize(("method", "weak"), [("c-admm", aq.Zero()), ("c-admm", aq.L2(1e-9)), ("auto", aq.Zero())])
def test_separable_classes_without_regularisation(method, weak):
    problem = aq.Problem(aq.Logistic(), weak, separable())
    result = aq.solve(problem, method, max_iter=20)
    assert result.diagnose(problem).findings[0].code == "unbounded"
    better = aq.Problem(aq.Logistic(), aq.L2(1e-3), separable())
    assert "unbounded" not in aq.solve(better, method, max_iter=20, certificate_tol=1e-14).diagnose(better)


def test_a_linear_loss_without_a_minimum():
    loss = aq.CustomLoss(lambda u, X, y: (X @ u) * y)
    problem = aq.Problem(loss, aq.Zero(), [(np.ones((3, 2)), np.ones(3))] * 2)
    assert "unbounded" in aq.solve(problem, "c-admm", max_iter=5).diagnose()


@pytest.mark.parametrize("method", ["c-admm", "auq-lr", "lbfgs"])
def test_numbers_beyond_the_machine(method):
    blocks = [(X * 1e160, y) for X, y in regression_blocks()]
    problem = least_squares(blocks, regularizer=aq.L2(1.0))
    result = aq.solve(problem, method, max_iter=20)
    assert result.status == "diverged"
    assert "diverged" in result.diagnose()
    scaled = least_squares(regression_blocks(), regularizer=aq.L2(1.0))
    assert aq.solve(scaled, method).status == "converged"


def test_residuals_that_grow():
    """A loss that is concave, on a convex whole: ADMM needs a penalty above the curvature."""
    loss = aq.CustomLoss(lambda u, X, y: -0.1 * (X @ u - y) ** 2)
    problem = aq.Problem(loss, aq.L2(40.0), regression_blocks())
    result = aq.solve(problem, methods.C(rho=10.0), max_iter=20)
    finding = only(result.diagnose())
    assert finding.code == "diverged"
    assert "the primal residual grows" in finding.sentence
    better = with_setting(problem, finding, max_iter=20)
    assert "diverged" not in better.diagnose()
    assert better.certificate.gap < 0.05 < 1e6 < result.certificate.gap


def test_single_precision_is_the_first_suspect():
    blocks = [(X * 1e30, y) for X, y in regression_blocks()]
    result = aq.solve(least_squares(blocks, regularizer=aq.L2(1.0)), "c-admm", max_iter=20, dtype="float32")
    assert result.status == "diverged"
    assert next(f for f in result.diagnose() if f.code == "diverged").setting == 'dtype="float64"'


# ---------------------------------------------------------------------- what it looks like, what it costs
def test_findings_are_frozen_and_read_as_text():
    problem = multinomial()
    result = aq.solve(problem, methods.C(rho=1e3), max_iter=60)
    assert "result.diagnose() says more" in result.message
    diagnosis = result.diagnose()
    text = str(diagnosis)
    assert text.startswith("c-admm ended after 60 iterations (max_iter); 1 thing to look at")
    assert "\n- penalty-too-large: the relative dual residual was " in text
    assert "\n  try: method=methods.C(rho=" in text
    with pytest.raises(FrozenInstanceError):
        diagnosis.findings[0].code = "other"


def test_evidence_is_one_round_at_the_end_and_names_every_block():
    problem = outlier()
    result = aq.solve(problem, "c-admm", max_iter=10, certificate_tol=0)
    assert result.evidence.names == tuple(f"block {j}" for j in range(6))
    assert result.evidence.distance.shape == (6,)
    assert result.history[-2].rounds == 9
    assert result.history[-1].rounds_verdict == 2  # the last certificate, and this
    v, ray = result.v, result.evidence.ray
    assert ray.value == pytest.approx(result.objective)
    f = aq.solve(problem, warm_start=3 * v, max_iter=0).objective
    assert ray.near == pytest.approx(f)


def test_interrupted_runs_can_be_asked_too():
    result = aq.solve(multinomial(), methods.C(rho=1e3), callbacks=[lambda event: event.row.iteration >= 30])
    assert result.status == "interrupted"
    assert "penalty-too-large" in result.diagnose()


def test_before_the_first_iteration_there_is_nothing_to_say():
    result = aq.solve(multinomial(), time_limit=1e-9)
    assert len(result.diagnose()) == 0
    assert torch.isfinite(result.v).all()


def test_the_page_about_it_runs_and_names_every_code(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[1] / "docs" / "watching.md").read_text()
    code = "".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    exec(code, {"aq": aq, "problem": multinomial()})
    assert "nothing to diagnose" in capsys.readouterr().out
    table = page[page.index("| code |") : page.index("## Which method")]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    told = {code for line in lines for code in re.findall(r"`([a-z-]+)`", line.split("|")[1])}
    source = "".join(Path(module.__file__).read_text() for module in (diagnosis, evidence))
    known = set(re.findall(r'^ +"([a-z-]+)"(?: if|,)', source, re.MULTILINE))
    assert told == known | {"penalty-too-large", "diverged"}
