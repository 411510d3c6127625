"""How a driver reads the texts of each kind of diagnostic."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from keyscale.vocabulary import DiagnosticKind

from ...spark_internals.live_executors import live_executors
from .executor_logs import executor_logs
from .stack_samples import profile
from .thread_dump import thread_dump

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..batch.record_sampling import RecordSampling
    from .diagnostic_runner import Means


def means(spark: SparkSession, workers: str, sampling: RecordSampling) -> Means:
    """Returns how to read each kind of diagnostic.

    Args:
        spark: The session.
        workers: The name by which the Python workers offer their stacks.
        sampling: Orders samples of records.
    """
    return {
        DiagnosticKind.THREAD_DUMP: lambda _: thread_dump(spark, workers),
        DiagnosticKind.PROFILE: lambda command: profile(
            workers, command.duration_ms / 1000, partial(live_executors, spark)
        ),
        DiagnosticKind.EXECUTOR_LOGS: lambda _: executor_logs(spark),
        DiagnosticKind.SAMPLE: lambda command: sampling.begin(
            command.id,
            command.operator_uid,
            rows=command.rows,
            with_values=command.with_values,
            seconds=command.duration_ms / 1000,
        ),
    }
