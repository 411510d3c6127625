"""How an error gets from a task to the driver with its type, and with the user's traceback but none of the user's data.

Spark hands on nothing of a Python exception but its text. A task therefore raises a `CarriedFailure`, whose text is one
line that `typed_failure` turns back into the error it stands for.
"""

from __future__ import annotations

import base64
import re
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyspark.errors import PySparkException

from jobs.errors import TaskFailedError, UserFunctionError
from state.errors import KeyscaleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PACKAGE = Path(__file__).parent.parent
_CARRIED = re.compile(r"KEYSCALE_FAILURE<([A-Za-z0-9+/=]+)>")

_ABORTED = re.compile(
    r"(Task \d+ in stage [\d.]+ failed \d+ times).*?\([^()]*executor[^()]*\): ((?:\w+\.)+[\w$]+)(?:: )?(.*)"
)
_ABOUT_FILES = ("java.io.", "java.nio.file.", "org.apache.hadoop.")
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
        return TaskFailedError(f"Spark failed: {_spark_line(failure)}")
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


@contextmanager
def user_code(coordinates: Callable[[], str] | None = None) -> Iterator[None]:
    """Gives what a user's code raises an error of ours, with its traceback and without its data.

    Args:
        coordinates: Says where the input is that was being processed, without its content.

    Raises:
        UserFunctionError: For any exception that is not one of ours.
    """
    try:
        yield
    except KeyscaleError as error:
        raise with_origin(error, TaskOrigin(user_traceback=user_traceback(error))) from None
    except Exception as error:  # noqa: BLE001 - a user's code may raise anything
        where = "" if coordinates is None else f", {coordinates()}"
        failure = UserFunctionError(exception_line(error) + where)
        raise with_origin(failure, TaskOrigin(user_traceback=user_traceback(error))) from None


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


def _spark_line(failure: BaseException) -> str:
    """What Spark says went wrong, without what may quote a record: its condition, or the task's fate and exception."""
    if isinstance(failure, PySparkException) and failure.getCondition():
        return str(failure.getCondition())
    found = _ABORTED.search(str(failure))
    if found is None:
        return type(failure).__name__
    task, kind, message = found.groups()
    about_files = kind.startswith(_ABOUT_FILES) or message.startswith("Python worker exited unexpectedly")
    return f"{task} by {kind}{': ' + message if about_files else ''}"


def _all_kinds(kind: type[KeyscaleError]) -> Iterator[type[KeyscaleError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _all_kinds(narrower)
