"""What is imported when: the version needs nothing, solving no scikit-learn, estimators no plotting."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import auqadmm as aq

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "torch",
    "numpy",
    "scipy",
    "sklearn",
    "pandas",
    "matplotlib",
    "pyarrow",
    "typer",
    "rich",
    "click",
    "httpx",
    "cryptography",
}


def imported(code, *arguments):
    """The packages that a program of its own has imported, and what it printed."""
    code += f"\nimport sys; print('imported', *sorted({OUTSIDE!r} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    printed, _, found = ran.stdout.rpartition("imported")
    return set(found.split()), printed


def test_the_version_needs_no_other_package():
    found, printed = imported("from auqadmm.__main__ import main; main()", "--version")
    assert printed == f"auqadmm {aq.__version__}\n"
    assert found == set()


def test_the_command_begins_there():
    script = re.search(r'^auqadmm = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert script is not None
    assert script[1] == "auqadmm.__main__:main"


@pytest.mark.campaign
def test_a_version_that_cannot_be_written_is_told_like_any_other():
    with open("/dev/full", "w") as full:
        ran = subprocess.run([sys.executable, "-m", "auqadmm", "--version"], stdout=full, stderr=-1, text=True)
    assert ran.returncode == 1
    assert ran.stderr == "auqadmm: Cannot write to standard output: No space left on device; make room.\n"


def test_importing_the_package_imports_nothing_else():
    assert imported("import auqadmm")[0] == set()


def test_solving_needs_neither_scikit_learn_nor_plotting():
    code = """
import numpy as np, auqadmm as aq
for name in aq.__all__:
    files = ("enet_path", "fit_formula", "FormulaModel", "ModelError", "load", "save", "SiteData", "Sites")
    if not name.startswith("Consensus") and name not in files:
        getattr(aq, name)
result = aq.solve(aq.Problem(aq.Logistic(), aq.L1(0.1), [(np.eye(4), [0, 1, 0, 1])]))
repr(result), result.diagnose()
"""
    assert imported(code)[0] <= {"torch", "numpy", "scipy"}


def test_estimators_need_no_plotting_and_no_command_line():
    """scikit-learn imports what it likes besides."""
    code = """
import numpy as np, auqadmm as aq
repr(aq.ConsensusRidge().fit(np.eye(6), np.arange(6.0)))
"""
    assert not imported(code)[0] & {"matplotlib", "typer"}


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", ["core", "problem", "api", "testing", "files"])
def test_rooms_are_there_without_an_import(name):
    """As they were when the package imported everything at once."""
    assert imported(f"import auqadmm; auqadmm.{name}")[1] == ""
