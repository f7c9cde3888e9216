"""The example of three hospitals: real processes, TLS on this machine, a refusal, a fit with masks, the pooled fit."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from auqadmm.sites.policy import Policy

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "three_hospitals.sh"

pytestmark = pytest.mark.timeout(300)


def test_the_files_of_the_tutorial_name_rules_that_exist():
    """The whole of it takes minutes on a busy machine: below."""
    tutorial = ROOT / "docs" / "tutorials" / "three-hospitals.md"
    known = set(Policy.__dataclass_fields__)
    for text, least in ((SCRIPT.read_text(), 3), (tutorial.read_text(), 1)):
        policies = re.findall(r"\[policy\]\n((?:\w+ = .+\n)+)", text)
        assert len(policies) >= least
        for policy in policies:
            given = dict(line.split(" = ", 1) for line in policy.splitlines())
            assert given.keys() <= known
            Policy.read("site.toml", {name: json.loads(value.split("  #")[0]) for name, value in given.items()})
    if (bash := shutil.which("bash")) is not None:
        assert subprocess.run([bash, "-n", str(SCRIPT)], check=False).returncode == 0


@pytest.mark.campaign
def test_three_hospitals(tmp_path):
    for package in ("httpx", "starlette", "uvicorn", "cryptography"):
        pytest.importorskip(package, reason="auqadmm[sites] is not installed")
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path)}
    ran = subprocess.run(["bash", str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.endswith("== All as told\n")
    # at both ends, once the line of the log and once the sentence of the command
    assert len(re.findall("no column 'postcode' for others to use", ran.stdout)) == 2
    off = [float(x) for x in re.findall(r"largest relative difference of [a-z ]+: (\S+)", ran.stdout)]
    assert len(off) == 2
    assert max(off) <= 1e-10
    assert list(tmp_path.iterdir()) == []  # nothing is left behind
