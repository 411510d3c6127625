"""Jobs over the anchor alone: one task a subtask, on the executor that holds its state, whatever the input does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from jobs.errors import IncompleteReportsError
from jobs.runtime.failures import CarriedFailure, TaskOrigin, typed_failure
from state.errors import KeyscaleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from jobs.runtime.affinity import Anchor
    from state.identifiers import SubtaskIndex

_RESULT_SCHEMA = "subtask int, result binary"


def run_anchored(
    spark: SparkSession, anchor: Anchor, label: str, function: Callable[[SubtaskIndex], bytes]
) -> dict[SubtaskIndex, bytes]:
    """Runs a function once for each subtask, in the Python worker beside its state, and returns its results.

    Spark may try a task again after a failure, so `function` must be safe to run twice; the results are those of the tries
    that succeeded, exactly one for each subtask.

    Args:
        spark: The session that the anchor belongs to.
        anchor: Where the subtasks are.
        label: What Spark's web UI shows, such as "snapshot 17".
        function: Pickled by value; gets the subtask's index. Its results should be small, as the driver collects them.

    Raises:
        KeyscaleError: What the function raised, where that was one of ours; else TaskFailedError.
        IncompleteReportsError: Not exactly one result for each subtask.
    """
    spark.sparkContext.setJobDescription(label)
    try:
        rows = anchor.subtasks.mapInArrow(_task_of(function), _RESULT_SCHEMA).collect()
    except Exception as failure:
        raise typed_failure(failure) from failure
    finally:
        spark.sparkContext.setJobDescription("")
    results = {row.subtask: bytes(row.result) for row in rows}
    if len(rows) != anchor.parallelism or set(results) != set(range(anchor.parallelism)):
        raise IncompleteReportsError(f"{label}: {len(rows)} results of {anchor.parallelism} subtasks")
    return results


def _task_of(
    function: Callable[[SubtaskIndex], bytes],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for subtask in batch.column(0).to_pylist():
                try:
                    result = function(subtask)
                except KeyscaleError as error:
                    raise CarriedFailure(error, TaskOrigin(subtask=subtask)) from None
                columns = [pa.array([subtask], pa.int32()), pa.array([result], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, ["subtask", "result"])

    return task
