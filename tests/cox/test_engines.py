"""The same model wherever sites are: processes of torch, Ray, Dask; from chunks and from a dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import auqadmm as aq
from auqadmm.inference.survival import PairsQuery
from tests.cox.rows import COLUMNS, study
from tests.engines.processes import ended, ranks
from tests.engines.test_dask import client  # noqa: F401
from tests.engines.test_ray import instance, workers  # noqa: F401


def solved(blocks, method="newton", engine="local"):
    problem = aq.Problem(aq.Cox(), aq.L2(1.0), blocks)
    return aq.solve(problem, method, engine, certificate_tol=1e-14, inference=True)


@pytest.fixture(scope="module")
def expected():
    return {method: solved(study().blocks(True, True, True), method) for method in ("newton", "auq-lr")}


def same(found, expected):
    np.testing.assert_allclose(found.coef, expected.coef, rtol=1e-8)
    np.testing.assert_allclose(found.inference("robust").vcov, expected.inference("robust").vcov, rtol=1e-8)


def test_processes_of_torch_one_of_them_without_sites(tmp_path, expected):
    with ranks(3, Path(__file__).with_name("program.py"), tmp_path) as started:
        for process in started:
            said = ended(process, 120)
            assert process.returncode == 0, said[-3000:]
    with np.load(tmp_path / "found.npz") as found:
        for method, result in expected.items():
            np.testing.assert_allclose(found[method], result.v, rtol=1e-8)
            np.testing.assert_allclose(found[f"{method} vcov"], result.inference("robust").vcov, rtol=1e-8)
        pairs = expected["newton"].source.ask(result.v, lambda reduce, v: reduce.gather(PairsQuery(v), None))
        np.testing.assert_allclose(found["pairs"], pairs, rtol=1e-12)


def test_a_target_of_several_columns_of_a_dataset():
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"age": [1.0, 2.0], "time": [3.0, 4.0], "event": [1, 0], "w": [1.0, 2.0]})
    X, y, weight, offset = aq.engines.RayDataset(None, ("time", "event"), "w").block(table)
    assert list(X.columns) == ["age"]
    assert y.tolist() == [[3.0, 1.0], [4.0, 0.0]]
    assert weight.tolist() == [1.0, 2.0]
    assert offset is None
    with pytest.raises(aq.InputError, match="no column 'entry'"):
        aq.engines.RayDataset(None, ("time", "event", "entry")).block(table)


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")  # of Ray's own making
def test_ray_and_a_dataset(workers, expected):  # noqa: F811
    import ray

    same(solved(study().blocks(True, True, True), engine=workers), expected["newton"])
    data = study()
    table = pd.DataFrame(data.X, columns=list(COLUMNS)).assign(time=data.time, event=data.event)
    parts = [ray.data.from_pandas(table[data.site == s]) for s in range(2)]
    rows = aq.engines.RayDataset(parts[0].union(parts[1]), target=("time", "event"))
    found = aq.solve(aq.Problem(aq.Cox(), aq.L2(1.0), rows), engine=workers)
    whole = aq.solve(aq.Problem(aq.Cox(), aq.L2(1.0), data.blocks()[:2]))
    np.testing.assert_allclose(found.coef, whole.coef, rtol=1e-8)


@pytest.mark.campaign
def test_dask_and_its_chunks(client, expected):  # noqa: F811
    from dask import array

    same(solved(study().blocks(True, True, True), engine="dask"), expected["newton"])
    data = study()
    sizes = tuple(int(n) for n in np.bincount(data.site.astype(int)))
    X, y = array.from_array(data.X, (sizes, 3)), array.from_array(data.y(), (sizes, 2))
    found = aq.solve(aq.Problem(aq.Cox(), aq.L2(1.0), (X, y)), engine="dask")
    whole = aq.solve(aq.Problem(aq.Cox(), aq.L2(1.0), data.blocks()))
    np.testing.assert_allclose(found.coef, whole.coef, rtol=1e-8)


@pytest.mark.campaign
def test_the_estimator_asks_workers(workers):  # noqa: F811
    data = study()
    here, there = (
        aq.ConsensusCox(engine=engine).fit(data.X, data.y(), sites=data.site) for engine in ("local", workers)
    )
    np.testing.assert_allclose(there.coef_, here.coef_, rtol=1e-8)
    np.testing.assert_allclose(
        list(there.site_concordance_.values()), list(here.site_concordance_.values()), rtol=1e-12
    )
    np.testing.assert_allclose(there.ph_test().statistic, here.ph_test().statistic, rtol=1e-8)
    np.testing.assert_allclose(there.baseline_hazard([2, 9]), here.baseline_hazard([2, 9]), rtol=1e-8)
