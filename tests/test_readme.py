"""The README's example runs as printed, and says what it promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from auqadmm.methods import resolve

README = Path(__file__).parents[1] / "README.md"


def test_the_ten_lines(capsys: pytest.CaptureFixture[str]) -> None:
    code = re.search(r"## Ten lines\n\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert code is not None
    assert len(code.group(1).strip().splitlines()) <= 12
    exec(code.group(1), {})
    printed = capsys.readouterr().out
    assert re.match(r"Converged: within \S+ of the optimum \(proved\); \d+ iterations\.", printed)
    assert float(printed.split()[-1]) > 0.9


def test_what_the_readme_names_exists() -> None:
    text = README.read_text()
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (README.parent / link).exists(), link
    for method in re.findall(r"^\| `\"([a-z-]+)\"`", text, re.MULTILINE):
        assert method == "auto" or resolve(method)
