"""A sample of the faults of `campaign.py`; results/sites/faults.json has two hundred."""

from __future__ import annotations

import os
import subprocess
import sys
from shutil import which

import pytest

from tests.sites.places import ROOT


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_twenty_faults_at_random_moments() -> None:
    env = os.environ | {"PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.sites.campaign", "--count", "20", "--seed", "11"]
    with subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        said = running.communicate()[0]
    assert running.returncode == 0, said[-4000:]
    assert "20 faults: 0 hangs, 0 wrong, 0 lost, 0 uncaught" in said
    if which("ip") is not None:
        left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
        assert f"aq{running.pid}n" not in left
