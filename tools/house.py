"""Counts that say how the source is doing: its size, its repetitions, how much of it one iteration enters.

    python tools/house.py           a page of numbers (`make house`)
    python tools/house.py -v        the same with every name and file behind them

Nothing here passes or fails: the exit status is 0 whatever the numbers are. Everything but the profile and the
docstrings is read from the sources, without importing them.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import enum
import importlib
import inspect
import io
import sys
import textwrap
import tokenize
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
METHODS = ("c-admm", "auq-lr", "newton", "lbfgs")
LATER = ("formula", "inference", "quality", "sites")  # rooms that are no part of the solver
SECTIONS = ("Parameters", "Returns", "Raises", "Examples")
SMALLEST = 20  # words of a function's tree; below that a like body is chance or a protocol's one-liner
ALIKE = 0.85  # share of two trees that must match, as difflib counts it
WIDTH = 118
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}

Def = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    name: str  # path below the package, "core/solve.py"
    lines: int
    code: int  # without blank lines, comments and docstrings
    docstrings: int
    tree: ast.Module = field(repr=False)


def modules(package: Path) -> list[Module]:
    """Every .py file of a package."""
    files = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        docstrings = docstring_lines(tree)
        code = len(code_lines(text) - docstrings)
        files.append(Module(path.relative_to(package).as_posix(), len(text.splitlines()), code, len(docstrings), tree))
    return files


def docstring_lines(tree: ast.Module) -> set[int]:
    """Lines that docstrings take, quotes and blank lines in them included."""
    taken: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, Def)) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            taken.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return taken


def code_lines(text: str) -> set[int]:
    """Lines with anything but spaces and comments on them; all lines of a text over several lines."""
    taken: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            taken.update(range(token.start[0], token.end[0] + 1))
    return taken


def room(module: Module) -> str:
    """The folder below the package; "." for files of the package itself."""
    return module.name.partition("/")[0] if "/" in module.name else "."


def rooms(found: Iterable[Module]) -> Counter[str]:
    """Files per room."""
    return Counter(map(room, found))


def size(found: Sequence[Module]) -> str:
    """Files and lines in words; what is neither code nor docstring is a comment or blank."""
    lines = sum(module.lines for module in found)
    code, docstrings = sum(module.code for module in found), sum(module.docstrings for module in found)
    other = lines - code - docstrings
    return (
        f"{len(found)} files, {lines} lines: {code} of code, {docstrings} of docstrings, {other} of comments or blank"
    )


# ------------------------------------------------------------------ annotations
def annotated(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Every annotation with the name it stands at; "return" for what a function returns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield node.arg, node.annotation
        elif isinstance(node, Def) and node.returns is not None:
            yield "return", node.returns
        elif isinstance(node, ast.AnnAssign):
            target = node.target
            yield target.id if isinstance(target, ast.Name) else getattr(target, "attr", ""), node.annotation


def is_any(node: ast.expr) -> bool:
    return ast.unparse(node).strip("'\"") in ("Any", "typing.Any")


def contains_any(node: ast.AST) -> bool:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):  # an annotation written as text
            try:
                part = ast.parse(part.value, mode="eval").body
            except SyntaxError:  # e.g. the words of Annotated[...]
                continue
            if any(isinstance(inner, ast.Name) and inner.id == "Any" for inner in ast.walk(part)):
                return True
        if "Any" in (getattr(part, "id", None), getattr(part, "attr", None)):
            return True
    return False


def count_any(found: Iterable[Module]) -> dict[str, int]:
    """How many annotations there are, contain Any, are nothing but Any; how many of these are `shard: Any`."""
    told: Counter[str] = Counter({"all": 0, "contain": 0, "bare": 0, "shard": 0})
    for module in found:
        for name, node in annotated(module.tree):
            told["all"] += 1
            told["contain"] += contains_any(node)
            told["bare"] += is_any(node)
            told["shard"] += name == "shard" and is_any(node)
    return dict(told)


# ------------------------------------------------------------------ names
def several(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Names with the places they stand at, where these are two or more."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, place in pairs:
        places[name].append(place)
    return {name: at for name, at in sorted(places.items()) if len(at) > 1}


def repeated_classes(found: Iterable[Module]) -> dict[str, list[str]]:
    return several(
        (node.name, module.name) for module in found for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)
    )


def is_number(node: ast.expr | None) -> bool:
    """A number, or arithmetic on numbers and other constants: 1e-3, -2, 5 * MIB, 2**20, float("inf")."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return all(is_number(side) or isinstance(side, ast.Name) for side in (node.left, node.right))
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "float"


def constants(tree: ast.Module) -> Iterator[str]:
    """Names in capitals that the top level of a module gives to a number, or to several at once."""
    for node in tree.body:
        pairs: list[tuple[ast.expr, ast.expr | None]] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple):
                    values = node.value.elts if isinstance(node.value, ast.Tuple) else [None] * len(target.elts)
                    # A, B = range(2): numbers as well
                    pairs += [(t, v or ast.Constant(0)) for t, v in zip(target.elts, values, strict=True)]
                else:
                    pairs.append((target, node.value))
        elif isinstance(node, ast.AnnAssign):
            pairs.append((node.target, node.value))
        for target, value in pairs:
            if isinstance(target, ast.Name) and target.id.strip("_").isupper() and is_number(value):
                yield target.id


def repeated_constants(found: Sequence[Module]) -> tuple[int, dict[str, list[str]]]:
    """How many numeric constants there are, and the names that more than one module defines."""
    pairs = [(name, module.name) for module in found for name in constants(module.tree)]
    return len(pairs), several(sorted(set(pairs)))


# ------------------------------------------------------------------ functions
def functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, Def, bool]]:
    """Functions of a module and methods of its classes: name with class, tree, whether it is a method."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Def):
            yield f"{inside}{node.name}", node, bool(inside)
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{inside}{node.name}.")


def normalised(function: Def) -> tuple[str, ...]:
    """Kinds of nodes, names of attributes and constants of a function, in order; variables are numbered as they appear.

    What two copies share, whatever their variables, annotations and docstrings are.
    """
    numbers: dict[str, int] = {}
    words: list[str] = []
    todo: list[ast.AST] = [*reversed(function.body[ast.get_docstring(function) is not None :]), function.args]
    while todo:
        node = todo.pop()
        words.append(type(node).__name__)
        if isinstance(node, ast.expr_context):
            words.pop()  # read or written: it says nothing that the place does not
        elif isinstance(node, ast.Name):
            words.append(f"x{numbers.setdefault(node.id, len(numbers))}")
        elif isinstance(node, ast.arg):
            words.append(f"x{numbers.setdefault(node.arg, len(numbers))}")
            continue  # without its annotation
        elif isinstance(node, ast.AnnAssign):
            words[-1] = "Assign"
            todo += [part for part in (node.value, node.target) if part is not None]
            continue
        for name in ("attr", "value", "name", "arg"):
            value = getattr(node, name, None)
            if value is not None and not isinstance(value, ast.AST):
                words.append(repr(value))
        todo += reversed(list(ast.iter_child_nodes(node)))
    return tuple(words)


def only_stores(function: Def) -> bool:
    """Nothing but `self.x = x`, as scikit-learn asks of a constructor."""
    return all(
        isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Attribute) and isinstance(line.value, ast.Name)
        for line in function.body[ast.get_docstring(function) is not None :]
    )


@dataclass(frozen=True)
class Body:
    name: str
    place: str
    words: tuple[str, ...] = field(repr=False)


def bodies(found: Iterable[Module]) -> list[Body]:
    """Every function that is large enough for its like to be a copy."""
    all_bodies = [
        Body(node.name, f"{module.name}:{name}", normalised(node))
        for module in found
        for name, node, _ in functions(module.tree)
        if not only_stores(node)
    ]
    return [body for body in all_bodies if len(body.words) >= SMALLEST]


def alike(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    if a == b:
        return True
    if min(len(a), len(b)) < ALIKE**2 * max(len(a), len(b)):
        return False
    match = difflib.SequenceMatcher(None, a, b, autojunk=False)
    return match.quick_ratio() >= ALIKE and match.ratio() >= ALIKE


def renamed_helpers(known: Iterable[Body]) -> dict[str, list[str]]:
    """Functions of one body and several names."""
    same: dict[tuple[str, ...], list[Body]] = defaultdict(list)
    for body in known:
        same[body.words].append(body)
    groups = (group for group in same.values() if len({body.name for body in group}) > 1)
    return {" = ".join(dict.fromkeys(body.name for body in group)): [body.place for body in group] for group in groups}


def copied_helpers(known: Iterable[Body]) -> dict[str, list[str]]:
    """Functions of one name and nearly one body."""
    named: dict[str, list[Body]] = defaultdict(list)
    for body in known:
        named[body.name].append(body)
    copies: dict[str, list[str]] = {}
    for name, group in sorted(named.items()):
        pairs = [(a, b) for i, a in enumerate(group) for b in group[:i] if alike(a.words, b.words)]
        if pairs:
            copies[name] = sorted({body.place for pair in pairs for body in pair})
    return copies


def repeated_private(found: Iterable[Module]) -> dict[str, list[str]]:
    """Private functions, not methods, of one name in several files."""
    return several(
        sorted(
            {
                (node.name, module.name)
                for module in found
                for _, node, method in functions(module.tree)
                if node.name.startswith("_") and not node.name.endswith("__") and not method
            }
        )
    )


# ------------------------------------------------------------------ docstrings
@dataclass(frozen=True)
class Documented:
    """A public callable: which sections its docstring should have, and which it has."""

    name: str
    wanted: frozenset[str]
    has: frozenset[str]
    inner: bool = False  # named by a public module, not by the package itself


def public(package: types.ModuleType) -> Iterator[Documented]:
    """What `__all__` of the package and of its public modules names, and the methods of public classes.

    A method that a base class or a public protocol of the package defines is documented there, and counted there alone.
    """
    things = list(named(package))
    protocols = [thing for _, thing, _ in things if is_protocol(thing)]
    for name, thing, inner in things:
        yield documented(name, thing, inner)
        if inspect.isclass(thing):
            known = defined_elsewhere(thing, package.__name__, protocols)
            for part, member in vars(thing).items():
                member = getattr(member, "__func__", member)  # of classmethods
                if not part.startswith("_") and part not in known and inspect.isfunction(member):
                    yield documented(f"{name}.{part}", member, inner)


def named(package: types.ModuleType) -> Iterator[tuple[str, Any, bool]]:
    """Every callable that `__all__` names, once: its name, itself, whether a public module names it."""
    seen: set[int] = set()
    todo = [(name, getattr(package, name), False) for name in package.__all__]
    for name, thing, inner in todo:  # grows on the way
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if inspect.ismodule(thing):
            todo += [(f"{name}.{part}", getattr(thing, part), True) for part in getattr(thing, "__all__", ())]
        elif callable(thing) and getattr(thing, "__module__", "").startswith(package.__name__):
            yield name, thing, inner


def is_protocol(thing: Any) -> bool:
    return inspect.isclass(thing) and bool(getattr(thing, "_is_protocol", False))


def defined_elsewhere(thing: type, package: str, protocols: Sequence[type]) -> set[str]:
    """Names that base classes of the package define, and protocols of which the class has everything."""
    known = {part for base in thing.__mro__[1:] if base.__module__.startswith(package) for part in vars(base)}
    for protocol in protocols:
        parts = {part for part in vars(protocol) if not part.startswith("_")}
        if protocol is not thing and all(hasattr(thing, part) for part in parts):
            known |= parts
    return known


def raises(thing: Callable[..., Any]) -> bool:
    """Whether its own lines hold a `raise` (of a class: its constructor's); what it calls is not followed."""
    if inspect.isclass(thing):
        parts = [vars(thing).get(name) for name in ("__init__", "__post_init__")]
        return any(inspect.isfunction(part) and raises(part) for part in parts)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except (OSError, TypeError, SyntaxError):  # made by a dataclass, or by C
        return False
    return any(isinstance(node, ast.Raise) for node in ast.walk(tree))


def documented(name: str, thing: Callable[..., Any], inner: bool = False) -> Documented:
    """Protocols and enumerations are not constructed: they need a sentence. What a frozen object holds may be told
    as Attributes, if it is made by the library and not by its users."""
    is_class = inspect.isclass(thing)
    made = not is_protocol(thing) and not (is_class and issubclass(thing, enum.Enum))
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        signature = inspect.Signature()
    wanted = {"Parameters"} if made and set(signature.parameters) - {"self", "cls"} else set()
    if not is_class and str(signature.return_annotation) not in ("None", str(inspect.Signature.empty)):
        wanted.add("Returns")
    if made and raises(thing):
        wanted.add("Raises")
    if made and (is_class or "." not in name):
        wanted.add("Examples")
    own = thing.__doc__ or ""
    lines = [line.strip() for line in own.splitlines()]
    titles = {line for i, line in enumerate(lines[:-1]) if line and set(lines[i + 1]) == {"-"}}
    if is_class and "Attributes" in titles:
        titles.add("Parameters")
    return Documented(name, frozenset(wanted), frozenset(titles & set(SECTIONS)), inner)


# ------------------------------------------------------------------ one iteration
@dataclass(frozen=True)
class Step:
    """Files that one iteration enters: `step` of its method, and with what the loop did since the step before."""

    step: frozenset[str]
    loop: frozenset[str]


def profiled(package: Path, run: Callable[[], Any]) -> list[Step]:
    """Files of the package that each call of a method's `step(self, state, reduce)` enters while `run` runs."""
    steps: list[Step] = []
    entered: set[str] = set()
    before: set[str] = set()
    outer: list[types.FrameType] = []
    root = f"{package.resolve()}/"

    def watch(frame: types.FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call":
            if not outer and code.co_name == "step" and code.co_varnames[:3] == ("self", "state", "reduce"):
                outer.append(frame)
            if code.co_filename.startswith(root) and code.co_name != "<module>":
                (entered if outer else before).add(code.co_filename.removeprefix(root))
        elif event == "return" and outer and frame is outer[0]:
            steps.append(Step(frozenset(entered), frozenset(entered | before)))
            entered.clear()
            before.clear()
            outer.clear()

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return steps


def iterations(package: Path) -> dict[str, list[Step]]:
    """Runs on handwritten digits in three blocks, classes apart, on a CPU."""
    import torch
    from sklearn.datasets import load_digits

    import auqadmm as aq

    torch.set_num_threads(1)
    X, y = load_digits(return_X_y=True)
    blocks = [(X[mine] / 16, y[mine]) for mine in (y < 4, (y >= 4) & (y < 7), y >= 7)]
    problem = aq.Problem(aq.Multinomial(), aq.L2(1.0), blocks)
    found = {}
    for name in METHODS:

        def run(name: str = name) -> None:
            aq.solve(problem, name, max_iter=12, certificate_tol=1e-9)

        found[name] = profiled(package, run)
    return found


# ------------------------------------------------------------------ the page
def wrapped(title: str, names: Iterable[str], every: bool, first: int = 2) -> list[str]:
    """Names in as many lines as they need, or as many as fit into `first` lines."""
    lines = textwrap.wrap(", ".join(names), WIDTH - 4)
    if not every and len(lines) > first:
        lines = [*lines[:first], "…"]
    return [title, *(f"    {line}" for line in lines)]


def listed(title: str, names: Mapping[str, Sequence[str]], every: bool) -> list[str]:
    if every:
        return [title, *(f"    {name}: {', '.join(at)}" for name, at in names.items())]
    most = sorted(names.items(), key=lambda item: -len(item[1]))
    return wrapped(title, (f"{name} {len(at)}×" for name, at in most), every)


def page(package: Path, every: bool = False, profile: bool = True) -> list[str]:
    """The lines that are printed."""
    found = modules(package)
    lines = [f"{package.name}: {size(found)}"]
    if set(LATER) <= set(rooms(found)):
        lines.append(f"the solver's rooms: {size([module for module in found if room(module) not in LATER])}")
        lines.append(f"    (all but {', '.join(LATER)})")
    lines += wrapped(
        'files per room (".": the package itself)',
        (f"{name} {count}" for name, count in sorted(rooms(found).items())),
        True,
    )
    if profile:
        lines.append("files entered by one iteration (three blocks of digits, CPU)")
        for name, steps in iterations(package).items():
            middle, sizes = steps[len(steps) // 2], [len(one.step) for one in steps]
            lines.append(
                f"    {name:7} {len(middle.step):3}   ({min(sizes)}–{max(sizes)} over {len(sizes)} iterations; "
                f"with the loop around it {len(middle.loop)})"
            )
            if every:
                lines += [f"            {file}" for file in sorted(middle.step)]
                seldom = Counter(file for one in steps for file in one.step - middle.step)
                lines += [f"            ({file}: in {count} of the others)" for file, count in sorted(seldom.items())]
    any_ = count_any(found)
    lines.append(
        f"annotations: {any_['all']}; {any_['bare']} are Any and {any_['contain']} contain it; "
        f"`shard: Any`: {any_['shard']}"
    )
    classes = repeated_classes(found)
    lines += listed(f"class names used twice or more: {len(classes)}", classes, every)
    known = bodies(found)
    copies, renamed, private = copied_helpers(known), renamed_helpers(known), repeated_private(found)
    lines += listed(f"functions of one name and nearly one body: {len(copies)}", copies, every)
    lines += listed(f"functions of one body and several names: {len(renamed)}", renamed, every)
    lines += listed(f"private functions of one name in several files: {len(private)}", private, every)
    count, again = repeated_constants(found)
    lines += listed(f"numeric constants: {count}; names that several modules define: {len(again)}", again, every)
    lines += _documentation(package, every)
    return lines


def _documentation(package: Path, every: bool) -> list[str]:
    told = list(public(importlib.import_module(package.name)))
    inner = sum(one.inner for one in told)
    lines = [f"public callables: {len(told)}, {inner} of them in public modules; docstring sections where they are due"]
    for section in SECTIONS:
        due = [one for one in told if section in one.wanted]
        lacking = [one.name for one in due if section not in one.has]
        lines += wrapped(f"    {section}: {len(due) - len(lacking)} of {len(due)}", lacking if every else (), every)
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Counts of the source: size, repetitions, files per iteration.")
    parser.add_argument("-v", "--verbose", action="store_true", help="every name and file behind the counts")
    parser.add_argument("--package", type=Path, default=ROOT / "src" / "auqadmm", help="folder of the package")
    parser.add_argument("--no-profile", action="store_true", help="run no iterations")
    options = parser.parse_args(arguments)
    package = options.package.resolve()
    sys.path.insert(0, str(package.parent))
    print("\n".join(page(package, options.verbose, not options.no_profile)))


if __name__ == "__main__":
    main()
