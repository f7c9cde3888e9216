"""Forests and calibration as they are drawn, by numbers and in a browser."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from auqadmm.report.content import Agreement, Chapter, Forest, Interval, Report, Table
from auqadmm.report.drawings import Scale, agreement_html, forest_html, number, round_values
from auqadmm.words import short
from tests.report import browser as opened
from tests.report.browser import DESKTOP, PHONE
from tests.report.test_page import HOSTILE

browser, show = opened.browser, opened.show  # fixtures


def forest(log=True, label="north"):
    rows = (
        Interval(label, 1.2, 0.9, 1.6, ("1.2", "0.9 to 1.6")),
        Interval("south", 1.5, 1.1, 2.0, ("1.5", "1.1 to 2")),
        Interval("three rows", 9.0, 1e-3, 9e4, ("9", "0.001 to 90000")),
        Interval("nothing known", None, None, None, ("–", "–")),
        Interval("all sites", 1.4, 1.2, 1.6, ("1.4", "1.2 to 1.6"), common=True),
    )
    return Forest("age", ("odds ratio", "95 % interval"), rows, 1.0 if log else 0.0, "per unit", log)


def page_of(*drawings, **more):
    chapter = Chapter("a", "Do sites agree?", "Caption.", drawings=drawings, **more)
    return Report("Title", "Lead.", chapters=(chapter,), parts="Part")


@pytest.mark.parametrize("log", [True, False])
def test_an_axis_is_not_blown_up_by_one_tiny_site(log):
    scale = Scale.of(forest(log))
    assert scale.shown(scale.high) < 3
    assert scale.inside(9e4)[1]
    places = [scale.at(t) for t in scale.ticks()]
    assert len(places) >= 2
    assert all(0 <= place <= 100 for place in places)
    assert scale.low <= scale.reference <= scale.high
    text = forest_html(forest(log))
    assert len(re.findall(r'class="interval"', text)) == 4
    assert all(-1 <= float(x) <= 101 for x in re.findall(r'x[12]?="(-?[\d.]+)%"', text))


def test_round_values():
    assert round_values(0.0, 1.0, 5) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert round_values(-3.0, 14.0, 4) == [0.0, 5.0, 10.0]
    assert round_values(2.0, 2.0, 4) == [2.0]
    assert (number(-0.5), number(0.0), number(1234567.0)) == ("−0.5", "0", "1.235e+06")


def test_degenerate_drawings():
    empty = Forest("x", ("a",), (Interval("s", None, None, None, ("–",)),), 0.0, "per unit")
    assert 'class="interval"' not in forest_html(empty)
    same = Forest("x", ("a",), (Interval("s", 0.0, 0.0, 0.0, ("0",)),), 0.0, "per unit")
    assert "nan" not in forest_html(same)
    assert agreement_html(Agreement("t", {})) == ""
    one = agreement_html(Agreement("t", {"rows": ((2.0, 2.0, 5.0),)}))
    assert "nan" not in one
    assert one.count("<circle") == 2


def test_names_are_as_short_as_they_stay_different():
    assert short(["a/north.csv", "b/south.csv"]) == ["north", "south"]
    assert short(["a/x.csv", "b/x.csv"]) == ["a/x.csv", "b/x.csv"]
    assert short(["all.csv, site 'a.b'", "all.csv, site 'c'"]) == ["a.b", "c"]
    assert short(["block 0", "block 1"]) == ["block 0", "block 1"]
    assert short(["1.csv, site 'a'", "2.csv, site 'a'"]) == ["1.csv, site 'a'", "2.csv, site 'a'"]


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_bar_is_in_its_cell_and_no_label_overlaps(show, viewport):
    series = {"rows of the fit": ((0.1, 0.2, 5.0), (0.5, 0.4, 5.0), (0.9, 0.95, 5.0)), "held out": ((0.5, 0.6, 9.0),)}
    plot = Agreement("Predicted and observed", series, share=True)
    page = show(page_of(forest(), forest(False), plot, table=Table(("", "n"), (("AUC", "0.8"),))), viewport)
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    for cell in page.locator(".forest td.bars").all():
        box = cell.bounding_box()
        for line in cell.locator(".interval").all():
            bar = line.bounding_box()
            assert bar["x"] >= box["x"] - 1
            assert bar["x"] + bar["width"] <= box["x"] + box["width"] + 1
    for axis in page.locator(".forest .axis").all():
        boxes = sorted((t.bounding_box() for t in axis.locator("text").all()), key=lambda b: b["x"])
        assert all(a["x"] + a["width"] <= b["x"] for a, b in pairwise(boxes))
    assert page.locator(".agreement circle").count() == 4 + 2  # and the key
    table, drawing = page.locator(".beside .scroll").bounding_box(), page.locator(".agreement").bounding_box()
    assert table["x"] + table["width"] <= drawing["x"] or table["y"] + table["height"] <= drawing["y"]


def test_zoom_buttons_stay_together(show):
    page = show(opened.sample(1, 2), PHONE)
    for group in page.locator(".zoom").all():
        tops = {round(b.bounding_box()["y"]) for b in group.locator("button").all()}
        assert len(tops) == 1


def test_paper_shows_forests_and_dark_has_other_colours(show):
    page = show(page_of(forest(), more=(forest(),)), color_scheme="dark")
    stroke = "getComputedStyle(document.querySelector('.forest .interval')).stroke"
    assert page.evaluate(stroke) == "rgb(232, 234, 237)"
    page.emulate_media(media="print", color_scheme="dark")
    page.locator("details:not([open])").first.wait_for(state="detached")
    assert page.locator(".forest").nth(1).is_visible()
    assert page.evaluate(stroke) == "rgb(27, 31, 36)"


def test_hostile_names_are_text(show):
    h = HOSTILE
    rows = (Interval(h, 1.0, 0.5, 2.0, (h,)),)
    plot = Agreement(h, {h: ((0.1, 0.2, 1.0),)})
    page = show(page_of(Forest(h, (h,), rows, 1.0, h, True), plot))
    assert page.locator("img[src=x], main script").count() == 0
    assert page.locator(".forest tbody th").first.text_content() == h
