"""The sink that passes each batch to a user's function."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar

from keyscale.errors import KeyscaleError

from ..errors import InvalidTopologyError, SinkFunctionError
from ..operators.failures import TaskOrigin, carried_error, exception_line, user_traceback, with_origin

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from .sink import SinkContext


class ForeachBatchSink:
    """Passes each batch to a function, such as a database writer.

    The function is called before the batch is committed. It is called again if the batch has to run again; the rows of
    the new try may differ in values that depend on their order. For exactly-once output the function must, in one
    transaction, lock its row of (job_id, uid), give up if the row names a higher attempt, replace the output of an
    earlier try of the same batch_id, and record attempt and batch_id. The frame is cached and may be read several
    times, in part, or not at all. If the function raises SinkUnavailableError, the job waits and the batch runs again.

    Args:
        function: Takes the frame and the SinkContext of each batch.
        check: Takes the schema of the rows and a SinkContext before each attempt, and before a change stops the job. It
            tries whether the function can write to its target, takes back what it wrote, and raises an exception if
            not, such as SinkForbiddenError; None: nothing is tried.

    Raises:
        InvalidTopologyError: A function does not take two arguments.
    """

    reads_repeatedly: ClassVar[bool] = True

    def __init__(
        self,
        function: Callable[[DataFrame, SinkContext], None],
        check: Callable[[pa.Schema, SinkContext], None] | None = None,
    ) -> None:
        _require_two_parameters(function, "the frame and the context of a batch")
        if check is not None:
            _require_two_parameters(check, "a schema and a context")
        self._function = function
        self._check = check

    def check(self, schema: pa.Schema, context: SinkContext) -> None:
        """Calls the user's check, if any.

        Raises:
            SinkFunctionError: The check raised an exception that is not a Keyscale error.
        """
        if self._check is not None:
            _call(self._check, "check", context, schema)

    def prepare(self, frame: DataFrame, context: SinkContext) -> str:
        _call(self._function, "function", context, frame)
        return ""

    def publish(self, token: str) -> None:
        """Does nothing: the function has written the batch."""

    def discard(self, token: str) -> None:
        """Does nothing: this sink stages nothing."""

    def recover(self, context: SinkContext) -> None:
        """Does nothing: earlier runs leave nothing to remove."""


def _call(function: Callable[[Any, SinkContext], None], what: str, context: SinkContext, given: Any) -> None:
    try:
        function(given, context)
    except KeyscaleError:
        raise
    except BaseException as error:  # noqa: BLE001 - a user's code may raise anything
        if (carried := carried_error(error)) is not None:  # the failure of an operator before the sink
            raise carried from None
        failure = SinkFunctionError(f"the {what} of sink {context.uid} failed: {exception_line(error)}")
        raise with_origin(failure, TaskOrigin(context.uid, None, user_traceback(error))) from None


def _require_two_parameters(function: Callable[..., None], what: str) -> None:
    """Refuses a function that the sink could not call."""
    if not callable(function):
        raise InvalidTopologyError(f"ForeachBatchSink needs a function of {what}, not {type(function).__name__}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function of C may have none
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise InvalidTopologyError(f"{name} of ForeachBatchSink must take {what}: {error}") from None
