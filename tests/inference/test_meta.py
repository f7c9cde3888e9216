"""Estimates of sites, combined as metafor does (fixtures/meta.R)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import auqadmm as aq
from auqadmm.inference.meta import combine

SETS = json.loads((Path(__file__).parent / "fixtures" / "meta.json").read_text())
LEVEL = {"fixed": 0.95, "reml": 0.9}


@pytest.mark.parametrize("method", LEVEL)
@pytest.mark.parametrize("name", SETS)
def test_everything_is_that_of_metafor(name, method):
    truth = SETS[name]
    found = combine(np.c_[truth["y"]], np.c_[truth["se"]], method, LEVEL[method])
    for key, value in truth[method].items():
        assert getattr(found, key)[0] == pytest.approx(value, rel=1e-8, abs=0), key


@pytest.mark.parametrize("method", LEVEL)
def test_columns_are_apart_and_sites_without_one_are_left_out(method):
    a, b = SETS["different"], SETS["two"]
    Y, S = np.full((5, 3), np.nan), np.full((5, 3), 0.1)
    Y[:, 0], S[:, 0] = a["y"], a["se"]
    Y[[1, 3], 1], S[[1, 3], 1] = b["y"], b["se"]
    S[0, 1] = np.nan
    found = combine(Y, S, method, LEVEL[method])
    for key in a[method]:
        np.testing.assert_allclose(getattr(found, key)[:2], [a[method][key], b[method][key]], rtol=1e-8)
        assert np.isnan(getattr(found, key)[2])


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_units_do_not_matter(scale):
    y, s = np.c_[SETS["bcg"]["y"]], np.c_[SETS["bcg"]["se"]]
    plain, found = combine(y, s, "reml"), combine(scale * y, scale * s, "reml")
    np.testing.assert_allclose(found.tau2, scale**2 * plain.tau2, rtol=1e-10)
    np.testing.assert_allclose(found.p, plain.p, rtol=1e-8)


def test_the_larger_of_two_maxima():
    """One site is sure and far away from two that are not: the likelihood of τ² may have several tops."""
    y, s = np.array([0.0, 0.02, 3.0, -3.0]), np.array([0.01, 0.01, 1.0, 1.0])
    t = combine(np.c_[y], np.c_[s], "reml").tau2[0]

    def value(tau2):
        w = 1 / (s**2 + tau2)
        mu = w @ y / w.sum()
        return 0.5 * (np.log(w).sum() - np.log(w.sum()) - w @ (y - mu) ** 2)

    assert value(t) >= max(value(x) for x in np.append(0, np.geomspace(1e-9, 100, 20001))) - 1e-12


@pytest.mark.parametrize(
    ("estimates", "errors", "options", "sentence"),
    [
        (
            [[1.0, 2.0]],
            [[1.0]],
            {},
            r"must both be \(sites, columns\), with a site at least; got \(1, 2\) and \(1, 1\)",
        ),
        ([1.0], [1.0], {}, r"must both be \(sites, columns\)"),
        ([["a"]], [[1.0]], {}, "must hold numbers"),
        ([[1.0], [2.0]], [[1.0], [0.0]], {}, "Site 1, column 0: the estimate 2 has the error 0; estimates are finite"),
        ([[np.inf]], [[1.0]], {}, "the estimate inf has the error 1"),
        ([[1.0]], [[1.0]], {"method": "dl"}, "method must be 'fixed' or 'reml', got 'dl'"),
        ([[1.0]], [[1.0]], {"level": 95}, "level must be between 0 and 1, got 95"),
    ],
)
def test_what_cannot_be_combined_is_a_sentence(estimates, errors, options, sentence):
    with pytest.raises(aq.InputError, match=sentence):
        combine(estimates, errors, **options)
