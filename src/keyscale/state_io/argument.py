"""Checks the types of arguments of public functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from keyscale.errors import KeyscaleError
from keyscale.state.doors.values import HashId
from keyscale.state.doors.writing import KeyHashing


class ArgumentInvalidError(KeyscaleError):
    """An argument has another type than its function takes."""

    code = "STATE_ARGUMENT_INVALID"
    domain = "user"
    advice = (
        "Give the argument that the message names in the form that the message asks for; "
        "docs/guide/bootstrap-state.md, docs/guide/repair-state.md and docs/guide/from-spark.md have examples."
    )


def check_argument(name: str, value: Any, wanted: str, *types: type[Any]) -> None:
    """Checks the type of an argument.

    Args:
        name: The name of the argument.
        value: The argument.
        wanted: What the argument is, for the message.
        types: The allowed types; a `bool` does not count as a number.

    Raises:
        ArgumentInvalidError: The argument has another type.
    """
    if not isinstance(value, types) or isinstance(value, bool):
        raise ArgumentInvalidError(f"{name} is {described(value)}; give {wanted}")


def items_of(name: str, values: Any, wanted: str, *types: type[Any]) -> tuple[Any, ...]:
    """Returns the items of an argument after a check of their types.

    Args:
        name: The name of the argument.
        values: The argument.
        wanted: What each item is, for the message.
        types: The allowed types of an item.

    Raises:
        ArgumentInvalidError: The argument has no items, or an item has another type.
    """
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes, Mapping)):
        raise ArgumentInvalidError(f"{name} is {described(values)}; give a list, in which each item is {wanted}")
    items = tuple(values)
    for place, item in enumerate(items):
        check_argument(f"{name}[{place}]", item, wanted, *types)
    return items


def hashing_of(max_parallelism: Any, hash_id: Any) -> KeyHashing:
    """Returns the hashing of keys that a caller asks for.

    Raises:
        ArgumentInvalidError: The max parallelism is no number, or the hash is unknown.
    """
    check_argument("max_parallelism", max_parallelism, "a whole number", int)
    known = [each.value for each in HashId]
    if hash_id not in known:
        raise ArgumentInvalidError(f"hash_id is {hash_id!r}; give {' or '.join(map(repr, known))}")
    return KeyHashing(max_parallelism, HashId(hash_id))


def described(value: Any) -> str:
    """Returns the name of a value's type, with an article."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
