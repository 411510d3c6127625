"""The records of a broadcast stream on their way to every subtask.

They are collected on the driver and go out with the tasks: so each subtask gets them in the same order, before its own records, however
often a task is run. Broadcast streams are small, as every subtask has to process, and mostly to keep, all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from jobs.errors import BroadcastDivergedError, BroadcastTooLargeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame


BYTES_MAX = 64 * 2**20


def collected(frame: DataFrame) -> bytes:
    """The rows of a frame as an Arrow stream; empty if there are none.

    Raises:
        BroadcastTooLargeError: They are more than `BYTES_MAX`.
    """
    table = frame.toArrow()
    if not table.num_rows:
        return b""
    if table.nbytes > BYTES_MAX:
        message = f"a batch of a broadcast stream has {table.nbytes} bytes; {BYTES_MAX} are allowed"
        raise BroadcastTooLargeError(message)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_stream(stream: bytes) -> Iterable[pa.RecordBatch]:
    """The rows of such a stream."""
    return pa.ipc.open_stream(stream) if stream else ()


def check_alike(uid: str, digests: Iterable[str | None]) -> None:
    """Assert that all subtasks of an operator have the same broadcast state after a batch, by its digests.

    Raises:
        BroadcastDivergedError: They have not; the batch may not be committed.
    """
    different = len(set(digests))
    if different > 1:
        message = f"the subtasks of operator {uid!r} have {different} different broadcast states after a batch"
        raise BroadcastDivergedError(message)
