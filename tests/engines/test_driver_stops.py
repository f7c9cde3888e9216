"""A driver with an engine of its own, by name: Ctrl-C, and what is left when it has ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid

import numpy as np
import pytest

import auqadmm as aq
from auqadmm.local import NewtonCG
from tests.engines.driven import ENDLESS, gone, marked, problem, python_path, rows
from tests.engines.processes import PROGRAMS, end, environment, wait_for


@pytest.mark.campaign
@pytest.mark.parametrize("engine", ["ray", "dask"])
@pytest.mark.thin(2)
def test_ctrl_c_returns_the_last_iterate_and_leaves_nothing_behind(engine, tmp_path):
    """The signal goes to the whole group of processes, as from a terminal."""
    mark = uuid.uuid4().hex
    command = [sys.executable, str(PROGRAMS / "driver.py"), engine, str(tmp_path)]
    env = {**environment(AUQADMM_MARK=mark), "PYTHONPATH": python_path()}
    driver = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        wait_for(tmp_path / "log", 60, lambda log: log.exists() and len(log.read_text().split()) >= 3)
        assert len(marked(mark)) >= 3  # the driver and two workers
        os.killpg(driver.pid, signal.SIGINT)
        out, _ = driver.communicate(timeout=40)
    finally:
        end(driver)
    assert driver.returncode == 0, out[-3000:]
    gone(lambda: marked(mark))
    saw = json.loads((tmp_path / "result.json").read_text())
    assert saw["status"] == "interrupted"
    assert f"Interrupted after {saw['n_iter']} iterations; v is the last complete iterate" in saw["message"]
    blocks = [rows(j) for j in range(4)]
    same = aq.solve(problem(blocks), "c-admm", local=NewtonCG(tol=1e-13), **{**ENDLESS, "max_iter": saw["n_iter"]})
    assert np.array(saw["v"]) == pytest.approx(same.v.numpy(), abs=1e-9)
    assert saw["lam"] == list(same.lam.shape)
    assert saw["kkt"] == pytest.approx(same.certificate.kkt, rel=1e-6)
    assert out == ""  # the library prints nothing, and neither do its engines
