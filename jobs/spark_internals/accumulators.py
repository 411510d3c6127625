"""A list that Spark tasks append to and the driver reads.

The API is public; the guarantees are undocumented for tasks of frames, such as the tasks of `mapInArrow`. It relies on
these guarantees (seen in Spark 4.3): when a job has ended, the driver has the items of all tasks that succeeded; items
of a task that failed never arrive; a task that Spark ran twice with success may appear twice.

It has no switch: a batch's changelogs are reported through it. A batch without exactly one report per subtask fails, so
nothing is committed by mistake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from pyspark import AccumulatorParam

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

_Item = TypeVar("_Item")


class _Lists(AccumulatorParam[list[_Item]], Generic[_Item]):
    def zero(self, value: list[_Item]) -> list[_Item]:  # noqa: ARG002 - Spark's signature
        return []

    def addInPlace(self, value1: list[_Item], value2: list[_Item]) -> list[_Item]:  # noqa: N802 - as above
        value1.extend(value2)
        return value1


def list_accumulator(context: SparkContext) -> Accumulator[list[_Item]]:
    """Creates an empty list.

    Spark keeps every accumulator, so create a list per attempt, not per batch.
    """
    return context.accumulator([], _Lists())
