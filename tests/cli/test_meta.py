"""`auqadmm meta`: what R's glm finds at every site, combined as metafor does (fixtures/meta.R made the numbers)."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.cli import files

aq = files.aq  # fixture
FIXTURES = Path(__file__).parent / "fixtures"
KNOWN = json.loads((FIXTURES / "meta.json").read_text())
NAMES = {"age": "age", "ward=b": "wardb", "ward=c": "wardc", "intercept": "(Intercept)"}
ROWS = pd.read_csv(FIXTURES / "meta.csv")
COMMON = ("--family", "poisson", "--exposure", "days", "--target", "falls")


def test_sites_and_their_combination_are_those_of_r(aq, tmp_path):
    ran = aq("meta", FIXTURES / "meta.csv", "--site", "site", *COMMON, "--out", tmp_path / "out")
    assert ran.code == 0, ran.err
    kept = json.loads((tmp_path / "out" / "meta.json").read_text())
    assert [site["name"].split("'")[1] for site in kept["sites"]] == KNOWN["sites"]
    for ours, theirs in NAMES.items():
        known = KNOWN[theirs]
        for part in ("coef", "se"):
            found = [site[part][ours] for site in kept["sites"]]
            np.testing.assert_allclose(found, known[part], rtol=1e-8)
        assert kept["fixed"]["q"][ours] == pytest.approx(known["q"], rel=1e-8)
        assert kept["fixed"]["q_p"][ours] == pytest.approx(known["q_p"], rel=1e-8)
        for method in ("fixed", "reml"):
            for part in ("estimate", "se", "p", "low", "high", "tau2", "i2"):
                value = known[method][part]
                assert kept[method][part][ours] == pytest.approx(value, rel=1e-8, abs=1e-15), (ours, method, part)
    assert (tmp_path / "out" / "forest.png").read_bytes().startswith(b"\x89PNG")
    assert kept["left_out"] == []
    assert "Each site alone; 4 of 4 sites combined." in ran.out
    assert "Random effects (REML)" in ran.out
    assert f"{KNOWN['age']['reml']['estimate']:.4f}" in ran.out


COX = json.loads((FIXTURES / "meta_cox.json").read_text())


@pytest.mark.parametrize("case", ["efron", "breslow", "entry"])
def test_hazards_of_sites_are_those_of_r(aq, tmp_path, case):
    """R's coxph at every site, combined by metafor (fixtures/meta_cox.R made the numbers)."""
    more = {"efron": ["--drop", "begin"], "breslow": ["--drop", "begin", "--ties", "breslow"], "entry": []}[case]
    more += ["--entry", "begin"] if case == "entry" else []
    asked = ("--model", "cox", "--time", "days", "--event", "died", *more)
    ran = aq("meta", FIXTURES / "meta_cox.csv", "--site", "site", *asked, "--out", tmp_path, "--exponentiate")
    assert ran.code == 0, ran.err
    kept = json.loads((tmp_path / "meta.json").read_text())
    assert kept["ties"] == ("breslow" if case == "breslow" else "efron")
    assert sorted(kept["fixed"]["estimate"]) == ["age", "arm=b"]
    sites = sorted(kept["sites"], key=lambda site: site["name"].split("'")[1])
    for name, known in ((name, COX[case][name]) for name in ("age", "arm=b")):
        for part in ("coef", "se"):
            np.testing.assert_allclose([site[part][name] for site in sites], known[part], rtol=1e-8)
        for method in ("fixed", "reml"):
            for part, value in known[method].items():
                assert kept[method][part][name] == pytest.approx(value, rel=1e-8, abs=1e-15), (name, method, part)
    assert "hazard ratio, exp(coef)" in ran.out


def test_a_site_without_events_is_left_out(aq, tmp_path):
    rows = pd.read_csv(FIXTURES / "meta_cox.csv").drop(columns="begin")
    rows.loc[rows["site"] == "east", "died"] = 0
    path = files.write(rows, tmp_path / "rows.csv")
    asked = ("--model", "cox", "--time", "days", "--event", "died")
    ran = aq("meta", path, "--site", "site", *asked, "--out", tmp_path / "out")
    assert ran.code == 0, ran.err
    assert "Each site alone; 2 of 3 sites combined." in ran.out
    assert "'east': no row has an event." in " ".join(ran.out.split())
    ran = aq("meta", path, "--site", "site", "--model", "svm", "--target", "died", "--out", tmp_path / "out")
    assert ran.code == 2
    assert "--model: there is no 'svm' here; there are glm, cox." in " ".join(ran.err.replace("│", " ").split())


def test_formulas_and_ratios(aq, tmp_path):
    arguments = ("--family", "poisson", "--exposure", "days", "--formula", "falls ~ age + C(ward)", "--exponentiate")
    ran = aq("meta", FIXTURES / "meta.csv", "--site", "site", *arguments, "--out", tmp_path, "--level", "0.9")
    assert ran.code == 0, ran.err
    assert f"{np.exp(KNOWN['age']['fixed']['estimate']):.4f}" in ran.out
    assert "C(ward)[T.b]" in ran.out
    assert "rate ratio, exp(coef)" in ran.out
    assert "[0.05" in ran.out
    held = aq("meta", FIXTURES / "meta.csv", "--site", "site", *arguments, "--out", tmp_path)
    assert "holds 'meta.json', 'forest.png'; --overwrite replaces it" in held.sentence
    assert aq("meta", FIXTURES / "meta.csv", "--site", "site", *arguments, "--out", tmp_path, "--overwrite").code == 0


def test_a_site_without_a_fit_of_its_own_is_named(aq, tmp_path):
    rng = np.random.default_rng(0)
    base = ROWS.assign(sick=(rng.uniform(size=len(ROWS)) < 0.4).astype(int))
    sites = dict(iter(base.groupby("site")))
    sites["few"] = base.head(3)
    sites["no_c"] = base[base["ward"] != "c"].head(60)
    sites["no_a"] = base[base["ward"] != "a"].head(60)  # the reference
    sites["alike"] = base.head(60).assign(sick=0)
    sites["split"] = base.head(60).assign(sick=lambda d: (d["age"] > 50).astype(int))
    paths = [files.write(part.drop(columns="site"), tmp_path / f"{name}.csv") for name, part in sites.items()]
    ran = aq("meta", *paths, "--family", "binomial", "--target", "sick", "--features", "age,ward", "--out",
             tmp_path / "out")  # fmt: skip
    assert ran.code == 0, ran.err
    left = {Path(site["name"]).stem: site["reason"] for site in json.loads(
        (tmp_path / "out" / "meta.json").read_text())["left_out"]}  # fmt: skip
    assert set(left) == {"few", "no_c", "no_a", "alike", "split"}
    assert left["few"] == "3 rows for 4 coefficients."
    assert left["no_c"] == "no row has 'ward=c'."
    assert left["alike"] == "all rows are 0."
    assert "collinear" in left["no_a"]
    assert "separate" in left["split"]
    assert "Each site alone; 4 of 9 sites combined." in ran.out
    assert ran.out.count("Left out: ") == 5


def test_too_few_sites(aq, tmp_path):
    one, few = ROWS.query("site == 'north'"), ROWS.head(3)
    paths = [files.write(part.drop(columns="site"), tmp_path / name) for part, name in ((one, "n.csv"), (few, "f.csv"))]
    sentence = aq("meta", *paths, *COMMON, "--out", tmp_path / "out").sentence
    assert "1 site could be fitted alone, two are needed: " in sentence
    assert "f.csv: 3 rows for 4 coefficients." in sentence


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--cov", "cluster"], "--cov: there is no 'cluster'"),
        (["--level", "95"], "--level must be between 0 and 1, got 95"),
        (["--link", "logit"], "link 'logit' is not offered"),
    ],
)
def test_wrong_usage(aq, tmp_path, arguments, told):
    ran = aq("meta", FIXTURES / "meta.csv", "--site", "site", *COMMON, *arguments, "--out", tmp_path / "out")
    assert ran.code == 2
    assert told in " ".join(ran.err.replace("│", " ").split())
    ran = aq("meta", FIXTURES / "meta.csv", "--target", "falls", "--out", tmp_path / "out")
    assert ran.code == 2
