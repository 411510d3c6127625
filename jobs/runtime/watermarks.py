"""Event time of a job's operators: from what was committed, to the watermarks of the next batch. Pure.

A watermark is a statement about all subtasks at once, so the driver makes it: from the latest event time of all records of all
committed batches, less the bound by which records may come out of order. It is in the log before it is used: a batch that is run
again, by whomever, has the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state.job_time import EventTime, JobTime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobs.runtime.body import NextTimers
    from jobs.topology import OperatorNode, Topology
    from state.identifiers import OperatorUid


@dataclass(frozen=True, slots=True)
class BatchTime:
    """The times of one batch of one operator, in milliseconds since the epoch.

    Attributes:
        processing_ms: The clock's, which stands still while the batch runs.
        records_ms: The watermark that its records are seen at: the one that the batch before fired its timers with. None: none.
        timers_ms: The watermark at its end, that timers are fired up to. None: none.
    """

    processing_ms: int
    records_ms: int | None = None
    timers_ms: int | None = None


def batch_times(topology: Topology, time: JobTime, processing_ms: int) -> dict[OperatorUid, BatchTime]:
    """The times of the batch after `time`, for each operator.

    An operator whose input has no event time of its own goes by that of the operator before it.
    """
    times: dict[OperatorUid, BatchTime] = {}
    for node in topology.operators:
        before = topology.operator_before(node.input)
        known = time.event_times.get(node.uid, EventTime())
        if node.timestamp_column is None and before is not None:
            timers_ms = _latest(known.watermark_ms, times[before.uid].timers_ms)
        else:
            timers_ms = watermark_ms(known, node.out_of_orderness_ms)
        times[node.uid] = BatchTime(processing_ms, known.watermark_ms, timers_ms)
    return times


def watermark_ms(known: EventTime, out_of_orderness_ms: int) -> int | None:
    """The watermark that follows from what is known: no event at or before it is expected any more. It never goes back."""
    reached = None if known.latest_ms is None else known.latest_ms - out_of_orderness_ms - 1
    return _latest(known.watermark_ms, reached)


def time_after(
    time: JobTime,
    times: Mapping[OperatorUid, BatchTime],
    latest_ms: Mapping[OperatorUid, int | None],
    *,
    of_spark: bool,
) -> JobTime:
    """The job's time after a batch.

    Args:
        time: Before it.
        times: That it was run with.
        latest_ms: The latest event time of its records, by operator.
        of_spark: Whether it was one of Spark's, or had no input but time.
    """
    event_times = dict(time.event_times)
    for uid, of_batch in times.items():
        known = event_times.get(uid, EventTime())
        after = EventTime(_latest(known.latest_ms, latest_ms.get(uid)), of_batch.timers_ms)
        if after != EventTime():
            event_times[uid] = after
    return JobTime(event_times, time.time_batches + (not of_spark))


def due_subtasks(node: OperatorNode, time: BatchTime, timers: Sequence[NextTimers | None]) -> tuple[bool, ...]:
    """Which subtasks of an operator have timers to fire in a batch, by index; one whose timers are not known may have."""
    if not node.logic.uses_timers:
        return (False,) * len(timers)
    return tuple(known is None or _is_due(known, time) for known in timers)


def _is_due(known: NextTimers, time: BatchTime) -> bool:
    event = known.event_ms is not None and time.timers_ms is not None and known.event_ms <= time.timers_ms
    return event or (known.processing_ms is not None and known.processing_ms <= time.processing_ms)


def _latest(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
