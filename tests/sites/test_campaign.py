"""A sample of the faults of `campaign.py`, in another order every time it is changed; the table has two hundred."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.sites.places import ROOT


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_twenty_faults_at_random_moments() -> None:
    env = os.environ | {"PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.sites.campaign", "--count", "20", "--seed", "11"]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "20 faults: 0 hangs, 0 wrong, 0 lost, 0 uncaught" in done.stdout
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    names = [line.split()[0] for line in spaces.stdout.splitlines() if line.startswith(f"aq{os.getpid()}")]
    assert not names
