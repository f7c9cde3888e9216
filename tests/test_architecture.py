"""Every room is listed here with the rooms it may import; a room that is not listed fails, and so does a cycle."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "auqadmm"

# From the ground up: a room may import the rooms it names. Single files of the package are rooms too.
MAY_IMPORT: dict[str, set[str]] = {
    "words": set(),
    "errors": set(),
    "runtime": set(),
    "checks": {"errors"},
    "metrics": {"errors", "runtime"},
    "core": {"checks", "errors", "metrics"},
    "verdict": {"core", "metrics"},
    "checkpoint": {"checks", "core", "errors", "verdict"},
    "diagnosis": {"core", "metrics", "verdict"},
    "blocks": {"errors", "metrics", "runtime"},
    "problem": {"blocks", "checks", "errors"},
    "inference": {"blocks", "core", "errors", "metrics", "problem", "verdict"},
    "quality": {"blocks", "core", "errors", "inference", "problem", "words"},
    "loop": {"checkpoint", "core", "diagnosis", "errors", "inference", "metrics", "verdict"},
    "columns": {"core", "metrics", "problem", "verdict"},
    "curvature": {"blocks", "checks", "core", "errors", "metrics"},
    "local": {"blocks", "checks", "errors", "metrics", "runtime"},
    "methods": {
        "baselines", "blocks", "checks", "columns", "core", "curvature", "errors", "loop", "metrics", "problem",
        "verdict",
    },
    "baselines": {"checks", "core", "curvature", "errors", "local", "methods", "metrics", "problem"},
    "engines": {"blocks", "checkpoint", "checks", "core", "errors", "problem"},
    "callbacks": {"checks", "columns", "core", "diagnosis", "errors", "loop", "words"},
    "states": {
        "auqadmm", "baselines", "blocks", "checkpoint", "columns", "core", "curvature", "local", "methods",
        "metrics", "problem", "verdict",
    },
    "api": {
        "baselines", "blocks", "checkpoint", "checks", "columns", "core", "engines", "errors", "inference", "local",
        "loop", "methods", "problem", "quality", "states", "verdict",
    },
    "estimators": {
        "api", "blocks", "callbacks", "checks", "core", "engines", "errors", "inference", "loop", "methods", "metrics",
        "problem", "quality",
    },
    "losses": {"blocks", "problem"},
    "regularizers": {"problem"},
    "weights": {"metrics"},
    "testing": {
        "api", "baselines", "blocks", "checkpoint", "core", "engines", "local", "loop", "methods", "metrics",
        "problem",
    },
    "formula": {"errors", "problem", "words"},
    "files": {"blocks", "checkpoint", "formula", "loop", "problem", "quality", "words"},
    "frames": {"api", "core", "files", "formula", "inference", "loop", "problem", "words"},
    "comparison": {"api", "baselines", "blocks", "core", "engines", "loop", "methods", "problem", "verdict"},
    "report": {"auqadmm", "comparison", "core", "files", "inference", "quality", "words"},
    "sites": {
        "auqadmm", "blocks", "checkpoint", "checks", "columns", "core", "engines", "errors", "files", "formula",
        "problem", "quality", "report", "words",
    },
    "paper": {
        "api", "auqadmm", "checks", "comparison", "core", "curvature", "engines", "errors", "files", "loop", "methods",
        "metrics", "problem", "report", "verdict",
    },
    "cli": {
        "api", "auqadmm", "baselines", "callbacks", "checkpoint", "comparison", "core", "engines", "errors",
        "files", "formula", "frames", "inference", "loop", "methods", "paper", "problem", "quality", "report", "sites",
        "words",
    },
}  # fmt: skip
LOOP = {"core.solve", "core.record", "core.result"}  # core's upper floor: the loop itself
EVERYTHING = {"auqadmm", "__main__"}  # the names of all rooms
# Pairs that know each other: files within them must not be circular all the same.
MUTUAL = [{"baselines", "methods"}]
FILES = sorted(SRC.rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "auqadmm"


MODULES = {module_of(path) for path in FILES}


def room_of(module: str) -> str:
    return "loop" if module in LOOP else module.split(".")[0]


@cache
def imports(path: Path) -> tuple[tuple[str, bool, bool], ...]:
    """Modules that a file imports, but for types alone: the name, is it needed when the file is loaded, is it ours."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, bool, bool]]:
    tree = ast.parse(path.read_text())
    top = {id(node) for node in tree.body}
    types = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    only_types = {id(inner) for node in types for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in only_types:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                name = full if full.removeprefix("auqadmm.") in MODULES else node.module
                yield _named(name, id(node) in top)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield _named(alias.name, id(node) in top)


def _named(name: str, top: bool) -> tuple[str, bool, bool]:
    return name.removeprefix("auqadmm."), top, name == "auqadmm" or name.startswith("auqadmm.")


def test_every_room_is_listed() -> None:
    assert {room_of(module) for module in MODULES} - EVERYTHING == set(MAY_IMPORT)
    assert LOOP <= MODULES


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(SRC)) for p in FILES])
def test_rooms_import_what_they_may(path: Path) -> None:
    here = room_of(module_of(path))
    if here in EVERYTHING:
        return
    for name, _, ours in imports(path):
        there = room_of(name)
        assert not ours or there == here or there in MAY_IMPORT[here], f"{path.name} imports {name}"


def test_rooms_that_are_listed_are_used() -> None:
    """The list says no more than is so: a room that is imported no longer is taken out."""
    used: dict[str, set[str]] = {room: set() for room in MAY_IMPORT}
    for path in FILES:
        here = room_of(module_of(path))
        if here not in EVERYTHING:
            used[here] |= {room_of(name) for name, _, ours in imports(path) if ours} - {here}
    assert used == MAY_IMPORT


def test_rooms_are_in_storeys() -> None:
    """Without the pairs that know each other, every room imports only rooms listed before it."""
    order = list(MAY_IMPORT)
    for room, others in MAY_IMPORT.items():
        for other in others - EVERYTHING:
            lower = order.index(other) < order.index(room)
            assert lower or {room, other} in MUTUAL, f"{room} imports {other}"


def test_no_file_needs_itself() -> None:
    """Files that are loaded with a file do not load it again: an order exists."""
    needs = {module_of(p): {n for n, top, ours in imports(p) if top and ours and n in MODULES} for p in FILES}
    done: set[str] = set()
    while ready := {m for m, others in needs.items() if m not in done and others - {m} <= done}:
        done |= ready
    packages = {m for m in needs if f"{m}." in " ".join(needs)}  # whose __init__ names its own files
    assert needs.keys() - done - packages == set()


def test_the_library_never_imports_the_paper() -> None:
    assert [room for room, others in MAY_IMPORT.items() if "paper" in others] == ["cli"]


def test_the_core_needs_torch_and_the_standard_library_only() -> None:
    allowed = {"torch", "numpy"} | set(sys.stdlib_module_names)
    rooms = {"core", "metrics", "verdict", "checkpoint", "diagnosis", "runtime"}
    for path in FILES:  # a function may import what it alone needs, with an install hint
        outside = {name.split(".")[0] for name, top, ours in imports(path) if top and not ours}
        assert module_of(path).split(".")[0] not in rooms or outside <= allowed, path


def test_only_figures_know_matplotlib_and_only_the_cli_prints() -> None:
    for path in FILES:
        room = path.relative_to(SRC).parts[0]
        names = {name.split(".")[0] for name, _, ours in imports(path) if not ours}
        assert room in ("report", "paper", "inference") or "matplotlib" not in names, path
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        assert room == "cli" or not any(getattr(c.func, "id", "") == "print" for c in calls), path


def test_importing_the_package_is_light() -> None:
    """The core runs with torch, numpy and scipy alone: no plotting, no scikit-learn, no command line."""
    code = (
        "import sys, auqadmm;"
        "heavy = {'matplotlib', 'sklearn', 'rich', 'typer', 'pandas', 'httpx', 'starlette', 'uvicorn', 'cryptography'};"
        "heavy &= set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
