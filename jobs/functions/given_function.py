"""Checks of the functions and sinks that a program declares."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from ..errors import InvalidTopologyError

if TYPE_CHECKING:
    from collections.abc import Sequence

_AGGREGATION = ("create_accumulator", "add", "get_result")


def check_function(given: object, *kinds: type) -> None:
    """Checks that a function is an instance of an allowed class.

    Raises:
        InvalidTopologyError: The function is the class itself, a plain function, or something else.
    """
    if not isinstance(given, kinds):
        raise InvalidTopologyError(_refusal(given, " or a ".join(kind.__name__ for kind in kinds), kinds))


def check_aggregation(given: object, *, merges: bool = False) -> None:
    """Checks that an object has the methods of an AggregateFunction.

    Args:
        given: The object.
        merges: Whether accumulators are merged, as those of sessions are.

    Raises:
        InvalidTopologyError: The object is a class, or lacks a method.
    """
    wanted = (*_AGGREGATION, "merge") if merges else _AGGREGATION
    missing = [name for name in wanted if not callable(getattr(given, name, None))]
    if isinstance(given, type) or len(missing) == len(wanted):
        raise InvalidTopologyError(_refusal(given, "an AggregateFunction", (object,) if not missing else ()))
    if missing:
        raise InvalidTopologyError(f"the aggregation {type(given).__name__} lacks the method {', '.join(missing)}")


def check_callable(given: object) -> None:
    """Checks that an object can be called.

    A reduction calls it.

    Raises:
        InvalidTopologyError: The object is a class, or cannot be called.
    """
    if isinstance(given, type) or not callable(given):
        raise InvalidTopologyError(_refusal(given, "a function of two records", ()))


def check_sink(given: object) -> None:
    """Checks that a sink is an object, such as `FileSink(path)`.

    Raises:
        InvalidTopologyError: The sink is a class, a function or a path.
    """
    if callable(given) or isinstance(given, str | PurePath):
        raise InvalidTopologyError(_refusal(given, "a sink", (object,) if hasattr(given, "prepare") else ()))


def _refusal(given: object, wanted: str, kinds: Sequence[type]) -> str:
    if not isinstance(given, type):
        shown = getattr(given, "__name__", type(given).__name__)
        what = "the function" if callable(given) else "the value"
        return f"{what} {shown} is given in the place of {_with_article(wanted)}"
    if issubclass(given, tuple(kinds)):
        return f"the class {given.__name__} is given in the place of an instance; write {given.__name__}(...)"
    return f"the class {given.__name__} is given in the place of {_with_article(wanted)}"


def _with_article(wanted: str) -> str:
    return wanted if wanted.startswith(("a ", "an ")) else f"a {wanted}"
