"""`auqadmm reproduce`: quick, resumed, redrawn, and used wrongly."""

import json
import re

import matplotlib.image
import pytest
from typer.testing import CliRunner

from auqadmm.cli import app, main
from auqadmm.cli import reproduce as reproduce_module
from auqadmm.paper.run import Runner


@pytest.fixture(autouse=True)
def no_data(tmp_path, monkeypatch):
    """Nothing on this machine, and no network either."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("AUQADMM_DATA", raising=False)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    arguments = ["reproduce", "fig-elastic", "--quick", "--protocol", "defined", "--jobs", "1", "--out", str(folder)]
    return CliRunner().invoke(app, arguments), folder, arguments


def test_a_quick_figure(quick):
    result, folder, _ = quick
    assert result.exit_code == 0, result.output
    assert "AUQ-ADMM decreases the objective" in result.stdout
    assert "strictly better, equal, worse" in result.stdout
    assert len(re.findall(r"(?:yes|no|partly|tie) +\d+/\d+/\d+", result.stdout)) == 6  # three claims, two reductions
    for reduction in ("mean", "sum"):
        for what in ("gap", "paper"):
            for suffix in ("png", "svg", "pdf"):
                assert (folder / "figures" / f"fig-elastic-defined-{reduction}-{what}.{suffix}").stat().st_size > 5000
    pixels = matplotlib.image.imread(folder / "figures" / "fig-elastic-defined-mean-gap.png")
    assert pixels[..., :3].std() > 0.05
    assert "<html" in (folder / "report.html").read_text()
    assert json.loads((folder / "run.json").read_text())[0]["command"].startswith("auqadmm")
    assert "digits-elastic-mean/defined/auq-admm: max_iter" in result.stderr
    assert "max_iter" not in result.stdout


@pytest.fixture
def no_computing(monkeypatch):
    def fail(*_args, **_options):
        raise AssertionError("computed something")

    monkeypatch.setattr(Runner, "_solve", fail)
    monkeypatch.setattr("auqadmm.paper.pictures.compute", fail)


@pytest.mark.campaign
def test_a_second_call_computes_nothing(quick, no_computing):
    _, _, arguments = quick
    assert CliRunner().invoke(app, [*arguments, "--quiet"]).exit_code == 0


@pytest.mark.campaign
def test_from_redraws_without_computing_and_without_a_cache(quick, tmp_path, no_computing):
    _, folder, _ = quick
    source = tmp_path / "results" / "paper"
    source.mkdir(parents=True)
    (source / "fig-elastic.csv").write_bytes((folder / "fig-elastic.csv").read_bytes())
    out = tmp_path / "again"
    result = CliRunner().invoke(app, ["reproduce", "all", "--from", str(tmp_path / "results"), "--out", str(out)])
    assert result.exit_code == 0, result.output
    name = "fig-elastic-defined-mean-gap.png"
    one, two = (matplotlib.image.imread(place / "figures" / name) for place in (folder, out))
    assert one.shape == two.shape
    assert abs(one - two).mean() < 0.01
    assert not (out / "cache").exists()


def told(capsys, arguments, code):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == code
    return capsys.readouterr().err


def test_missing_data_are_one_sentence_before_computing(tmp_path, capsys, no_computing, monkeypatch):
    def offline(*_args, **_options):
        raise reproduce_module.DataError("mnist could not be downloaded: no network.")

    monkeypatch.setattr(reproduce_module, "load", offline)
    text = told(capsys, ["reproduce", "fig-multinomial", "--out", str(tmp_path)], 1)
    assert text == "auqadmm: mnist could not be downloaded: no network; --quick needs no data.\n"


def test_no_results_are_one_sentence(tmp_path, capsys):
    text = told(capsys, ["reproduce", "all", "--from", str(tmp_path), "--out", str(tmp_path / "o")], 1)
    assert text.startswith(f"auqadmm: No results in {tmp_path}")
    assert text.count("\n") == 1


def test_results_without_the_figure_asked_for(quick, tmp_path, capsys):
    _, folder, _ = quick
    arguments = ["reproduce", "fig-svm", "--from", str(folder), "--out", str(tmp_path)]
    assert told(capsys, arguments, 1) == "auqadmm: There are no results to draw.\n"


@pytest.mark.parametrize(
    "arguments", [["fig-x"], ["all", "--protocol", "x"], ["all", "--quick", "--full"], [], ["all", "--jobs", "-1"]]
)
def test_wrong_usage_is_2(arguments, tmp_path):
    assert CliRunner().invoke(app, ["reproduce", *arguments, "--out", str(tmp_path)]).exit_code == 2


@pytest.mark.campaign
def test_a_failed_run_is_told_after_the_others_are_drawn(tmp_path, capsys, monkeypatch):
    solved = Runner._solve

    def some(self, spec, problem, best):
        if spec.method == "ac-admm":
            raise RuntimeError("it broke")
        return solved(self, spec, problem, best)

    monkeypatch.setattr(Runner, "_solve", some)
    arguments = [
        "reproduce",
        "fig-elastic",
        "--quick",
        "--protocol",
        "defined",
        "--jobs",
        "1",
        "-q",
        "--out",
        str(tmp_path),
    ]
    text = told(capsys, arguments, 1)
    assert "digits-elastic-mean/defined/ac-admm failed (and 1 more): RuntimeError: it broke" in text
    assert (tmp_path / "figures" / "fig-elastic-defined-mean-gap.png").exists()


def test_an_interrupt_keeps_what_was_complete(tmp_path, capsys, monkeypatch):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("auqadmm.core.consensus.ConsensusADMM.step", interrupted)
    arguments = ["reproduce", "fig-elastic", "--quick", "--jobs", "1", "-q", "--out", str(tmp_path)]
    text = told(capsys, arguments, 1)
    assert text == "auqadmm: Interrupted; what was complete is kept, and the next call continues there.\n"
