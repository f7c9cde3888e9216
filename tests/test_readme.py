"""The README's example runs as printed, and says what it promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

import auqadmm as aq
from auqadmm import baselines, engines, methods
from auqadmm.cli import app
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


def matches(pattern: str, least: int, text: str | None = None) -> list[str]:
    """All that the README says in this way; a pattern that finds next to nothing is out of date."""
    found = re.findall(pattern, README.read_text() if text is None else text, re.DOTALL | re.MULTILINE)
    assert len(found) >= least, f"{pattern!r} finds only {found}"
    return found


def test_links_lead_somewhere() -> None:
    for link in matches(r"\]\(([^)]+)\)", 20):
        assert (README.parent / link).exists(), link


def test_methods_exist() -> None:
    """As in tables (L-BFGS), and as in code (`auto`, method="auto")."""
    known = {"auto", *methods.KNOWN, *baselines.KNOWN}
    told = {name.lower() for name in matches(r"\b(?:[A-Z]+-[A-Z]+|FISTA|Newton)\b", 10)}
    told = {name if name in known else name.replace("-", "") for name in told}
    assert told <= known, told - known
    assert told >= {"auq-lr", "lbfgs", "owl-qn", "fista", "newton"}
    quoted = {*re.findall(r'method="([a-z-]+)"', README.read_text()), *matches(r"`(auto)`", 1)}
    assert quoted <= known, quoted - known
    assert all(resolve(name, {**methods.KNOWN, **baselines.KNOWN}) for name in told | quoted)


def test_losses_and_regularizers_are_all_there_are() -> None:
    losses, regularizers = matches(r"Losses: (.*?)Regularizers:\s(.*?)\.\n", 1)[0]
    for said in (losses, regularizers):
        told = {name for code in re.findall(r"`([^`]+)`", said) for name in re.findall(r"\b[A-Z]\w+", code)}
        assert len(told) >= 7
        assert all(name in aq.__all__ for name in told), told
        files = {getattr(aq, name).__module__ for name in told}
        beside = {name for name in aq.__all__ if getattr(getattr(aq, name), "__module__", "") in files}
        assert beside == told, f"not in the README: {beside - told}"


def test_estimators_are_all_there_are() -> None:
    told = set(matches(r"\b(Consensus\w+)", 5))
    told |= {f"{name}CV" for name in told if "their `…CV`" in README.read_text() and f"{name}CV" in aq.__all__}
    assert told == {name for name in aq.__all__ if name.startswith("Consensus")}
    assert all(hasattr(getattr(aq, name), "fit") for name in told)


def test_what_code_names_exists() -> None:
    for name in matches(r"\baq\.(\w+)", 5):
        assert name in aq.__all__, name
    for name in matches(r'engine="(\w+)"', 3):
        assert engines.resolve(name)
    for name in matches(r"`result\.(\w+)", 1):
        assert name in aq.Result.__dataclass_fields__


def test_commands_and_their_options_exist() -> None:
    commands = typer.main.get_command(app).commands
    lines = matches(r"(?:^|`)auqadmm ([a-z]+\b[^\n`]*)", 5)
    for line in lines:
        command, *words = line.split()
        assert command in commands, line
        options = {name for parameter in commands[command].params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, line
    assert {line.split()[0] for line in lines} >= {"fit", "predict", "compare", "demo"}
    targets = matches(r"^([a-z]+):", 3, (README.parent / "Makefile").read_text())
    assert set(matches(r"^make ([a-z]+)", 3)) <= set(targets)
