"""`auqadmm fit --family`: the likelihood that statsmodels maximises, on files; what is read, predicted and refused."""

import json

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from scipy import stats

import auqadmm
from tests.cli import files
from tests.formula.study import study

aq = files.aq  # fixture
CLOSE = {"rtol": 1e-8, "atol": 1e-9}
FRAME = study(160).round(4)
COMMON = ["age", "stage"]


@pytest.fixture
def paths(tmp_path):
    """One file per hospital."""
    return [files.write(part, tmp_path / f"{name}.csv") for name, part in FRAME.groupby("hospital")]


def fitted(aq, folder, paths, *arguments):
    ran = aq("fit", *paths, *arguments, "--quiet", "--out", folder)
    assert ran.code == 0, ran.err
    return auqadmm.load(folder)


def oracle(formula, family, frame=FRAME, **more):
    return smf.glm(formula, frame, family=family, **more).fit(tol=1e-15, maxiter=200)


FAMILIES = [
    (["binomial", "--target", "sick"], "sick", sm.families.Binomial(), {}),
    (["binomial", "--link", "probit", "--target", "sick"], "sick",
     sm.families.Binomial(sm.families.links.Probit()), {}),
    (["binomial", "--link", "cloglog", "--target", "sick"], "sick",
     sm.families.Binomial(sm.families.links.CLogLog()), {}),
    (["poisson", "--exposure", "days", "--target", "falls"], "falls", sm.families.Poisson(), {"exposure": "days"}),
    (["poisson", "--offset", "log_days", "--weights", "weight", "--target", "falls"], "falls", sm.families.Poisson(),
     {"offset": "log_days", "freq_weights": "weight"}),
    (["gamma", "--target", "cost"], "cost", sm.families.Gamma(sm.families.links.Log()), {}),
    (["negative-binomial", "--parameter", "2", "--target", "falls"], "falls",
     sm.families.NegativeBinomial(alpha=0.5), {}),
    (["tweedie", "--parameter", "1.6", "--target", "cost"], "cost",
     sm.families.Tweedie(sm.families.links.Log(), var_power=1.6), {}),
    (["gaussian", "--target", "score"], "score", sm.families.Gaussian(), {}),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "target", "family", "more"), FAMILIES)
def test_a_family_is_fitted_and_predicted(aq, tmp_path, paths, arguments, target, family, more):
    model = fitted(aq, tmp_path / "out", paths, "--family", *arguments, "--features", ",".join(COMMON))
    known = oracle(f"{target} ~ age + stage", family, **{name: FRAME[column] for name, column in more.items()})
    names = [name.replace("=", "[T.") + "]" * ("=" in name) for name in model.get_feature_names_out()]
    np.testing.assert_allclose(model.coef_, known.params[names], **CLOSE)
    assert model.intercept_ == pytest.approx(known.params["Intercept"], rel=1e-8)
    np.testing.assert_allclose(model.predict(FRAME), known.fittedvalues, rtol=1e-8)
    new = files.write(FRAME.drop(columns=target), tmp_path / "new.csv")
    ran = aq("predict", tmp_path / "out", new, "--out", tmp_path / "means.csv")
    assert ran.code == 0, ran.err
    np.testing.assert_allclose(pd.read_csv(tmp_path / "means.csv")["prediction"], known.fittedvalues, rtol=1e-8)
    kept = files.summary(tmp_path / "out")
    assert (kept["model"], kept["settings"]["family"], kept["settings"]["l2"]) == ("glm", arguments[0], 0.0)
    assert aq("report", tmp_path / "out").code == 0


@pytest.mark.parametrize("tol", ["1e-6", "1e-16"])
def test_the_table_and_the_model_are_exact_whatever_the_tolerance(aq, tmp_path, paths, tol):
    arguments = ("--family", "gamma", "--target", "cost", "--features", "age,bmi,stage", "--tol", tol)
    model = fitted(aq, tmp_path / "out", paths, *arguments, "--inference", "--cov", "expected", "--standardize")
    told = files.summary(tmp_path / "out")["inference"]
    family = sm.families.Gamma(sm.families.links.Log())
    frame = FRAME.assign(age=FRAME["age"] - FRAME["age"].mean(), bmi=FRAME["bmi"] - FRAME["bmi"].mean())
    known = oracle("cost ~ age + bmi + C(stage)", family, frame)
    np.testing.assert_allclose(model.coef_, told["table"]["coef"][:-1], rtol=1e-12)
    np.testing.assert_allclose(model.coef_, known.params[["age", "bmi", "C(stage)[T.b]", "C(stage)[T.c]"]], rtol=1e-8)
    order = ["age", "bmi", "C(stage)[T.b]", "C(stage)[T.c]"]
    np.testing.assert_allclose(told["table"]["se"][:-1], known.bse[order], rtol=1e-8)
    t = known.tvalues[order]
    np.testing.assert_allclose(told["table"]["p"][:-1], 2 * stats.t(known.df_resid).sf(np.abs(t)), rtol=1e-8)


def test_standardising_is_undone_in_the_coefficients(aq, tmp_path, paths):
    common = ("--family", "binomial", "--target", "sick", "--features", "age,bmi,stage")
    plain = fitted(aq, tmp_path / "plain", paths, *common)
    scaled = fitted(aq, tmp_path / "scaled", paths, *common, "--standardize")
    np.testing.assert_allclose(scaled.coef_, plain.coef_, **CLOSE)
    np.testing.assert_allclose(scaled.predict(FRAME), plain.predict(FRAME), rtol=1e-8)
    strong = fitted(aq, tmp_path / "strong", paths, *common, "--standardize", "--l2", "20")
    z = (FRAME[["age", "bmi"]] - FRAME[["age", "bmi"]].mean()) / FRAME[["age", "bmi"]].std(ddof=0)
    X = np.column_stack([z, *(FRAME["stage"] == level for level in "abc")]).astype(float)
    known = auqadmm.ConsensusGLM("binomial", l2=20.0).fit(X, FRAME["sick"])
    np.testing.assert_allclose(strong.predict(FRAME), known.predict(X), rtol=1e-8)


def test_site_intercepts_stay_at_their_site(aq, tmp_path, paths):
    arguments = ("--family", "poisson", "--target", "falls", "--features", "age,stage", "--site-intercepts")
    model = fitted(aq, tmp_path / "out", paths, *arguments)
    known = oracle("falls ~ age + stage + hospital", sm.families.Poisson())
    np.testing.assert_allclose(model.coef_, known.params[["age", "stage[T.b]", "stage[T.c]"]], **CLOSE)
    assert "known at the sites alone" in aq("predict", tmp_path / "out", paths[0]).sentence


def test_labels_may_be_words(aq, tmp_path):
    frame = FRAME.assign(sick=FRAME["sick"].map({0: "no", 1: "yes"}))
    path = files.write(frame, tmp_path / "all.csv")
    model = fitted(aq, tmp_path / "out", [path], "--family", "binomial", "--target", "sick", "--features", "age",
                   "--site", "hospital")  # fmt: skip
    known = oracle("sick ~ age", sm.families.Binomial())
    np.testing.assert_allclose(model.coef_, known.params[["age"]], **CLOSE)
    assert model.classes_.tolist() == ["no", "yes"]


def test_robust_losses_are_families_too(aq, tmp_path, paths):
    arguments = ("--target", "score", "--features", "age,bmi")
    for family, loss in (("huber", auqadmm.Huber(0.5)), ("quantile", auqadmm.Quantile(0.7))):
        value = "0.5" if family == "huber" else "0.7"
        model = fitted(aq, tmp_path / family, paths, "--family", family, "--parameter", value, *arguments)
        known = auqadmm.ConsensusGLM(loss).fit(FRAME[["age", "bmi"]], FRAME["score"], sites=FRAME["hospital"])
        np.testing.assert_allclose(model.coef_, known.coef_, rtol=1e-8)


def test_an_estimator_is_kept_and_read(tmp_path):
    X = FRAME[["age", "bmi"]]
    for family, y in (("poisson", FRAME["falls"]), (auqadmm.NegativeBinomial(2.0), FRAME["falls"]),
                      ("binomial", FRAME["sick"])):  # fmt: skip
        model = auqadmm.ConsensusGLM(family).fit(X, y, sites=FRAME["hospital"])
        loaded = auqadmm.load(auqadmm.save(model, tmp_path / "kept"))
        np.testing.assert_allclose(loaded.predict(X), model.predict(X), rtol=1e-13)
        np.testing.assert_array_equal(loaded.coef_, model.coef_)
    offset = np.linspace(0, 1, len(X))
    np.testing.assert_allclose(loaded.predict(X, offset=offset), model.predict(X, offset=offset), rtol=1e-13)
    with pytest.raises(auqadmm.InputError, match="exposure is for families with a logarithmic link"):
        loaded.predict(X, exposure=offset + 1)


# ---------------------------------------------------------------------- dry run
def test_a_dry_run_tells_and_writes_nothing(aq, tmp_path, paths):
    before = sorted(tmp_path.iterdir())
    arguments = ("--family", "poisson", "--target", "falls", "--exposure", "days", "--features", "age,stage")
    ran = aq("fit", *paths, *arguments, "--dry-run", "--out", tmp_path / "out")
    assert ran.code == 0, ran.err
    assert sorted(tmp_path.iterdir()) == before
    for told in (
        "Poisson model, link log, of 'falls', with exposure 'days': the largest likelihood.",
        f"{len(FRAME)} rows, 3 workers:",
        "3 features and an intercept:",
        "stage: a (reference), b, c",
        "every round: the value, the slope and the curvature (a triangle) of its loss: about 15 numbers (120 bytes)",
        "Who sees it: One process reads all files; nothing leaves it.",
        "Nothing was fitted, nothing was written.",
    ):
        assert told in ran.out
    assert aq("fit", *paths, *arguments, "--dry-run", "--engine", "ray", "--method", "lbfgs").code == 0
    logistic = aq("fit", *paths, "--model", "logistic", "--target", "stage", "--features", "age,bmi", "--dry-run")
    assert "Logistic regression of 'stage': the mean loss over all rows, with penalties l1 = 0 and l2 = 0.001." in (
        logistic.out
    )


# ---------------------------------------------------------------------- refusals
USAGE = [
    (["--target", "sick"], "--model or --family is missing"),
    (["--family", "posson", "--target", "falls"], "Unknown family 'posson'"),
    (
        ["--family", "poisson", "--link", "logit", "--target", "falls"],
        "link 'logit' is not offered for family 'poisson'",
    ),
    (
        ["--family", "binomial", "--exposure", "days", "--target", "sick"],
        "--exposure is for families with a logarithmic",
    ),
    (["--family", "binomial", "--parameter", "2", "--target", "sick"], "Family 'binomial' has no parameter"),
    (["--family", "tweedie", "--parameter", "3", "--target", "cost"], "power must be between 1 and 2"),
    (["--model", "logistic", "--family", "binomial", "--target", "sick"], "--model logistic and --family exclude each"),
    (["--model", "glm", "--target", "sick"], "--model glm needs --family"),
    (["--model", "logistic", "--offset", "age", "--target", "sick"], "--offset goes with --family"),
    (["--model", "logistic", "--site-intercepts", "--target", "sick"], "--site-intercepts goes with --family"),
    (["--family", "poisson"], "--target is missing"),
]


@pytest.mark.parametrize(("arguments", "told"), USAGE)
def test_wrong_usage(aq, tmp_path, paths, arguments, told):
    ran = aq("fit", *paths, *arguments, "--out", tmp_path / "out")
    assert ran.code == 2
    assert told in " ".join(ran.err.replace("│", " ").split())
    assert not (tmp_path / "out").exists()


def test_the_folder_is_needed_but_for_dry_runs(aq, paths):
    ran = aq("fit", *paths, "--family", "poisson", "--target", "falls")
    assert ran.code == 2
    assert "--out is missing" in ran.err


REFUSED = [
    ({"days": 0.0}, ["poisson", "--target", "falls", "--exposure", "days"],
     "row 2, column 'days' is 0; exposures are numbers above zero."),
    ({"days": -3.0}, ["poisson", "--target", "falls", "--exposure", "days"], "row 2, column 'days' is -3; exposures"),
    ({"days": np.nan}, ["gamma", "--target", "cost", "--exposure", "days"], "column 'days' is missing; exposures"),
    ({"falls": -1}, ["poisson", "--target", "falls"],
     "row 2, column 'falls' is -1; family 'poisson' needs counts or rates, which are not negative."),
    ({"falls": -1}, ["negative-binomial", "--target", "falls"], "'falls' is -1; family 'negative-binomial' needs"),
    ({"cost": 0.0}, ["gamma", "--target", "cost"], "column 'cost' is 0; family 'gamma' needs numbers above zero."),
    ({"cost": -0.5}, ["tweedie", "--target", "cost"], "column 'cost' is -0.5; family 'tweedie' needs amounts"),
    ({}, ["poisson", "--target", "falls", "--offset", "nights"], "there is no offset column 'nights'"),
    ({}, ["poisson", "--target", "falls", "--offset", "stage"], "offsets must be numbers"),
    ({}, ["poisson", "--target", "falls", "--exposure", "stage"], "exposures must be numbers"),
    ({"log_days": np.inf}, ["poisson", "--target", "falls", "--offset", "log_days"], "is inf; offsets are finite"),
    ({}, ["binomial", "--target", "grade"], "The target has 3 labels (1, 2, 3); family 'binomial' needs two."),
    ({}, ["poisson", "--target", "stage"], "this model needs a number as target"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "arguments", "told"), REFUSED)
def test_files_that_are_refused(aq, tmp_path, change, arguments, told):
    frame = FRAME.astype({"falls": float}).copy()
    for column, value in change.items():
        frame.loc[1, column] = value
    path = files.write(frame, tmp_path / "north.csv")
    sentence = aq("fit", path, "--family", *arguments, "--features", "age", "--out", tmp_path / "out").sentence
    assert told in sentence
    assert "north.csv" in sentence or "labels" in told


def test_a_model_that_predicts_rates_needs_the_exposure(aq, tmp_path, paths):
    arguments = ("--family", "poisson", "--target", "falls", "--features", "age", "--exposure", "days")
    fitted(aq, tmp_path / "out", paths, *arguments)
    new = files.write(FRAME[["age"]], tmp_path / "new.csv")
    assert "there is no exposure column 'days'" in aq("predict", tmp_path / "out", new).sentence
    content = json.loads((tmp_path / "out" / "model.json").read_text())["content"]
    assert content["family"] == {"name": "poisson", "link": "log", "parameter": None}
    assert content["version"] == 2


def test_k_of_a_negative_binomial_is_searched(aq, tmp_path, paths):
    rng = np.random.default_rng(3)
    frame = FRAME.assign(
        falls=rng.poisson(np.exp(0.5 + 0.1 * FRAME["age"] / FRAME["age"].std()) * rng.gamma(2, 0.5, 160))
    )
    parts = [files.write(part, tmp_path / f"{name}.csv") for name, part in frame.groupby("hospital")]
    common = ("--family", "negative-binomial", "--target", "falls", "--features", "age,bmi", "--inference")
    ran = aq("fit", *parts, *common, "--out", tmp_path / "out")
    assert ran.code == 0, ran.err
    model, kept = auqadmm.load(tmp_path / "out"), files.summary(tmp_path / "out")
    rows = frame.sort_values("hospital", kind="stable")
    made = auqadmm.ConsensusGLM("negative-binomial").fit(rows[["age", "bmi"]], rows["falls"], sites=rows["hospital"])
    assert model.family_.parameter == kept["k"]["value"] == pytest.approx(made.k_, rel=1e-8)
    assert kept["k"]["se"] == pytest.approx(made.inference_.k_se, rel=1e-8)
    np.testing.assert_allclose(kept["inference"]["table"]["se"], made.inference_.se, rtol=1e-8)
    known = sm.NegativeBinomial(frame["falls"], sm.add_constant(frame[["age", "bmi"]])).fit(
        disp=0,
        method="newton",
        maxiter=200,
        tol=1e-12,
        start_params=[*np.r_[model.intercept_, model.coef_], 1 / made.k_],
    )
    np.testing.assert_allclose(model.coef_, known.params[["age", "bmi"]], rtol=1e-8)
    assert 1 / kept["k"]["value"] == pytest.approx(known.params["alpha"], rel=1e-8)
    assert f"k {kept['k']['value']:.6g} (std err {kept['k']['se']:.4g})" in ran.out
    again = aq("fit", *parts, *common, "--resume", "--out", tmp_path / "out")
    assert again.code == 2
