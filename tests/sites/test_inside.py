"""Fits through sessions of sites: the same answer as without, whatever the method and the policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.engines import protocol
from auqadmm.sites.policy import SUMS, Policy
from auqadmm.testing import EngineSuite
from tests.sites.inside import DATA, NAMES, Inside, InsideSites, posed, same_model

TIGHT = {"certificate_tol": 1e-12, "max_iter": 300}
POLICIES = {
    "default": Policy(),
    "sums": Policy(sums_only=True),
    "masked": Policy(masks="required", sums_only=True),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", ["auto", "newton", "lbfgs", "fista", "auq-lr"])
def test_it_is_the_fit_of_all_rows(tmp_path, method, policy):
    sites = InsideSites(tmp_path, POLICIES[policy])
    if method == "auq-lr" and policy != "default":
        with pytest.raises(aq.InputError, match=r"site berlin.*allows sums only, and auq-lr asks for more"):
            aq.solve(posed(DATA), method, sites)
        return
    found = aq.solve(posed(DATA), method, sites, **TIGHT)
    same = aq.solve(posed(sites.blocks()), found.method, **TIGHT)
    assert found.status == "converged"
    assert found.n_iter == same.n_iter
    same_model(found.v, same.v)
    assert (found.lam is None) == (policy != "default" or method in ("newton", "lbfgs", "fista", "auto"))


@pytest.mark.thin(2)
@pytest.mark.parametrize("method", [m for m in SUMS if m.endswith("admm")])
def test_methods_of_the_paper_need_sums_only(tmp_path, method):
    sites = InsideSites(tmp_path, POLICIES["masked"])
    options = {"max_iter": 12, "local": "newton-cg"}
    found = aq.solve(posed(DATA), method, sites, **options)
    same = aq.solve(posed(sites.blocks()), method, **options)
    assert found.lam is None
    assert found.weights is None
    same_model(found.v, same.v)


@pytest.mark.parametrize("engine", ["local", "torch"])
def test_collect_nothing_is_for_any_engine(tmp_path, engine):
    rng = np.random.default_rng(1)
    blocks = [(rng.normal(size=(20, 2)), rng.normal(size=20)) for _ in range(3)]
    problem = aq.Problem(aq.LeastSquares(), aq.L2(0.1), blocks)
    all_of_it = aq.solve(problem, "c-admm", engine)
    found = aq.solve(problem, "c-admm", engine, collect="nothing")
    assert found.lam is None
    assert found.weights is None
    np.testing.assert_array_equal(found.v, all_of_it.v)
    with pytest.raises(aq.InputError, match="collect must be"):
        aq.solve(problem, collect="some")


@pytest.mark.parametrize("policy", ["default", "masked"])
def test_inference_and_quality(tmp_path, policy):
    sites, numbers = InsideSites(tmp_path, POLICIES[policy]), replace(DATA, features=("age", "bmi", "marker", "days"))
    found = aq.solve(posed(numbers, g=aq.Zero()), "auto", sites, inference=True)
    same = aq.solve(posed(sites.blocks(), g=aq.Zero()), "newton", inference=True)
    np.testing.assert_allclose(found.inference().vcov, same.inference().vcov, rtol=1e-9)
    assert found.inference(cov="robust").aic == pytest.approx(same.inference().aic, rel=1e-12)
    if policy == "masked":
        assert found.quality().figures["auc"] == pytest.approx(same.quality().figures["auc"], abs=1e-9)
    else:  # counts by bins of a score are nearly rows
        assert found.quality().figures["auc"] is None
        assert found.quality().figures["brier"] == pytest.approx(same.quality().figures["brier"], abs=1e-12)


@pytest.mark.thin(3)
@pytest.mark.parametrize("policy", ["default", "masked"])
@pytest.mark.parametrize("method", ["rb-admm", "lbfgs", "newton"])
def test_a_checkpoint_is_split(tmp_path, method, policy):
    """The coordinator's folder has no state of blocks, and the run goes on from it."""
    options = {"certificate_tol": 0.0, "abs_tol": 0.0, "rel_tol": 0.0, "local": "newton-cg"}
    whole = aq.solve(posed(DATA), method, InsideSites(tmp_path, POLICIES[policy]), max_iter=8, **options)
    saving = aq.Checkpoint(tmp_path / "kept", every=2)
    aq.solve(posed(DATA), method, InsideSites(tmp_path, POLICIES[policy]), max_iter=4, checkpoint=saving, **options)
    names = list((tmp_path / "kept").rglob("blocks-*.safetensors"))
    assert names
    assert all(path.stat().st_size < 100 for path in names)
    again = aq.Checkpoint(tmp_path / "kept", every=2, resume=True)
    found = aq.solve(
        posed(DATA), method, InsideSites(tmp_path, POLICIES[policy]), max_iter=8, checkpoint=again, **options
    )
    same_model(found.v, whole.v)
    assert found.n_iter == whole.n_iter


def test_a_digest_of_rows_is_known_to_its_site_only(tmp_path):
    from auqadmm.states import contents

    sites = InsideSites(tmp_path)
    aq.solve(posed(DATA), "lbfgs", sites)
    engine = sites.place(posed(DATA), torch.float64, torch.device("cpu"))
    shown = engine.gather(contents, None)
    for j, name in enumerate(NAMES):
        plain = contents(sites.link.sessions[name].shard, None)[0]
        assert shown[j].tolist() != plain.tolist()
    assert engine.gather(contents, None).tolist() == shown.tolist()


class Suited:
    """An engine for the suite: sessions whose policy serves tests."""

    def __init__(self, folder):
        self.folder = folder

    def place(self, problem, dtype, device):
        from auqadmm.sites.engine import SitesEngine, SitesPool

        sites = InsideSites(self.folder, Policy(testing=True))
        sites.begin(DATA, "tests", "c-admm")
        engine = SitesEngine(SitesPool(sites.study), problem, dtype)
        engine.guarded = False  # rows are not weighed where tests are served, so the same rounds are asked for
        return engine


CHECKS = ["primitives", "inference", "iterates uq-admm multinomial", "iterates auq-lr image", "float32"]


@pytest.mark.thin(2)
@pytest.mark.parametrize("name", CHECKS)
def test_sessions_are_an_engine(tmp_path, name):
    EngineSuite(lambda: Suited(tmp_path)).checks()[name]()


@pytest.mark.campaign
def test_sessions_are_an_engine_in_every_respect(tmp_path):
    """But errors: what is wrong with a row is told at the site alone."""
    for name, check in EngineSuite(lambda: Suited(tmp_path)).checks().items():
        if name != "errors":
            check()


def test_a_masked_answer_is_noise(tmp_path):
    sites = InsideSites(tmp_path, POLICIES["masked"])
    aq.solve(posed(DATA), "lbfgs", sites)
    masked = [protocol.loads(a)["message"] for a in sites.link.heard["lyon"]]
    limbs = [m[1]["limbs"] for m in masked if isinstance(m, tuple) and "limbs" in (m[1] or {})]
    assert len(limbs) > 5
    words = np.concatenate([x.ravel() for some in limbs for x in some.values()])
    ones = np.unpackbits(words.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 4 / np.sqrt(64 * len(words))


def test_sites_that_are_asked_different_things_give_noise(tmp_path):
    """A coordinator that asks one site for something else learns nothing of the sum."""
    from auqadmm.core.reduce import score
    from auqadmm.sites.answers import added
    from auqadmm.sites.masks import total, unmasked

    sites = InsideSites(tmp_path, POLICIES["masked"])
    sites.begin(DATA, "Logistic", "lbfgs")
    engine = sites.place(posed(DATA), torch.float64, torch.device("cpu"))
    v = torch.zeros(engine.census.features, 1, dtype=torch.float64)
    honest = engine.map_sum(score, None, v)[1]["G"]
    number = sites.study.calls + 1
    parts = []
    for name in NAMES:
        at = v if name != "oslo" else v + 1e-3
        message, _ = protocol.request(number, set(), "sum", (score, None, at, number), (0, None))
        parts.append(protocol.loads(sites.link.sessions[name](message))["message"][1])
    noise = torch.from_numpy(unmasked(total([part["limbs"]["G"] for part in parts]))).reshape(honest.shape)
    assert float((noise - honest).abs().max()) > 1e6
    with pytest.raises(aq.ProcessError, match=r"The masks of '\w+' do not cancel"):
        added(parts)


def test_masks_are_drawn_anew_whatever_a_run_is_called(tmp_path):
    """A coordinator that begins a run of the same name again gets other masks: no difference of two is a number."""
    heard = []
    for _ in range(2):
        sites = InsideSites(tmp_path, POLICIES["masked"], run="one")
        sites.begin(DATA, "Logistic", "lbfgs")
        answers = [protocol.loads(a)["message"] for a in sites.link.heard["lyon"]]
        heard.append(next(m["limbs"]["x"] for m in answers if isinstance(m, dict) and "limbs" in m))
    assert not np.any(heard[0] == heard[1])


def test_rows_are_not_sent_to_sites(tmp_path):
    X = np.ones((20, 2))
    with pytest.raises(aq.InputError, match="SiteData"):
        aq.solve(posed([(X, [0, 1] * 10)]), "lbfgs", InsideSites(tmp_path))
    with pytest.raises(aq.InputError, match=r"engine=aq\.Sites"):
        aq.solve(posed(DATA))


def test_own_code_is_refused(tmp_path):
    loss = aq.CustomLoss(lambda z, y: (z[:, 0] - y) ** 2)
    sites = InsideSites(tmp_path)
    with pytest.raises(aq.InputError, match="never to sites"):
        aq.solve(aq.Problem(loss, aq.L2(1.0), DATA), "c-admm", sites)


def test_sites_that_disagree_on_masks_cannot_take_part(tmp_path):
    rules = {"berlin": Policy(masks="required"), "lyon": Policy(masks="never"), "oslo": Policy()}
    with pytest.raises(aq.InputError, match="berlin asks for masked sums, and lyon allows none"):
        aq.solve(posed(DATA), "lbfgs", InsideSites(tmp_path, rules))


def test_one_site_that_asks_for_masks_is_enough(tmp_path):
    rules = {"berlin": Policy(masks="required"), "lyon": Policy(), "oslo": Policy()}
    sites = InsideSites(tmp_path, rules)
    assert aq.solve(posed(DATA), "auto", sites).method == "newton"
    assert sites.study.masked


def test_messages_are_answered_in_order_and_once(tmp_path):
    link = Inside(tmp_path, Policy())
    message, _ = protocol.request(5, set(), "open", ("heart",), (0, None))
    assert "message" in protocol.loads(link.call({"lyon": message}, 1.0)["lyon"])
    again = protocol.loads(link.call({"lyon": message}, 1.0)["lyon"])
    assert "overtaken" in again["error"]
