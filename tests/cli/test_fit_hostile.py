"""Names and labels are data: whatever they say, no terminal obeys it and no browser runs it."""

import json

import pandas as pd
import pytest

import auqadmm
from auqadmm.words import quoted, visible
from tests.cli import files
from tests.report import browser as opened

aq, browser = files.aq, opened.browser  # fixtures
SCRIPT = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
ESCAPES = "\x1b]0;owned\x07\x1b[31mred\x1b[2J"
MARKUP = "[red]bold[/red] [link=http://example.com]click[/link]"
BIDI = "abc\u202egnp.exe"
NAMES = (SCRIPT, ESCAPES, MARKUP, BIDI, "=cmd()", "a\nb", "{x} %s \\n")


@pytest.fixture
def hostile(tmp_path):
    """Hostile text as column names, categories, labels, ids, sites and file names."""
    rows = 24
    frame = pd.DataFrame({name: [float((k * (j + 2)) % 7) for k in range(rows)] for j, name in enumerate(NAMES)})
    frame["words" + MARKUP] = [NAMES[k % 3] for k in range(rows)]
    frame["site" + ESCAPES] = [SCRIPT if k % 2 else ESCAPES for k in range(rows)]
    frame["id" + MARKUP] = [f"{k}{ESCAPES}{SCRIPT}" for k in range(rows)]
    frame["label" + SCRIPT] = [(SCRIPT, ESCAPES, MARKUP)[(k * k + k // 5) % 3] for k in range(rows)]
    path = tmp_path / "<b>bold<b> [red].csv"
    frame.to_csv(path, index=False)
    return frame, path


def arguments(frame):
    site, id, label = (next(c for c in frame if c.startswith(word)) for word in ("site", "id", "label"))
    return ("--model", "logistic", "--target", label, "--site", site, "--id", id)


def harmless(text):
    assert all(character.isprintable() or character == "\n" for character in text), repr(text)


def test_the_terminal_gets_no_control_characters_and_no_markup(aq, hostile, tmp_path):
    frame, path = hostile
    ran = aq("fit", path, *arguments(frame), "--out", tmp_path / "out [bold]x[/bold]")
    assert ran.code == 0, ran.err
    harmless(ran.out + ran.err)
    assert "out [bold]x[/bold]" in ran.out  # shown as it is, not rendered


def test_errors_quote_hostile_names_in_one_harmless_line(aq, hostile, tmp_path):
    frame, path = hostile
    for name in NAMES:
        bad = frame.copy()
        bad.loc[4, name] = None
        bad.to_csv(path, index=False)
        ran = aq("fit", path, *arguments(frame), "--out", tmp_path / "out")
        text = ran.sentence
        assert "row 5" in text
        assert quoted(name).split()[0] in text
        harmless(text)


def test_a_name_of_a_million_letters_does_not_fill_the_screen(aq, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("y," + "x" * 1_000_000 + "\n1,\n0,2\n")
    text = aq("fit", path, "--model", "logistic", "--target", "y", "--out", tmp_path / "out").sentence
    assert len(text) < 300


def test_names_survive_the_round_trip(aq, hostile, tmp_path):
    frame, path = hostile
    assert aq("fit", path, *arguments(frame), "--quiet", "--out", tmp_path / "out").code == 0
    model = auqadmm.load(tmp_path / "out")
    assert set(NAMES) <= set(model.feature_names_in_)
    assert sorted(model.classes_) == sorted([SCRIPT, ESCAPES, MARKUP])
    assert (model.predict(frame) == frame["label" + SCRIPT]).mean() > 0.3
    ran = aq("predict", tmp_path / "out", path)
    assert ran.code == 0
    assert ESCAPES in ran.out  # a pipe gets the data
    json.loads((tmp_path / "out" / "summary.json").read_text())


def test_a_terminal_gets_predictions_written_out(aq, hostile, tmp_path, monkeypatch):
    frame, path = hostile
    assert aq("fit", path, *arguments(frame), "--quiet", "--out", tmp_path / "out").code == 0
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    ran = aq("predict", tmp_path / "out", path)
    assert ran.code == 0
    harmless(ran.out)
    assert "\\x1b[31m" in ran.out


def test_the_page_shows_hostile_text_and_runs_nothing(aq, hostile, tmp_path, browser):
    frame, path = hostile
    assert aq("fit", path, *arguments(frame), "--method", "auq-lr", "--quiet", "--out", tmp_path / "out").code == 0
    complaints, asked = [], []
    context = browser.new_context(viewport=opened.DESKTOP)
    page = context.new_page()
    page.set_default_timeout(5000)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((tmp_path / "out" / "report.html").as_uri())
    assert page.locator(".plot").count() == 3
    assert page.locator(".plot").first.locator(".curve .line").count() == 1
    assert page.locator("img[src=x], main script").count() == 0
    names = page.locator("#figure-coefficients tbody th").all_text_contents()
    for name in NAMES:
        assert visible(name) in names
    assert visible(SCRIPT) in page.locator("#figure-coefficients thead th").all_text_contents()
    assert len(page.locator("#figure-sites tbody tr").all()) == 2
    harmless("".join(names))
    context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith(("data:", tmp_path.as_uri()))] == []
