"""The sink that passes each batch to a user's function."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from keyscale.errors import KeyscaleError

from ..errors import SinkFunctionError
from ..operators.failures import TaskOrigin, carried_error, exception_line, user_traceback, with_origin

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from .sink import SinkContext


class ForeachBatchSink:
    """Passes each batch to a function, such as a database writer.

    The function is called before the batch is committed. It is called again if the batch has to run again; the rows of
    the new try may differ in values that depend on their order. For exactly-once output the function must, in one
    transaction, lock its row of (job_id, uid), give up if the row names a higher attempt, replace the output of an
    earlier try of the same batch_id, and record attempt and batch_id. The frame is cached and may be read several
    times, in part, or not at all. If the function raises SinkUnavailableError, the job waits and the batch runs again.
    """

    reads_repeatedly: ClassVar[bool] = True

    def __init__(self, function: Callable[[DataFrame, SinkContext], None]) -> None:
        self._function = function

    def prepare(self, frame: DataFrame, context: SinkContext) -> str:
        try:
            # A separate frame: `unpersist` on the original would affect its other readers. Spark treats `select("*")`
            # as the same frame.
            self._function(frame.where("true"), context)
        except KeyscaleError:
            raise
        except BaseException as error:  # noqa: BLE001 - a user's code may raise anything
            if (carried := carried_error(error)) is not None:  # the failure of an operator before the sink
                raise carried from None
            failure = SinkFunctionError(f"the function of sink {context.uid} failed: {exception_line(error)}")
            raise with_origin(failure, TaskOrigin(context.uid, None, user_traceback(error))) from None
        return ""

    def publish(self, token: str) -> None:
        """Does nothing: the function has written the batch."""

    def discard(self, token: str) -> None:
        """Does nothing: this sink stages nothing."""

    def recover(self, context: SinkContext) -> None:
        """Does nothing: earlier runs leave nothing to remove."""
