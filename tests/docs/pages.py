"""Pages of the documentation as programs: code runs as printed, and prints what is printed below it.

```python   is executed, all blocks of a page in one namespace
```bash     is run line by line: commands of auqadmm, in this process
```text     is what the blocks above it printed; … stands for anything, on a line of its own for any lines
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from auqadmm.cli import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(python|bash|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Code:
    kind: str
    text: str
    line: int


def blocks(page: Path) -> list[Code]:
    text = page.read_text(encoding="utf-8")
    return [Code(*found.groups(), line=text[: found.start(2)].count("\n")) for found in FENCE.finditer(text)]


def execute(page: Path, capsys: Any) -> dict[str, Any]:
    """Run a page in the current folder; the namespace that its code leaves behind."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for code in blocks(page):
        if code.kind == "python":
            # line numbers of a traceback are those of the page
            exec(compile("\n" * code.line + code.text, str(page), "exec", dont_inherit=True), names)
        elif code.kind == "bash":
            for command in code.text.replace("\\\n", " ").splitlines():
                program, *arguments = shlex.split(command, comments=True)
                assert program == "auqadmm", command
                _command(arguments)
        else:
            printed += capsys.readouterr().out
            assert matches(code.text, printed), f"{page.name}, line {code.line}:\n{code.text}\nprinted:\n{printed}"
            printed = ""
    return names


def _command(arguments: list[str]) -> None:
    code = None
    try:
        main(arguments)
    except SystemExit as ended:
        code = ended.code
    assert not code, arguments


def matches(told: str, printed: str) -> bool:
    """Do the lines of `told` occur in `printed`, one below the other?"""
    parts = [r"(?:.*\n)*?" if line == "…" else _line(line) for line in told.strip("\n").splitlines()]
    return re.search("^" + "".join(parts), printed, re.MULTILINE) is not None


def _line(line: str) -> str:
    return ".*".join(map(re.escape, line.rstrip().split("…"))) + r"\s*?\n(?:\s*\n)*?"
