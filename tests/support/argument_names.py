"""Finds values that are given to a parameter while another parameter has their name.

Most swapped and mistaken arguments show so: see Rice and others, "Detecting argument selection defects", OOPSLA 2017.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


class Parameters(NamedTuple):
    """The names of a function's parameters.

    Attributes:
        positional: The parameters that a call may give by their places.
        keyword: The parameters that a call gives by their names.
    """

    positional: tuple[str, ...]
    keyword: tuple[str, ...]


class Crossing(NamedTuple):
    """A value that has the name of another parameter of its call.

    Attributes:
        call: The name of the function, or `dict` for the keys of a dictionary.
        parameter: The parameter that gets the value.
        value: The value as it is written.
    """

    call: str
    parameter: str
    value: str


class Call(NamedTuple):
    """A call, or a dictionary as a call with its keys as parameters, without the rest of its source's syntax tree.

    Attributes:
        path: The source.
        line: Its line.
        name: The name of the function.
        is_of_ours: Whether the call names its function, rather than a method of an object of any class.
        places: The values by their places; None: a value without a name.
        keywords: The values by the names of their parameters.
    """

    path: Path
    line: int
    name: str
    is_of_ours: bool
    places: list[ast.expr | None]
    keywords: list[tuple[str, ast.expr | None]]


def crossings(paths: Iterable[Path]) -> Iterator[tuple[Path, int, Crossing]]:
    """Yields each crossing in the sources, with its file and line."""
    known: dict[str, set[Parameters]] = defaultdict(set)
    calls: list[Call] = []
    for path in paths:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        imports = (node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)))
        imported = {(name.asname or name.name).partition(".")[0] for node in imports for name in node.names}
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                if parameters := _parameters_of(node):
                    known[node.name].add(parameters)
            elif isinstance(node, ast.Call):
                calls.append(_call(path, node, imported))
            elif isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                keywords = [(key.value, _named(value)) for key, value in pairs if isinstance(key, ast.Constant)]
                calls.append(Call(path, node.lineno, "dict", False, [], keywords))
    for call in calls:
        yield from ((call.path, call.line, crossing) for crossing in _crossings_of(call, known))


def _parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Parameters | None:
    if not isinstance(node, ast.ClassDef):
        names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        if names and names[0] in {"self", "cls"}:
            del names[0]
        return Parameters(tuple(names), tuple(each.arg for each in node.args.kwonlyargs))
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            return _parameters_of(statement)
    fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
    names = [field.id for field in fields if isinstance(field, ast.Name)]
    return Parameters(tuple(names), ()) if names else None


def _call(path: Path, node: ast.Call, imported: set[str]) -> Call:
    function = node.func
    if isinstance(function, ast.Attribute):
        is_of_ours = isinstance(function.value, ast.Name) and function.value.id in {"self", *imported}
    else:
        is_of_ours = isinstance(function, ast.Name)
    is_spread = any(isinstance(each, ast.Starred) for each in node.args)
    places = [] if is_spread else [_named(each) for each in node.args]
    keywords = [(each.arg, _named(each.value)) for each in node.keywords if each.arg]
    return Call(path, node.lineno, _last_name(function), is_of_ours, places, keywords)


def _crossings_of(call: Call, known: dict[str, set[Parameters]]) -> Iterator[Crossing]:
    given, names = list(call.keywords), {name for name, _ in call.keywords}
    candidates = known.get(call.name, set()) if call.is_of_ours else set()
    if len(candidates) == 1:
        (parameters,) = candidates
        given += zip(parameters.positional, call.places, strict=False)
        names |= {*parameters.positional, *parameters.keyword}
    for parameter, value in given:
        if value is not None and _is_crossed(parameter, value, names):
            yield Crossing(call.name, parameter, ast.unparse(value))


def _is_crossed(parameter: str, value: ast.expr, names: set[str]) -> bool:
    name = _last_name(value).lstrip("_")
    if name == parameter or name not in names:
        return False
    owner = _last_name(value.value) if isinstance(value, ast.Attribute) else ""
    return not owner[:1].isupper() and parameter != f"{owner}_{name}"  # a member, or such as `job_id=job.id`


def _named(value: ast.expr) -> ast.expr | None:
    return value if _last_name(value) else None


def _last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""
