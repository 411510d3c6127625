"""Event time of a job's operators: from what was committed, to the watermarks of the next batch. Pure.

A watermark is a statement about all subtasks at once, so the driver makes it: from the latest event time of all records of all
committed batches, less the bound by which records may come out of order. Where records come from several sources, the one that is
the least far says how far the operator is, except sources that are idle. It is in the log before it is used: a batch that is run
again, by whomever, has the same, or a later one if a source has become idle meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from jobs.nodes import OperatorNode
from state.job_time import EventTime, JobTime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobs.nodes import Arrival
    from jobs.runtime.body import NextTimers
    from jobs.topology import Topology
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


class Activity:
    """When each operator last had records of each of its origins, as this attempt has seen it; milliseconds since the epoch.

    An origin is idle if it has had nothing for long although there was a chance: what waits while a batch runs does not count as
    missing, nor does what waits while a job is down.
    """

    def __init__(self) -> None:
        self._began_ms: int | None = None
        self._looked_ms = 0
        self._seen_ms: dict[tuple[OperatorUid, str], int] = {}

    def ran(self, began_ms: int, ended_ms: int, latest: Mapping[OperatorUid, Mapping[str, int]]) -> None:
        """Takes note of a batch: when its input was cut off, when it was done, and the origins that had records in it."""
        self.waited(began_ms)
        self._seen_ms.update({(uid, origin): ended_ms for uid, origins in latest.items() for origin in origins})

    def waited(self, now_ms: int) -> None:
        """Takes note that there is no more input now than that of the batches so far."""
        if self._began_ms is None:
            self._began_ms = now_ms
        self._looked_ms = now_ms

    def is_idle(self, uid: OperatorUid, arrival: Arrival) -> bool:
        timestamps = arrival.origin.timestamps
        after_ms = timestamps.idle_after_ms if timestamps is not None else None
        if after_ms is None or self._began_ms is None:
            return False
        return self._looked_ms - self._seen_ms.get((uid, arrival.name), self._began_ms) >= after_ms


def batch_times(
    topology: Topology, time: JobTime, processing_ms: int, activity: Activity | None = None
) -> dict[OperatorUid, BatchTime]:
    """The times of the batch after `time`, for each operator.

    An operator goes by the watermark of the operator before it, unless its input was given event times on the way.

    Args:
        topology: The job.
        time: After the last batch.
        processing_ms: The clock's.
        activity: What is known of idle sources; None: none is idle.
    """
    times: dict[OperatorUid, BatchTime] = {}
    for node in topology.operators:
        known = time.event_times.get(node.uid, EventTime())
        arrivals = topology.arrivals(node)
        reached = {each.name: _reached(each, known, times, alone=len(arrivals) == 1) for each in arrivals}
        active = [reached[each.name] for each in arrivals if activity is None or not activity.is_idle(node.uid, each)]
        timers_ms = _latest(known.watermark_ms, _least(active) if active else _latest(*reached.values()))
        times[node.uid] = BatchTime(processing_ms, known.watermark_ms, timers_ms)
    return times


def _reached(arrival: Arrival, known: EventTime, times: Mapping[OperatorUid, BatchTime], *, alone: bool) -> int | None:
    """The watermark that an operator would have if it had no records but those of an arrival."""
    origin = arrival.origin
    if isinstance(origin.node, OperatorNode) and (arrival.timestamp_column is None or origin.timestamps is None):
        return times[origin.node.uid].timers_ms
    bound_ms = arrival.out_of_orderness_ms if origin.timestamps is None else origin.timestamps.out_of_orderness_ms
    of_origins = {} if isinstance(known.origins, UnsetType) else known.origins
    latest_ms = known.latest_ms if alone else of_origins.get(arrival.name)
    return None if latest_ms is None else latest_ms - bound_ms - 1


def time_after(
    time: JobTime,
    times: Mapping[OperatorUid, BatchTime],
    latest_ms: Mapping[OperatorUid, int | None],
    *,
    of_spark: bool,
    of_origins: Mapping[OperatorUid, Mapping[str, int]] | None = None,
) -> JobTime:
    """The job's time after a batch.

    Args:
        time: Before it.
        times: That it was run with.
        latest_ms: The latest event time of its records, by operator.
        of_spark: Whether it was one of Spark's, or had no input but time.
        of_origins: `latest_ms` by origin, of operators that have several.
    """
    event_times = dict(time.event_times)
    for uid, of_batch in times.items():
        known = event_times.get(uid, EventTime())
        origins = {} if isinstance(known.origins, UnsetType) else dict(known.origins)
        for name, reached_ms in (of_origins or {}).get(uid, {}).items():
            origins[name] = max(reached_ms, origins.get(name, reached_ms))
        latest = _latest(known.latest_ms, latest_ms.get(uid))
        after = EventTime(latest, of_batch.timers_ms, origins or UNSET)
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


def _latest(*times_ms: int | None) -> int | None:
    return max((each for each in times_ms if each is not None), default=None)


def _least(times_ms: Sequence[int | None]) -> int | None:
    """The earliest; none where one of them is none, as nothing is known then."""
    known = [each for each in times_ms if each is not None]
    return min(known, default=None) if len(known) == len(times_ms) else None
