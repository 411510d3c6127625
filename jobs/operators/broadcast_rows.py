"""The records of a broadcast stream on their way to every subtask.

The driver collects them and sends them with the tasks, so that each subtask gets them in the same order, before its own
records, however often a task is run. Broadcast streams are small: every subtask processes, and mostly keeps, all
records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ..errors import BroadcastDivergedError, BroadcastTooLargeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame


BYTES_MAX = 64 * 2**20


def collected(frame: DataFrame) -> bytes:
    """Returns the rows of a frame as an Arrow stream.

    The stream is empty if there are no rows.

    Raises:
        BroadcastTooLargeError: The rows take more than `BYTES_MAX`.
    """
    table = frame.toArrow()
    if not table.num_rows:
        return b""
    if table.nbytes > BYTES_MAX:
        raise BroadcastTooLargeError(f"a batch of a broadcast stream has {table.nbytes} bytes; {BYTES_MAX} are allowed")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_stream(stream: bytes) -> Iterable[pa.RecordBatch]:
    """Returns the rows of an Arrow stream that `collected` wrote."""
    return pa.ipc.open_stream(stream) if stream else ()


def check_alike(uid: str, digests: Iterable[str | None]) -> None:
    """Checks that all subtasks of an operator have equal broadcast state.

    The check compares digests after a batch.

    Raises:
        BroadcastDivergedError: The states differ, so the batch must not be committed.
    """
    different = len(set(digests))
    if different > 1:
        raise BroadcastDivergedError(
            f"the subtasks of operator {uid!r} have {different} different broadcast states after a batch"
        )
