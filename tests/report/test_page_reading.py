"""The page can be read everywhere: on a phone, on paper, in the dark, without scripts, by keyboard, when empty."""

import pytest

from auqadmm.report.content import Chapter, Report
from tests.report import browser as opened
from tests.report.browser import PHONE, odd

browser, report, show = opened.browser, opened.report, opened.show  # fixtures


def test_no_page_is_wider_than_a_phone(show, report):
    for content in (report, odd(), Report("x" * 200, "y" * 200, report.verdicts, about={"k" * 99: "v" * 200})):
        page = show(content, PHONE)
        assert page.evaluate("document.documentElement.scrollWidth") == 360
    page = show(report, PHONE)
    assert page.locator(".scroll").first.evaluate("e => e.scrollWidth > e.clientWidth")  # the table scrolls by itself
    assert page.locator(".method").first.bounding_box()["height"] >= 32


def test_paper_shows_everything_and_no_controls(show, report):
    page = show(report, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    page.locator("details:not([open])").first.wait_for(state="detached")
    assert page.locator("details dl").nth(1).is_visible()
    for control in (".bar", ".choosers", ".theme", ".skip", ".contents", ".all"):
        assert not page.locator(control).first.is_visible(), control
    assert page.locator(".method").first.is_visible()  # as a legend
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 31, 36)"
    assert page.locator(".scroll").first.evaluate("e => getComputedStyle(e).overflowX") == "visible"
    page.emulate_media(media="screen")
    page.locator("details[open]").first.wait_for(state="detached")
    assert page.pdf()[:5] == b"%PDF-"


def test_dark_by_preference_and_by_choice(show, report):
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('.curve .line')).stroke"  # C-ADMM, black on paper
    page = show(report, color_scheme="dark")
    button = page.locator(".theme")
    assert page.evaluate(ground) == "rgb(18, 20, 23)"
    assert page.evaluate(ink) == "rgb(241, 243, 245)"
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert page.evaluate(ground) == "rgb(250, 250, 248)"
    assert page.evaluate(ink) == "rgb(0, 0, 0)"
    page.reload()
    assert page.evaluate(ground) == "rgb(18, 20, 23)"  # remembered nowhere


CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => {
    const f = (c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
  };
  const bad = new Set();
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.getClientRects().length) continue;
    if (e.closest("script, .idle, dialog")) continue;
    const style = getComputedStyle(e);
    const color = parse(e.closest(".plot") ? style.fill : style.color);
    const [a, b] = [light(color), light(ground(e))].sort((p, q) => q - p);
    if ((a + 0.05) / (b + 0.05) < 4.5) bad.add(e.tagName + "." + e.getAttribute("class"));
  }
  return [...bad];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(show, report, scheme):
    page = show(report, color_scheme=scheme)
    page.locator(".method").nth(1).click()
    page.locator("details").first.evaluate("d => d.open = true")
    page.locator(".plot").first.hover(position={"x": 180, "y": 100})
    page.wait_for_timeout(200)  # colours of buttons change gently
    assert page.evaluate(CONTRAST) == []


def test_without_scripts_words_and_tables_remain(show, report):
    page = show(report, java_script_enabled=False)
    assert page.locator(".notice").is_visible()
    assert page.locator(".verdicts tbody tr").count() == 4
    assert page.locator(".numbers").first.is_visible()
    assert page.locator(".picture img").first.is_visible()
    assert not page.locator(".panels").first.is_visible()


def test_links_lead_to_what_they_name(show, report):
    page = show(report, reduced_motion="reduce")
    missing = page.evaluate(
        "[...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.querySelector(a.hash)).length"
    )
    assert missing == 0
    page.locator(".verdicts a").nth(1).click()
    assert abs(page.locator("#figure-fig2").bounding_box()["y"]) < 60
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    "report_",
    [
        Report("", ""),
        Report("Nothing yet", "Come back later."),
        Report("Words only", "", chapters=(Chapter("a", "A", "Caption."), Chapter("a", "Same id", ""))),
    ],
)
def test_reports_without_panels(show, report_):
    page = show(report_)
    assert page.locator("h1").text_content() == report_.title
    assert page.locator(".chapter").count() == len(report_.chapters)
    assert page.locator(".plot").count() == 0
