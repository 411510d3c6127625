"""Batches handed to a function of the user's."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from jobs.errors import SinkFunctionError
from jobs.runtime.failures import TaskOrigin, exception_line, user_traceback, with_origin
from state.errors import KeyscaleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from jobs.sinks.contract import SinkContext


class ForeachBatchSink:
    """Hands each batch to a function, such as one that writes to a database.

    The function is called before the batch is committed, and called again if the batch has to be run again: by a later try,
    whose rows may differ in order-dependent values. To be exact it must, in one transaction,
    lock its row of (job_id, uid), give up if that row names a higher attempt, replace what an earlier try of the same
    batch_id has written, and record attempt and batch_id. The frame is kept meanwhile: it may be read several times.
    """

    reads_repeatedly: ClassVar[bool] = True

    def __init__(self, function: Callable[[DataFrame, SinkContext], None]) -> None:
        self._function = function

    def prepare(self, frame: DataFrame, context: SinkContext) -> str:
        try:
            self._function(frame, context)
        except KeyscaleError:
            raise
        except Exception as error:
            failure = SinkFunctionError(f"the function of sink {context.uid} failed: {exception_line(error)}")
            raise with_origin(failure, TaskOrigin(context.uid, None, user_traceback(error))) from error
        return ""

    def publish(self, token: str) -> None:
        """Nothing is left to do: the function has written."""

    def discard(self, token: str) -> None:
        """Nothing is staged."""

    def recover(self, context: SinkContext) -> None:
        """Nothing is left behind."""
