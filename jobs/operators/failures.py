"""Carries errors from tasks to the driver.

An error keeps its type, its place, and a user's exception in full.

Spark passes on only the text of a Python exception. A task therefore raises a `CarriedFailure`; its text holds the
error in a form that `typed_failure` turns back into it. Secrets that the process knows are masked here, before the
text leaves it.
"""

from __future__ import annotations

import base64
import binascii
import dis
import inspect
import re
import traceback
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark import TaskContext

from keyscale.errors import KeyscaleError
from keyscale.installation import EXAMPLES, IMPORT_PATH

from ..errors import OutputTypeError, TaskFailedError, UserFunctionError
from ..secret import without_secrets
from ..spark_internals.task_failures import failure_text, raised_line, worker_traceback

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import CodeType

MESSAGE_CHARACTERS_MAX: Final = 10_000
TRACEBACK_CHARACTERS_MAX: Final = 30_000
_RESULT_LINES_MAX: Final = 5
_PLACE_LINES_MAX: Final = 5

_PACKAGE = IMPORT_PATH / "keyscale"
_CARRIED = re.compile(r"KEYSCALE_FAILURE<([A-Za-z0-9+/=]+)>")
_WORKER_FRAME = re.compile(r'^  File "([^"]+)", line \d+, in .*\n(?:    .*\n)*', re.MULTILINE)


class TaskOrigin(msgspec.Struct, frozen=True):
    """The origin of a task's error."""

    operator_uid: str | None = None
    subtask: int | None = None
    user_traceback: str | None = None


class _Carried(msgspec.Struct, frozen=True):
    code: str
    message: str
    origin: TaskOrigin


class CarriedFailure(Exception):  # noqa: N818 - the envelope of an error
    """A Keyscale error as text that survives the way through Spark."""

    def __init__(self, error: KeyscaleError, origin: TaskOrigin) -> None:
        carried = zlib.compress(msgspec.json.encode(_Carried(error.code, printable(str(error)), origin)))
        message = printable(str(error)).replace("KEYSCALE_FAILURE<", "KEYSCALE_FAILURE <")
        super().__init__(f"{error.code}: {message} KEYSCALE_FAILURE<{base64.b64encode(carried).decode()}>")


def typed_failure(failure: BaseException) -> KeyscaleError:
    """Returns the error behind an exception of Spark.

    The error is the task's own error with its origin, a UserFunctionError for an exception of a user's function that
    Spark called, such as a UDF, or else a TaskFailedError.
    """
    if isinstance(failure, KeyscaleError):
        return failure
    if (carried := carried_error(failure)) is not None:
        return carried
    of_worker = worker_traceback(failure)
    if of_worker is None:
        return TaskFailedError(f"Spark failed: {shown_message(failure_text(failure))}")
    of_user = _from_user_on(of_worker)
    line = shown_message(raised_line(of_worker))
    error = TaskFailedError(f"Spark failed: {line}") if of_user is None else UserFunctionError(line)
    return with_origin(error, TaskOrigin(user_traceback=shown_traceback(of_user or of_worker)))


def carried_error(failure: BaseException) -> KeyscaleError | None:
    """Returns the Keyscale error inside an exception of Spark, if any."""
    for found in _CARRIED.finditer(_message_of(failure)):
        try:
            carried = msgspec.json.decode(zlib.decompress(base64.b64decode(found[1])), type=_Carried)
        except (binascii.Error, zlib.error, msgspec.DecodeError):  # a user's text, by chance
            continue
        kinds = {kind.code: kind for kind in _all_kinds(KeyscaleError)}
        return with_origin(kinds.get(carried.code, TaskFailedError)(carried.message), carried.origin)
    return None


def with_origin(error: KeyscaleError, origin: TaskOrigin) -> KeyscaleError:
    """Attaches its origin to an error.

    The origin is in the exception's `__dict__`, which survives pickling.
    """
    error.__dict__["origin"] = origin
    return error


def origin_of(error: BaseException) -> TaskOrigin:
    """Returns the origin attached to an error by `with_origin`.

    Returns an empty origin for any other error.
    """
    origin = error.__dict__.get("origin")
    return origin if isinstance(origin, TaskOrigin) else TaskOrigin()


def described(error: KeyscaleError) -> str:
    """Describes an error for a log.

    The text has the code, message, operator, subtask, user's traceback and advice.
    """
    origin = origin_of(error)
    names = {"operator": origin.operator_uid, "subtask": origin.subtask}
    where = ", ".join(f"{name} {value}" for name, value in names.items() if value is not None)
    lines = [f"{error.code}: {error}{f' ({where})' if where else ''}", origin.user_traceback, error.advice]
    return "\n".join(line.rstrip() for line in lines if line)


@contextmanager
def user_code(coordinates: Callable[[], str] | None = None) -> Iterator[None]:
    """Turns exceptions of a user's code into Keyscale errors.

    The error keeps the exception's type, message and traceback.

    Args:
        coordinates: Returns the position of the input that was being processed.

    Raises:
        UserFunctionError: The code raised an exception that is not a Keyscale error; `sys.exit` also raises one. In a
            Spark task the exception may be of any type.
    """
    try:
        yield
    except GeneratorExit:  # the reader of our own generator's rows has stopped
        raise
    except KeyscaleError as error:
        if origin_of(error).user_traceback is not None:
            raise error from None
        located = error
        # An output may be the output of an earlier record.
        if coordinates is not None and error.domain == "user" and not isinstance(error, OutputTypeError):
            located = type(error)(f"{error}, {coordinates()}")
        raise with_origin(located, TaskOrigin(user_traceback=user_traceback(error))) from None
    except BaseException as error:
        if not isinstance(error, Exception | SystemExit) and TaskContext.get() is None:
            raise  # in a user's own test: Ctrl-C, or a test runner's outcome exception
        if (carried := carried_error(error)) is not None:  # the code has run a Spark job
            raise carried from None
        where = "" if coordinates is None else f", {coordinates()}"
        failure = UserFunctionError(exception_line(error) + where)
        # It stays the context, but Python would print the exception unmasked.
        raise with_origin(failure, TaskOrigin(user_traceback=user_traceback(error))) from None


@contextmanager
def results_of(function: Callable[..., Any]) -> Iterator[None]:
    """Names a user's function in errors of its results.

    The results are checked after the function has returned, when its frame is gone. The place of the error is each line
    of the function that yields.

    Raises:
        OutputTypeError: As raised, with the place.
    """
    try:
        yield
    except OutputTypeError as error:
        unwrapped = inspect.unwrap(function)
        code = getattr(unwrapped, "__code__", None) or getattr(type(unwrapped).__call__, "__code__", None)
        if code is not None and origin_of(error).user_traceback is None:
            places = [traceback.FrameSummary(code.co_filename, line, code.co_name) for line in _result_lines(code)]
            shown = shown_traceback("".join(["Results of:\n", *traceback.format_list(places)]).rstrip())
            with_origin(error, TaskOrigin(user_traceback=shown))
        raise


def _result_lines(code: CodeType) -> list[int]:
    """Returns the lines of a function that yield results.

    Returns the function's first line if no line yields.
    """
    yields = [each.positions for each in dis.get_instructions(code) if each.opname == "YIELD_VALUE"]
    lines = {each.lineno for each in yields if each is not None and each.lineno is not None}
    return sorted(lines)[:_RESULT_LINES_MAX] or [code.co_firstlineno]


def with_script_lines(error: BaseException) -> BaseException:
    """Attaches the lines of a user's script to a Keyscale error.

    The script called Keyscale there, and Keyscale refused the call. An error that has a traceback keeps it.
    """
    frames = traceback.extract_tb(error.__traceback__)
    # "<string>" is a constructor that `dataclass` has made.
    of_user = [at for at, frame in enumerate(frames) if frame.filename != "<string>" and not _is_ours(frame.filename)]
    origin = origin_of(error)
    if not isinstance(error, KeyscaleError) or origin.user_traceback is not None or not of_user:
        return error
    return with_place(error, frames[of_user[0] : of_user[-1] + 1])


def with_place(error: KeyscaleError, place: Sequence[traceback.FrameSummary]) -> KeyscaleError:
    """Attaches the lines of a user's script to an error."""
    if not place:
        return error
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(place)]
    shown = shown_traceback("".join(lines).rstrip())
    return with_origin(error, msgspec.structs.replace(origin_of(error), user_traceback=shown))


def script_place() -> list[traceback.FrameSummary]:
    """Returns the lines of a user's script that call Keyscale now."""
    place: list[traceback.FrameSummary] = []
    for frame, line in traceback.walk_stack(inspect.currentframe()):
        code = frame.f_code
        if not _is_ours(code.co_filename):
            place.append(traceback.FrameSummary(code.co_filename, line, code.co_name, lookup_line=False))
        elif place:  # the part of Keyscale that runs the script
            break
        if len(place) == _PLACE_LINES_MAX:
            break
    return place[::-1]


def user_traceback(error: BaseException) -> str:
    """Returns a user's traceback from the user's first line on.

    It includes all causes.
    """
    whole = traceback.TracebackException.from_exception(error, compact=True)
    _drop_our_frames(whole)
    return shown_traceback("".join(whole.format()).rstrip())


def exception_line(error: BaseException) -> str:
    """Returns an exception's type and message."""
    if isinstance(error, KeyscaleError):
        return shown_message(f"{error.code}: {error}")
    name = type(error).__qualname__.rpartition("<locals>.")[2]
    message = _message_of(error)
    return shown_message(f"{name}: {message}" if message else name)


def shown_message(text: str) -> str:
    """Masks secrets in a message and cuts it if it is long.

    The message is from a user or from Spark.
    """
    return _cut(without_secrets(printable(text)), MESSAGE_CHARACTERS_MAX)


def shown_traceback(text: str) -> str:
    """Masks secrets in a traceback and cuts it if it is long."""
    return _cut(without_secrets(printable(text)), TRACEBACK_CHARACTERS_MAX)


def printable(text: str) -> str:
    """Escapes the characters that UTF-8 or PostgreSQL cannot hold.

    These are lone surrogates and NUL.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a user's exception may fail even here
        return "(its message cannot be shown)"


def _cut(text: str, characters_max: int) -> str:
    left_out = len(text) - characters_max
    if left_out <= 0:
        return text
    half = characters_max // 2
    return f"{text[:half]}\n... {left_out} characters are left out ...\n{text[-half:]}"


def _drop_our_frames(shown: traceback.TracebackException | None) -> None:
    if shown is None:
        return
    del shown.stack[: next((at for at, frame in enumerate(shown.stack) if not _is_ours(frame.filename)), 0)]
    for inner in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        _drop_our_frames(inner)


def _is_ours(filename: str) -> bool:
    path = Path(filename)
    return path.is_relative_to(_PACKAGE) and not path.is_relative_to(EXAMPLES)


def _from_user_on(of_worker: str) -> str | None:
    """Returns a worker's traceback without Spark's frames before user code.

    Returns None if Spark called a function of Keyscale.
    """
    for frame in _WORKER_FRAME.finditer(of_worker):
        path = Path(frame[1])
        if _is_ours(frame[1]):
            return None
        if not {"pyspark", "pyspark.zip"} & set(path.parts):
            return f"Traceback (most recent call last):\n{of_worker[frame.start() :]}"
    return None


def _all_kinds(kind: type[KeyscaleError]) -> Iterator[type[KeyscaleError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _all_kinds(narrower)
