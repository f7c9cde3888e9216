"""What a formula says: its target, terms and offsets, the columns it needs, and the transforms that have a state.

formulaic splits a formula into terms and factors. A factor is Python, and a formula may come from a file: only names of
columns, numbers, arithmetic, comparisons and the functions listed here are let through, so that nothing else is ever
evaluated.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from auqadmm.errors import AuqadmmError, InputError
from auqadmm.words import quoted

if TYPE_CHECKING:
    import pandas as pd
    from formulaic.formula import SimpleFormula

FUNCTIONS = ("log", "log2", "log10", "log1p", "exp", "expm1", "sqrt", "abs", "sin", "cos", "tan", "minimum", "maximum")
# arguments of transforms whose state comes from all rows, in order
STATEFUL: dict[str, tuple[str, ...]] = {
    "center": ("x",),
    "scale": ("x", "center", "scale", "ddof"),
    "standardize": ("x", "center", "rescale", "ddof"),
    "poly": ("x", "degree", "raw"),
    "bs": ("x", "df", "knots", "degree", "include_intercept", "lower_bound", "upper_bound", "extrapolation"),
    "cr": ("x", "df", "knots", "lower_bound", "upper_bound", "constraints", "cyclic", "extrapolation"),
}
STATEFUL["cs"] = STATEFUL["cc"] = STATEFUL["cr"]
CODINGS = ("Treatment", "Sum", "Helmert", "Poly", "Diff")
CONTRASTS = ("treatment", "SAS", "sum", "helmert", "diff", "poly")
WHY_NOT = {
    "lag": "depends on the order of rows, which sites do not share",
    "hashed": "has no levels that sites could agree upon",
    "Q": "is not needed: put the name of the column into backticks",
    "te": "is not offered",
}
PLAIN = (
    ast.Expression, ast.Load, ast.Constant, ast.List, ast.Tuple, ast.keyword, ast.UnaryOp, ast.USub, ast.UAdd,
    ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod, ast.Pow, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE,
    ast.Gt, ast.GtE,
)  # fmt: skip
# what formulaic and Python say of a formula, in other words
REASONS = {
    "`.`": "columns are named one by one, `.` stands for none",
    "context marker": "a bracket is not closed",
    "insuffient arguments": "an operator lacks a term",
    "invalid syntax": "it is not understood",
}
LONGEST_POWER = 64.0  # of an exponent: a larger one is a mistake, or an attack


@dataclass(frozen=True)
class Expression:
    """Python that was checked; `aliases` are identifiers that stand for columns whose names are none."""

    code: str
    aliases: Mapping[str, str]

    def of(self, frame: pd.DataFrame) -> np.ndarray:
        """Its values, one per row."""
        names: dict[str, Any] = {str(name): frame[name] for name in frame.columns}
        names |= {alias: frame[column] for alias, column in self.aliases.items() if column in frame}
        names = {name: getattr(np, name) for name in FUNCTIONS} | {"np": np, "I": lambda x: x} | names
        with np.errstate(all="ignore"):  # what is not finite is told by row
            found = eval(compile(self.code, "formula", "eval"), {"__builtins__": {}}, names)
        return np.broadcast_to(np.asarray(found, dtype=np.float64), (len(frame),))


@dataclass(frozen=True)
class Call:
    """A transform with a state: its name, the text formulaic knows it by, the expression in it, and its arguments."""

    name: str
    key: str
    inner: Expression
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Formula:
    """`columns`: of the right side, offsets included, in order; `categories`: those inside C(…), with the levels that
    the formula lists, if it does. `offsets`: expressions that are added to the logits."""

    text: str
    target: str
    intercept: bool
    columns: tuple[str, ...]
    categories: Mapping[str, tuple[Any, ...] | None]
    calls: tuple[Call, ...]
    offsets: tuple[Expression, ...]

    def right(self) -> SimpleFormula:
        """The right side without offsets, for formulaic."""
        from formulaic.formula import SimpleFormula

        terms = [term for term in _sides(self.text)[1] if not _is_offset(term)]
        return SimpleFormula(terms, _ordering="none")


def parse(text: str) -> Formula:
    """A formula as the user wrote it, checked for all that needs no data."""
    if not isinstance(text, str):
        raise InputError(f"A formula is a text such as 'sick ~ age + C(stage)', got {type(text).__name__}.")
    left, right = _sides(text)
    if len(left) != 1 or len(left[0].factors) != 1 or left[0].factors[0].eval_method.value != "lookup":
        raise _refused(text, "its left side must be one column, the target")
    target = left[0].factors[0].expr
    offsets: list[Expression] = []
    parts = [_Part(text) for _ in right]
    for term, part in zip(right, parts, strict=True):
        if _is_offset(term):
            offsets.append(part.read_offset(term.factors[0].expr))
            continue
        for factor in term.factors:
            if factor.eval_method.value == "lookup":
                part.columns.append(factor.expr)
            elif factor.eval_method.value == "python":
                part.read(factor.expr)
    columns = tuple(dict.fromkeys(name for part in parts for name in part.columns))
    if target in columns:
        raise _refused(text, f"the target {quoted(target)} is on both sides")
    if not any(part.columns for part, term in zip(parts, right, strict=True) if not _is_offset(term)):
        raise _refused(text, "there is no column on its right side")
    categories: dict[str, tuple[Any, ...] | None] = {}
    for part in parts:
        for name, levels in part.categories.items():
            if categories.setdefault(name, levels) != levels:
                raise _refused(text, f"C({name}) is given different levels")
    calls = {call.key: call for part in parts for call in part.calls}
    intercept = any(term.factors[0].expr == "1" and len(term.factors) == 1 for term in right)
    return Formula(text, target, intercept, columns, categories, tuple(calls.values()), tuple(offsets))


def formulaic() -> ModuleType:
    """The package, or how to get it."""
    try:
        import formulaic
    except ModuleNotFoundError:
        raise AuqadmmError('Formulas need formulaic: pip install "auqadmm[formula]".') from None
    return formulaic


# ---------------------------------------------------------------------- terms
def _sides(text: str) -> tuple[list[Any], list[Any]]:
    """Terms of the left and of the right side."""
    package = formulaic()
    try:
        read = package.Formula(text)
        left, right = list(getattr(read, "lhs", ())), list(getattr(read, "rhs", ()))
        simple = all(hasattr(term, "factors") for term in (*left, *right))
    except (package.errors.FormulaicError, SyntaxError, AttributeError, ValueError, TypeError, RecursionError) as error:
        reason = str(error).split("\n")[0].rstrip(".") or type(error).__name__
        told = next((words for sign, words in REASONS.items() if sign in reason), f"{reason[:1].lower()}{reason[1:]}")
        raise _refused(text, told) from None
    if not left or not right or not simple:
        raise _refused(text, "it must read target ~ terms")
    return left, right


def _is_offset(term: Any) -> bool:
    return len(term.factors) == 1 and term.factors[0].expr.startswith("offset(")


# ---------------------------------------------------------------------- factors
class _Part:
    """What the factors of one term need."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.columns: list[str] = []
        self.categories: dict[str, tuple[Any, ...] | None] = {}
        self.calls: list[Call] = []

    def read(self, expression: str) -> None:
        """A factor."""
        self._visit(self._tree(expression), inside=None)

    def read_offset(self, expression: str) -> Expression:
        call = self._tree(expression)
        if not isinstance(call, ast.Call) or len(call.args) != 1 or call.keywords:
            raise _refused(self.text, "offset(…) takes one expression")
        self._visit(call.args[0], inside="offset")
        return Expression(ast.unparse(call.args[0]), self.aliases)

    def _tree(self, expression: str) -> ast.expr:
        from formulaic.utils.code import sanitize_variable_names

        self.aliases: dict[str, str] = {}
        try:
            return ast.parse(sanitize_variable_names(expression, {}, self.aliases), mode="eval").body
        except (SyntaxError, ValueError, RecursionError):
            raise _refused(self.text, f"{quoted(expression)} is not understood") from None

    def _visit(self, node: ast.AST, inside: str | None) -> None:
        if isinstance(node, ast.Call):
            self._call(node, inside)
        elif isinstance(node, ast.Name):
            self.columns.append(self.aliases.get(node.id, node.id))
        elif not isinstance(node, PLAIN) or (
            isinstance(node, ast.Constant) and isinstance(node.value, bytes | complex)
        ):
            raise _refused(self.text, f"{quoted(_shown(node))} is not offered; {_OFFERED}")
        else:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
                self._power(node)
            for child in ast.iter_child_nodes(node):
                self._visit(child, inside)

    def _power(self, node: ast.BinOp) -> None:
        try:
            exponent = float(ast.literal_eval(node.right))
        except (ValueError, TypeError, OverflowError):
            exponent = LONGEST_POWER + 1
        if not abs(exponent) <= LONGEST_POWER:
            raise _refused(self.text, f"{quoted(_shown(node))}: exponents are numbers up to {LONGEST_POWER:g}")

    def _call(self, node: ast.Call, inside: str | None) -> None:
        name = _function(node.func)
        plain = name.removeprefix("np.")
        if (plain in FUNCTIONS and name in (plain, f"np.{plain}")) or name == "I":
            for child in (*node.args, *node.keywords):
                self._visit(child, inside)
        elif name == "C" and inside is None:
            self._category(node)
        elif name in STATEFUL:
            self._stateful(node, name, inside)
        elif name == "offset":
            raise _refused(self.text, "offset(…) is a term of its own")
        else:
            why = WHY_NOT.get(name, f"is not offered; {_OFFERED}")
            raise _refused(self.text, f"{quoted(name)} {why}")

    def _category(self, node: ast.Call) -> None:
        if not node.args or not isinstance(node.args[0], ast.Name):
            raise _refused(self.text, f"{quoted(_shown(node))}: C(…) takes the name of a column")
        column = self.aliases.get(node.args[0].id, node.args[0].id)
        levels = None
        for coding in [*node.args[1:], *(k.value for k in node.keywords if k.arg == "contrasts")]:
            self._coding(coding)
        for keyword in node.keywords:
            if keyword.arg == "levels":
                levels = tuple(self._literal(keyword.value, node))
            elif keyword.arg not in ("contrasts", "spans_intercept"):
                raise _refused(self.text, f"C(…) has no argument {quoted(str(keyword.arg))}")
            elif keyword.arg == "spans_intercept":
                self._literal(keyword.value, node)
        self.columns.append(column)
        self.categories[column] = levels

    def _coding(self, node: ast.AST) -> None:
        function = node.func if isinstance(node, ast.Call) else node
        name = _function(function)
        known = name in CODINGS or (name.startswith("contr.") and name.removeprefix("contr.") in CONTRASTS)
        if not known:
            offered = f"{', '.join(CODINGS)} and contr.{', contr.'.join(CONTRASTS)}"
            raise _refused(self.text, f"{quoted(_shown(node))} is no coding of categories; there are {offered}")
        for argument in [*node.args, *(k.value for k in node.keywords)] if isinstance(node, ast.Call) else ():
            self._literal(argument, node)

    def _stateful(self, node: ast.Call, name: str, inside: str | None) -> None:
        if inside is not None:
            raise _refused(self.text, f"{name}(…) cannot be inside {inside}(…): each takes its state from all rows")
        order = STATEFUL[name]
        if not node.args or len(node.args) > len(order) or any(isinstance(a, ast.Starred) for a in node.args):
            raise _refused(self.text, f"{quoted(_shown(node))}: {name} takes {', '.join(order)}")
        arguments = {key: self._literal(value, node) for key, value in zip(order[1:], node.args[1:], strict=False)}
        for keyword in node.keywords:
            if keyword.arg not in order or keyword.arg in arguments:
                raise _refused(self.text, f"{quoted(_shown(node))}: {name} takes {', '.join(order)}")
            arguments[str(keyword.arg)] = self._literal(keyword.value, node)
        self._visit(node.args[0], inside=name)
        inner = Expression(ast.unparse(node.args[0]), self.aliases)
        self.calls.append(Call(name, ast.unparse(node), inner, arguments))

    def _literal(self, node: ast.AST, whole: ast.AST) -> Any:
        try:
            return ast.literal_eval(ast.unparse(node))
        except (ValueError, SyntaxError, TypeError):
            raise _refused(self.text, f"{quoted(_shown(whole))}: {_shown(node)} must be a number or a text") from None


_OFFERED = (
    f"there are arithmetic, comparisons, I, C, offset, {', '.join(FUNCTIONS)} (also as np.…), {', '.join(STATEFUL)}"
)


def _function(node: ast.AST) -> str:
    """log, np.log; other things called give what they read like."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else _shown(node)


def _shown(node: ast.AST) -> str:
    try:
        return ast.unparse(node)
    except (ValueError, AttributeError):
        return type(node).__name__


def _refused(text: str, why: str) -> InputError:
    return InputError(f"The formula {quoted(text, 200)} cannot be used: {why}.")
