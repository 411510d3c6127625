"""Checks that a user's object can be sent to Python workers.

The error names the part that cannot.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from keyscale.errors import KeyscaleError

from ..errors import NotPicklableError
from ..spark_internals.function_copies import pickled

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEPTH_MAX = 20
_OF_EVERY_CLASS = frozenset({"__dict__", "__weakref__", "_abc_impl"})


def check_picklable(thing: Any, what: str) -> None:
    """Checks that an object can be sent to Python workers.

    Args:
        thing: The object.
        what: Its name in the message, such as "operator 'totals'".

    Raises:
        NotPicklableError: The object cannot be pickled. The message names the attribute, element or variable at fault.
        SecretNotNamedError, MissingSecretError: The object holds a secret that is missing.
    """
    try:
        pickled(thing)
    except KeyscaleError:
        raise
    except Exception as error:  # noqa: BLE001 - objects raise anything when they are pickled
        path, cause = _to_blame(thing, _name_of(thing), error, {}) or (_name_of(thing), error)
        raise NotPicklableError(
            f"{what} cannot be sent to Python workers because of {path}: {type(cause).__name__}: {cause}"
        ) from None


def _to_blame(
    thing: Any, path: str, error: Exception, seen: dict[int, Any], depth: int = 0
) -> tuple[str, Exception] | None:
    """Finds the innermost part that cannot be pickled.

    Returns:
        The path to the part, and its exception. None if only parts that were seen before are left.
    """
    seen[id(thing)] = thing
    is_whole = True
    for name, part in _parts_of(thing):
        found = error if id(part) in seen else _error_of(part)
        if found is None:
            continue
        is_whole = False
        if id(part) in seen or depth == _DEPTH_MAX:
            continue
        # The user does not know the operator that wraps the user's function.
        is_ours = type(thing).__module__.startswith("keyscale.")
        deeper = _to_blame(part, _name_of(part) if is_ours else f"{path}{name}", found, seen, depth + 1)
        if deeper is not None:
            return deeper
    return (path, error) if is_whole else None


def _error_of(thing: Any) -> Exception | None:
    try:
        pickled(thing)
    except Exception as error:  # noqa: BLE001 - as above
        return error
    return None


def _parts_of(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yields the parts that are pickled with an object, with their paths."""
    if isinstance(thing, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in thing.items())
    elif isinstance(thing, list | tuple):
        yield from ((f"[{index}]", part) for index, part in enumerate(thing))
    elif isinstance(thing, types.FunctionType):
        yield from _variables_of(thing)
    elif isinstance(thing, types.MethodType):
        yield "", thing.__self__
    elif isinstance(thing, partial):
        yield from ((f"({part!r})", part) for part in (thing.func, *thing.args, *thing.keywords.values()))
    elif isinstance(thing, type):
        yield from ((f".{name}", part) for name, part in vars(thing).items() if name not in _OF_EVERY_CLASS)
    elif dataclasses.is_dataclass(thing):
        yield from ((f".{field.name}", getattr(thing, field.name)) for field in dataclasses.fields(thing))
    else:
        yield from _attributes_of(thing)
        yield "", type(thing)  # sent by value if the script itself defines it


def _attributes_of(thing: Any) -> Iterator[tuple[str, Any]]:
    state: Any = None
    with suppress(Exception):
        state = thing.__getstate__()
    for each in state if isinstance(state, tuple) else (state,):
        if isinstance(each, Mapping):
            yield from ((f".{name}", part) for name, part in each.items())


def _variables_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # it has no value yet
            yield f": variable {name}", cell.cell_contents
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f": variable {name}", function.__globals__[name]
    yield from ((f": default {index + 1}", value) for index, value in enumerate(function.__defaults__ or ()))


def _name_of(thing: Any) -> str:
    return getattr(thing, "__qualname__", None) or type(thing).__qualname__
