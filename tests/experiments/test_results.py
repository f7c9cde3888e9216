"""CSV files and bundles: what is written is read, what is thinned keeps what tables need."""

import numpy as np
import pytest

from auqadmm.paper import bundle
from auqadmm.paper.bundle import NAMES, CurveLine, read_lines, read_optima, thinned, write_lines, write_optima
from auqadmm.paper.optimum import Optimum
from auqadmm.paper.run import Runner
from auqadmm.paper.spec import Figure, PanelSpec, Samples
from auqadmm.paper.store import Store
from tests.experiments.specs import run_spec


def line(**values) -> CurveLine:
    given = dict.fromkeys(NAMES, 1.0) | dict.fromkeys(("iteration", "rounds", "bytes"), 1)
    text = dict.fromkeys(("figure", "panel", "protocol", "reduction", "dataset", "method", "control"), "x")
    return CurveLine(**(given | text | values))


def test_thinning_keeps_the_first_twenty_the_last_and_the_hits():
    gaps = [0.5] * 149 + [1e-2] * 50 + [1e-6]
    kept = thinned(range(1, 201), gaps)
    assert kept[:20] == list(range(20))
    assert {149, 199} <= set(kept)
    assert len(kept) < 45
    assert thinned([], []) == []
    assert thinned([1, 2], [None, None]) == [0, 1]


def test_lines_survive_a_file(tmp_path):
    lines = [line(gap=None, objective=1234.567890123), line(control="", iteration=7, seconds=0.25)]
    path = write_lines(tmp_path / "new" / "x.csv", lines)
    assert read_lines(path) == lines
    assert path.read_text().splitlines()[0] == ",".join(NAMES)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", ",".join(NAMES) + "\n" + "x," * 14 + "x\n"])
def test_a_file_that_is_none_is_told_in_one_sentence(tmp_path, text):
    path = tmp_path / "x.csv"
    path.write_text(text)
    if text == "":
        assert read_lines(path) == []
        return
    with pytest.raises(ValueError, match=r"x\.csv: is no file of results"):
        read_lines(path)
    with pytest.raises(ValueError, match="cannot be read"):
        read_lines(tmp_path / "other.csv")


def test_optima_survive_a_file(tmp_path):
    found = {"b": Optimum(1.0, 1e-12, None, "how"), "a": Optimum(2.0, 1e-12, 0.0, "how")}
    assert read_optima(write_optima(tmp_path / "o.json", found)) == found
    assert read_optima(tmp_path / "none.json") == {}


def test_a_bundle_from_store_to_folder_and_back(tmp_path):
    runs = (run_spec("c-admm"), run_spec("auq-permuted"))
    panel = PanelSpec("digits", "defined", "mean", "digits", runs)
    figure = Figure("fig-elastic", "t", "c", (panel,), (Samples("digits"),))
    runner = Runner(Store(tmp_path / "cache"))
    runner.run(runs[0])
    held, missing = bundle.gather([figure], runner.store)
    assert missing == [runs[1].name, "samples-digits"]
    runner.run(runs[1])
    runner.picture(Samples("digits"))
    held, missing = bundle.gather([figure], runner.store)
    assert missing == []
    assert {x.control for x in held.lines} == {"", "weights permuted"}
    bundle.write(tmp_path / "out", held, {"command": "test"})
    back = bundle.read(tmp_path / "out")
    assert [x.method for x in back.lines] == [x.method for x in held.lines]
    assert [x.gap for x in back.lines] == pytest.approx([x.gap for x in held.lines], rel=1e-4)
    assert np.array_equal(back.arrays["samples-digits"]["images"], held.arrays["samples-digits"]["images"])
    assert set(back.optima) == {"digits-elastic-mean"}
    assert back.about["runs"][0]["command"] == "test"
    assert back.about["runs"][0]["systems"][0]["runs"] == 2


def test_no_results_is_told_in_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="No results in"):
        bundle.read(tmp_path)
    (tmp_path / "samples-x.npz").write_bytes(b"no")
    with pytest.raises(ValueError, match="is no file of pictures"):
        bundle.read(tmp_path)
