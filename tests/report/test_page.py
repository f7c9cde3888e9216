"""The page as a file: packing, thinning, escaping, colours. What a browser makes of it is in test_page_browser.py."""

import base64
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auqadmm.report.content import Chapter, ClaimVerdict, Curve, Panel, Picture, Report, Table
from auqadmm.report.drawings import escape
from auqadmm.report.page import page_html, slugs, write_page
from auqadmm.report.page_data import (
    DARK,
    LIGHT,
    OTHERS,
    Palette,
    _numbers,
    contrast,
    on_grounds,
    pack,
    report_data,
    script_json,
    thin,
)
from auqadmm.report.style import METHODS
from tests.report.browser import odd, sample

HOSTILE = "</script><img src=x onerror=alert(1)>\"'<!--&amp;\u2028 ∇λ 🜁"


def unpack(column):
    if isinstance(column, list):
        start, step, count = column
        return start + step * np.arange(count)
    return np.frombuffer(base64.b64decode(column), dtype="<f4").astype(float)


def with_curve(curve, **more):
    panel = Panel("panel", (curve,), {"k": "iterations"}, {"y": "gap"}, **more)
    return Report("title", "lead", chapters=(Chapter("id", "chapter", "caption", panels=(panel,)),))


def test_the_same_report_gives_the_same_bytes(tmp_path):
    first = write_page(sample(chapters=1, panels=1), tmp_path / "a.html")
    second = write_page(sample(chapters=1, panels=1), str(tmp_path / "b.html"))
    assert second == tmp_path / "b.html"
    assert first.read_bytes() == second.read_bytes()


def test_a_large_report_is_a_small_file():
    assert len(page_html(sample(chapters=8, panels=6))) < 6e6


def test_nothing_points_outside():
    text = page_html(sample(chapters=1, panels=1))
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", text)
    assert "default-src 'none'" in text
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_hostile_text_stays_text():
    h = HOSTILE
    curve = Curve(h, h, {"k": (1, 2)}, {"y": (1.0, 0.5)})
    panel = Panel(h, (curve,), {"k": h}, {"y": h})
    png = b"\x89PNG\r\n\x1a\n" + bytes(16)
    chapter = Chapter(h, h, h, (panel,), (Picture(png, h, h),), {h: h}, Table((h, h), ((h, h),), ((0, 1),)))
    report = Report(h, h, (ClaimVerdict(h, h, h, h, h, h),), (chapter,), {h: {h: [h, None]}})
    text = page_html(report)
    assert "<img src=x" not in text
    assert text.count("</script>") == 2
    assert text.count("<!--") == 0
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert json.loads(data)[0]["panels"][0]["title"] == h


@given(st.text())
def test_json_in_a_script_reads_back_and_cannot_leave_it(text):
    packed = script_json({"label": text})
    assert json.loads(packed) == {"label": text}
    assert not set("<>&\u2028\u2029") & set(packed)


@given(st.text())
def test_escaped_text_can_be_written_and_holds_no_markup(text):
    escaped = escape(text)
    escaped.encode("utf-8")
    assert not set("<>\"'") & set(escaped)


def test_half_a_character_does_not_stop_a_report(tmp_path):
    write_page(Report("\ud800", "", chapters=(Chapter("\udfff", "\ud800", ""),)), tmp_path / "r.html")


@given(st.lists(st.text(max_size=5)))
def test_anchors_are_plain_and_different(names):
    found = slugs(names)
    assert len(set(found)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]+", slug) for slug in found)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, 2, 3, 4), [1.0, 1.0, 4]),
        ((0, 627_200_001, 1_254_400_002), [0.0, 627_200_001.0, 3]),  # float32 could not hold these
        ((1.5, 1.5, 1.5), [1.5, 0.0, 3]),
    ],
)
def test_progressions_are_packed_as_such(values, expected):
    column = _numbers(values)
    assert pack(column, np.arange(column.size)) == expected


def test_missing_and_infinite_values_are_told_apart():
    column = _numbers((None, math.nan, math.inf, -math.inf, 1e300, 0.25, 0.0))
    values = unpack(pack(column, np.arange(column.size)))
    assert np.isnan(values[0])
    assert np.isposinf(values[1:5]).all()
    assert values[5:].tolist() == [0.25, 0.0]


@given(st.integers(0, 6000), st.integers(1, 4), st.integers(0, 2**31))
def test_thinning_keeps_ends_and_extremes_and_is_short(count, columns, seed):
    rng = np.random.default_rng(seed)
    y = [rng.standard_normal(count) for _ in range(columns)]
    for column in y:
        column[rng.random(count) < 0.3] = np.nan
    kept = thin([np.arange(count)], y)
    assert kept.size <= 1200
    assert np.array_equal(kept, np.unique(kept))
    if count <= 500:
        assert kept.size == count
    for column in y:
        if np.isfinite(column).any():
            assert np.nanmin(column[kept]) == np.nanmin(column)
            assert np.nanmax(column[kept]) == np.nanmax(column)
            assert kept[-1] == count - 1
            assert kept[0] == 0


def test_thinning_keeps_the_beginning_for_logarithmic_axes():
    count = 20_000
    kept = thin([np.arange(count)], [np.linspace(1, 0, count)])
    for decade in (10, 100, 1000):
        assert np.count_nonzero(kept < decade) >= 8


def test_columns_of_different_length_are_refused_by_name():
    with pytest.raises(ValueError, match=r"'mine' of panel 'panel' has columns of \[2, 3\]"):
        page_html(with_curve(Curve("c-admm", "mine", {"k": (1, 2, 3)}, {"y": (1.0, 2.0)})))


def test_a_panel_without_axes_a_bad_floor_a_bad_table_and_a_bad_picture_are_refused():
    def report(**parts):
        return Report("", "", chapters=(Chapter("a", "chapter", "", **parts),))

    with pytest.raises(ValueError, match="Panel 'p' needs at least one axis"):
        page_html(report(panels=(Panel("p", (), {}, {"y": "gap"}),)))
    with pytest.raises(ValueError, match="floor of axis 'y' is 0"):
        page_html(report(panels=(Panel("p", (), {"k": "k"}, {"y": "gap"}, log_y=("y",), floors={"y": 0.0}),)))
    with pytest.raises(ValueError, match="Row 1 of the table of 'chapter' has 1 cells, its header 2"):
        page_html(report(table=Table(("a", "b"), (("1", "2"), ("3",)))))
    with pytest.raises(ValueError, match="Picture 'seen' of 'chapter' is not a PNG"):
        page_html(report(pictures=(Picture(b"GIF89a", "seen"),)))


def test_a_verdict_links_to_its_figure_and_names_one_that_is_not_there():
    text = page_html(sample(chapters=1, panels=1))
    assert '<a href="#figure-fig1"' in text
    assert 'data-name="Figure">nowhere</td>' in text


def test_best_cells_are_marked_by_more_than_colour():
    report = Report("", "", chapters=(Chapter("a", "t", "", table=Table(("m", "it."), (("x", "3"),), ((0, 1),))),))
    assert '<td class="number best">' in page_html(report)
    assert '<span class="hidden">best: </span><strong>3</strong>' in page_html(report)


def test_lines_are_seen_on_both_grounds():
    for color in [*(style.color for style in METHODS.values()), *(color for color, _ in OTHERS)]:
        for variant in range(6):
            light, dark = on_grounds(color, variant)
            assert contrast(light, LIGHT) >= 3
            assert contrast(dark, DARK) >= 3


def test_methods_look_different_on_both_grounds():
    colors = [on_grounds(style.color) for style in METHODS.values()]
    assert len({light for light, _ in colors}) == len({dark for _, dark in colors}) == len(METHODS)
    assert on_grounds(METHODS["c-admm"].color) == ("#000000", "#f1f3f5")


def test_a_method_keeps_its_look_and_its_variants_differ():
    def curve(method, label, control=False):
        return Curve(method, label, {}, {}, control)

    palette = Palette()
    first = palette.series(
        [curve("auq-admm", f"rank {r}") for r in (1, 5, 10)] + [curve("mine", "a"), curve("own", "b")]
    )
    again = palette.series([curve("own", "b"), curve("auq-admm", "rank 1"), curve("auq-admm", "shuffled", True)])
    looks = [(look["color"], look["marker"]) for look in first.values()]
    assert len(set(looks)) == len(looks)
    assert again["own", "b", False] == first["own", "b", False]
    assert again["auq-admm", "rank 1", False] == first["auq-admm", "rank 1", False]
    assert again["auq-admm", "shuffled", True]["marker"] == METHODS["auq-admm"].marker
    assert again["auq-admm", "shuffled", True]["control"]


def test_odd_reports_are_packed_as_valid_json():
    data, _ = report_data(odd())
    json.loads(script_json(data))
