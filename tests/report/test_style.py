"""One look per method."""

from matplotlib.colors import to_rgb
from matplotlib.markers import MarkerStyle

from auqadmm import baselines, methods
from auqadmm.report.style import METHODS, method_style


def test_every_method_has_a_style():
    assert {*methods.KNOWN, *baselines.KNOWN} <= set(METHODS)


def test_labels_colours_and_markers_are_distinct():
    styles = list(METHODS.values())
    for part in ("label", "color", "marker"):
        assert len({getattr(style, part) for style in styles}) == len(styles)


def test_matplotlib_knows_colours_and_markers():
    for style in METHODS.values():
        to_rgb(style.color)
        MarkerStyle(style.marker)


def test_an_unknown_method_gets_a_style_no_known_one_has():
    mine = method_style("mine")
    assert mine.label == "mine"
    assert mine.color not in {style.color for style in METHODS.values()}
    assert mine.marker not in {style.marker for style in METHODS.values()}
