"""How an error gets from a task to the driver with its type, and with the user's traceback but none of the user's data.

Spark hands on nothing of a Python exception but its text. A task therefore raises a `CarriedFailure`, whose text is one
line that `typed_failure` turns back into the error it stands for.
"""

from __future__ import annotations

import base64
import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jobs.errors import TaskFailedError
from state.errors import KeyscaleError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGE = Path(__file__).parent.parent
_CARRIED = re.compile(r"KEYSCALE_FAILURE<([A-Za-z0-9+/=]+)>")

_MESSAGE_NAMES_CODE = frozenset(
    {
        AttributeError,
        ImportError,
        ModuleNotFoundError,
        NameError,
        NotImplementedError,
        RecursionError,
        TypeError,
        UnboundLocalError,
        ZeroDivisionError,
    }
)
"""Exceptions whose message is about the program. Any other's may quote a record, so it is left out."""


class TaskOrigin(msgspec.Struct, frozen=True):
    """Where a task's error came from."""

    operator_uid: str | None = None
    subtask: int | None = None
    user_traceback: str | None = None


class _Carried(msgspec.Struct, frozen=True):
    code: str
    message: str
    origin: TaskOrigin


class CarriedFailure(Exception):  # noqa: N818  # not an error of its own: an error's envelope
    """An error of ours in the one line of text that survives the way through Spark."""

    def __init__(self, error: KeyscaleError, origin: TaskOrigin) -> None:
        carried = msgspec.json.encode(_Carried(error.code, str(error), origin))
        super().__init__(f"{error.code}: {error} KEYSCALE_FAILURE<{base64.b64encode(carried).decode()}>")


def typed_failure(failure: BaseException) -> KeyscaleError:
    """What really happened, given what Spark raised: the task's own error with its origin, or a TaskFailedError."""
    if isinstance(failure, KeyscaleError):
        return failure
    match = _CARRIED.search(str(failure))
    if match is None:
        return TaskFailedError(f"a Spark task failed: {type(failure).__name__}: {_first_line(failure)}")
    carried = msgspec.json.decode(base64.b64decode(match[1]), type=_Carried)
    kinds = {kind.code: kind for kind in _all_kinds(KeyscaleError)}
    return with_origin(kinds.get(carried.code, TaskFailedError)(carried.message), carried.origin)


def with_origin(error: KeyscaleError, origin: TaskOrigin) -> KeyscaleError:
    """Notes on an error where it came from. An exception's `__dict__` survives pickling, and its class need not know."""
    error.__dict__["origin"] = origin
    return error


def origin_of(error: BaseException) -> TaskOrigin:
    """Operator, subtask and user's traceback of an error that `typed_failure` gave; all None for another."""
    origin = error.__dict__.get("origin")
    return origin if isinstance(origin, TaskOrigin) else TaskOrigin()


def user_traceback(error: BaseException) -> str:
    """The traceback of a user's exception without its data: frames and types, and only messages that are about code."""
    chain = [error]
    while (before := _before(chain[-1])) is not None and before not in chain:
        chain.append(before)
    return "\nwhich led to:\n".join(_one_traceback(link) for link in reversed(chain))


def _one_traceback(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    of_user = next((at for at, frame in enumerate(frames) if not _is_ours(frame.filename)), 0)
    return "".join(
        ["Traceback (most recent call last):\n", *traceback.format_list(frames[of_user:]), exception_line(error)]
    )


def exception_line(error: BaseException) -> str:
    """The exception's type, and its message where that cannot quote a record."""
    kind = type(error)
    if isinstance(error, KeyscaleError):
        return f"{error.code}: {error}"
    if kind in _MESSAGE_NAMES_CODE:
        return f"{kind.__qualname__}: {error}"
    return f"{kind.__qualname__} (message left out, as it may quote a record)"


def _before(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_ours(filename: str) -> bool:
    path = Path(filename)
    return path.is_relative_to(_PACKAGE) and not path.is_relative_to(_PACKAGE / "examples")


def _first_line(failure: BaseException) -> str:
    lines = [line for line in str(failure).splitlines() if line.strip()]
    return lines[0] if lines else ""


def _all_kinds(kind: type[KeyscaleError]) -> Iterator[type[KeyscaleError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _all_kinds(narrower)
