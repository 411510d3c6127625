"""From the reports of a batch's tasks to what users see of its operators and subtasks. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.wire import OperatorMetrics, SubtaskMetrics
from state.job_time import EventTime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobs.runtime.reports import TaskReport
    from state.identifiers import OperatorUid
    from state.job_time import JobTime


def operator_metrics(
    reports: Mapping[OperatorUid, Sequence[TaskReport]], time: JobTime, committed_at_ms: int
) -> list[OperatorMetrics]:
    """What each operator did in one batch.

    Args:
        reports: Of its tasks, by operator and subtask.
        time: The job's, after the batch.
        committed_at_ms: When it was committed.
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
                read_records=sum(each.input_records for each in of_operator),
                write_records=sum(each.output_records for each in of_operator),
                watermark_ms=watermark_ms,
                watermark_lag_ms=None if watermark_ms is None else committed_at_ms - watermark_ms,
                event_time_lag_ms=None if latest_ms is None else committed_at_ms - latest_ms,
                subtasks=[_subtask(each) for each in of_operator],
            )
        )
    return found


def _subtask(report: TaskReport) -> SubtaskMetrics:
    return SubtaskMetrics(
        index=report.subtask,
        read_records=report.input_records,
        write_records=report.output_records,
        open_ms=report.open_ms,
        process_ms=report.process_ms,
        finish_ms=report.finish_ms,
        state_bytes=report.state_bytes or 0,
    )


def added_up(
    before: Sequence[OperatorMetrics], batch: Sequence[OperatorMetrics], cycle_ms: float
) -> list[OperatorMetrics]:
    """A batch's figures with the totals since the driver started.

    Args:
        before: As they were after the batch before.
        batch: Of the batch alone.
        cycle_ms: From the commit before to this one: what subtasks' busy ratios are shares of.
    """
    known = {operator.uid: operator for operator in before}
    return [
        _added(known.get(operator.uid, OperatorMetrics(uid=operator.uid)), operator, cycle_ms) for operator in batch
    ]


def state_bytes_of(operators: Sequence[OperatorMetrics]) -> int:
    """Of all subtasks together."""
    return sum(subtask.state_bytes for operator in operators for subtask in operator.subtasks)


def _added(before: OperatorMetrics, batch: OperatorMetrics, cycle_ms: float) -> OperatorMetrics:
    sizes = {subtask.index: subtask.state_bytes for subtask in before.subtasks}
    subtasks = [
        subtask.model_copy(
            update={
                "busy_ratio": min(1.0, (subtask.open_ms + subtask.process_ms + subtask.finish_ms) / max(cycle_ms, 1.0)),
                # One that had nothing to do has not opened its state, which is as it was.
                "state_bytes": subtask.state_bytes or sizes.get(subtask.index, 0),
            }
        )
        for subtask in batch.subtasks
    ]
    totals = {
        "read_records": before.read_records + batch.read_records,
        "write_records": before.write_records + batch.write_records,
        "subtasks": subtasks,
    }
    return batch.model_copy(update=totals)
