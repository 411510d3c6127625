"""The parameters of functions and the fields of classes, by name, as their sources write them."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function.

    Attributes:
        name: Its name.
        annotation: The text of its type; "" if it has none.
        default: The text of its default, or None.
        is_positional: Whether a call may give it without its name.
    """

    name: str
    annotation: str
    default: str | None
    is_positional: bool = True


class Signatures:
    """Holds what calls and attribute reads may refer to. Names have no scopes, so a name may have several meanings."""

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        self._functions: dict[str, list[list[Parameter]]] = defaultdict(list)
        self._fields: dict[str, dict[str, str]] = {}
        self._owners: dict[str, set[str]] = defaultdict(set)
        for tree in trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self._add_class(node)
                elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
                    self._add_function(node.name, _parameters(node))

    def of(self, call: ast.Call) -> list[list[Parameter]]:
        """Returns the signatures that the called name has."""
        return self._functions.get(name_of(call.func), [])

    def siblings(self, owner: str, field: str) -> list[str]:
        """Returns the other fields of a class that have the type of the field; [] of an unknown class.

        Args:
            owner: The class; "" for the only class that has the field.
            field: The field.
        """
        if not owner:
            owners = self._owners.get(field, ())
            owner = next(iter(owners)) if len(owners) == 1 else ""
        fields = self._fields.get(owner, {})
        wanted = fields.get(field)
        return [name for name, annotation in fields.items() if wanted and annotation == wanted and name != field]

    def type_of(self, owner: str, field: str) -> str:
        """Returns the class of a class's field; "" if it is unknown."""
        return class_in(self._fields.get(owner, {}).get(field, ""))

    def is_class(self, name: str) -> bool:
        return name in self._fields

    def _add_class(self, node: ast.ClassDef) -> None:
        fields = [line for line in node.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)]
        made = [line for line in node.body if isinstance(line, ast.FunctionDef) and line.name == "__init__"]
        known = {name_of(line.target): _text(line.annotation) for line in fields}
        if made:
            parameters = _parameters(made[0])
            types = {parameter.name: parameter.annotation for parameter in parameters}
            for line in made[0].body:
                if isinstance(line, ast.Assign) and isinstance(line.value, ast.Name) and line.value.id in types:
                    known |= {name_of(target): types[line.value.id] for target in line.targets}
        else:
            parameters = [
                Parameter(name_of(line.target), _text(line.annotation), _text(line.value) if line.value else None)
                for line in fields
            ]
        self._fields[node.name] = known
        for field in known:
            self._owners[field].add(node.name)
        self._add_function(node.name, parameters)

    def _add_function(self, name: str, parameters: list[Parameter]) -> None:
        if parameters and parameters not in self._functions[name]:
            self._functions[name].append(parameters)


def name_of(node: ast.expr) -> str:
    """Returns the last name of a name with dots; "" of another expression."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def class_in(annotation: str) -> str:
    """Returns the class of a type, which may be optional or a column."""
    return annotation.removeprefix("Mapped[").removesuffix("]").removesuffix(" | None").split(".")[-1]


def _text(node: ast.expr | None) -> str:
    return ast.unparse(node) if node else ""


def _parameters(node: Function) -> list[Parameter]:
    positional = [*node.args.posonlyargs, *node.args.args]
    backwards = zip_longest(reversed(positional), reversed(node.args.defaults))
    found = [Parameter(of.arg, _text(of.annotation), _text(default) or None) for of, default in backwards if of][::-1]
    if found and found[0].name in ("self", "cls"):
        found = found[1:]
    named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    return found + [Parameter(of.arg, _text(of.annotation), _text(default) or None, False) for of, default in named]
