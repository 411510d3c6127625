"""How a driver reads the texts of each kind of diagnostic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.vocabulary import DiagnosticKind

from .thread_dump import thread_dump

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .diagnostic_runner import Means


def means(spark: SparkSession, workers: str) -> Means:
    """Returns how to read each kind of diagnostic.

    Args:
        spark: The session.
        workers: The name by which the Python workers offer their stacks.
    """
    return {
        DiagnosticKind.THREAD_DUMP: lambda _: thread_dump(spark, workers),
    }
