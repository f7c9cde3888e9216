"""Designs of sites, stacked, are the matrix that formulaic makes of all rows; states come from sums."""

import json
import threading

import numpy as np
import pandas as pd
import pytest
from formulaic import model_matrix
from hypothesis import given, settings
from hypothesis import strategies as st

import auqadmm as aq
from auqadmm.formula.design import FormulaDesign, agree
from auqadmm.formula.parsing import parse
from auqadmm.formula.pooled import quantiles
from tests.formula.study import study

FRAME = study(120).rename(columns={"log_days": "log days"})
COLUMNS = ["age", "bmi", "stage", "grade", "log days"]
RIGHT = [
    "age + C(stage)",
    "center(age) + scale(bmi) + standardize(`log days`)",
    "scale(bmi, center=False) + scale(age, scale=False, ddof=0)",
    "poly(age, degree=3) + poly(bmi, 2, raw=True)",
    "cr(age, knots=[45, 50, 55], lower_bound=10, upper_bound=90)",
    "cr(age, knots=[45, 50], lower_bound=10, upper_bound=90, constraints='center'):stage",
    "cc(age, knots=[45, 50, 55], lower_bound=10, upper_bound=90)",
    "bs(bmi, knots=[20, 25], lower_bound=0, upper_bound=100, degree=2) * stage",
    "bs(log(bmi), knots=[3], lower_bound=0, upper_bound=6, include_intercept=True)",
    "0 + stage + C(grade)",
    "stage:C(grade) - 1",
    "C(grade, Helmert) + C(stage, contr.treatment('c')) + age:bmi",
    "C(stage, levels=['c', 'a', 'b']) + I(age * 2 - 1) + np.sqrt(bmi) + np.log1p(age)",
    "(age + bmi + stage) ** 2 + I((stage == 'a') * age) + `log days`",
    "age / stage + age %in% stage",
]


def frames_of(frame, sites):
    parts = []
    for name, part in frame.groupby(sites):
        made = part[COLUMNS].astype({"grade": float, "stage": object})
        made.index = np.arange(1, len(made) + 1)
        made.attrs["source"] = str(name)
        parts.append(made)
    return parts


def designed(formula, frames, exchange=None):
    texts = {"stage": ("a", "b", "c")} if "stage" in parse(formula).columns else {}
    return agree(parse(formula), frames, texts, *([] if exchange is None else [exchange]))


def stacked(formula, frames):
    design = designed(formula, frames)
    return np.concatenate([design.matrix(frame) for frame in frames])


@pytest.mark.parametrize("right", RIGHT)
def test_the_matrix_is_that_of_all_rows(right):
    frames = frames_of(FRAME, FRAME["hospital"])
    design = designed(f"sick ~ {right}", frames)
    pooled = pd.concat(frames).astype({"grade": int}).reset_index(drop=True)
    known = model_matrix(right, pooled)
    if "levels" not in right:
        assert [name for name in known.columns if name != "Intercept"] == list(design.features)
    X = np.concatenate([design.matrix(frame) for frame in frames])
    known = known.drop(columns="Intercept", errors="ignore").to_numpy(float)
    np.testing.assert_allclose(X, known, rtol=1e-10, atol=1e-12)
    again = FormulaDesign.read(json.loads(json.dumps(design.message())))
    assert again.features == design.features
    for frame in frames:
        np.testing.assert_array_equal(again.matrix(frame), design.matrix(frame))


def test_processes_agree_and_send_sums_and_counts_only():
    frames = frames_of(FRAME, FRAME["hospital"])
    formula = "sick ~ center(age) + bs(bmi, df=4) + poly(age, 2) + C(grade) + stage + cr(bmi, 3, constraints='center')"
    alone = designed(formula, frames)
    sent: list[str] = []
    made: dict[int, FormulaDesign] = {}
    wall, box = threading.Barrier(3), [""] * 3

    def exchange(rank):
        def swap(text):
            box[rank] = text
            sent.append(text)
            wall.wait(20)
            told = list(box)
            wall.wait(20)
            return told

        return swap

    def process(rank):
        made[rank] = designed(formula, [frames[rank]], exchange(rank))

    threads = [threading.Thread(target=process, args=[rank]) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 3
    for design in made.values():
        assert design.features == alone.features
        assert design.message() == made[0].message()
        assert design.states["bs(bmi, df=4)"] == alone.states["bs(bmi, df=4)"]
        for frame in frames:
            np.testing.assert_allclose(design.matrix(frame), alone.matrix(frame), rtol=1e-10, atol=1e-12)
    own = {repr(value) for value in FRAME["bmi"]}
    assert not any(value in text for value in own for text in sent)


def test_knots_do_not_depend_on_the_split_and_are_quantiles_up_to_half_a_step():
    rng = np.random.default_rng(3)
    base = pd.DataFrame({"x": rng.normal(2000, 8, 500), "stage": "a"})
    seen = set()
    for seed in range(8):
        sites = np.random.default_rng(seed).integers(1 + seed, size=500)
        frames = [part.reset_index(drop=True) for _, part in base.groupby(sites)]
        state = agree(parse("y ~ bs(x, df=6)"), frames, {}).states["bs(x, df=6)"]
        seen.add(json.dumps(state))
    assert len(seen) == 1
    inner = np.array(state["knots"][4:-4])
    assert np.abs(inner - np.quantile(base["x"], [0.25, 0.5, 0.75])).max() <= base["x"].std() / 128
    assert state["lower_bound"] < base["x"].min()
    assert base["x"].max() < state["upper_bound"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-20, 20), min_size=1, max_size=60), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_quantiles_of_counts_are_those_of_values(values, shares):
    found, often = np.unique(values, return_counts=True)
    counts = dict(zip(found.tolist(), often.tolist(), strict=True))
    np.testing.assert_allclose(quantiles(counts, np.array(shares)), np.quantile(values, shares), atol=1e-12)


def test_offsets_are_added_up():
    frames = frames_of(FRAME, FRAME["hospital"])
    design = designed("sick ~ age + offset(`log days`) + offset(log(bmi) / 2)", frames)
    for frame in frames:
        np.testing.assert_allclose(design.offset(frame), frame["log days"] + np.log(frame["bmi"]) / 2)
    assert designed("sick ~ age", frames).offset(frames[0]) is None


@pytest.mark.parametrize(
    ("right", "told"),
    [
        ("bs(bmi, df=2)", r"df must be a whole number from 3, got 2"),
        ("bs(bmi, df=4.5)", r"df must be a whole number from 3, got 4.5"),
        ("bs(bmi, df=4, knots=[20])", "give df or knots, not both"),
        ("bs(bmi, knots=[500])", "knots 500 must lie between"),
        ("cr(bmi)", "give df or knots"),
        ("cr(age, knots=[50, 50])", "of the knots 50, 50 some are equal"),
        ("cr(bmi, 4, constraints='other')", "constraints are 'center' or none"),
        ("poly(grade, 4)", "needs more different values than its degree, 4"),
        ("poly(age, 0)", "degree must be a whole number from 1"),
        ("scale(stage)", "Column 'stage' holds text; transforms take numbers"),
        ("C(age)", "different values, too many for C"),
        ("C(stage, levels=['a', 'b'])", "has the level 'c', which C\\(stage, levels=…\\) does not list"),
        ("C(stage, Treatment('z'))", "cannot be used"),
        ("log(grade - 1)", r"north: row \d+: log\(grade - 1\) is -inf; mend it"),
        ("center(log(grade - 1))", r"north: row \d+: log\(grade - 1\) is -inf in 'center\(log\(grade - 1\)\)'"),
        ("stage * np.log(stage)", "cannot be used"),
        ("bs(bmi, df=4, lower_bound=20, upper_bound=30)", r"north: row \d+: bmi is .*, beyond the ends of"),
    ],
)
def test_what_a_design_refuses(right, told, monkeypatch):
    monkeypatch.setattr("auqadmm.formula.design.FORMULA_LEVELS", 20)
    frames = frames_of(FRAME, FRAME["hospital"])
    with pytest.raises(aq.InputError, match=told):
        stacked(f"sick ~ {right}", frames)
