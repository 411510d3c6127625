"""The metrics that users see, as pure functions.

Metrics of operators come from their tasks' reports, metrics of sources from Spark's progress.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keyscale.metrics import COUNTER, OPERATOR, SUBTASK, of_scope
from keyscale.state.doors.commits import EventTime

from ...graph.nodes import SourceNode
from ...protocol.messages import (
    REPORTED_KEY_GROUPS_MAX,
    KeyGroupRecords,
    OperatorMetrics,
    SinkMetrics,
    SourceMetrics,
    SubtaskMetrics,
)
from ...protocol.source_retention import reported_sources
from ...sources.source_reader import EARLIEST, RECORDS_BEHIND, RECORDS_LOST, RETENTION_MS
from .record_rates import rate_after

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.identifiers import OperatorUid
    from keyscale.state.doors.commits import JobTime

    from ...graph.nodes import NodeId
    from ...graph.topology import Topology
    from ..executor.task_reports import TaskReport
    from .record_rates import Span

CLOCKS_APART_MS = 60_000
PROGRESS_AGE_MAX_MS = 300_000
"""Maximum age of the progress from which the sources' remaining records are reported."""
_SMOOTHING = 0.3
"""Minimum weight of the newest batch in durations and ratios."""
_OUTDATED_MS = 10_000
"""A batch that covers this much time counts alone: earlier batches are too old for a ratio."""


_COUNTERS = tuple(metric.name for metric in of_scope(OPERATOR) if metric.kind is COUNTER)
_OF_THE_CYCLE = ("busy_ratio", "state_bytes")
_MEASURED_BY_TASKS = tuple(metric.name for metric in of_scope(SUBTASK) if metric.name not in _OF_THE_CYCLE)


def operator_metrics(
    reports: Mapping[OperatorUid, Sequence[TaskReport]], time: JobTime, committed_at_ms: int
) -> list[OperatorMetrics]:
    """Returns the metrics of each operator in one batch.

    Args:
        reports: The tasks' reports, by operator and subtask.
        time: The job's time after the batch.
        committed_at_ms: When the batch was committed.
    """
    found = []
    for uid, of_operator in reports.items():
        watermark_ms = time.event_times.get(uid, EventTime()).watermark_ms
        latest_ms = max(
            (each.latest_event_ms for each in of_operator if each.latest_event_ms is not None), default=None
        )
        found.append(
            OperatorMetrics(
                uid=uid,
                **{name: sum(each.count_of(name) for each in of_operator) for name in _COUNTERS},
                watermark_ms=watermark_ms,
                watermark_lag_ms=lag_ms(watermark_ms, committed_at_ms),
                event_time_lag_ms=lag_ms(latest_ms, committed_at_ms),
                subtasks=[_subtask(each) for each in of_operator],
                key_groups=_largest_key_groups(of_operator),
                batch_records=sum(each.read_records for each in of_operator),
            )
        )
    return found


def _largest_key_groups(reports: Sequence[TaskReport]) -> list[KeyGroupRecords]:
    """Returns the numbers of records of an operator's largest key groups.

    They are exact, as a key group belongs to one subtask.
    """
    found = sorted((item for each in reports for item in each.key_groups.items()), key=lambda item: -item[1])
    return [KeyGroupRecords(key_group=group, records=count) for group, count in found[:REPORTED_KEY_GROUPS_MAX]]


def records_read(topology: Topology, reports: Mapping[OperatorUid, Sequence[TaskReport]]) -> int:
    """Returns the number of records that a batch has read from sources.

    Each record counts once, however many operators get it. Records that transforms drop are not counted, nor are
    records that reach only sinks or are only broadcast. If no operator reads a source directly, each branch through
    transforms counts: the branches may have different records.
    """
    whole: dict[NodeId, int] = {}
    branches: Counter[NodeId] = Counter()
    for node in topology.operators:
        arrivals = topology.arrivals(node)
        for arrival in arrivals:
            source = arrival.origin.node
            if not isinstance(source, SourceNode):
                continue
            read = sum(
                each.read_records if len(arrivals) == 1 else each.records_of_origins.get(arrival.name, 0)
                for each in reports[node.uid]
            )
            if times := topology.times_passed_on(node.inputs[arrival.port], source.id):
                whole[source.id] = max(read // times, whole.get(source.id, 0))
            else:
                branches[source.id] += read
    return sum({**branches, **whole}.values())


def sink_metrics(dead_letters: Mapping[OperatorUid, int]) -> list[SinkMetrics]:
    """Returns the metrics of the sinks in one batch.

    `dead_letters` is the number of dead letters per sink.
    """
    return [SinkMetrics(uid=uid, dead_letters=count) for uid, count in dead_letters.items()]


def lag_ms(event_ms: int | None, at_ms: int) -> int | None:
    """Returns how far an event time is behind the clock.

    Returns None if the time is far ahead, as in records with invented times.

    A few seconds ahead are a difference between clocks, and count as 0.
    """
    if event_ms is None or event_ms > at_ms + CLOCKS_APART_MS:
        return None
    return max(0, at_ms - event_ms)


def _subtask(report: TaskReport) -> SubtaskMetrics:
    return SubtaskMetrics(
        index=report.subtask,
        **{name: getattr(report, name) for name in _MEASURED_BY_TASKS},
        state_bytes=report.state_bytes or 0,
    )


def added_up(
    before: Sequence[OperatorMetrics],
    batch: Sequence[OperatorMetrics],
    cycle_ms: float,
    *,
    reads: Span | None,
    writes: Span,
) -> list[OperatorMetrics]:
    """Adds a batch's metrics to the totals since the driver started.

    Args:
        before: The metrics after the previous batch.
        batch: The metrics of the batch alone.
        cycle_ms: Time from the previous commit to this commit; busy ratios are shares of it.
        reads: The time that the records read cover; None: the next batch with input covers it.
        writes: The time that the records written cover.
    """
    known = {operator.uid: operator for operator in before}
    return [
        _added(known.get(operator.uid, OperatorMetrics(uid=operator.uid)), operator, cycle_ms, reads, writes)
        for operator in batch
    ]


def added_up_sinks(before: Sequence[SinkMetrics], batch: Sequence[SinkMetrics]) -> list[SinkMetrics]:
    """Adds a batch's metrics of sinks to the driver's totals.

    A batch of time alone may have no metrics of sinks.
    """
    totals = {sink.uid: sink for sink in before}
    for sink in batch:
        known = totals.get(sink.uid, sink.model_copy(update={"dead_letters": 0}))
        totals[sink.uid] = known.model_copy(update={"dead_letters": (known.dead_letters or 0) + sink.dead_letters})
    return list(totals.values())


def timed_sinks(before: Sequence[SinkMetrics], times_ms: Mapping[OperatorUid, float]) -> list[SinkMetrics]:
    """Adds the time that each sink took in a batch."""
    sinks = {sink.uid: sink for sink in before}
    for uid, spent_ms in times_ms.items():
        sinks[uid] = sinks.get(uid, SinkMetrics(uid=uid)).model_copy(update={"write_ms": spent_ms})
    return list(sinks.values())


def without_records(operator: OperatorMetrics, span: Span) -> OperatorMetrics:
    """Returns an operator's metrics after a time without records."""
    names = ("read_records_per_second", "write_records_per_second")
    return operator.model_copy(update={name: rate_after(getattr(operator, name), 0, span) for name in names})


def state_bytes_of(operators: Sequence[OperatorMetrics]) -> int:
    """Returns the state size of all subtasks together."""
    return sum(subtask.state_bytes for operator in operators for subtask in operator.subtasks)


def _added(
    before: OperatorMetrics, batch: OperatorMetrics, cycle_ms: float, reads: Span | None, writes: Span
) -> OperatorMetrics:
    sizes = {subtask.index: subtask.state_bytes for subtask in before.subtasks}
    subtasks = [
        subtask.model_copy(
            update={
                "busy_ratio": min(1.0, _busy_ms(subtask) / max(cycle_ms, 1.0)),
                # A subtask without work has not opened its state, so the size is unchanged.
                "state_bytes": subtask.state_bytes or sizes.get(subtask.index, 0),
            }
        )
        for subtask in batch.subtasks
    ]
    read_rate = before.read_records_per_second
    totals = {
        "read_records_per_second": read_rate if reads is None else rate_after(read_rate, batch.read_records, reads),
        "write_records_per_second": rate_after(before.write_records_per_second, batch.write_records, writes),
        **{name: getattr(before, name) + getattr(batch, name) for name in _COUNTERS},
        "subtasks": subtasks,
    }
    if batch.event_time_lag_ms is None:  # a batch of timers alone has no events
        totals["event_time_lag_ms"] = before.event_time_lag_ms
    return batch.model_copy(update=totals)


def smoothed(before: float | None, newest: float, cycle_ms: float = 0.0) -> float:
    """Returns the moving average of a metric.

    None means that the metric has no value yet. A batch that covers a longer time has a higher weight.
    """
    weight = min(1.0, max(_SMOOTHING, cycle_ms / _OUTDATED_MS))
    return newest if before is None else before + weight * (newest - before)


def _busy_ms(subtask: SubtaskMetrics) -> float:
    return float(subtask.open_ms + subtask.process_ms + subtask.store_ms + subtask.finish_ms)


def pending_records(progress: Any) -> int | None:
    """Returns by how many records the last batch was behind its sources.

    Returns None if a source does not report it: the sum of some sources would be too small.

    Python sources report the number. Spark's own sources with numbered partitions, such as Kafka, report offsets, which
    are numbers by topic and partition.

    Args:
        progress: Spark's report of the last trigger; None before the first trigger.
    """
    if progress is None:
        return None
    behind = [_behind(source) for source in progress["sources"]]
    known = [each for each in behind if each is not None]
    return sum(known) if known and len(known) == len(behind) else None


def lost_records(progress: Any) -> int:
    """Returns how many records the Python sources have lost in the query.

    Args:
        progress: Spark's report of the last trigger.
    """
    reports = [_document(source["latestOffset"]) for source in progress["sources"]]
    return sum(int(each.get(RECORDS_LOST, 0)) for each in reports if isinstance(each, Mapping))


def source_metrics(progress: Any, uids: Sequence[str], at_ms: int) -> list[SourceMetrics]:
    """Returns the earliest records that the Python sources recently reported.

    Sources are asked when a batch is planned. While a batch runs for long, or waits for a sink, records may expire.

    Args:
        progress: Spark's report of the last trigger; None before the first trigger.
        uids: The sources, in the order of their inputs.
        at_ms: The time now.
    """
    if progress is None:
        return []
    triggered_at_ms = dt.datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000
    if at_ms - triggered_at_ms > PROGRESS_AGE_MAX_MS:
        return []
    reports = [_document(source["latestOffset"]) for source in progress["sources"]]
    return reported_sources(uids, [each.get(EARLIEST, {}) if isinstance(each, Mapping) else {} for each in reports])


def source_retention_ms(progress: Any) -> int | None:
    """Returns how long the Python sources keep records, the shortest time.

    Args:
        progress: Spark's report of the last trigger; None before the first trigger.
    """
    reports = [] if progress is None else [_document(source["latestOffset"]) for source in progress["sources"]]
    told = [each.get(RETENTION_MS) for each in reports if isinstance(each, Mapping)]
    return min((each for each in told if isinstance(each, int) and each >= 0), default=None)


def _behind(source: Any) -> int | None:
    reported = _document(source["latestOffset"])
    if isinstance(reported, Mapping) and isinstance(reported.get(RECORDS_BEHIND), int):
        return int(reported[RECORDS_BEHIND])
    end, latest = _offsets(source["endOffset"]), _offsets(reported)
    if end is None or latest is None:
        return None
    return sum(max(0, offset - end.get(place, offset)) for place, offset in latest.items())


def _document(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except json.JSONDecodeError:
        return None


def _offsets(given: Any) -> dict[tuple[str, str], int] | None:
    """Returns offsets by topic and partition; None if they have another form."""
    given = _document(given)
    if not isinstance(given, Mapping) or not all(isinstance(parts, Mapping) for parts in given.values()):
        return None
    offsets = {(topic, part): offset for topic, parts in given.items() for part, offset in parts.items()}
    return offsets if all(isinstance(offset, int) for offset in offsets.values()) else None
