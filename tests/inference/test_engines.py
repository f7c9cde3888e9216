"""The same standard errors, tests and fit wherever sites are: processes of torch, workers of Ray and Dask.

Five unequal sites, of 120 rows down to three, so that no two workers hold as many rows, or as many sites.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import auqadmm as aq
from tests.engines.processes import ended, ranks
from tests.engines.test_dask import client  # noqa: F401
from tests.engines.test_ray import instance, workers  # noqa: F401
from tests.problem.family_cases import CASES, oracle, study

NAMES = ("probit", "gamma", "own intercepts")


def of(name):
    return CASES["poisson" if name == "own intercepts" else name]


def blocks(name):
    return study(of(name), 3).blocks(True, True)


def problem(name, own):
    mine = name == "own intercepts"
    return aq.Problem(of(name).loss, aq.Zero(), own, intercept=not mine, site_intercepts=mine)


def numbers(result):
    """Everything that is told, by name."""
    out = {}
    for cov in ("model", "expected", "robust", "cluster"):
        found = result.inference(cov)
        out |= {f"se {cov}": found.se, f"p {cov}": found.p}
    fit = (found.llf, found.deviance, found.null_deviance, found.aic, found.bic, found.dispersion, found.df_resid)
    return {**out, "coef": found.coef, "fit": np.array(fit), "sites": np.array(found.heterogeneity.statistic)}


@pytest.fixture(scope="module")
def expected():
    return {name: numbers(aq.solve(problem(name, blocks(name)), inference=True)) for name in NAMES}


def same(found, expected):
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-8, err_msg=key)


def test_one_process_is_statsmodels(expected):
    for name in ("probit", "gamma"):
        truth = oracle(of(name), study(of(name), 3), True, True)
        np.testing.assert_allclose(expected[name]["coef"], truth.params, rtol=1e-8)
        np.testing.assert_allclose(expected[name]["se expected"], truth.bse, rtol=1e-8)


def test_two_processes_of_torch(tmp_path, expected):
    with ranks(2, Path(__file__).with_name("program.py"), tmp_path) as started:
        for process in started:
            said = ended(process, 120)
            assert process.returncode == 0, said[-3000:]
    with np.load(tmp_path / "found.npz") as found:
        for name in NAMES:
            same({key: found[f"{name} {key}"] for key in expected[name]}, expected[name])


@pytest.mark.campaign
@pytest.mark.parametrize("name", NAMES)
def test_workers_of_ray(workers, expected, name):  # noqa: F811
    same(numbers(aq.solve(problem(name, blocks(name)), engine=workers, inference=True)), expected[name])


@pytest.mark.campaign
@pytest.mark.parametrize("name", NAMES)
def test_workers_of_dask(client, expected, name):  # noqa: F811
    same(numbers(aq.solve(problem(name, blocks(name)), engine="dask", inference=True)), expected[name])
