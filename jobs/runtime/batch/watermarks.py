"""Watermarks of a job's operators for the next batch, as pure functions.

Watermarks are computed from committed batches.

A watermark holds for all subtasks at once, so the driver computes it: the latest event time of all records of all
committed batches, less the time by which records may be out of order. Of several sources, and of several splits, the
earliest watermark counts. Idle sources do not count, nor do sources that were idle and are still behind the operator's
current watermark. The watermark is in the log before it is used: a batch that runs again, in any attempt, has the same
watermark, or a later watermark if a source has become idle meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from msgspec import UNSET, UnsetType

from keyscale.state.doors.commits import EventTime, JobTime
from keyscale.state.doors.keyed import END_OF_TIME_MS

from ...errors import TooManySplitsError
from ...operators.split_name import name_before
from ..executor.task import BatchTime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyscale.identifiers import OperatorUid
    from keyscale.state.doors.keyed import NextTimers

    from ...graph.nodes import Arrival, OperatorNode
    from ...graph.topology import Topology

SPLITS_MAX = 10_000
"""Maximum number of splits: each commit holds a time for every split."""

_Input: TypeAlias = "tuple[OperatorUid, str, str | None]"
"""An operator, an arrival at it or the splits of an arrival by name, and the split; None for the whole arrival."""


class InputActivity:
    """Records when this attempt last saw records of each origin and split.

    Entries are by operator, in milliseconds of a monotonic clock. An origin or split is idle if it had no records for
    long although Spark looked for records. The time of a running batch does not count, nor does the downtime of the
    job.
    """

    def __init__(self) -> None:
        self._began_ms: int | None = None
        self._looked_ms = 0
        self._seen_ms: dict[_Input, int] = {}
        self._left_behind: set[_Input] = set()

    def ran(
        self,
        began_ms: int,
        ended_ms: int,
        of_origins: Mapping[OperatorUid, Mapping[str, int]],
        of_splits: Mapping[OperatorUid, Mapping[str, Mapping[str, int]]] | None = None,
    ) -> None:
        """Notes a batch: its times, and its origins and splits with records.

        `began_ms` is when its input was read, `ended_ms` when the batch ended.
        """
        self.waited(began_ms)
        for uid, origins in of_origins.items():
            self._seen_ms.update({(uid, origin, None): ended_ms for origin in origins})
        for uid, in_splits in (of_splits or {}).items():
            for origin, splits in in_splits.items():
                self._seen_ms.update({(uid, origin, split): ended_ms for split in splits})

    def waited(self, now_ms: int) -> None:
        """Notes that all input has been read for now."""
        if self._began_ms is None:
            self._began_ms = now_ms
        self._looked_ms = now_ms

    def counts(self, at: _Input, arrival: Arrival, reached_ms: int | None, watermark_ms: int | None) -> bool:
        """Returns whether a source or split counts for an operator's watermark.

        The operator has reached `watermark_ms`. As in Flink, a source that has been idle does not count until it has
        caught up: it would hold back the other sources, and its records are late in any case until then.
        """
        if self._is_idle(at, arrival):
            self._left_behind.add(at)
        elif at in self._left_behind and _is_in_step(reached_ms, watermark_ms):
            self._left_behind.remove(at)
        return at not in self._left_behind

    def _is_idle(self, at: _Input, arrival: Arrival) -> bool:
        timestamps = arrival.origin.timestamps
        after_ms = timestamps.idle_after_ms if timestamps is not None else None
        if after_ms is None or self._began_ms is None:
            return False
        return self._looked_ms - self._seen_ms.get(at, self._began_ms) >= after_ms


def batch_times(
    topology: Topology, time: JobTime, now_ms: int, activity: InputActivity | None = None, *, is_at_end: bool = False
) -> dict[OperatorUid, BatchTime]:
    """Returns the times of the next batch, by operator.

    An operator has the watermark of the preceding operator, unless its input got event times in between.

    Args:
        topology: The job.
        time: The job's time after the last batch.
        now_ms: The time of the driver's clock. The batch has it as processing time, unless an earlier batch had a later
            time: clocks are set back, and a job may continue on hosts with other clocks.
        activity: Knows the idle sources; None if all sources are active.
        is_at_end: Whether the input has ended.
    """
    processing_ms = max(time.processing_ms, now_ms)
    times: dict[OperatorUid, BatchTime] = {}
    for node in topology.operators:
        known = time.event_times.get(node.uid, EventTime())
        arrivals = topology.arrivals(node)
        reached: list[int | None] = []
        active: list[int | None] = []
        for each in arrivals:
            for split, reached_ms in _reached(each, known, times, alone=len(arrivals) == 1).items():
                reached.append(reached_ms)
                at = (node.uid, each.name if split is None else each.splits_name, split)
                if activity is None or activity.counts(at, each, reached_ms, known.watermark_ms):
                    active.append(reached_ms)
        timers_ms = _latest(known.watermark_ms, _least(active) if active else _latest(*reached))
        times[node.uid] = BatchTime(processing_ms, known.watermark_ms, timers_ms, is_at_end)
    return times


def _reached(
    arrival: Arrival, known: EventTime, times: Mapping[OperatorUid, BatchTime], *, alone: bool
) -> dict[str | None, int | None]:
    """Returns the watermark from each split of one arrival alone.

    An arrival without splits, or without known splits, has a single entry without a name.
    """
    if arrival.follows_operator:
        return {None: times[arrival.origin.node.uid].timers_ms}
    bound_ms = arrival.bound_ms
    if arrival.split_columns and (splits := _splits(known).get(arrival.splits_name)):
        return {split: latest_ms - bound_ms - 1 for split, latest_ms in splits.items()}
    of_origins = {} if isinstance(known.origins, UnsetType) else known.origins
    latest_ms = known.latest_ms if alone else of_origins.get(arrival.name)
    return {None: None if latest_ms is None else latest_ms - bound_ms - 1}


def time_after(
    time: JobTime,
    times: Mapping[OperatorUid, BatchTime],
    latest_ms: Mapping[OperatorUid, int | None],
    *,
    of_spark: bool,
    has_effects: bool = True,
    of_origins: Mapping[OperatorUid, Mapping[str, int]] | None = None,
    of_splits: Mapping[OperatorUid, Mapping[str, Mapping[str, int]]] | None = None,
) -> JobTime:
    """Returns the job's time after a batch.

    Args:
        time: The job's time before the batch.
        times: The times that the batch ran with.
        latest_ms: The latest event time of its records, by operator.
        of_spark: Whether it was a batch of Spark, and not a batch of time alone.
        has_effects: Whether it changed any state. A batch of time that fires no timer does not advance the watermark
            of the next records: after a start such a batch looks for due timers, and a restart makes no record late.
        of_origins: `latest_ms` by origin, of operators that have several.
        of_splits: `latest_ms` by the name of the origin's splits and the split, of origins that are in splits.

    Raises:
        TooManySplitsError: The columns that should name splits have too many values.
    """
    event_times = dict(time.event_times)
    for uid, of_batch in times.items():
        known = event_times.get(uid, EventTime())
        origins = {} if isinstance(known.origins, UnsetType) else dict(known.origins)
        for name, reached_ms in (of_origins or {}).get(uid, {}).items():
            origins[name] = max(reached_ms, origins.get(name, reached_ms))
        splits = {name: dict(of_origin) for name, of_origin in _splits(known).items()}
        for name, of_origin in (of_splits or {}).get(uid, {}).items():
            splits[name] = _later(splits.get(name, {}), of_origin)
            if len(splits[name]) > SPLITS_MAX:
                raise TooManySplitsError(
                    f"the records of {name!r} at the operator {uid!r} come from more than {SPLITS_MAX} splits"
                )
        latest = _latest(known.latest_ms, latest_ms.get(uid))
        advances = of_spark or has_effects
        watermark_ms = of_batch.timers_ms if advances else known.watermark_ms
        after = EventTime(latest, watermark_ms, origins or UNSET, splits or UNSET)
        if after != EventTime():
            event_times[uid] = after
    processing_ms = max((each.processing_ms for each in times.values()), default=time.processing_ms)
    return JobTime(event_times, time.time_batches + (not of_spark), processing_ms)


def due_subtasks(node: OperatorNode, time: BatchTime, timers: Sequence[NextTimers | None]) -> tuple[bool, ...]:
    """Returns whether each subtask of an operator fires timers in a batch.

    A subtask with unknown timers counts as one that may.
    """
    if not node.logic.uses_timers:
        return (False,) * len(timers)
    return tuple(known is None or _is_due(known, time) for known in timers)


def _is_due(known: NextTimers, time: BatchTime) -> bool:
    until_ms = END_OF_TIME_MS if time.is_at_end else time.timers_ms
    event = known.event_ms is not None and until_ms is not None and known.event_ms <= until_ms
    return event or (known.processing_ms is not None and known.processing_ms <= time.processing_ms)


def _splits(known: EventTime) -> dict[str, dict[str, int]]:
    return {} if isinstance(known.splits, UnsetType) else known.splits


def _later(known: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    times = dict(known)
    for split, latest_ms in other.items():
        # A split that an earlier version of Keyscale has recorded under another name would hold the watermark forever.
        before_ms = times[split] if split in times else times.pop(name_before(split), latest_ms)
        times[split] = max(latest_ms, before_ms)
    return times


def _latest(*times_ms: int | None) -> int | None:
    return max((each for each in times_ms if each is not None), default=None)


def _is_in_step(reached_ms: int | None, watermark_ms: int | None) -> bool:
    return watermark_ms is None or (reached_ms is not None and reached_ms >= watermark_ms)


def _least(times_ms: Sequence[int | None]) -> int | None:
    """Returns the earliest time; None if one of the times is unknown."""
    known = [each for each in times_ms if each is not None]
    return min(known, default=None) if len(known) == len(times_ms) else None
