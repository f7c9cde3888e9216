"""`python -m auqadmm.paper.run`: without extras, in parts, in parallel, in time."""

import subprocess
import sys

import pytest

from auqadmm.paper.bundle import read_lines
from auqadmm.paper.run import main

ONLY = ["--quick", "--figure", "fig-elastic", "--only", "digits-elastic-mean/defined/*-admm"]


def test_it_needs_torch_numpy_and_scipy_alone():
    code = (
        "import sys\n"
        "for name in ('pyarrow', 'sklearn', 'matplotlib', 'typer', 'rich', 'pandas'):\n"
        "    sys.modules[name] = None\n"
        "from auqadmm.paper.run import main\n"
        "sys.exit(main(['--figure', 'all', '--list']))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    names = ran.stdout.splitlines()
    assert "mnist-2000-multinomial-mean/defined/auq-admm" in names
    assert "cifar10-5000-svm-mean-zscored/released/c-admm-a" in names
    assert len(names) == len(set(names))


def test_it_runs_a_part_writes_csv_and_resumes(tmp_path, capsys):
    arguments = [*ONLY, "--out", str(tmp_path)]
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert "optimum of digits-elastic-mean" in told
    assert "digits-elastic-mean/defined/uq-admm: max_iter" in told
    methods = {line.method for line in read_lines(tmp_path / "fig-elastic.csv")}
    assert methods == {"c-admm", "rb-admm", "ac-admm", "uq-admm", "auq-admm"}
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    assert main(arguments) == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == before
    assert "optimum of" not in capsys.readouterr().out
    assert main([*arguments, "--collect"]) == 0


def test_the_deadline_and_failures_are_told(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("AUQADMM_DATA", raising=False)
    assert main([*ONLY, "--out", str(tmp_path), "--deadline", "0"]) == 1
    assert "not begun before the deadline" in capsys.readouterr().out
    data = tmp_path / "empty"
    data.mkdir()
    figure = ["--figure", "fig-elastic", "--only", "mnist-2000-elastic-mean/defined/c-admm"]
    assert main([*figure, "--data", str(data), "--out", str(tmp_path)]) == 1
    assert "DataError" in capsys.readouterr().out


@pytest.mark.campaign
def test_processes_side_by_side_give_the_same(tmp_path):
    for jobs in ("1", "2"):
        assert main([*ONLY, "--out", str(tmp_path / jobs), "--jobs", jobs]) == 0
    one, two = (read_lines(tmp_path / jobs / "fig-elastic.csv") for jobs in ("1", "2"))
    assert [x.objective for x in one] == pytest.approx([x.objective for x in two], rel=1e-12)
