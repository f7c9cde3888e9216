"""The ways out of a site, tried one by one: every operation by every request, and models that only seem harmless."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.baselines.objective import value_and_gradient
from auqadmm.checkpoint.run import PackBlocks
from auqadmm.columns import InFrame
from auqadmm.core.processes import _itself, _padded
from auqadmm.core.reduce import _flag, score
from auqadmm.diagnosis.evidence import _values_along
from auqadmm.engines import operations, protocol
from auqadmm.quality.evaluate import FirstQuery, LineQuery, SecondQuery, SurvivalQuery
from auqadmm.quality.measures import Binary
from auqadmm.quality.rows import Folds, Models
from auqadmm.sites.policy import FIGURES_PER_RUN, Points, Policy, PolicyError, check_rows
from auqadmm.sites.rules import RULES
from auqadmm.states import REGISTRY, contents
from auqadmm.verdict.queries import ConjugateQuery, ReachQuery
from tests.sites.inside import DATA, NAMES, InsideSites, patients, posed

CPU = torch.device("cpu")
MASKED = Policy(masks="required")


def begun(folder, policy=None, loss=None, dtype=torch.float64, **more):
    """Sessions after an honest beginning, and an engine."""
    sites, problem = InsideSites(folder, policy, **more), posed(DATA, loss)
    sites.running(problem, "lbfgs")
    return sites, sites.place(problem, dtype, CPU)


def ask(sites, name, *request):
    """One request to one site; its answer."""
    session = sites.link.sessions[name]
    message, _ = protocol.request(session.seen + 1, set(), request[0], request[1:], (0, None))
    return protocol.loads(session(message))


def refused(sites, *request, name="lyon"):
    """The sentence, which is also in the site's log or in its audit."""
    answer = ask(sites, name, *request)
    assert "error" in answer, answer
    told = sites.link.sessions[name].told
    assert told is not None
    assert told.error == answer["error"]
    return answer["error"]


# ---------------------------------------------------------------------- by another door
def test_every_operation_has_a_rule_or_is_refused_by_name():
    """A census: an operation that is added without a thought about what it lets out fails here."""
    unweighed = {
        n for n, rule in RULES.items() if rule.models.__name__ == "_none" and rule.leaves in ("sums", "figures")
    }
    assert unweighed == {
        "moments",  # no arguments: sums of columns
        "holds",  # a truth value about methods
        "null",  # of the target alone, counted
        "null slopes",
        "series",
        "reach",  # rounded up, counted
        "diagonal reach",
    }
    assert {n for n in unweighed if not RULES[n].chosen} == {"moments", "holds"}
    assert {n for n, rule in RULES.items() if rule.leaves == "state" and rule.by != ("sum",)} == {"pack", "digest"}
    assert {n for n, rule in RULES.items() if "minmax" in rule.by} == {"holds", "ranges", "shapes"}
    assert {n for n, rule in RULES.items() if "peek" in rule.by} == {"itself"}


@pytest.mark.parametrize("policy", [Policy(), Policy(sums_only=True), MASKED], ids=["plain", "sums", "masked"])
def test_a_sum_does_not_leave_as_an_extreme_value(tmp_path, policy):
    """A minimum over one site is that site's own number, which no mask hides."""
    sites, engine = begun(tmp_path, policy)
    v = torch.zeros(engine.census.features, 1, dtype=torch.float64)
    for fn in (score, value_and_gradient, ReachQuery(None)):
        assert "is asked for as a sum or not at all" in refused(sites, "minmax", fn, None, v, 99)
    for request in ("gather", "concat", "peek"):
        assert "is asked for as a sum or not at all" in refused(sites, request, score, None)


@pytest.mark.parametrize("request_", ["peek", "concat"])
def test_a_digest_of_rows_leaves_blinded_or_not_at_all(tmp_path, request_):
    sites, _ = begun(tmp_path)
    assert "is asked for as a gather or not at all" in refused(sites, request_, contents, None)


@pytest.mark.parametrize("request_", ["peek", "gather"])
def test_the_state_of_a_checkpoint_stays_here(tmp_path, request_):
    sites, _ = begun(tmp_path, Policy(sums_only=True))
    assert "is asked for as a concat or not at all" in refused(sites, request_, PackBlocks(REGISTRY), None)


def test_a_look_at_weights_is_not_one_at_the_state_of_blocks(tmp_path):
    """Which may hold one number per row: dual variables of a solver."""
    sites, problem = InsideSites(tmp_path), posed(DATA)
    aq.solve(problem, "c-admm", sites, max_iter=2)
    session = sites.link.sessions["lyon"]
    from auqadmm.core.state import Blocks

    u = session.shard.zeros()
    session.versions[7] = Blocks(u, u, None, torch.zeros(1, dtype=torch.bool))
    for request in (("peek", _itself, 7), ("gather", partial(_padded, "u", list(u.shape[1:])), 7)):
        message, _ = protocol.request(session.seen + 1, {7}, request[0], request[1:], (0, None))
        assert "about weights, not about the whole state" in protocol.loads(session(message))["error"]


def test_no_other_function_is_hidden_in_one_that_is_served(tmp_path):
    sites, _ = begun(tmp_path)
    for fn in (partial(_flag, contents), partial(_flag, operations.thing("core.reduce:score"))):
        assert "has arguments that it does not take here" in refused(sites, "minmax", fn, None, None, 99)
    for fn in (partial(score, torch.zeros(1)), InFrame(partial(score, 1.0), "x")):
        assert "has arguments that it does not take here" in refused(sites, "sum", fn, None, torch.zeros(1), 99)


# ---------------------------------------------------------------------- models that only seem harmless
def test_far_out_along_a_harmless_model(tmp_path):
    """At v all rows count, at 10⁶v those on the wrong side alone."""
    sites, engine = begun(tmp_path)
    v = torch.full((engine.census.features, 1), 1e-3, dtype=torch.float64)
    assert "'values along' is not served" in refused(sites, "sum", _values_along, None, v, 99)


def test_a_small_sum_tells_as_much_as_a_large_one(tmp_path):
    """A site of one class: with the intercept far down all slopes are tiny, and one row may have nearly all of them."""
    frames = {n: patients(k) for k, n in enumerate(NAMES)}
    frames["lyon"] = frames["lyon"].assign(sick="no")
    sites, engine = begun(tmp_path, frames=frames)
    shard = sites.link.sessions["lyon"].shard
    X = shard.design.pieces[0].X[0].double()
    v = torch.zeros(engine.census.features, 1, dtype=torch.float64)
    row = int(X[:, 0].argmax())
    v[0] = 8.0
    v[-1] = -60.0 - 8.0 * X[row, 0]
    slopes = shard.linearize(shard.expand(v)).slope.abs()[:, 0]
    assert float(slopes.sum()) < 1e-20
    assert "few rows make up the slopes" in refused(sites, "sum", score, None, v, 99)


@pytest.mark.parametrize("odd", [float("inf"), float("nan")])
def test_what_is_not_finite_is_refused(tmp_path, monkeypatch, odd):
    """Whether a row overflows tells on which side of a plane it is."""
    w = torch.ones(50, 1, dtype=torch.float64)
    w[7] = odd
    monkeypatch.setattr("auqadmm.sites.policy.row_weights", lambda point: {"slopes": w})
    sites, _ = begun(tmp_path)
    v = torch.zeros(sites.link.sessions["lyon"].shard.shape[1:], dtype=torch.float64)
    assert "few rows make up the slopes" in refused(sites, "sum", score, None, v, 99)


def test_in_single_precision_a_zero_may_be_a_number(tmp_path):
    sites, engine = begun(tmp_path, dtype=torch.float32)
    v = torch.zeros(engine.census.features, 1, dtype=torch.float64)
    v[-1] = 120.0
    assert "few rows make up the curvature" in refused(sites, "sum", score, None, v, 99)


@pytest.mark.parametrize(
    "loss", [aq.Huber(1e-7), aq.SmoothedHinge(1e-7), aq.Quantile(0.5)], ids=lambda x: type(x).__name__
)
def test_two_models_that_differ_by_a_hair(tmp_path, loss):
    """Of a loss with corners the difference of two sums of slopes is the one row that went round its corner."""
    hinge = isinstance(loss, aq.SmoothedHinge)
    data = DATA if hinge else aq.SiteData("heart", target="days", labels=False, features=("age", "bmi"))
    problem = aq.Problem(loss, aq.L2(0.01), data, intercept=True)
    sites = InsideSites(tmp_path)
    sites.running(problem, "lbfgs")
    engine = sites.place(problem, torch.float64, CPU)
    shard = sites.link.sessions["lyon"].shard
    v = 0.5 * torch.ones(engine.census.features, 1, dtype=torch.float64)
    answered = []
    for shift in np.linspace(0.0, 1.0, 12):
        at = v.clone()
        at[-1] += shift
        if "message" in ask(sites, "lyon", "sum", score, None, at, 99):
            answered.append(shard.linearize(shard.expand(at)).slope[:, 0])
    for a, b in pairwise(answered):
        moved = (a - b).abs()
        assert float(moved.sum()) == 0 or float(moved.max() / moved.sum()) <= 1 / 3
    assert not answered


def test_a_line_of_models_is_weighed_at_its_end(tmp_path):
    sites, engine = begun(tmp_path, MASKED)
    m = engine.census.features
    models = Models(torch.full((1, m, 1), 1e-2, dtype=torch.float64))
    first = {"weight": np.array(100.0), "s": np.array([0.0]), "ss": np.array([1.0])}
    query = LineQuery(Binary(aq.Logistic()), models, first)
    assert "few rows make up" in refused(sites, "sum", query, None, (0.0, 3e4), 99)


def test_counts_by_bins_are_masked_and_few(tmp_path):
    sites, engine = begun(tmp_path)
    models = Models(torch.zeros(1, engine.census.features, 1, dtype=torch.float64))
    query = SecondQuery(Binary(aq.Logistic()), models)
    assert "masked sums only" in refused(sites, "sum", query, None, (0.0, 0.0), 99)
    points = Points(Policy(), set())
    for _ in range(FIGURES_PER_RUN):
        points.count("quality second", "figures")
    with pytest.raises(PolicyError, match="was asked for 101 times in one run"):
        points.count("quality second", "figures")


def test_rows_are_not_selected_by_folds(tmp_path):
    """Another model for one fold than for the others singles out its rows."""
    sites, engine = begun(tmp_path)
    folds = Folds.of(5, 0, 3)
    models = Models(torch.zeros(5, engine.census.features, 1, dtype=torch.float64), None, folds)
    query = FirstQuery(Binary(aq.Logistic()), models)
    assert "rows are not selected by others" in refused(sites, "sum", query, None, None, 99)
    survival = SurvivalQuery(torch.zeros(5, engine.census.features, 1, dtype=torch.float64), folds)
    assert "rows are not selected by others" in refused(sites, "gather", survival, None)


def test_one_scale_after_the_other_does_not_find_the_largest_row(tmp_path):
    """Bisection for the scale at which the answer jumps needs a jump; without one the largest row is not found."""
    sites, engine = begun(tmp_path)
    session = sites.link.sessions["lyon"]
    roots = torch.eye(engine.census.features, dtype=torch.float64)[None, :1]
    true = float(ReachQuery(None)(session.shard, None, roots)[1]["reach"]) ** (1 / 16)

    def told(scale):
        answer = ask(sites, "lyon", "sum", ReachQuery(None), None, scale * roots, 99)["message"][1]["reach"]
        return float(answer) ** (1 / 16)

    low, high = 0.25, 4.0
    for _ in range(40):
        middle = np.sqrt(low * high)
        low, high = (middle, high) if told(middle) <= 2 * true else (low, middle)
    found = 2 * true / low  # where a fixed grid would have its jump: a power of two over the largest row
    assert abs(np.log2(found / true) - round(np.log2(found / true))) > 1e-6
    assert all(1 <= told(1.0) / true <= 2.0001 for _ in range(20))


def test_arguments_that_are_chosen_are_counted(tmp_path):
    sites, engine = begun(tmp_path, Policy(points_per_run=3))
    v = torch.zeros(engine.census.features, 1, dtype=torch.float64)
    for _ in range(3):
        assert "message" in ask(sites, "lyon", "sum", ConjugateQuery(None, 0.5, None), None, v, 99)
    assert "was asked for 4 times in one run" in refused(sites, "sum", ConjugateQuery(None, 0.5, None), None, v, 99)


def test_a_warm_start_is_weighed(tmp_path):
    """It makes multipliers of the gradient at v."""
    assert RULES["start"].models.__name__ == "_state"


# ---------------------------------------------------------------------- messages
def tampered(sites, change):
    """A message whose text is changed before it is sent."""
    session = sites.link.sessions["lyon"]
    message, _ = protocol.request(session.seen + 1, set(), "sum", (score, None, torch.zeros(7, 1), 99), (0, None))
    length = int.from_bytes(message[:8], "little")
    text = change(message[8 : 8 + length])
    answer = protocol.loads(session(len(text).to_bytes(8, "little") + text + message[8 + length :]))
    assert session.told is not None
    assert session.told.error == answer["error"]  # it has a line
    return answer["error"]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(b'"do":"sum"', b'"do":"sum","do":"peek"'),
        lambda text: text.replace(b'"knows":null', b'"knows":NaN'),
        lambda text: text.replace(b'"number":', b'"number":Infinity,"x":'),
        lambda text: b"[" * 100_000,
        lambda text: b"\x80\x04\x95pickle",
    ],
    ids=["twice", "nan", "infinity", "deep", "pickle"],
)
def test_text_that_is_no_json_of_ours(tmp_path, change):
    sites, _ = begun(tmp_path)
    assert "cannot be read" in tampered(sites, change)


def test_an_array_that_is_small_here_and_huge_there(tmp_path):
    """An axis is repeated by a stride of zero: one number on the wire, 2^36 at the site."""
    sites, _ = begun(tmp_path)
    sites.link.sessions["lyon"].largest = 1 << 28
    huge = torch.zeros(1, 1, dtype=torch.float64).expand(1 << 36, 1)
    assert "is not read" in refused(sites, "sum", score, None, huge, 99)


def test_weights_are_weighed_in_every_column(tmp_path):
    sites, _ = begun(tmp_path)
    shard = sites.link.sessions["lyon"].shard
    v = torch.zeros(shard.shape[1:], dtype=torch.float64)
    check_rows(Policy(), shard.linearize(shard.expand(v)))
    with pytest.raises(PolicyError, match="few rows make up the slopes"):
        check_rows(Policy(min_effective_rows=1e6), shard.linearize(shard.expand(v)))


# ---------------------------------------------------------------------- what a site keeps
def test_parts_of_checkpoints_are_few_and_whole(tmp_path, monkeypatch):
    """The oldest go; one that was cut off is not taken for a state."""
    monkeypatch.setattr("auqadmm.sites.session.PARTS", 3)
    options = {"certificate_tol": 0.0, "abs_tol": 0.0, "rel_tol": 0.0, "local": "newton-cg"}
    saving = aq.Checkpoint(tmp_path / "kept", every=1)
    aq.solve(posed(DATA), "rb-admm", InsideSites(tmp_path), max_iter=6, checkpoint=saving, **options)
    folder = tmp_path / "state-lyon" / "checkpoints"
    assert len(list(folder.iterdir())) == 3
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-8])
    again = aq.Checkpoint(tmp_path / "kept", every=1, resume=True)
    with pytest.raises(aq.AuqadmmError, match="checkpoint"):
        aq.solve(posed(DATA), "rb-admm", InsideSites(tmp_path), max_iter=8, checkpoint=again, **options)
    assert not list((tmp_path / "state-lyon").glob("*.new"))
