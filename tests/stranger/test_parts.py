"""Parts of somebody else's, made of public names: every conformance suite passes on them."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import auqadmm as aq
from auqadmm import testing
from auqadmm.testing import EngineTests, LossSuite, MethodSuite, RegularizerSuite
from tests.stranger.stranger_parts.coupled_loss import Within
from tests.stranger.stranger_parts.engine import Threads
from tests.stranger.stranger_parts.method import Jacobi
from tests.stranger.stranger_parts.regularizer import Lopsided
from tests.stranger.stranger_parts.row_loss import LogCosh

FILES = sorted((Path(__file__).parent / "stranger_parts").glob("*.py"))
CLAIMS = ("concordance", "bend")
LONGEST = 40  # lines that are not blank


class TestLogCosh(LossSuite):
    loss = LogCosh()


class Bare(LogCosh):
    """Without what a loss may leave out."""

    row_conjugate, concordance, bend = (getattr(aq.losses.RowLoss, name) for name in ("row_conjugate", *CLAIMS))


class TestBare(LossSuite):
    loss = Bare()


class TestWithin(LossSuite):
    loss = Within()
    coupled = True


class TestLopsided(RegularizerSuite):
    regularizer = Lopsided(0.4, 0.7)


class TestJacobi(MethodSuite):
    method = Jacobi()


class TestJacobiRelaxed(MethodSuite):
    method = Jacobi(relaxation=1.6)


class TestThreads(EngineTests):
    engine = Threads


def test_pytest_collects_every_law(request):
    collected = [item.nodeid.split("::")[1] for item in request.session.items if "test_parts.py" in item.nodeid]
    for cls in (TestLogCosh, TestLopsided, TestJacobi, TestThreads):
        if cls.__name__ in collected and not request.config.option.keyword:
            assert collected.count(cls.__name__) == len(cls().checks()), cls
    assert len(TestThreads().checks()) == len(testing.EngineSuite("local").checks())


# ---------------------------------------------------------------------- public names alone, and few lines
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_part_is_short(path):
    assert sum(bool(line.strip()) for line in path.read_text().splitlines()) <= LONGEST


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_part_uses_public_names_alone(path):
    others = {"torch", "numpy", *sys.stdlib_module_names}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert all((n.name, n.asname) == ("auqadmm", "aq") or n.name.split(".")[0] in others for n in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            if node.module == "auqadmm.testing":
                assert {n.name for n in node.names} <= set(testing.__all__)
            else:
                assert node.module.split(".")[0] in others
        elif isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_") or node.attr == "__init__", node.attr
            assert_public(names(node))


def names(node):
    """`aq.losses.Loss` as ["aq", "losses", "Loss"]; nothing for what hangs on something else."""
    if isinstance(node, ast.Name):
        return [node.id]
    found = names(node.value) if isinstance(node, ast.Attribute) else []
    return [*found, node.attr] if found else []


def assert_public(path):
    if path[:1] != ["aq"]:
        return
    where = aq
    for name in path[1:]:
        if not hasattr(where, "__all__"):  # a class: its attributes were looked at
            return
        assert name in where.__all__, ".".join(path)
        where = getattr(where, name)


def test_what_counts_as_public():
    with pytest.raises(AssertionError):
        assert_public(["aq", "core", "solve"])
    with pytest.raises(AssertionError):
        assert_public(["aq", "losses", "times"])
