"""The example that the documentation names runs, and says the same with any number of processes."""

from __future__ import annotations

import re

import pytest

from tests.engines.processes import ROOT, torchrun

EXAMPLE = ROOT / "examples" / "many_processes.py"


@pytest.mark.campaign
def test_the_example_runs_with_three_processes():
    code, out = torchrun(3, EXAMPLE, timeout=100)
    assert code == 0, out[-3000:]
    assert out.count("Converged: within ") == 1, "one process speaks"
    assert re.search(r"objective \d+\.\d{8}, \d+ rounds", out)


def test_the_documentation_says_how_to_start_it():
    assert "examples/many_processes.py" in (ROOT / "README.md").read_text()
    assert "--nproc-per-node 3 examples/many_processes.py" in EXAMPLE.read_text()
