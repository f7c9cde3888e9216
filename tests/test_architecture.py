"""Imports point one way: core ← problem ← (methods, baselines, …) ← api ← experiments ← report ← cli."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "auqadmm"
LAYERS = ["core", "problem", "parts", "api", "estimators", "experiments", "report", "cli"]
LAYER = {
    "methods": "parts",
    "baselines": "parts",
    "curvature": "parts",
    "local": "parts",
    "engines": "parts",
    "errors": "core",
}


def layer(module: str) -> str:
    name = module.split(".")[1] if "." in module else ""
    return LAYER.get(name, name if name in LAYERS else "api")


def imports(path: Path, tops_only: bool = False) -> list[str]:
    found = []
    tree = ast.parse(path.read_text())
    for node in tree.body if tops_only else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{a.name}" for a in node.names] if node.module == "auqadmm" else [node.module]
            found += names
        elif isinstance(node, ast.Import):
            found += [a.name for a in node.names]
    return found


FILES = sorted(SRC.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(SRC)) for p in FILES])
def test_imports_point_one_way(path):
    parts = path.relative_to(SRC).with_suffix("").parts
    if parts in (("__main__",), ("__init__",)):  # the names of all rooms, lazily
        return
    here = LAYERS.index(layer("auqadmm." + ".".join(parts)))
    for name in imports(path):
        if name.startswith("auqadmm."):
            assert LAYERS.index(layer(name)) <= here, f"{path.name} imports {name}"


def test_the_core_needs_torch_and_the_standard_library_only():
    allowed = {"torch", "auqadmm", "numpy"} | set(sys.stdlib_module_names)
    for path in (SRC / "core").glob("*.py"):
        names = imports(path, tops_only=True)  # a function may import what it alone needs, with an install hint
        assert {name.split(".")[0] for name in names} <= allowed, path.name


def test_only_the_report_knows_matplotlib_and_only_the_cli_prints():
    for path in FILES:
        room = path.relative_to(SRC).parts[0]
        names = {name.split(".")[0] for name in imports(path)}
        assert room == "report" or "matplotlib" not in names, path
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        assert room == "cli" or not any(getattr(c.func, "id", "") == "print" for c in calls), path


def test_importing_the_package_is_light():
    """The core runs with torch, numpy and scipy alone: no plotting, no scikit-learn, no command line."""
    code = (
        "import sys, auqadmm;"
        "heavy = {'matplotlib', 'sklearn', 'rich', 'typer', 'pandas'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
