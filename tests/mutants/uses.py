"""Mistakes at places of use: what one makes in a call, a read or a condition, where the rule itself is right."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any

from tests.mutants.core import Edit
from tests.mutants.signatures import Function, Signatures, class_in, name_of

if TYPE_CHECKING:
    from pathlib import Path

NOTICED_MIN = 0.75
"""The share that the fast tier must notice."""
PACKAGES = ("api", "db", "jobs", "state")
WITHOUT_BEHAVIOUR = ("migrations", "dashboard", "examples", "testing")
"""Folders whose code is data, texts, or for readers."""
_SILENT_CALLS = {
    "failpoint",
    "warn",
    "add_argument",
    "assert_never",
    "echo",
    "secho",
    "Thread",
    "ThreadPoolExecutor",
    "Counter",
    "Gauge",
    "Histogram",
}
_SILENT_KEYWORDS = {"strict", "help", "description", "title", "name", "daemon", "thread_name_prefix", "exc_info"}
_SILENT_FUNCTIONS = {"__repr__", "__str__", "__rich_repr__", "__init_subclass__"}
_OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_OTHER_ENDS = {"0": "-1", "-1": "0"}
_BUILTIN_KEYWORDS = {"sorted": {"key", "reverse"}, "min": {"key"}, "max": {"key"}, "sort": {"key", "reverse"}}


@dataclass(frozen=True, slots=True)
class Mistake:
    """A change of a few characters of a source.

    Attributes:
        kind: What one has done wrong.
        path: The source, below the root.
        function: The function, after its class if it is a method.
        lines: The first and the last line of the statement.
        changes: Places in the source, as bytes, and what is there instead.
    """

    kind: str
    path: Path
    function: str
    lines: tuple[int, int]
    changes: tuple[tuple[int, int, bytes], ...]

    @property
    def module(self) -> str:
        return ".".join(("keyscale", *self.path.with_suffix("").parts))

    def applied(self, source: bytes) -> bytes:
        """Returns the source with the mistake."""
        for start, end, text in sorted(self.changes, reverse=True):
            source = source[:start] + text + source[end:]
        return source

    def edit(self, source: bytes) -> Edit:
        """Returns the mistake in the form of accepted.toml."""
        before, after = (text.decode().splitlines() for text in (source, self.applied(source)))
        first = _common(before, after)
        last = _common(before[:first:-1], after[:first:-1])
        texts = (" ".join(line.strip() for line in lines[first : len(lines) - last]) for lines in (before, after))
        return Edit(self.module, self.function, *texts)


def _common(one: list[str], other: list[str]) -> int:
    """Returns the number of lines at the beginning that are equal."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def mistakes_of(root: Path) -> list[Mistake]:
    """Returns all mistakes at places of use in the packages below the root."""
    sources = {path.relative_to(root): path.read_bytes() for path in _paths(root)}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    signatures = Signatures(trees.values())
    return [mistake for path, tree in trees.items() for mistake in _Uses(path, sources[path], signatures).of(tree)]


def lines_of(root: Path) -> dict[str, int]:
    """Returns the number of lines of each package."""
    lines: dict[str, int] = defaultdict(int)
    for path in _paths(root):
        lines[path.relative_to(root).parts[0]] += path.read_bytes().count(b"\n")
    return lines


def _paths(root: Path) -> list[Path]:
    found = (path.relative_to(root) for package in PACKAGES for path in (root / package).rglob("*.py"))
    return sorted(root / path for path in found if not set(path.parts) & set(WITHOUT_BEHAVIOUR))


def sampled(mistakes: list[Mistake], count: int, seed: int, weights: dict[str, int]) -> list[Mistake]:
    """Chooses mistakes at random: each package by its weight, each kind as often as another.

    A larger sample of a seed holds the smaller one.
    """
    chooser = random.Random(seed)
    left: dict[str, dict[str, list[Mistake]]] = defaultdict(lambda: defaultdict(list))
    for mistake in mistakes:
        left[mistake.path.parts[0]][mistake.kind].append(mistake)
    chosen = []
    while left and len(chosen) < count:
        [package] = chooser.choices([*left], [weights[package] for package in left])
        kind = chooser.choice([*left[package]])
        of_kind = left[package][kind]
        chosen.append(of_kind.pop(chooser.randrange(len(of_kind))))
        if not of_kind:
            del left[package][kind]
        if not left[package]:
            del left[package]
    return chosen


class _Uses(ast.NodeVisitor):
    """Collects the mistakes in a module's functions."""

    def __init__(self, path: Path, source: bytes, signatures: Signatures) -> None:
        self._path = path
        self._signatures = signatures
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._found: list[Mistake] = []
        self._names: list[str] = []
        self._class = ""
        self._types: dict[str, str] = {}
        self._lines = (0, 0)

    def of(self, tree: ast.Module) -> list[Mistake]:
        for line in tree.body:
            if isinstance(line, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                self.visit(line)
        return self._found

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self._class = self._class, node.name
        self._names.append(node.name)
        for line in node.body:
            if isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef):
                self.visit(line)
        self._names.pop()
        self._class = outer

    def visit_FunctionDef(self, node: Function) -> None:
        if node.name in _SILENT_FUNCTIONS:
            return
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        outer = self._types
        self._types = outer | {of.arg: class_in(ast.unparse(of.annotation)) for of in arguments if of.annotation}
        self._types |= {of.arg: self._class for of in arguments[:1] if of.arg == "self"}
        self._names.append(node.name)
        self._block(node.body)
        self._names.pop()
        self._types = outer

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - ast's name

    def visit_If(self, node: ast.If) -> None:
        self._lines = (node.lineno, node.body[0].lineno - 1)
        if name_of(node.test) == "TYPE_CHECKING":
            return
        if not node.orelse and not isinstance(node.test, ast.NamedExpr):
            leaves = isinstance(node.body[-1], ast.Raise | ast.Return | ast.Continue | ast.Break)
            self._replace("guard dropped", node.test, "False" if leaves else "True")
            if not leaves:
                self._replace("guard negated", node.test, f"not ({self._text(node.test)})")
        self._compound(node, node.test)

    def visit_While(self, node: ast.While) -> None:
        self._lines = (node.lineno, node.body[0].lineno - 1)
        self._compound(node, node.test)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self._lines = (node.lineno, node.body[0].lineno - 1)
        self._compound(node, node.iter)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        self._lines = (node.lineno, node.body[0].lineno - 1)
        for item in node.items:
            self.visit(item.context_expr)
        self._block(node.body)

    visit_AsyncFor, visit_AsyncWith = visit_For, visit_With  # noqa: N815 - ast's names

    def visit_Try(self, node: ast.Try) -> None:
        for block in (node.body, *(handler.body for handler in node.handlers), node.orelse, node.finalbody):
            self._block(block)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Skips the texts of errors."""

    visit_Assert = visit_JoinedStr = visit_arguments = visit_Raise  # noqa: N815 - ast's names

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for index in range(len(node.values)):
            kept = [value for place, value in enumerate(node.values) if place != index]
            word = " and " if isinstance(node.op, ast.And) else " or "
            text = word.join(self._text(value) for value in kept)
            self._replace("operand dropped", node, text if len(kept) == 1 else f"({text})")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._replace("choice dropped", node, f"({self._text(node.body)})")
        self._replace("choice dropped", node, f"({self._text(node.orelse)})")
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        plain = (ast.Name, ast.Attribute, ast.Call, ast.Dict, ast.DictComp)
        merged = [
            value for key, value in zip(node.keys, node.values, strict=True) if not key and isinstance(value, plain)
        ]
        for first, second in pairwise(merged):
            self._swap("order", first, second)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        dicts = (ast.Dict, ast.DictComp)
        if isinstance(node.op, ast.BitOr) and (isinstance(node.left, dicts) or isinstance(node.right, dicts)):
            self._swap("order", node.left, node.right)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        text = self._text(node.slice)
        if text in _OTHER_ENDS:
            self._replace("order", node.slice, _OTHER_ENDS[text])
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        siblings = self._signatures.siblings(self._type(node.value), node.attr)
        if siblings and isinstance(node.ctx, ast.Load):
            end = self._end(node)
            sibling = siblings[end % len(siblings)]  # as good as at random, and the same each time
            self._add("attribute", (end - len(node.attr.encode()), end, sibling.encode()))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = name_of(node.func)
        if name in _SILENT_CALLS or name.endswith("Error") or _is_log(node):
            return
        if name in _OPPOSITES and isinstance(node.func, ast.Name):
            self._replace("order", node.func, _OPPOSITES[name])
        self._arguments(node, name)
        for argument in node.args:
            self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg not in _SILENT_KEYWORDS:
                self.visit(keyword.value)
        if isinstance(node.func, ast.Attribute):  # a method is not a field
            self.visit(node.func.value)

    def _arguments(self, node: ast.Call, name: str) -> None:
        signatures = self._signatures.of(node)
        given = {
            keyword.arg: keyword for keyword in node.keywords if keyword.arg and keyword.arg not in _SILENT_KEYWORDS
        }
        known = [{parameter.name: parameter for parameter in signature} for signature in signatures]
        for word, keyword in given.items():
            meant = [signature[word] for signature in known if word in signature]
            defaults = {parameter.default for parameter in meant}
            optional = meant and None not in defaults and ast.unparse(keyword.value) not in defaults
            if optional or word in _BUILTIN_KEYWORDS.get(name, ()):
                self._add("argument dropped", self._without(node, keyword, keyword.value))
        named = {
            word: {signature[word].annotation for signature in known if word in signature} - {""} for word in given
        }
        for (first, of_first), (second, of_second) in pairwise(named.items()):
            if of_first == of_second and len(of_first) == 1:
                self._swap("arguments swapped", given[first].value, given[second].value)
        if len(signatures) == 1 and not any(isinstance(argument, ast.Starred) for argument in node.args):
            pairs = [*zip(node.args, (of for of in signatures[0] if of.is_positional), strict=False)]
            for (first_value, to_first), (second_value, to_second) in pairwise(pairs):
                if to_first.annotation and to_first.annotation == to_second.annotation:
                    self._swap("arguments swapped", first_value, second_value)
            if pairs and pairs[-1][1].default not in (None, ast.unparse(pairs[-1][0])):
                self._add("argument dropped", self._without(node, pairs[-1][0], pairs[-1][0]))

    def _block(self, lines: list[ast.stmt]) -> None:
        for line in lines:
            self._lines = (line.lineno, line.end_lineno or line.lineno)
            if _is_effect(line):
                self._replace("statement dropped", line, "pass")
            self.visit(line)
        for first, second in pairwise(lines):
            if _is_effect(first) and _is_effect(second):
                self._lines = (first.lineno, second.end_lineno or second.lineno)
                self._swap("statements exchanged", first, second)

    def _compound(self, node: ast.If | ast.While | ast.For | ast.AsyncFor, head: ast.expr) -> None:
        self.visit(head)
        self._block(node.body)
        self._block(node.orelse)

    def _type(self, node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return self._signatures.type_of(self._type(node.value), node.attr)
        name = name_of(node)
        return self._types.get(name, name if self._signatures.is_class(name) else "")

    def _without(self, call: ast.Call, argument: ast.AST, value: ast.expr) -> tuple[int, int, bytes]:
        """Returns the change that leaves out an argument with the comma before or after it."""
        start, end = self._start(argument), self._end(value)
        rest = self._source[end : self._end(call)]
        after = len(rest) - len(rest.lstrip())
        if rest[after : after + 1] == b",":
            spaces = len(rest[after + 1 :]) - len(rest[after + 1 :].lstrip(b" "))
            return start, end + after + 1 + spaces, b""
        before = self._source[:start].rstrip()
        return len(before) - before.endswith(b","), end, b""

    def _replace(self, kind: str, node: ast.AST, text: str) -> None:
        self._add(kind, (self._start(node), self._end(node), text.encode()))

    def _swap(self, kind: str, first: ast.AST, second: ast.AST) -> None:
        places = [(self._start(node), self._end(node)) for node in (first, second)]
        one, other = (self._source[start:end] for start, end in places)
        if one != other:
            self._add(kind, (*places[0], other), (*places[1], one))

    def _add(self, kind: str, *changes: tuple[int, int, bytes]) -> None:
        self._found.append(Mistake(kind, self._path, ".".join(self._names), self._lines, changes))

    def _text(self, node: ast.expr) -> str:
        text = self._source[self._start(node) : self._end(node)].decode()
        return f"({text})" if isinstance(node, ast.BoolOp | ast.IfExp | ast.NamedExpr | ast.Compare) else text

    def _start(self, node: Any) -> int:
        return self._starts[node.lineno - 1] + int(node.col_offset)

    def _end(self, node: Any) -> int:
        return self._starts[node.end_lineno - 1] + int(node.end_col_offset)


def _is_log(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and name_of(node.func.value) in (
        "logger",
        "_logger",
        "logging",
        "warnings",
    )


def _is_effect(line: ast.stmt) -> bool:
    """Whether a statement is a call for its effect."""
    value = line.value if isinstance(line, ast.Expr) else None
    call = value.value if isinstance(value, ast.Await) else value
    if not isinstance(call, ast.Call) or _is_log(call) or name_of(call.func) in _SILENT_CALLS:
        return False
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return not (isinstance(owner, ast.Call) and name_of(owner.func) == "super")
