"""docs/commands.md, made from the parser of the command line.

python tools/commands.py --write      make the page anew
python tools/commands.py --check      the exit status is 1 if the page disagrees with the parser
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from typer.main import get_command

from auqadmm.cli import app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
WIDTH = 118
HEAD = """\
<!-- made by `python tools/commands.py --write` -->

# Commands

Everything that `auqadmm` does at a prompt. `auqadmm COMMAND --help` says the same on the screen, and
`python -m auqadmm` is another name for `auqadmm`.
"""
SKIPPED = ("help", "install_completion", "show_completion")  # typer's own, the same for every program
NAMES = {str: "text", int: "whole number", float: "number", bool: "flag", Path: "path"}


def page() -> str:
    """The page as it should be."""
    group: Any = get_command(app)
    common = app.registered_callback
    parts = [HEAD, _filled(inspect.cleandoc(group.help or ""))]
    assert common is not None
    assert common.callback is not None
    parts.append(_options(group.params, common.callback))
    called = {command.name: command.callback for command in app.registered_commands}
    for name, command in group.commands.items():
        function = called[name]
        assert function is not None
        parts += [f"## auqadmm {name}\n", f"```\n{_usage(name, command)}\n```\n", _filled(command.help or "")]
        parts.append(_options(command.params, function))
        if command.epilog:
            parts.append(_filled(inspect.cleandoc(command.epilog)))
    return "\n".join(parts)


def _usage(name: str, command: Any) -> str:
    """Arguments, then what must be given, then the rest."""
    words = [f"auqadmm {name}"]
    words += [_argument(p) for p in command.params if p.param_type_name == "argument"]
    words += [f"{p.opts[0]} {p.name.upper()}" for p in command.params if p.param_type_name == "option" and p.required]
    return " ".join([*words, "[OPTIONS]"])


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name).upper().rstrip(".")
    name += "…" if parameter.nargs == -1 else ""
    return name if parameter.required else f"[{name}]"


def _options(parameters: Iterable[Any], function: Callable[..., Any]) -> str:
    """One table per group of options, in the order in which groups are met; arguments first."""
    hints = get_type_hints(function, include_extras=True)
    panels: dict[str, list[str]] = {}
    for parameter in parameters:
        if parameter.name in SKIPPED or getattr(parameter, "hidden", False):
            continue
        argument = parameter.param_type_name == "argument"
        panel = "Arguments" if argument else parameter.rich_help_panel or "Options"
        panels.setdefault(panel, []).append(_row(parameter, hints.get(parameter.name), argument))
    made = []
    for panel in sorted(panels, key=lambda name: name != "Arguments"):
        title = "argument" if panel == "Arguments" else f"option: {panel.lower()}" if panel != "Options" else "option"
        made.append("\n".join([f"| {title} | takes | by default | |", "|---|---|---|---|", *panels[panel], ""]))
    return "\n".join(made)


def _row(parameter: Any, hint: Any, argument: bool) -> str:
    spelled = [_argument(parameter)] if argument else [*parameter.opts, *parameter.secondary_opts]
    names = ", ".join(f"`{name}`" for name in spelled)
    return f"| {names} | {_type(hint)} | {_default(parameter)} | {_cell(getattr(parameter, 'help', None) or '')} |"


def _type(hint: Any) -> str:
    """Of an annotation: the name of its type, and the least value where there is one."""
    least = next((x.min for x in getattr(hint, "__metadata__", ()) if getattr(x, "min", None) is not None), None)
    bare = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    if get_origin(bare) in (Union, types.UnionType):
        bare = next(part for part in get_args(bare) if part is not type(None))
    many = get_origin(bare) in (list, tuple)
    bare = get_args(bare)[0] if many else bare
    name = NAMES.get(bare, getattr(bare, "__name__", str(bare)))
    return name + ("s" if many else "") + ("" if least is None else f" ≥ {least:g}")


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or value == "" or (value is False and not parameter.secondary_opts):
        return ""
    if isinstance(value, bool):
        return f"`{(parameter.opts if value else parameter.secondary_opts)[0]}`"
    return f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _filled(text: str) -> str:
    """Paragraphs with short lines; examples, which are code, become a block of code."""
    made: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        line = " ".join(paragraph.split())
        if re.fullmatch(r"`[^`]+`", line):
            code = line.strip("`")
            if made and made[-1].endswith("\n```"):
                made[-1] = f"{made[-1][:-4]}\n{code}\n```"
            else:
                made.append(f"```\n{code}\n```")
        else:
            made.append("\n".join(textwrap.wrap(line, WIDTH, break_long_words=False, break_on_hyphens=False)))
    return "\n\n".join(made) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true")
    what.add_argument("--check", action="store_true")
    given = parser.parse_args(arguments)
    made = page()
    if given.write:
        PAGE.write_text(made, encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != made:
        print(f"docs/{PAGE.name} disagrees with the parser; run `python tools/commands.py --write`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
