"""The counts of tools/house.py, on a package small enough to count by hand."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Protocol

import pytest

from tests.docs.pages import ROOT

SUM = '''
def _total(values: list[float], start: float = 0.0) -> float:
    """Words that do not count."""
    for value in values:
        if value > LIMIT:
            start = start + 2.0 * value
    return start
'''
FILES = {
    "__init__.py": """
from tiny import inner
from tiny.core.loop import Loop, run
__all__ = ["Loop", "inner", "run"]
""",
    "inner.py": '''
__all__ = ["twice"]
LIMIT = 3
def twice(x: int) -> int:
    """Doubled.

    Parameters
    ----------
    x
        A number.

    Returns
    -------
    int
    """
    return 2 * x
class Point:
    pass
''',
    "core/__init__.py": "",
    "core/loop.py": f'''
from typing import Any
import typing
from tiny.core import helper
LIMIT, MOST = -1.5, 2**20
NAMES = ("a", "b")
{SUM}
class Point:
    shard: Any = None
class Method:
    def step(self, state: Any, reduce: "Any") -> typing.Any:
        return helper.moved(state) if state % 2 else state + 1
class Loop:
    """A loop.

    Examples
    --------
    >>> 1 + 1
    2
    """
    def __init__(self, rounds: int) -> None:
        if rounds < 0:
            raise ValueError(rounds)
        self.rounds = rounds
    def go(self, shard: Any) -> "dict[str, Any]":
        return {{}}
    @property
    def done(self) -> bool:
        return True
def run(steps: int) -> None:
    state = 0
    for _ in range(steps):
        state = Method().step(state, None)
''',
    "core/helper.py": f"""
LIMIT = 9
def moved(state: int) -> int:
    return state + 1
{SUM.replace("value", "x").replace("start", "s").replace("2.0", "3.0")}
def total(xs: list[float], s: float = 0.0) -> float:
    for x in xs:
        if x > LIMIT:
            s = s + 3.0 * x
    return s
""",
}


def _module(path):
    spec = importlib.util.spec_from_file_location("auqadmm_house", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


house = _module(ROOT / "tools" / "house.py")


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    for name, text in FILES.items():
        path = tmp_path / "tiny" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "tiny"
    for name in [name for name in sys.modules if name.partition(".")[0] == "tiny"]:
        del sys.modules[name]


def test_files_lines_and_rooms(tiny):
    found = house.modules(tiny)
    assert [module.name for module in found] == sorted(FILES)
    assert sum(module.lines for module in found) == sum(len(text.splitlines()) for text in FILES.values())
    assert house.rooms(found) == {".": 2, "core": 3}
    by_name = {module.name: module for module in found}
    # inner.py: __all__, LIMIT, def, return, class, pass; 11 lines of docstring
    assert (by_name["inner.py"].code, by_name["inner.py"].docstrings) == (6, 11)
    assert (by_name["core/__init__.py"].code, by_name["core/__init__.py"].docstrings) == (0, 0)
    lines = len(FILES["inner.py"].splitlines())
    size = f"1 files, {lines} lines: 6 of code, 11 of docstrings, {lines - 17} of comments or blank"
    assert house.size([by_name["inner.py"]]) == size


def test_lines_of_code():
    text = '"""Title."""\n\nX = """a\n\nb"""  # 3\n# none\n\ndef f():\n    "Doc."\n    return (\n        X\n    )\n'
    told = house.docstring_lines(house.ast.parse(text))
    assert told == {1, 9}
    assert house.code_lines(text) - told == {3, 4, 5, 8, 10, 11, 12}


def test_annotations(tiny):
    # loop.py: _total 3, Point 1, step 3, __init__ 2, go 2, done 1, run 2; helper.py: 2 + 3 + 3; inner.py: 2
    told = house.count_any(house.modules(tiny))
    # bare: Point.shard, the three of step, the shard of go; dict[str, Any] contains it
    assert told == {"all": 24, "contain": 6, "bare": 5, "shard": 2}


def test_names_that_repeat(tiny):
    found = house.modules(tiny)
    assert house.repeated_classes(found) == {"Point": ["core/loop.py", "inner.py"]}
    count, again = house.repeated_constants(found)
    assert count == 4  # LIMIT three times, MOST
    assert again == {"LIMIT": ["core/helper.py", "core/loop.py", "inner.py"]}


def test_helpers_that_repeat(tiny):
    found = house.modules(tiny)
    known = house.bodies(found)
    assert house.copied_helpers(known) == {"_total": ["core/helper.py:_total", "core/loop.py:_total"]}
    assert house.repeated_private(found) == {"_total": ["core/helper.py", "core/loop.py"]}
    assert house.renamed_helpers(known) == {"_total = total": ["core/helper.py:_total", "core/helper.py:total"]}


def test_docstrings(tiny):
    told = {one.name: one for one in house.public(importlib.import_module("tiny"))}
    assert set(told) == {"Loop", "Loop.go", "inner.twice", "run"}
    assert told["Loop"].wanted == {"Parameters", "Raises", "Examples"}
    assert told["Loop"].has == {"Examples"}
    assert told["Loop.go"].wanted == {"Parameters", "Returns"}
    assert (told["inner.twice"].wanted, told["inner.twice"].inner) == (told["inner.twice"].has, True)
    assert told["run"].wanted == {"Parameters", "Examples"}


def test_a_method_is_documented_where_it_is_defined_first():
    class Shape(Protocol):
        def area(self) -> float: ...

    class Named:
        def name(self) -> str:
            return "square"

    class Square(Named):
        """A square.

        Attributes
        ----------
        side
            Its length.
        """

        def __init__(self, side: float) -> None:
            self.side = side

        def area(self) -> float:
            return self.side**2

        def name(self) -> str:
            return "mine"

        def half(self) -> float:
            return self.side / 2

    known = house.defined_elsewhere(Square, __name__, [Shape])
    assert {"area", "name"} <= known
    assert "half" not in known
    assert house.documented("Shape", Shape).wanted == frozenset()  # nobody constructs a protocol
    assert house.documented("Square", Square).has == {"Parameters"}


def test_files_that_a_step_enters(tiny):
    run = importlib.import_module("tiny").run
    steps = house.profiled(tiny, lambda: run(4))
    assert [sorted(step.step) for step in steps] == [["core/loop.py"], ["core/helper.py", "core/loop.py"]] * 2
    assert sys.getprofile() is None


@pytest.mark.campaign
def test_the_page_of_the_library_is_short(capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # `main` puts the package's folder there
    house.main([])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 60
    files = len(list((ROOT / "src" / "auqadmm").rglob("*.py")))
    assert lines[0].startswith(f"auqadmm: {files} files, ")
    later = sum(1 for room in house.LATER for _ in (ROOT / "src" / "auqadmm" / room).rglob("*.py"))
    assert lines[1].startswith(f"the solver's rooms: {files - later} files, ")
    for method in house.METHODS:
        assert any(line.split()[:1] == [method] and int(line.split()[1]) > 3 for line in lines)
