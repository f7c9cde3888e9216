"""The benchmark's own machinery: workloads as values, packs, optima against scikit-learn, runs that fail."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import ElasticNet as PooledElasticNet

import auqadmm as aq
from auqadmm.paper.data import DataError, Images, by_class
from auqadmm.paper.optimum import AIM

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))
import optima  # noqa: E402
import results  # noqa: E402
import rounds  # noqa: E402
import side_by_side  # noqa: E402
import workloads  # noqa: E402

sys.path.remove(str(FOLDER))


def small(loss=None, g=None) -> aq.Problem:
    rng = np.random.default_rng(1)
    blocks = [(rng.normal(size=(20, 6)), rng.normal(size=20)) for _ in range(3)]
    return aq.Problem(loss or aq.LeastSquares(reduction="mean"), g or aq.ElasticNet(0.3, 0.05), blocks)


# ---------------------------------------------------------------------- workloads
def test_names_are_unique_and_selected_by_glob():
    assert len({w.name for w in workloads.WORKLOADS.values()}) == len(workloads.WORKLOADS) == 46
    assert [w.name for w in workloads.select(["*-svm"])] == ["digits-svm", "mnist-svm", "svhn-svm", "cifar10-svm"]
    assert "mnist-svm-n2" not in workloads.WORKLOADS  # the same as mnist-svm-iid
    with pytest.raises(ValueError, match="No workload matches nothing"):
        workloads.select(["nothing"])


def test_a_sum_has_one_optimum_for_all_splits_and_a_mean_has_not():
    by_name = workloads.WORKLOADS
    assert by_name["mnist-multinomial-sum-n50"].pooled.name == "mnist-multinomial-sum"
    assert by_name["mnist-elastic-sum-l2_0.1"].pooled.name == "mnist-elastic-sum-l2_0.1"
    assert by_name["mnist-svm-iid"].pooled.name == "mnist-svm-iid"


def test_digits(monkeypatch):
    monkeypatch.setattr(workloads, "roots", list)
    workloads.dataset.cache_clear()
    problem = workloads.WORKLOADS["digits-multinomial-sum"].make()
    assert (problem.census.blocks, problem.census.features, problem.census.columns) == (10, 64, 10)
    assert sum(problem.census.rows) == 1797
    assert max(block.X.max() for block in problem.blocks) == 1.0
    assert workloads.WORKLOADS["digits-svm"].make().census.rows == (178, 182)
    workloads.dataset.cache_clear()


@pytest.mark.parametrize("shape", [(4, 5), (3, 4, 5)])
def test_a_pack_keeps_the_first_rows_of_each_class(tmp_path, rng, shape):
    images = Images(rng.integers(0, 256, (60, math.prod(shape)), dtype=np.uint8), rng.integers(0, 3, 60), shape, "x")
    workloads.write_pack(tmp_path / "x.npz", images, {0: 5, 1: None, 2: 7})
    pack = workloads.read_pack(tmp_path / "x.npz", "x")
    assert pack.shape == shape
    assert len(pack.y) == 12 + (images.y == 1).sum()
    for k, count in ((0, 5), (1, None), (2, 7)):
        [(X, _)] = by_class(images.X, images.y, count, [k])
        [(packed, _)] = by_class(pack.X, pack.y, count, [k])
        np.testing.assert_array_equal(packed, X)


def test_missing_data_and_damaged_packs(tmp_path, monkeypatch):
    monkeypatch.setattr(workloads, "roots", lambda: [tmp_path])
    workloads.dataset.cache_clear()
    with pytest.raises(DataError, match=r"svhn\.npz"):
        workloads.WORKLOADS["svhn-svm"].make()
    (tmp_path / "svhn.npz").write_bytes(b"PK nothing")
    with pytest.raises(DataError, match="no pack of images"):
        workloads.WORKLOADS["svhn-svm"].make()


# ---------------------------------------------------------------------- optima
def test_elastic_optimum_is_that_of_coordinate_descent():
    problem = small()
    found = optima.compute(problem)
    X, y = (np.concatenate([getattr(b, name) for b in problem.blocks]) for name in ("X", "y"))
    # three means over 20 rows each are the mean over all 60, three times
    l1, l2 = 0.3 / 3, 0.05 / 3
    model = PooledElasticNet(alpha=l1 + l2, l1_ratio=l1 / (l1 + l2), fit_intercept=False, tol=1e-14, max_iter=100_000)
    v = model.fit(X, y).coef_
    objective = 0.5 * ((X @ v - y) ** 2).sum() / 20 + 0.3 * abs(v).sum() + 0.025 * (v**2).sum()
    assert found.objective == pytest.approx(objective, rel=1e-12)
    assert found.kkt < 1e-13
    assert found.gap < 1e-13


@pytest.mark.parametrize("loss", [aq.Multinomial(), aq.Logistic(), aq.SmoothedHinge(eps=1 / 5000, reduction="mean")])
def test_smooth_optima_are_certified(loss, rng):
    classes = 3 if isinstance(loss, aq.Multinomial) else 2
    blocks = [(rng.normal(size=(30, 5)), rng.permutation(np.arange(30) % classes)) for _ in range(2)]
    found = optima.compute(aq.Problem(loss, aq.L2(0.1), blocks))
    assert found.kkt <= AIM
    assert found.gap <= 1e-12 * abs(found.objective)


def test_optima_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(optima, "FILE", tmp_path / "optima.json")
    workload = workloads.WORKLOADS["digits-elastic-mean"]
    first = optima.optimum(workload, small())
    assert optima.optimum(workload) == first  # not computed again: this is not digits' optimum
    assert optima.known() == {"digits-elastic-mean": first}


# ---------------------------------------------------------------------- runs
BUDGET = rounds.Budget(rounds=400, seconds=20.0, device="cpu")


def test_a_run_notes_when_each_target_first_holds():
    problem = small()
    best = optima.compute(problem).objective
    found = rounds.run_named(problem, "c-admm", best, BUDGET)
    assert found.status == "reached"
    assert found.final_gap <= 1e-6
    reached = [found.hits[target].rounds for target in results.TARGETS]
    assert reached == sorted(reached)
    history = aq.solve(problem, "c-admm", **rounds.NO_TEST).history
    assert all((row.objective - best) / best > 1e-4 for row in history if row.rounds < reached[1])


def test_gradient_methods_pay_no_certificate():
    problem = small()
    found = rounds.run_named(problem, "fista", optima.compute(problem).objective, BUDGET)
    assert found.status == "reached"
    assert found.hits[1e-6].rounds <= found.iterations + 5


def test_the_tuned_penalty_is_no_worse_than_the_default():
    problem = small()
    best = optima.compute(problem).objective
    tuned, plain = (rounds.run_named(problem, name, best, BUDGET) for name in (results.TUNED, "c-admm"))
    assert tuned.rank <= plain.rank
    assert tuned.variant.startswith("oracle, rho=")


class Explodes:
    name = "explodes"

    def init(self, setup, reduce):
        raise ArithmeticError("on purpose")

    def step(self, state, reduce):
        raise NotImplementedError


def test_failures_are_outcomes(tmp_path):
    problem = small()
    outcomes = [
        rounds.run_named(problem, "no-such-method", 1.0, BUDGET),
        rounds.run_named(problem, "lbfgs", 1.0, BUDGET),
        rounds.run(problem, Explodes(), 1.0, BUDGET),
        rounds.run_named(problem, "c-admm", 1e-9, rounds.Budget(3, 20.0, "cpu")),
    ]
    assert [o.status for o in outcomes] == ["unavailable", "not applicable", "error", "max_rounds"]
    assert "on purpose" in outcomes[2].message
    done = [line for k, o in enumerate(outcomes) for line in rounds.lines("w", f"m{k}", o)]
    results.write(tmp_path, done)
    again = results.read([tmp_path / "results.csv"])
    assert [(x.method, x.target, x.status, x.rounds) for x in again] == [
        (x.method, x.target, x.status, x.rounds) for x in done
    ]
    assert "| n/a |" in (tmp_path / "results.md").read_text(encoding="utf-8")
    results.profile(again, tmp_path / "profile.png")
    assert (tmp_path / "profile.png").stat().st_size > 1000


# ---------------------------------------------------------------------- priors, origins, deadlines
def test_methods_that_look_at_the_prior_run_twice_and_the_plain_problem_first(tmp_path):
    assert rounds.plan(["auq-lr", "fista"]) == [("auq-lr", ""), ("auq-lr", "image"), ("fista", "")]
    assert rounds.plan(["auq-lr", "fista"], ["image"]) == [("auq-lr", "image")]
    workload = workloads.WORKLOADS["digits-elastic-mean"]
    assert (workload.make().image, workload.make("image").image) == (None, (8, 8))
    done = rounds.benchmark(
        [workload], rounds.plan(["auq-lr", "gram"]), BUDGET, tmp_path, rounds.Origin("abc", "today")
    )
    again = results.read([tmp_path / "results.csv"])
    assert [x.label for x in again[::3]] == ["auq-lr", "auq-lr, image", "gram"]
    assert {(x.commit, x.date, x.status) for x in again} == {("abc", "today", "reached")}
    assert [x.rounds for x in again] == [x.rounds for x in done]
    head, _, row = (tmp_path / "results.md").read_text(encoding="utf-8").splitlines()[-3:]
    assert head == "| workload | auq-lr | auq-lr, image | gram |"
    assert re.fullmatch(r"\| digits-elastic-mean \| \d+ \([\d.]+\) \| \d+ \([\d.]+\) \| 1 \(2\.1\) \|", row)


def test_the_commit_is_described_or_given(monkeypatch):
    assert rounds.Origin.now("1a2b3c4").commit == "1a2b3c4"
    assert rounds.described()
    monkeypatch.setenv("PATH", "")
    assert rounds.described() == "unknown"


def test_after_the_deadline_nothing_starts_and_a_run_that_it_meets_is_not_kept(tmp_path, monkeypatch):
    chosen = [workloads.WORKLOADS["digits-elastic-mean"]]
    origin = rounds.Origin("abc", "today")
    late = rounds.Budget(400, 20.0, "cpu", deadline=time.perf_counter())
    assert rounds.benchmark(chosen, rounds.plan(["gram"]), late, tmp_path, origin) == []
    ends = {"gram": "reached", "c-admm": "time_limit", "fista": "reached"}
    monkeypatch.setattr(rounds, "run_named", lambda problem, name, *_: rounds.Outcome(ends[name]))
    for seconds, kept in ((1e3, ["gram"]), (1e-3, ["gram", "c-admm", "fista"])):  # longer than is left, and not
        budget = rounds.Budget(400, seconds, "cpu", deadline=time.perf_counter() + 100.0)
        done = rounds.benchmark(chosen, rounds.plan(list(ends)), budget, tmp_path, origin)
        assert [x.method for x in done[::3]] == kept
        assert [x.method for x in results.read([tmp_path / "results.csv"])[::3]] == kept


def test_side_by_side_keeps_what_is_finished(tmp_path, monkeypatch):
    jobs = side_by_side.jobs(workloads.select(["digits-svm", "mnist-svm-n5"]))
    assert [job[1][0][0] for job in jobs[::2]] == [
        "auq-lr",
        "newton",
        "gram",
        "owl-qn",
        "c-admm",
        "uq-admm",
        results.TUNED,
    ]
    assert {job[0]: job[2] for job in jobs[8:10]} == {"digits-svm": 45.0, "mnist-svm-n5": 6.0}
    monkeypatch.setattr(workloads, "roots", lambda: [tmp_path])
    workloads.dataset.cache_clear()
    found, skipped = side_by_side.available(workloads.select(["digits-elastic-mean", "svhn-*"]), "cpu")
    assert [w.name for w in found] == ["digits-elastic-mean"]
    assert len(skipped) == 5
    side_by_side.one_by_one(found, BUDGET, rounds.Origin("abc", "today"), tmp_path)
    assert {x.method for x in results.read([tmp_path / "alone.csv"])} == set(side_by_side.ALONE)
    workloads.dataset.cache_clear()


@pytest.mark.campaign
def test_one_call_for_everything(tmp_path):
    """As on a machine without git; here only one workload and one group of methods."""
    given = {"DEVICE": "cpu", "PYTHON": sys.executable, "PROCESSES": "1", "DEADLINE": "200", "PICK": "2"}
    command = ["sh", str(FOLDER / "h200.sh"), "rounds", "abc", str(tmp_path)]
    env = os.environ | given | {"ONLY": "digits-elastic-mean"}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stderr
    done = results.read([tmp_path / "rounds.csv"])
    assert [x.label for x in done[::3]] == ["gram", "lbfgs", "lbfgs-50", "lbfgs-w", "lbfgs-w, image"]
    assert [x.target for x in done[:3]] == list(results.TARGETS)
    assert {x.commit for x in done} == {"abc"}
    about = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert about["runs"] == about["planned"] == 5
    assert (tmp_path / "optima.json").is_file()
