"""Every benchmark and tool can at least be loaded: a name that has moved is found here, not on the day of the run."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOAD = """
import importlib, sys
sys.path[:0] = sys.argv[1:3]
for name in sys.argv[3:]:
    importlib.import_module(name)
"""


@pytest.mark.campaign
def test_all_of_them_load():
    folders = [ROOT / "benchmarks", ROOT / "tools"]
    names = sorted(path.stem for folder in folders for path in folder.glob("*.py"))
    if find_spec("griffe") is None:  # comes with what builds the site
        names.remove("griffe_groups")
    assert len(names) > 30
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *map(str, folders), *names], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
