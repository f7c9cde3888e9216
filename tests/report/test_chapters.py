"""The page's content, and the figures as files."""

import io
from itertools import pairwise

import matplotlib.image
import numpy as np
import pytest
from matplotlib.text import Text

from auqadmm.paper import pictures
from auqadmm.paper.bundle import Bundle
from auqadmm.paper.chapters import drawings, make_chapter, report
from auqadmm.paper.curves import _power, gap_figure, paper_figure
from auqadmm.paper.images import mosaic
from auqadmm.paper.spec import Denoising, Samples
from auqadmm.report.page import page_html
from auqadmm.report.style import METHODS, VARIANTS
from tests.report.paper_lines import comparison


@pytest.fixture(scope="module")
def bundle():
    lines = comparison() + comparison(panel="svhn") + comparison(reading=("released", "mean"))
    arrays = {"denoising": pictures.compute(Denoising(size=16)), "samples-digits": pictures.compute(Samples("digits"))}
    weights = np.random.default_rng(0).random((3, 16, 1))
    arrays["weights-mnist-svm-defined"] = {"weights": weights, "averages": weights[:, :, 0], "shape": np.array((4, 4))}
    arrays["weights-svhn-multinomial-released"] = {
        "weights": np.repeat(np.repeat(weights, 3, 1), 3, 2),
        "averages": np.repeat(weights[:, :, 0], 3, 1),
        "shape": np.array((3, 4, 4)),
    }
    return Bundle(tuple(lines), arrays)


def test_every_variant_is_one_of_a_method_and_none_looks_like_another():
    assert {style.base for style in VARIANTS.values()} <= set(METHODS)
    looks = [(s.color, s.marker, str(s.dash)) for s in (*METHODS.values(), *VARIANTS.values())]
    ranks = [look for name, look in zip((*METHODS, *VARIANTS), looks, strict=True) if "rank" in name]
    others = [look for look in looks if look not in ranks]
    assert len(set(ranks)) == len(ranks)
    assert len(set(others)) == len(others)


@pytest.mark.parametrize("draw", [gap_figure, paper_figure])
def test_figures_are_not_blank_and_name_every_curve(bundle, draw):
    lines = [line for line in bundle.lines if line.protocol == "defined"]
    figure = draw(lines, "title")
    assert len(figure.axes) == 6
    shown = {text.get_text() for text in figure.axes[0].texts}
    assert {"C", "AUQ", "LR", "C(a)", "perm", "mean"} <= shown
    held = io.BytesIO()
    figure.savefig(held, format="png", dpi=50)
    held.seek(0)
    assert matplotlib.image.imread(held)[..., :3].std() > 0.02
    with pytest.raises(ValueError, match="no results to draw"):
        draw([], "title")


def test_one_panel_is_three_charts_side_by_side(bundle):
    lines = [line for line in bundle.lines if line.protocol == "released"]
    width, height = gap_figure(lines, "title").get_size_inches()
    assert width > 2 * height


def test_files_of_every_figure(bundle):
    assert set(drawings("fig-elastic", bundle)) == {
        f"fig-elastic-{protocol}-mean-{what}" for protocol in ("defined", "released") for what in ("gap", "paper")
    }
    assert set(drawings("fig-weights", bundle)) == {
        "fig-weights-mnist-svm-defined",
        "fig-weights-svhn-multinomial-released",
    }
    assert set(drawings("fig-datasets", bundle)) == {"fig-datasets"}
    assert set(drawings("fig-illustration", bundle)) == {"fig-illustration"}
    assert drawings("fig-svm", bundle) == {}


def test_a_chapter_has_panels_parameters_and_a_table(bundle):
    chapter = make_chapter("fig-elastic", bundle)
    assert [panel.title for panel in chapter.panels][:2] == [
        "MNIST, as defined, means over rows",
        "SVHN, as defined, means over rows",
    ]
    curves = chapter.panels[0].curves
    assert {curve.method for curve in curves} <= set(METHODS)
    assert sum(curve.control for curve in curves) == 3
    assert chapter.parameters["interval [a, b]"] == "[0.1, 1]"
    header, rows = chapter.table.header, chapter.table.rows
    assert header[2] == "rounds to 1e-2"
    assert all(len(row) == len(header) for row in rows)
    best = {(rows[i][1], header[j]) for i, j in chapter.table.best}
    assert ("AUQ-LR", "rounds to 1e-6") in best
    assert make_chapter("fig-svm", bundle) is None


def test_the_page(bundle):
    page = page_html(report(bundle, ["fig-elastic", "fig-weights", "fig-illustration"], {"command": "test"}))
    assert "AUQ-ADMM decreases the objective fastest" in page
    assert page.count("data:image/png") == 3


def test_mosaic_and_powers():
    whole, (rows, columns) = mosaic(np.ones((3, 12, 12)), 2, fill=0.0)
    assert whole.shape == (25, 25)
    assert whole[13:, 13:].sum() == 0  # no fourth image
    assert (rows, columns) == ([5.5, 18.5], [5.5, 18.5])
    assert [_power(x) for x in (1e-6, 0.01, 5e4, 1000.0, 0.0)] == ["10⁻⁶", "0.01", "5·10⁴", "1000", ""]
    assert [_power(x) for x in (26_000.0, 25_000.0, 3e-5)] == ["2.6·10⁴", "2.5·10⁴", "3·10⁻⁵"]  # ticks stay apart


@pytest.mark.parametrize("draw", [gap_figure, paper_figure])
def test_names_of_curves_stand_in_one_column_and_apart(bundle, draw):
    lines = [x for x in bundle.lines if x.protocol == "defined" and (x.method != "auq-lr" or x.iteration <= 5)]
    figure = draw(lines, "title")
    figure.savefig(io.BytesIO(), format="png")
    for axis in figure.axes:
        boxes = sorted((Text.get_window_extent(text) for text in axis.texts), key=lambda box: box.y0)
        assert max(box.x0 for box in boxes) - min(box.x0 for box in boxes) < 2  # also of a curve that ends early
        assert min(high.y0 - low.y0 for low, high in pairwise(boxes)) > 0.9 * 8.2 * figure.dpi / 72
