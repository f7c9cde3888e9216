"""The page in a real browser: it draws, it answers to mouse and keys, and it stays in its file."""

import re
import time
from itertools import pairwise

from auqadmm.report.content import Chapter, ClaimVerdict, Curve, Panel, Picture, Report, Table
from tests.report import browser as opened
from tests.report.browser import DESKTOP, PHONE, odd, png, sample
from tests.report.test_page import HOSTILE

browser, report, show = opened.browser, opened.report, opened.show  # fixtures


def lines(page, plot=0):
    """The `d` of each line of a panel, by series."""
    script = """plot => Object.fromEntries([...plot.querySelectorAll('.curve')].map(
        curve => [curve.dataset.series, curve.querySelector('.line').getAttribute('d')]))"""
    return page.locator(".plot").nth(plot).evaluate(script)


def words(page, plot=0):
    return page.locator(".plot").nth(plot).locator(".axis-x, .axis-y").all_text_contents()


def drag(page, plot, start, stop):
    box = plot.bounding_box()
    (x0, y0), (x1, y1) = [(box["x"] + box["width"] * a, box["y"] + box["height"] * b) for a, b in (start, stop)]
    page.mouse.move(x0, y0)
    page.mouse.down()
    page.mouse.move((x0 + x1) / 2, (y0 + y1) / 2)
    page.mouse.move(x1, y1)
    page.mouse.up()


def test_every_chart_is_drawn_with_finite_numbers(show, report):
    page = show(report)
    assert page.locator(".plot").count() == 9
    for plot in range(9):
        drawn = lines(page, plot)
        assert len(drawn) == 9
        for path in drawn.values():
            assert len(path) > 50
            assert re.fullmatch(r"[ML\d. -]+", path)
        assert page.locator(".plot").nth(plot).locator(".tick").count() >= 5
        assert page.locator(".plot").nth(plot).locator(".end text").count() == 9
    assert page.locator(".plot .line").first.evaluate("line => line.getBoundingClientRect().height") > 50


def test_labels_at_line_ends_do_not_overlap(show, report):
    for viewport in (DESKTOP, PHONE):
        page = show(report, viewport)
        script = "plot => [...plot.querySelectorAll('.end text')].map(t => Number(t.getAttribute('y')))"
        for plot in range(9):
            heights = sorted(page.locator(".plot").nth(plot).evaluate(script))
            assert min(b - a for a, b in pairwise(heights)) > 11


def test_a_switch_hides_and_shows_its_method_in_all_panels_of_the_chapter(show, report):
    page = show(report)
    button = page.locator("#figure-fig1 .method").nth(1)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    for plot in range(3):
        assert sorted(lines(page, plot)) == ["0", "2", "3", "4", "5", "6", "7", "8"]
    assert "1" in lines(page, 3)  # the next chapter has its own
    button.press("Space")
    assert button.get_attribute("aria-pressed") == "true"
    assert len(lines(page)) == 9
    for i in range(9):
        page.locator("#figure-fig1 .method").nth(i).click()
    assert page.get_by_text("No method is switched on.").count() == 3
    page.locator("#figure-fig1 .all").click()
    assert len(lines(page)) == 9
    assert page.evaluate("document.activeElement.className") == "method"


def test_pointing_at_a_switch_lights_its_curve(show, report):
    page = show(report)
    page.locator("#figure-fig1 .method").nth(2).hover()
    assert page.locator(".plot").first.locator(".curve.lit").get_attribute("data-series") == "2"
    page.mouse.move(5, 5)
    assert page.locator(".lit, .faded").count() == 0


def test_controls_are_dashed(show, report):
    page = show(report)
    dashes = (
        page.locator(".plot")
        .first.locator(".curve .line")
        .evaluate_all("all => all.map(line => getComputedStyle(line).strokeDasharray !== 'none')")
    )
    assert dashes == [False] * 6 + [True, True, False]


def test_choosing_axes_changes_the_drawing(show, report):
    page = show(report)
    chapter = page.locator("#figure-fig1")
    seen = [lines(page)]
    assert words(page) == ["iterations", "relative objective gap"]
    chapter.get_by_label("Horizontal").select_option(label="seconds")
    seen.append(lines(page))
    chapter.get_by_label("Vertical").select_option(label="dual residual")
    seen.append(lines(page))
    chapter.get_by_label("Vertical").select_option(label="objective")
    seen.append(lines(page, 2))
    assert words(page, 2) == ["seconds", "objective"]
    for before, after in pairwise(seen):
        assert all(before[series] != after[series] for series in before)


def test_panels_with_axes_of_their_own_have_choosers_of_their_own(show):
    curve = Curve("c-admm", "C", {"k": (1, 2, 3), "s": (1, 3, 9)}, {"y": (3.0, 2.0, 1.0)})
    one = Panel("one", (curve,), {"k": "iterations", "s": "seconds"}, {"y": "gap"})
    two = Panel("two", (curve,), {"k": "iterations"}, {"y": "gap"})
    page = show(Report("r", "", chapters=(Chapter("a", "a", "", panels=(one, two)),)))
    before = lines(page, 0), lines(page, 1)
    page.get_by_label("Horizontal").select_option(label="seconds")
    assert lines(page, 0) != before[0]
    assert lines(page, 1) == before[1]


def test_zoom_by_mouse_wheel_and_buttons_and_back(show, report):
    page = show(report)
    plot = page.locator(".plot").first
    plot.scroll_into_view_if_needed()
    panel = page.locator(".panel").first
    whole, reset = lines(page), panel.locator(".reset")
    assert not reset.is_visible()

    drag(page, plot, (0.2, 0.2), (0.5, 0.6))
    assert lines(page) != whole
    assert (
        page.locator(".plot").nth(1).evaluate("p => p.querySelector('.line').getAttribute('d')") == lines(page, 1)["0"]
    )
    reset.click()
    assert lines(page) == whole
    assert page.evaluate("document.activeElement.classList.contains('plot')")

    drag(page, plot, (0.2, 0.5), (0.5, 0.5))  # a line: along one axis only
    zoomed = lines(page)
    assert zoomed != whole
    plot.dblclick(position={"x": 150, "y": 100})
    assert lines(page) == whole

    panel.get_by_role("button", name="Zoom in").click()
    assert lines(page) != whole
    panel.get_by_role("button", name="Zoom out").click()
    assert reset.is_visible()
    reset.click()

    box = plot.bounding_box()
    page.mouse.move(box["x"] + 150, box["y"] + 100)
    page.mouse.wheel(0, -40)
    page.wait_for_timeout(50)
    assert lines(page) == whole  # the bare wheel scrolls the page
    plot.evaluate("p => p.dispatchEvent(new WheelEvent('wheel', {deltaY: -60, ctrlKey: true, cancelable: true}))")
    assert lines(page) != whole


def test_everything_answers_to_keys(show, report):
    page = show(report)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")

    plot = page.locator(".plot").first
    whole = lines(page)
    plot.focus()
    for key in ("+", "ArrowLeft", "ArrowUp", "-", "ArrowRight", "ArrowDown"):
        before = lines(page)
        page.keyboard.press(key)
        assert lines(page) != before, key
    page.keyboard.press("0")
    assert lines(page) == whole
    page.keyboard.press(".")
    page.keyboard.press(".")
    assert page.locator(".readout").first.is_visible()
    page.keyboard.press("Tab")
    assert not page.locator(".readout").first.is_visible()


def test_focus_is_seen_wherever_it_goes(show, report):
    page = show(report)
    seen = 0
    for _ in range(30):
        page.keyboard.press("Tab")
        style = page.evaluate(
            "(() => { const s = getComputedStyle(document.activeElement); return [s.outlineStyle, s.outlineWidth] })()"
        )
        assert style == ["solid", "2px"]
        seen += page.evaluate("document.activeElement.classList.contains('plot')")
    assert seen >= 1


def test_the_read_out_shows_a_point_of_every_visible_curve(show, report):
    page = show(report)
    page.locator("#figure-fig1 .method").nth(8).click()
    plot = page.locator(".plot").first
    plot.hover(position={"x": 180, "y": 100})
    readout = page.locator(".readout").first
    assert readout.locator("tbody tr").count() == 8
    labels = readout.locator("tbody th").all_text_contents()
    assert {"C-ADMM", "AUQ-LR", "AUQ, shuffled weights"} <= set(labels)
    assert all(re.match(r"^[\d.·⁻⁰-⁹¹²³]+$", text) for text in readout.locator("tbody td").all_text_contents())
    drawing, box = plot.bounding_box(), readout.bounding_box()
    below, above = box["y"] >= drawing["y"] + drawing["height"], box["y"] + box["height"] <= drawing["y"]
    assert below or above  # it does not cover what it speaks of
    page.mouse.move(5, 5)
    assert not readout.is_visible()


def test_a_touch_shows_the_read_out_and_the_next_one_elsewhere_hides_it(show, report):
    page = show(report, PHONE, has_touch=True)
    plot = page.locator(".plot").first
    plot.tap(position={"x": 120, "y": 100})
    assert page.locator(".readout").first.is_visible()
    page.locator("#figure-fig1 h2").tap()
    assert not page.locator(".readout").first.is_visible()


def test_odd_numbers_are_drawn_or_named(show):
    page = show(odd())
    text = {p.split("\n")[0]: p for p in page.locator(".panel").all_inner_texts()}
    assert "2 points at or below zero, drawn at 10⁻⁷." in text["zero and below"]
    assert "1 point at zero of the horizontal axis, drawn at 0.5." in text["zero and below"]
    assert "3 points not finite, left out." in text["not finite"]
    assert "Nothing to draw here for uq-admm." in text["not finite"]
    for title in ("none finite", "none positive", "no points", "no curves", "not on this axis"):
        assert "No finite values to draw." in text[title]
    paths = page.locator(".plot .line, .plot .mark, .plot .grid").evaluate_all(
        "all => all.map(p => p.getAttribute('d'))"
    )
    assert all(re.fullmatch(r"[MLHVZ\d. -]*", path) for path in paths)
    joined = page.locator(".panel").nth(2).locator(".curve .line").get_attribute("d")
    assert joined.count("M") == 1  # not measured: the line goes on
    broken = page.locator(".panel").nth(10).locator(".curve .line").get_attribute("d")
    assert broken.count("M") == 2  # not finite: it breaks


def test_hostile_text_is_shown_and_inert(show):
    h = HOSTILE
    curve = Curve(h, h, {"k": (1, 2, 3)}, {"y": (1.0, 0.5, 0.1)})
    panel = Panel(h, (curve,), {"k": h, "s": h}, {"y": h})
    chapter = Chapter(h, h, h, (panel,), (Picture(png(), h, h),), {h: h}, Table((h, h), ((h, h),), ((0, 1),)))
    page = show(Report(h, h, (ClaimVerdict(h, h, h, h, h, h),), (chapter,), {h: h}))
    page.locator(".plot").hover(position={"x": 180, "y": 100})
    page.locator(".method").click()
    page.locator(".method").click()
    page.locator(".enlarge").click()
    assert page.locator("img").count() == 2  # the picture and its enlargement
    assert page.locator("h1").text_content() == h
    assert page.locator(".method > span").first.text_content() == h
    assert page.evaluate("document.title").startswith("</script><img")


def test_pictures_enlarge_by_click_and_key(show, report):
    page = show(report)
    dialog = page.locator("dialog")
    first = page.locator(".enlarge").first
    first.click()
    assert dialog.is_visible()
    assert dialog.locator("img").get_attribute("alt").startswith("Weights of worker 0")
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    first.focus()
    page.keyboard.press("Enter")
    assert dialog.is_visible()
    assert dialog.locator("img").bounding_box()["width"] > first.locator("img").bounding_box()["width"]
    dialog.get_by_role("button", name="Close").click()
    assert not dialog.is_visible()


def test_a_large_report_opens_quickly(show):
    large = sample(chapters=8, panels=6)
    begin = time.perf_counter()
    page = show(large)
    assert page.locator(".plot .curve").count() == 8 * 6 * 9
    took = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert took < 2000
    assert time.perf_counter() - begin < 10
