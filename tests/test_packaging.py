"""What surrounds the package: one version, workflows and hooks that name what exists, release notes, templates."""

from __future__ import annotations

import ast
import os
import re
import shlex
from pathlib import Path

import pytest
import yaml

import auqadmm
from auqadmm.cli import main
from tests.docs.pages import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(p for p in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if p.name != "config.yml")
MADE = (".venv/", "dist/", "site/")  # by make, not by us
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def steps(workflow: Path) -> list[dict]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def commands(workflow: Path) -> list[str]:
    return [line for step in steps(workflow) for line in step.get("run", "").splitlines()]


def paths(words: list[str]) -> list[str]:
    """Words that are files or folders of the repository."""
    found = [word.partition("::")[0] for word in words if re.fullmatch(r"[\w.][\w./-]*(::\w+)?", word)]
    return [w for w in found if ("/" in w or w.endswith((".txt", ".md", ".toml"))) and not w.startswith(MADE)]


# ------------------------------------------------------------------ the version
def test_the_version_is_in_one_place():
    text = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in text
    assert not re.search(r"^version\s*=", text, re.MULTILINE)
    read_by_hatch = re.search(r'\[tool\.hatch\.version\]\npath = "(.*)"', text)
    assert read_by_hatch is not None
    tree = ast.parse((ROOT / read_by_hatch.group(1)).read_text())
    named = [
        n.value.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__version__"
    ]
    assert named == [auqadmm.__version__]


def test_command_and_citation_say_the_same_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"auqadmm {auqadmm.__version__}\n")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(cited["version"]) == auqadmm.__version__
    dates = re.findall(rf"^## {re.escape(auqadmm.__version__)} – (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert dates == [str(cited["date-released"])]


def test_release_notes_by_version():
    text = (ROOT / "CHANGELOG.md").read_text()
    heads = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert heads[0] == "Unreleased"
    versions = []
    for head in heads[1:]:
        match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+) – \d{4}-\d\d-\d\d", head)
        assert match is not None, head
        versions.append(tuple(int(part) for part in match.groups()))
    assert versions == sorted(versions, reverse=True)
    kinds = set(re.findall(r"^### (.*)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


# ------------------------------------------------------------------ the package
def test_types_are_shipped():
    assert (Path(auqadmm.__file__).parent / "py.typed").is_file()


def test_every_pin_is_one_version_for_each_python():
    """A package may be pinned once for all, or once below and once from a Python on."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    pins: dict[str, list[str]] = {}
    for line in lines:
        match = re.fullmatch(r'([\w.-]+)==([\w.]+)( ; python_version (<|>=) "3\.11")?', line)
        assert match is not None, line
        pins.setdefault(match.group(1).lower().replace("_", "-"), []).append(match.group(4) or "all")
    for name, whens in pins.items():
        assert whens in (["all"], [">=", "<"], [">="], ["<"]), name  # the last two: needed by some only
    text = (ROOT / "pyproject.toml").read_text()
    needed = re.search(r"\ndependencies = \[(.*?)\]\n\n\[project.scripts", text, re.DOTALL)
    assert needed is not None
    for name in re.findall(r'"([\w-]+)(?:\[[\w,]*\])?[<>=]=', needed.group(1)):
        assert name in pins, f"{name} of pyproject.toml has no pin in constraints.txt"


# ------------------------------------------------------------------ workflows, hooks, templates
def test_there_is_a_workflow_for_tests_documentation_and_releases():
    assert [path.stem for path in WORKFLOWS] == ["docs", "release", "tests"]
    tests = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    assert tests["jobs"]["tests"]["strategy"]["matrix"]["python"] == ["3.10", "3.11", "3.12", "3.13"]
    # YAML 1.1 reads the key `on` as true
    assert tests[True]["workflow_dispatch"]["inputs"]["gpu"]["default"] is False
    assert "inputs.gpu" in tests["jobs"]["gpu"]["if"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_what_exists(workflow):
    found = commands(workflow)
    assert found
    for line in found:
        words = shlex.split(line)
        if words[0] == "make":
            assert set(words[1:]) <= TARGETS, line
        for path in paths(words):
            assert (ROOT / path).exists(), line
        if words[0].startswith("tools/"):
            assert os.access(ROOT / words[0], os.X_OK), line
    for step in steps(workflow):
        assert ("uses" in step) != ("run" in step)
        inputs = step.get("with", {})
        for key in ("cache-dependency-path", "path"):
            path = inputs.get(key, "constraints.txt")
            assert (ROOT / path).exists() or f"{path}/" in MADE, path
    triggers = yaml.safe_load(workflow.read_text())[True]
    for path in (triggers.get("pull_request") or {}).get("paths", []):
        assert (ROOT / path).exists(), path


def test_make_names_files_that_exist():
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    assert set(phony.group(1).split()) == TARGETS
    for path in re.findall(r"(?:tests|tools)/[\w/]+\.(?:py|sh)", text):
        assert (ROOT / path).exists(), path
    for file, test in re.findall(r"(tests/[\w/]+\.py)::(\w+)", text):
        assert f"def {test}(" in (ROOT / file).read_text(), test
    for line in (ROOT / ".ci" / "run").read_text().splitlines():
        if line.startswith("make "):
            assert set(line.split()[1:]) <= TARGETS, line


def test_hooks_are_the_projects_own_tools():
    text = (ROOT / "pyproject.toml").read_text()
    for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]:
        assert repo["repo"] == "local"  # nothing is fetched
        for hook in repo["hooks"]:
            assert hook["language"] == "system"
            program = hook["entry"].split()[0]
            assert program.startswith(".venv/bin/")
            assert f'"{program.removeprefix(".venv/bin/")}>=' in text


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.name)
def test_issue_forms(form):
    told = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= set(told)
    ids = [part["id"] for part in told["body"]]
    assert len(set(ids)) == len(ids)
    for part in told["body"]:
        assert part["type"] in ("textarea", "input", "dropdown", "checkboxes", "markdown")
        assert part["attributes"]["label"]


def test_the_change_template_names_what_exists():
    text = (ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md").read_text()
    for target in re.findall(r"`make ([\w-]+)`", text):
        assert target in TARGETS
    for page in re.findall(r"\b[A-Z]+\.md\b", text):
        assert (ROOT / page).exists()
