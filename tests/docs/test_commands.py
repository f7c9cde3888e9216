"""The page of commands is the one that the parser makes, and names all that the parser knows."""

from __future__ import annotations

import importlib.util

from typer.main import get_command

from auqadmm.cli import app
from tests.docs.pages import ROOT


def _module(path):
    spec = importlib.util.spec_from_file_location("auqadmm_commands", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


commands = _module(ROOT / "tools" / "commands.py")


def test_the_page_agrees_with_the_parser():
    assert commands.PAGE.read_text(encoding="utf-8") == commands.page(), "run `python tools/commands.py --write`"


def test_every_command_and_option_is_on_the_page():
    text = commands.page()
    group = get_command(app)
    for name, command in group.commands.items():
        section = text.split(f"\n## auqadmm {name}\n")[1].split("\n## ")[0]
        for parameter in command.params:
            if parameter.name not in commands.SKIPPED and parameter.param_type_name == "option":
                assert all(f"`{option}`" in section for option in (*parameter.opts, *parameter.secondary_opts))
                assert parameter.help.replace("|", "\\|") in section


def test_types_defaults_and_limits_are_told():
    text = commands.page()
    assert "| `--l2` | number ≥ 0 | `0.001` |" in text
    assert "| `--intercept`, `--no-intercept` | flag | `--intercept` |" in text
    assert "| `FILE…` | paths | required |" in text


def test_a_page_that_disagrees_is_told_and_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(commands, "PAGE", tmp_path / "commands.md")
    assert commands.main(["--check"]) == 1
    assert "disagrees with the parser" in capsys.readouterr().out
    assert commands.main(["--write"]) == 0
    assert commands.main(["--check"]) == 0
