"""The outcome of a batch: its commit record and the job's time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from keyscale import user_series
from keyscale.metrics import LOG_COUNTERS
from keyscale.state.doors.catalogue import JobCounters

from .watermarks import time_after

if TYPE_CHECKING:
    from keyscale.identifiers import OperatorUid
    from keyscale.state.doors.commits import JobTime
    from keyscale.state.doors.subtasks import ChangelogHandle

    from ..executor.task import BatchTime
    from ..executor.task_reports import TaskReport


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The content of a batch's commit record.

    It counts only once it is committed.

    Attributes:
        changelogs: The changelogs of each operator, by subtask; None for a subtask without changes.
        sinks: The token of each sink, by which its output is published.
        input_records: Records read from the sources; see `batch_metrics.records_read`.
        output_records: Records emitted by operators that a sink follows directly or after transforms.
        reports: The tasks' reports, by operator and subtask.
        times: The times that the batch ran with, by operator.
        dead_letters: Number of rows that each diverting sink has diverted.
        sink_ms: Time that each sink took, beside the tasks.
        waited_ms: Time of earlier tries, whose sinks did not answer.
    """

    changelogs: dict[OperatorUid, tuple[ChangelogHandle | None, ...]]
    sinks: dict[OperatorUid, str]
    input_records: int
    output_records: int
    reports: dict[OperatorUid, tuple[TaskReport, ...]]
    times: dict[OperatorUid, BatchTime] = field(default_factory=dict)
    dead_letters: dict[OperatorUid, int] = field(default_factory=dict)
    sink_ms: dict[OperatorUid, float] = field(default_factory=dict)
    waited_ms: float = 0.0

    @property
    def all_reports(self) -> list[TaskReport]:
        """The reports of all operators' tasks."""
        return [report for of_operator in self.reports.values() for report in of_operator]

    @property
    def counters(self) -> JobCounters:
        """The numbers that the batch adds to the job's counters."""
        counted = {
            metric.name: sum(report.count_of(metric.name) for report in self.all_reports)
            for metric in LOG_COUNTERS
            if metric.of_job
        }
        counted["dead_letters"] += sum(self.dead_letters.values())
        user = (
            user_series.added((), chain.from_iterable(report.user_series for report in self.all_reports))
            or msgspec.UNSET
        )
        return JobCounters(input_records=self.input_records, output_records=self.output_records, **counted, user=user)

    def time_after(self, time: JobTime, *, of_spark: bool) -> JobTime:
        """Returns the job's time after the batch, given the time before.

        `of_spark` is as for `watermarks.time_after`.

        Raises:
            TooManySplitsError: The columns that should name splits have too many values.
        """
        latest = {
            uid: max((each.latest_event_ms for each in reports if each.latest_event_ms is not None), default=None)
            for uid, reports in self.reports.items()
        }
        return time_after(
            time,
            self.times,
            latest,
            of_spark=of_spark,
            has_effects=any(changelog is not None for found in self.changelogs.values() for changelog in found),
            of_origins=self.latest_of_origins(),
            of_splits=self.latest_of_splits(),
        )

    def latest_of_splits(self) -> dict[OperatorUid, dict[str, dict[str, int]]]:
        """Returns the latest event time of each split's records.

        The result is by operator and by the name of the source's splits.
        """
        latest: dict[OperatorUid, dict[str, dict[str, int]]] = {}
        for uid, reports in self.reports.items():
            for origin, splits in (item for report in reports for item in report.latest_of_splits.items()):
                of_origin = latest.setdefault(uid, {}).setdefault(origin, {})
                for split, latest_ms in splits.items():
                    of_origin[split] = max(latest_ms, of_origin.get(split, latest_ms))
        return latest

    def latest_of_origins(self) -> dict[OperatorUid, dict[str, int]]:
        """Returns the latest event time of each origin's records.

        The result has only operators with several origins.
        """
        latest: dict[OperatorUid, dict[str, int]] = {}
        for uid, reports in self.reports.items():
            for name, latest_ms in (item for report in reports for item in report.latest_of_origins.items()):
                of_operator = latest.setdefault(uid, {})
                of_operator[name] = max(latest_ms, of_operator.get(name, latest_ms))
        return latest
