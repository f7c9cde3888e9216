"""What a coordinator that is not honest can get out of a site: nothing that the policy does not allow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.baselines.objective import value_and_gradient
from auqadmm.core.reduce import score
from auqadmm.core.solve import _lam
from auqadmm.engines import operations, protocol
from auqadmm.sites.policy import Plan, Policy, PolicyError
from auqadmm.sites.rosters import check_roster, remember
from auqadmm.sites.rules import RULES, TESTING
from auqadmm.verdict.queries import TriangleQuery
from tests.sites.inside import DATA, NAMES, InsideSites, patients, posed

CPU = torch.device("cpu")


def opened(folder, policy=None, problem=None, **more):
    """An engine after an honest beginning."""
    sites = InsideSites(folder, policy, **more)
    problem = problem or posed(DATA)
    method = sites.running(problem, "lbfgs")
    assert method == "lbfgs"
    return sites, sites.place(problem, torch.float64, CPU)


def refused(folder, frames=None, policy=None, data=DATA, method="lbfgs"):
    """The sentence with which a fit ends before its first round."""
    frames = None if frames is None else {n: frames.get(n, patients(k)) for k, n in enumerate(NAMES)}
    sites = InsideSites(folder, policy, frames=frames)
    with pytest.raises(aq.InputError) as error:
        aq.solve(posed(data), method, sites)
    for name in NAMES:  # nothing of rows was computed
        assert not hasattr(sites.link.sessions[name], "shard")
    return str(error.value)


# ---------------------------------------------------------------------- the data
def test_a_site_of_one_row_sends_nothing(tmp_path):
    told = refused(tmp_path, {"lyon": patients(1, 1)})
    assert "site lyon: refused by the policy of lyon: the data set 'heart' has fewer than 10 rows" in told


@pytest.mark.parametrize("rows", [1, 2])
def test_small_cells_are_refused(tmp_path, rows):
    frame = patients(1)
    frame.loc[: rows - 1, "stage"] = "iv"
    told = refused(tmp_path, {"lyon": frame})
    assert "column 'stage' has 1 value with fewer than 3 rows" in told
    assert "iv" not in told


def test_a_small_class_is_refused(tmp_path):
    frame = patients(1).assign(sick="no")
    frame.loc[:1, "sick"] = "yes"
    assert "the target has 1 value with fewer than 3 rows" in refused(tmp_path, {"lyon": frame})


def test_a_rare_value_of_a_binary_column_is_refused(tmp_path):
    frame = patients(1).assign(days=0)
    frame.loc[5, "days"] = 1
    assert "column 'days' has 1 value" in refused(tmp_path, {"lyon": frame})


def test_too_many_unknowns_are_refused(tmp_path):
    sites = InsideSites(tmp_path, Policy(max_ratio=0.05))
    with pytest.raises(aq.InputError, match=r"refused by the policy of berlin: the model has \d unknowns"):
        aq.solve(posed(DATA), "lbfgs", sites)


def test_with_masks_the_rows_of_all_sites_count(tmp_path):
    aq.solve(posed(DATA), "lbfgs", InsideSites(tmp_path, Policy(max_ratio=0.05, masks="required")))


def test_what_is_wrong_with_a_row_is_told_at_the_site_alone(tmp_path):
    frame = patients(1).astype({"age": object})
    frame.loc[7, "age"] = "Mr Miller"
    sites = InsideSites(tmp_path, frames={"berlin": patients(0), "lyon": frame, "oslo": patients(2)})
    with pytest.raises(aq.InputError) as error:
        aq.solve(posed(DATA), "lbfgs", sites)
    assert "Miller" not in str(error.value)
    assert not any(b"Miller" in answer for answers in sites.link.heard.values() for answer in answers)


def test_columns_that_are_never_used_cannot_be_asked_for(tmp_path):
    data = replace(DATA, features=("age", "patient"))
    assert "has no column 'patient' for others to use" in refused(tmp_path, data=data)


def test_no_value_of_a_row_is_in_what_is_described(tmp_path):
    """Levels and labels are; the first value of a text column, or a row's number, is not."""
    sites = InsideSites(tmp_path)
    sites.begin(DATA, "Logistic", "lbfgs")
    (told,) = [
        m
        for m in (protocol.loads(a)["message"] for a in sites.link.heard["lyon"])
        if isinstance(m, dict) and "kinds" in m
    ]
    assert not np.any(told["moments"])
    assert not {"examples", "ids"} & set(told)
    assert told["target"] is None


# ---------------------------------------------------------------------- the run
@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (Policy(min_sites=4), "3 sites take part, and the policy asks for 4"),
        (Policy(models=("Cox",)), "the policy allows Cox, not Logistic"),
        (Policy(methods=("newton",)), "the policy allows the methods newton, not lbfgs"),
        (Policy(rounds_per_day=2), "answered as much today"),
    ],
)
def test_plans_are_refused_before_the_first_round(tmp_path, policy, told):
    assert told in refused(tmp_path, policy=policy)


MORE = (*NAMES, "paris", "turin", "vienna")


def roster(tmp_path, policy, *names):
    aq.solve(posed(DATA), "lbfgs", InsideSites(tmp_path, policy, names=names), max_iter=1)


def test_a_roster_that_differs_by_one_site_is_refused(tmp_path):
    """The difference of two sums would be the site's own."""
    masked = Policy(masks="required", min_sites=2)
    roster(tmp_path, masked, *NAMES)
    with pytest.raises(aq.InputError, match=r"the difference of the sums would show oslo alone; fit with the same"):
        roster(tmp_path, masked, *NAMES[:2])
    roster(tmp_path, masked, *NAMES)


def test_rosters_differ_by_as_many_sites_as_a_run_has(tmp_path):
    """A+B+C and A+B+D tell C−D; with a third roster C itself."""
    masked = Policy(masks="required")
    berlin, lyon, oslo, paris, turin, vienna = MORE
    roster(tmp_path, masked, berlin, lyon, oslo)
    with pytest.raises(aq.InputError) as error:
        roster(tmp_path, masked, berlin, lyon, paris)
    told = str(error.value)
    assert "used before with berlin, lyon, oslo, and the difference of the sums would show oslo and paris" in told
    assert 'or ask the owner of this site to set rosters = "any" in its policy.' in told
    with pytest.raises(aq.InputError, match="would show paris and turin without the others"):
        roster(tmp_path, masked, berlin, lyon, oslo, paris, turin)
    roster(tmp_path, masked, berlin, lyon, oslo, paris, turin, vienna)  # differs by three; refused plans do not count
    roster(tmp_path, Policy(masks="required", rosters="any"), berlin, lyon, paris)


def test_other_columns_and_plain_sums_may_have_other_sites(tmp_path):
    masked = Policy(masks="required")
    path, plan = tmp_path / "rosters.json", Plan("heart", "Cox", "newton", NAMES, True, ("age",), "days")
    remember(path, plan)
    check_roster(masked, path, replace(plan, sites=NAMES[:2], columns=("bmi",), target="marker"))
    check_roster(masked, path, replace(plan, sites=NAMES[:2], data="lungs"))
    for one in ({"others": ("age",), "columns": ()}, {"columns": ("bmi",), "target": "age"}):
        with pytest.raises(PolicyError, match="would show oslo alone"):
            check_roster(masked, path, replace(plan, sites=NAMES[:2], **one))
    with pytest.raises(PolicyError, match="would show oslo alone"):  # two sites differ by one at least
        check_roster(Policy(min_sites=1), path, replace(plan, sites=NAMES[:2]))
    check_roster(masked, path, replace(plan, sites=NAMES[:2], masked=False))
    with pytest.raises(aq.InputError, match="the rule rosters must be one of same, any"):
        Policy.read("site.toml", {"rosters": "other"})


def test_counts_by_bins_can_be_refused(tmp_path):
    """AUC and the calibration curve go without; what else quality tells stays."""
    rules = {n: Policy(masks="required", bins=n != "lyon") for n in NAMES}
    sites = InsideSites(tmp_path, rules)
    result = aq.solve(posed(DATA), "newton", sites)
    honest, sites.study.terms = sites.study.terms, {}
    with pytest.raises(aq.InputError, match=r"lyon: counts by bins of a score are not given by this site"):
        result.quality()
    sites.study.terms = honest
    found = result.quality()
    assert found.figures["auc"] is None
    assert found.figures["brier"] > 0
    assert any("where every policy allows bins" in note for note in found.notes)


def test_nothing_is_answered_before_a_plan(tmp_path):
    sites = InsideSites(tmp_path)
    sites.study = sites.connect()
    sites.study.open("heart")
    for request in (("columns", DATA.wanted), ("sum", score, None, torch.zeros(3, 1), 1), ("read", 0)):
        with pytest.raises(aq.InputError, match="nothing is answered before a plan"):
            sites.study.ask(*request)


def test_a_plan_must_name_the_data_set_that_was_opened(tmp_path):
    sites = InsideSites(tmp_path)
    sites.study = sites.connect()
    sites.study.open("heart")
    with pytest.raises(aq.InputError, match="another data set"):
        sites.study.ask("plan", Plan("lungs", "Logistic", "lbfgs", NAMES, False))


def test_rows_do_not_come_from_the_coordinator(tmp_path):
    sites, _ = opened(tmp_path)
    source = operations.thing("problem.ingest:Whole")(
        operations.thing("problem.ingest:Readers")(((np.ones((2, 2)), [0.0, 1.0]),))
    )
    with pytest.raises(aq.InputError, match="rows come from this site's data sets only"):
        sites.study.ask("make", posed(DATA).posed(), source, 0, 3)


def test_rows_are_not_selected_by_others(tmp_path):
    """A fold of the rows, chosen from outside, is a way to single rows."""
    sites, _ = opened(tmp_path)
    keep = operations.thing(operations.CLASSES["Training"])(
        operations.thing(operations.CLASSES["Folds"]).of(5, 0, 3), 0
    )
    with pytest.raises(aq.InputError, match="rows are not selected by others"):
        sites.study.ask("make", posed(DATA).posed() | {"keep": keep}, "brought", 0, 3)


# ---------------------------------------------------------------------- chosen models
def isolating(shard, row):
    """A model at which this row outweighs the others by far: on one side of all of them, and beyond."""
    X = shard.design.pieces[0].X[0].double()
    centre = X[:, :-1].mean(0)
    w = torch.linalg.lstsq(X[:, :-1] - centre, torch.eye(len(X))[row].double() * 1e3).solution
    margins = X[:, :-1] @ w
    return torch.cat([w, -(margins.max() - 2.0)[None]])[:, None]


@pytest.mark.parametrize("policy", [Policy(), Policy(masks="required")])
def test_a_model_that_singles_out_a_row_is_refused(tmp_path, policy):
    """Of 200 models that make one row's weight large, those at which it is large are refused."""
    sites, engine = opened(tmp_path, policy)
    shard = sites.link.sessions["lyon"].shard
    rng = np.random.default_rng(0)
    seen = 0
    for k in range(40):
        v = isolating(shard, k) * rng.choice([0.5, 1.0, 3.0])
        slopes = shard.linearize(shard.expand(v)).slope.abs()[:, 0]
        largest = float(slopes.max() / slopes.sum())
        try:
            engine.map_sum(value_and_gradient, None, v)
        except aq.InputError:
            seen += 1
        else:
            assert largest <= policy.largest_share
    assert seen > 0


def test_single_rows_by_scaled_models(tmp_path):
    """Random directions, scaled until few rows are not saturated: the slopes' sum is never made of few rows."""
    sites, engine = opened(tmp_path)
    shards = [sites.link.sessions[n].shard for n in NAMES]
    rng = np.random.default_rng(1)
    answered = 0
    for _ in range(60):
        v = torch.from_numpy(rng.normal(size=(engine.census.features, 1))) * 10 ** rng.uniform(-1, 3)
        try:
            engine.map_sum(score, None, v)
        except aq.InputError:
            continue
        answered += 1
        for shard in shards:
            slopes = shard.linearize(shard.expand(v)).slope.abs()[:, 0]
            assert float(slopes.sum() ** 2 / slopes.square().sum()) >= 10
    assert answered > 5


def test_a_triangle_at_a_chosen_model_is_weighed_too(tmp_path):
    _, engine = opened(tmp_path)
    v = torch.full((engine.census.features, 1), 90.0, dtype=torch.float64)
    with pytest.raises(aq.InputError, match="refused by the policy"):
        engine.map_sum(TriangleQuery(None, None, None), None, v)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e9])
def test_models_that_are_no_models(tmp_path, bad):
    _, engine = opened(tmp_path)
    v = torch.full((engine.census.features, 1), bad, dtype=torch.float64)
    with pytest.raises(aq.InputError, match=r"‖v‖"):
        engine.map_sum(score, None, v)


def test_the_number_of_models_is_limited(tmp_path):
    _, engine = opened(tmp_path, Policy(points_per_run=5))
    v = torch.zeros(engine.census.features, 1, dtype=torch.float64)
    for k in range(5):
        engine.map_sum(score, None, v + 1e-3 * k)
    with pytest.raises(aq.InputError, match="more than 5 models were asked about"):
        engine.map_sum(score, None, v + 1e-3 * 5)


def test_what_is_of_one_site_alone_needs_the_policy(tmp_path):
    for policy in (Policy(sums_only=True), Policy(masks="required")):
        _, engine = opened(tmp_path, policy)
        with pytest.raises(aq.InputError, match="sums only are allowed"):
            engine.gather(_lam, None)


def test_a_sum_is_not_given_apart(tmp_path):
    _, engine = opened(tmp_path)
    with pytest.raises(aq.InputError, match="asked for as a sum or not at all"):
        engine.gather(TriangleQuery(None, None, None), None)


def test_reach_is_rounded_up(tmp_path):
    """Σ‖x‖¹⁶ is nearly the largest row: what leaves is a bound of it, within a factor of two."""
    from auqadmm.verdict.queries import ReachQuery

    sites, engine = opened(tmp_path)
    m = engine.census.features
    roots = torch.eye(m, dtype=torch.float64)[None, :1]
    sent = [s.do_sum(ReachQuery(None), None, roots, 99)[1]["reach"] for s in sites.link.sessions.values()]
    for s, x in zip(sites.link.sessions.values(), sent, strict=True):
        plain = ReachQuery(None)(s.shard, None, roots)[1]["reach"]
        ratio = (x / plain) ** (1 / 16)
        assert bool((ratio >= 1).all())
        assert bool((ratio <= 2).all())


# ---------------------------------------------------------------------- the table of rules
def test_every_rule_is_of_an_operation_that_exists():
    known = {*operations.FUNCTIONS, *operations.QUERIES, *operations.STEPS}
    assert set(RULES) <= known


def test_what_has_no_rule_is_not_served(tmp_path):
    _, engine = opened(tmp_path)
    unserved = {*operations.FUNCTIONS, *operations.QUERIES, *operations.STEPS} - set(RULES)
    assert {n for n in unserved if not n.startswith(TESTING)} == {
        "in columns",  # what it contains has a rule
        "direct solves apply",  # an argument of "holds"
        "bad row",  # whose number would be told
        "means",
        "cell products",
        "cell squares",
        "rows left out",
        "sides",
        "wider",
    }
    with pytest.raises(aq.InputError, match="not served by sites"):
        engine.map_sum(operations.thing(operations.FUNCTIONS["testing total"]), None, torch.zeros(1))


# ---------------------------------------------------------------------- honest fits pass
@pytest.mark.thin(4)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "loss", [aq.Logistic(reduction="pooled"), aq.Probit(reduction="pooled")], ids=["logit", "probit"]
)
def test_honest_fits_pass(tmp_path, seed, loss):
    frames = {n: patients(10 * seed + k, 60 + 30 * k) for k, n in enumerate(NAMES)}
    found = aq.solve(posed(DATA, loss), "auto", InsideSites(tmp_path, frames=frames))
    assert found.status == "converged"


def test_separable_data_is_refused_with_a_sentence(tmp_path):
    """Towards infinity few rows carry the weight: that is what the sentence says."""
    frames = {
        n: patients(k).assign(marker=lambda f: np.where(f.sick == "yes", 5.0, -5.0) + f.marker)
        for k, n in enumerate(NAMES)
    }
    with pytest.raises(aq.InputError, match="few rows make up"):
        aq.solve(posed(DATA, g=aq.Zero()), "newton", InsideSites(tmp_path, frames=frames), max_iter=100)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"min_row": 5}, "has no rule 'min_row'"),
        ({"min_rows": "ten"}, "the rule min_rows cannot be 'ten'"),
        ({"min_rows": -1}, "the rule min_rows cannot be"),
        ({"masks": "maybe"}, "masks must be one of required, allowed, never"),
        ({"models": "logistic"}, "the rule models cannot be"),
        ({"sums_only": 1}, "the rule sums_only cannot be"),
    ],
)
def test_policies_are_read_strictly(given, told):
    with pytest.raises(aq.InputError, match=r"site\.toml") as error:
        Policy.read("site.toml", given)
    assert told in str(error.value)
