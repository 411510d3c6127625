"""Jobs over the anchor alone: one task a subtask, on the executor that holds its state, whatever the input does.

They are RDD jobs, which Spark runs as they are: to analyse and plan a frame takes longer than such a job does. Their tasks get the
Python workers of the batches, beside the open stores; that rests on a setting in spark_settings.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.errors import IncompleteReportsError
from jobs.runtime.failures import CarriedFailure, TaskOrigin, typed_failure
from state.errors import KeyscaleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import Row, SparkSession

    from jobs.runtime.affinity import Anchor
    from state.identifiers import SubtaskIndex


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
        found = anchor.subtasks.mapPartitions(_task_of(function)).collect()
    except Exception as failure:
        raise typed_failure(failure) from failure
    finally:
        spark.sparkContext.setJobDescription("")
    results = dict(found)
    if len(found) != anchor.parallelism or set(results) != set(range(anchor.parallelism)):
        raise IncompleteReportsError(f"{label}: {len(found)} results of {anchor.parallelism} subtasks")
    return results


def _task_of(
    function: Callable[[SubtaskIndex], bytes],
) -> Callable[[Iterable[Row]], Iterator[tuple[SubtaskIndex, bytes]]]:
    def task(rows: Iterable[Row]) -> Iterator[tuple[SubtaskIndex, bytes]]:
        for (subtask,) in rows:
            try:
                result = function(subtask)
            except KeyscaleError as error:
                raise CarriedFailure(error, TaskOrigin(subtask=subtask)) from None
            yield subtask, result

    return task
