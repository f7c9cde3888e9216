"""Every public name says what it takes, gives and raises, and its examples run as printed."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import textwrap

import numpy as np
import pytest

import auqadmm as aq
from tests.docs.pages import DOCS

PROBLEM = {"part"}  # the rest of Problem's functions belong to the engines


def _found(name):
    found = aq
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _public():
    """Names of the reference page, which test_site.py holds against aq.__all__, and the functions of their classes."""
    names = {}
    for name in re.findall(r"^::: auqadmm\.([\w.]+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE):
        names[name] = found = _found(name)
        if name in ("Problem", "Result", "Certificate", "History") or name.startswith("Consensus"):
            names |= {
                f"{name}.{key}": member for key, member in _functions(found) if name != "Problem" or key in PROBLEM
            }
    return names


def _inner():
    """Callables of public modules (`aq.methods`, …) that the reference page does not show, if they have examples."""
    modules = {name: getattr(aq, name) for name in aq.__all__ if inspect.ismodule(getattr(aq, name))}
    names = {f"{module}.{name}": getattr(found, name) for module, found in modules.items() for name in found.__all__}
    shown = {id(found) for found in PUBLIC.values()}
    return {
        name: found
        for name, found in names.items()
        if callable(found) and id(found) not in shown and ">>>" in (found.__doc__ or "")
    }


def _functions(kind):
    """Functions of a class that are the package's own, inherited ones included."""
    for key in dir(kind):
        member = inspect.getattr_static(kind, key)
        member = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        if not key.startswith("_") and inspect.isfunction(member) and member.__module__.startswith("auqadmm."):
            yield key, member


PUBLIC = _public()
INNER = _inner()


def sections(text):
    return set(re.findall(r"^([A-Z][\w ]+)\n-{3,}$", inspect.cleandoc(text), re.MULTILINE))


def parameters(found):
    if inspect.isclass(found) and issubclass(found, Exception | aq.Status):
        return []
    return [name for name in inspect.signature(found).parameters if name != "self"]


def raises(found):
    """Does the function, or what makes an object of the class, hold a `raise`?"""
    makers = [found]
    if inspect.isclass(found):
        makers = [vars(found)[name] for name in ("__init__", "__post_init__") if name in vars(found)]
    for maker in makers:
        try:
            source = textwrap.dedent(inspect.getsource(maker))
        except OSError:  # written by dataclass
            continue
        if any(isinstance(node, ast.Raise) for node in ast.walk(ast.parse(source))):
            return True
    return False


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_says_what_it_takes_and_gives(name):
    found = PUBLIC[name]
    told = sections(found.__doc__ or "")
    if parameters(found):
        assert told & {"Parameters", "Attributes"}
    if inspect.isfunction(found) and found.__annotations__.get("return") not in (None, "None"):
        assert "Returns" in told
    if raises(found):
        assert "Raises" in told
    assert "Examples" in told


@pytest.mark.parametrize("name", PUBLIC)
def test_every_parameter_is_named(name):
    found = PUBLIC[name]
    named = set()
    for head in re.findall(r"^(\w[^\n:]*?)(?: :[^\n]*)?$(?=\n    |\n\w|\n\n|\Z)", _body(found.__doc__), re.MULTILINE):
        named |= {word.strip().lstrip("*") for word in head.split(",")}
    assert set(parameters(found)) <= named


def _body(text):
    """What stands below Parameters and Attributes."""
    parts = re.split(r"^([A-Z][\w ]+)\n-{3,}\n", inspect.cleandoc(text), flags=re.MULTILINE)
    return "\n".join(parts[i + 1] for i in range(1, len(parts), 2) if parts[i] in ("Parameters", "Attributes"))


@pytest.mark.parametrize("name", ["", *PUBLIC, *INNER])
def test_examples_run_as_printed(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {"": aq, **PUBLIC, **INNER}[name]
    test = doctest.DocTestParser().get_doctest(found.__doc__, {}, name, None, None)
    assert test.examples
    told: list[str] = []
    with np.printoptions(precision=4, suppress=True, linewidth=100):
        failed, _ = doctest.DocTestRunner(verbose=False).run(test, out=told.append)
    assert not failed, "".join(told)
