"""Cross-validation at sites: folds are the sites' own, and the fits are those of the same folds in one place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import auqadmm as aq
from auqadmm.quality.rows import Folds, Training
from auqadmm.sites.held_out import cut
from auqadmm.sites.policy import Policy
from tests.sites.inside import DATA, NAMES, InsideSites, patients, posed

MASKED = Policy(masks="required")
FIVE = replace(DATA, features=("age", "bmi", "marker", "days"), cv=5)


class Known(Folds):
    """The folds of all sites, for the same fits in one place."""

    def of_block(self, number, rows):
        assert KNOWN[number].shape == (rows,)
        return KNOWN[number]


KNOWN: dict[int, np.ndarray] = {}


def same_folds(sites, monkeypatch):
    sessions = sites.link.sessions
    KNOWN.update({k: sessions[name].folds.fold for k, name in enumerate(NAMES)})
    monkeypatch.setattr(Folds, "of", classmethod(lambda cls, cv, seed, blocks: Known(5)))


@pytest.mark.parametrize("policy", [Policy(), MASKED], ids=["plain", "masked"])
def test_folds_of_rows(tmp_path, policy, monkeypatch):
    sites = InsideSites(tmp_path, policy)
    found = aq.solve(posed(FIVE), "newton", sites, certificate_tol=1e-14)
    held = found.quality(5, sites=False)
    blocks = sites.blocks()
    same_folds(sites, monkeypatch)
    known = aq.solve(posed(blocks), "newton", certificate_tol=1e-14).quality(5, sites=False)
    for name in ("accuracy", "brier", "log_loss", "calibration_slope"):
        assert held.figures[name] == pytest.approx(known.figures[name], abs=1e-9), name
    if policy.masks == "required":
        assert held.figures["auc"] == pytest.approx(known.figures["auc"], abs=1e-9)
    else:
        assert held.figures["auc"] is None
        assert "no AUC, no calibration curve" in held.notes[-1]
    assert len(sites.link.heard["lyon"]) > 20


def test_sites_are_left_out_where_sums_are_in_the_clear(tmp_path):
    sites = InsideSites(tmp_path)
    found = aq.solve(posed(replace(FIVE, cv="sites")), "newton", sites, certificate_tol=1e-14)
    held = found.quality("sites")
    known = aq.solve(posed(sites.blocks()), "newton", certificate_tol=1e-14).quality("sites")
    assert held.figures["log_loss"] == pytest.approx(known.figures["log_loss"], abs=1e-10)
    assert held.site_figures[1]["auc"] == pytest.approx(known.site_figures[1]["auc"], abs=1e-10)


def refused(folder, policy, data, **more):
    with pytest.raises(aq.InputError) as error:
        aq.solve(posed(data), "newton", InsideSites(folder, policy, **more))
    return str(error.value)


def test_a_site_is_not_left_out_of_masked_sums(tmp_path):
    said = refused(tmp_path, MASKED, replace(FIVE, cv="sites"))
    assert "masked sums with and without one site would show that site alone, so none is left out" in said


def test_the_number_of_folds_is_the_sites(tmp_path):
    assert "rows are cut into 5 folds here" in refused(tmp_path, Policy(), replace(FIVE, cv=10))
    assert "rows are not cut into folds here" in refused(tmp_path, Policy(folds=0), FIVE)


def test_folds_are_large_enough_before_the_first_round(tmp_path):
    frames = {n: patients(k, 120) for k, n in enumerate(NAMES)}
    small = {**frames, "lyon": patients(1, 45)}
    said = refused(tmp_path, Policy(), FIVE, frames=small)
    assert "refused by the policy of lyon: a fold of 5 would have fewer than 10 rows" in said
    rare = patients(1, 120)
    rare["marker"] = np.arange(120) < 5
    said = refused(tmp_path, Policy(), FIVE, frames={**frames, "lyon": rare})
    assert "column 'marker' in a fold has" in said


def test_folds_do_not_depend_on_what_is_asked(tmp_path):
    """Whatever rows a formula leaves out, the others keep their folds; another key or name gives others."""
    kept = np.ones(200, dtype=bool)
    one = cut(Policy(), b"key", "heart", kept).fold
    kept[:40] = False
    np.testing.assert_array_equal(cut(Policy(), b"key", "heart", kept).fold, one[40:])
    assert np.bincount(one).tolist() == [40] * 5
    arm = np.random.default_rng(0).choice(3, 200, p=[0.8, 0.15, 0.05])
    dealt = cut(Policy(), b"key", "heart", np.ones(200, dtype=bool), [arm]).fold
    counts = np.array([np.bincount(arm[dealt == k], minlength=3) for k in range(5)])
    assert (np.ptp(counts, axis=0) <= 1).all()
    assert (cut(Policy(), b"other", "heart", kept).fold != one[40:]).any()
    assert (cut(Policy(), b"key", "lungs", kept).fold != one[40:]).any()


def test_rows_are_held_out_as_planned_only(tmp_path):
    sites = InsideSites(tmp_path)
    aq.solve(posed(FIVE), "newton", sites)
    for keep in (Training(Folds(4), 0), Training(Folds(3, sites=True), 0)):
        with pytest.raises(aq.InputError, match="rows are not selected by others"):
            sites.study.ask("make", posed(DATA).posed() | {"keep": keep}, "brought", 0, 3)
    sites = InsideSites(tmp_path)
    result = aq.solve(posed(DATA), "newton", sites)
    with pytest.raises(aq.InputError, match="rows are not selected by others"):
        result.quality(5)


def test_the_quality_of_few_models_is_told(tmp_path):
    """Right answers at two models near each other differ by the rows between them."""
    sites = InsideSites(tmp_path)
    result = aq.solve(posed(DATA), "newton", sites)
    result.quality()
    replace(result, v=result.v + 1e-3).quality()
    with pytest.raises(aq.InputError, match="more than 2 models is not told in one run"):
        replace(result, v=result.v + 2e-3).quality()


def test_a_line_that_singles_out_a_row_is_refused(tmp_path):
    """Calibration moves and stretches a model: the rows are weighed there too."""
    import torch

    from auqadmm.quality.evaluate import LineQuery
    from auqadmm.quality.measures import Binary
    from auqadmm.quality.rows import Models

    sites = InsideSites(tmp_path)
    problem = posed(DATA)
    result = aq.solve(problem, "newton", sites)
    engine = sites.place(problem, torch.float64, torch.device("cpu"))
    first = {"s": np.array([0.0]), "weight": np.array(1.0)}
    query = LineQuery(Binary(problem.loss, 2), Models(result.v[None]), first)
    engine.map_sum(query, None, (0.0, 0.0))
    block = sites.blocks()[1]
    most = float((block.X @ result.v[:-1].numpy() + float(result.v[-1])).max())
    with pytest.raises(aq.InputError, match="few rows make up the curvature"):
        engine.map_sum(query, None, (-51 * most, 50.0))
