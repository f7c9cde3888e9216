"""`auqadmm fit --sites` as people type it: formulas, trials, ids, folds, baselines and dry runs."""

from __future__ import annotations

import json

import numpy as np
import pytest

import auqadmm
from auqadmm.cli import main
from auqadmm.cli import sites as at_sites
from auqadmm.sites.policy import Policy
from tests.sites.inside import NAMES, InsideSites
from tests.sites.test_formula import frames

MASKED = Policy(masks="required")


@pytest.fixture
def fit(tmp_path, monkeypatch, capsys):
    """Runs the command at sites without a network, and on their files; returns both folders, or what was said."""

    def run(*words, policy=MASKED, data=None, local=True, code=0, quiet=True):
        sites = InsideSites(tmp_path, policy, frames=data or frames())
        monkeypatch.setattr(at_sites, "connected", lambda path, silent, watched: sites)
        monkeypatch.setattr(at_sites, "missing_extra", at_sites.missing_extra)
        out, here = tmp_path / "out", tmp_path / "here"
        asked = ["fit", "--sites", "s.toml", "--data", "heart", *words]
        written = [] if "--dry-run" in words else ["--out", str(out), *(["--quiet"] if quiet else [])]
        said = ended([*asked, *written], code)
        if local and not code:
            files = [str(tmp_path / f"{name}.csv") for name in NAMES]
            ended(["fit", *files, *words, "--out", str(here), "--quiet"], 0)
            return out, here
        return said, sites

    def ended(words, code):
        with pytest.raises(SystemExit) as end:
            main(words)
        told = capsys.readouterr()
        assert (end.value.code or 0) == code, told.err
        return " ".join((told.out + told.err).replace("│", " ").split())

    return run


def same(out, here, atol=1e-8):
    one, two = auqadmm.load(out), auqadmm.load(here)
    np.testing.assert_allclose(one.coef_, two.coef_, atol=atol)
    assert one.get_feature_names_out().tolist() == two.get_feature_names_out().tolist()
    return tuple(json.loads((folder / "summary.json").read_text()) for folder in (out, here))


@pytest.mark.parametrize("policy", [Policy(), MASKED], ids=["plain", "masked"])
def test_a_formula(fit, policy, tmp_path):
    text = "visits ~ scale(age) + C(arm) + offset(log_years)"
    told, _ = same(*fit("--family", "poisson", "--formula", text, "--inference", policy=policy))
    assert told["settings"]["formula"] == text
    assert len(told["inference"]["names"]) == 4
    new = frames(9)["lyon"]
    known = auqadmm.load(tmp_path / "here").predict(new)
    np.testing.assert_allclose(auqadmm.load(tmp_path / "out").predict(new), known, rtol=1e-8)


def test_trials(fit):
    data = frames()
    for frame in data.values():
        frame["tried"] = np.random.default_rng(len(frame)).integers(1, 6, len(frame))
        frame["won"] = np.minimum(frame["tried"], frame["visits"])
    words = ("--family", "binomial", "--target", "won", "--trials", "tried", "--features", "age,dose")
    same(*fit(*words, data=data))


def test_an_id_is_left_out(fit):
    data = {name: f.drop(columns="patient") for name, f in frames().items()}
    for k, frame in enumerate(data.values()):
        frame["code"] = 2000 * k + 7 * np.arange(len(frame))
    keep = ("--drop", "time,died,cost,log_years,years,sick,grade")
    told, _ = same(*fit("--family", "poisson", "--target", "visits", "--id", "code", *keep, data=data))
    assert told["features"] == 4
    counted = {name: f.assign(code=np.arange(len(f)) + 3) for name, f in data.items()}
    said, _ = fit("--family", "poisson", "--target", "visits", *keep, "--overwrite", data=counted, code=1, local=False)
    assert "column 'code' is probably an id; leave it out" in said
    assert "150" not in said


SPELLINGS = {
    "case": ("sick", {"yes": "Yes"}, "Label 'yes' (berlin) and 'Yes' (oslo) differ only by case or blanks"),
    "a blank": ("sick", {"no": "no "}, "Label 'no' (berlin) and 'no ' (oslo) differ only by case or blanks"),
    "a level": (
        "arm",
        {"b": " B"},
        "Column 'arm': category 'b' (berlin) and ' B' (oslo) differ only by case or blanks",
    ),
    "wide letters": ("arm", {"c": "ｃ"}, "category 'c' (berlin) and 'ｃ' (oslo) differ only in how their characters"),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("how", ["columns", "formula"])
@pytest.mark.parametrize("case", SPELLINGS)
def test_one_text_in_two_spellings_at_two_sites(fit, case, how):
    name, spelt, told = SPELLINGS[case]
    data = frames()
    data["oslo"][name] = data["oslo"][name].replace(spelt)
    words = ("--formula", "sick ~ age + arm") if how == "formula" else ("--target", "sick", "--features", "age,arm")
    said, sites = fit("--family", "binomial", *words, data=data, local=False, code=1)
    assert told in said
    assert not any(hasattr(session, "shard") for session in sites.made.sessions.values())  # before the first round


@pytest.mark.timeout(60)
def test_checkpoints_are_apart_named_and_gone_after_success(fit, tmp_path):
    """At the coordinator; how many parts a site keeps is tested in test_doors.py."""
    saved = tmp_path / "out.checkpoint"
    words = ("--family", "binomial", "--target", "sick", "--features", "age,arm", "--method", "lbfgs")
    words = (*words, "--checkpoint-every", "1", "--max-iter")
    said, _ = fit(*words, "5", local=False, code=3, quiet=False)
    assert f"{saved}: checkpoints, as private as rows" in said.split("Written:")[1]
    assert saved.stat().st_mode & 0o077 == 0
    assert not list((tmp_path / "out").glob("*checkpoint*"))
    said, _ = fit(*words, "200", "--resume", local=False, quiet=False)
    assert f"{saved}: checkpoints" not in said
    assert not saved.exists()


def test_a_dry_run_says_what_would_happen_and_fits_nothing(fit, tmp_path):
    words = ("--family", "poisson", "--formula", "visits ~ bs(age, df=4) + arm", "--dry-run")
    said, sites = fit(*words, local=False)
    assert "Poisson model, link log, of 'visits'" in said
    assert "knots of bs(age, df=4)" in said
    assert "All sites agree to the plan" in said
    assert "lyon: sums only; masks required; at least 3 sites" in said
    assert not (tmp_path / "out").exists()
    for name in NAMES:
        assert not hasattr(sites.made.sessions[name], "shard")
    said, _ = fit(*words, policy=Policy(models=("cox",)), local=False, code=1)
    assert "refused by the policy of berlin: the policy allows cox, not glm" in said


def test_folds(fit, tmp_path):
    words = ("--family", "poisson", "--formula", "visits ~ age + arm", "--cv")
    fit(*words, "5", local=False)
    held = json.loads((tmp_path / "out" / "summary.json").read_text())["cross_validation"]
    assert held["by"] == "5 folds of the rows of each site"
    assert 0 < held["figures"]["deviance_explained"] < 1
    said, _ = fit(*words, "sites", "--overwrite", local=False, code=1)
    assert "so none is left out" in said


def test_baselines(fit):
    words = ("--model", "cox", "--time", "time", "--event", "died", "--features", "age,arm", "--baseline", "0.3,0.6")
    told, known = same(*fit(*words, policy=Policy()))
    for name in NAMES:
        (here,) = [x for place, x in known["baseline"]["hazards"].items() if f"{name}.csv" in place]
        np.testing.assert_allclose(told["baseline"]["hazards"][name], here, rtol=1e-7)


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (MASKED, "No quality: Concordance counts pairs of rows of one site, and a site here gives masked sums"),
        (Policy(site_figures=False), "'quality of survival' are figures of this site alone"),
    ],
    ids=["masked", "kept back"],
)
def test_concordance_that_is_refused(fit, tmp_path, policy, told):
    """The fit is written all the same, and says what is not in it."""
    words = ("--model", "cox", "--time", "time", "--event", "died", "--features", "age,arm")
    fit(*words, policy=policy, local=False)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert told in " ".join(summary["refusals"])
    assert summary.get("quality") is None


def test_baselines_that_are_refused(fit, tmp_path):
    words = (
        "--model",
        "cox",
        "--time",
        "time",
        "--event",
        "died",
        "--features",
        "age,arm",
        "--overwrite",
    )

    def refusals(grid, policy=None):
        fit(*words, "--baseline", grid, policy=policy or Policy(), local=False)
        return " ".join(json.loads((tmp_path / "out" / "summary.json").read_text()).get("refusals", []))

    assert "sums only are allowed" in refusals("0.3", MASKED)
    assert "fewer than 5 events" in refusals("0.3,0.3001")
    assert refusals("0.3,0.6") == ""
    assert "fewer than 10 rows are at risk" in refusals("0.3,50")
    assert "told on 3 grids" in refusals("0.4")
    assert refusals("0.3,0.6") == ""


def test_the_baseline_of_raw_columns(fit, tmp_path):
    """Breslow's estimate, written out: at every event one over those at risk."""
    words = ("--model", "cox", "--time", "time", "--event", "died", "--features", "age,dose", "--ties", "breslow")
    fit(*words, "--baseline", "0.3,0.6", policy=Policy(), local=False)
    told = json.loads((tmp_path / "out" / "summary.json").read_text())["baseline"]
    coef = auqadmm.load(tmp_path / "out").coef_
    for name, frame in frames().items():
        t, risk = frame["time"].to_numpy(), np.exp(frame[["age", "dose"]].to_numpy() @ coef)
        events = t[frame["died"] == 1]
        here = [sum(1 / risk[t >= e].sum() for e in events if e <= at) for at in (0.3, 0.6)]
        np.testing.assert_allclose(told["hazards"][name], here, rtol=1e-7)
