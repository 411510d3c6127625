"""Reports of tasks to the driver.

A report holds the task's changelog and its metrics. Reports travel in a Spark accumulator: the driver gets the reports
of successful tasks, and two reports if a subtask ran twice.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from keyscale.identifiers import OperatorUid, SubtaskIndex
from keyscale.state.doors.keyed import NextTimers
from keyscale.state.doors.subtasks import ChangelogHandle, StateSource
from keyscale.user_series import UserSeries

from ...errors import IncompleteReportsError
from ...spark_internals.accumulators import list_accumulator

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark import Accumulator, SparkContext


class TaskReport(msgspec.Struct, frozen=True):
    """One subtask's part of a batch.

    Attributes:
        run: Identifies the try of the batch, as a task of an earlier try may still report.
        uid: The operator.
        subtask: Its subtask.
        changelog: The changes of its state, if any.
        read_records: Records that it read.
        records_of_origins: Input records by source or operator of origin; empty for a single origin.
        write_records: Records that it emitted.
        input_ms: Time waiting for records, and so for the shuffle.
        open_ms: Time to open or rebuild the state.
        process_ms: Time to run the operator.
        output_ms: Time waiting for the reader of its rows, or writing them to the sink.
        store_ms: Time waiting for the object store; the other times do not include it.
        finish_ms: Time to make the changes part of the local state, and to close it.
        processor_ms: Processor time of the Python worker, with all its threads, while the task ran.
        processor_wait_ms: Time in which the task was ready to run and waited for a processor of its host.
        began_at_ms: When it began, by its host's clock.
        largest_key_group: The key group with the most of its records; None if it read no records.
        largest_key_group_records: The number of these records.
        key_groups: The numbers of records of its largest key groups.
        latest_event_ms: The latest event time of the records, if any.
        latest_of_origins: Latest event times by source or operator of origin; empty for a single origin.
        latest_of_splits: Latest event times by split, under the name of the source's splits.
        next_timers: Its earliest timers after the batch; None if its state was not opened.
        executor: The executor that it ran on, as named by `executor_name`.
        source: Where its state was; None if it had no work and did not open the state.
        state_bytes: Estimated size of its state on its host; None if the state was not opened.
        broadcast_digest: Digest of its broadcast state after broadcast records, if any.
        counts: Further counters of the operator, by the names in `keyscale.metrics`.
        user_series: The metrics of the user's function.
        user_help: Their meanings, by name.
        ahead_records: Records with event times too far ahead of the processing time.
        first_failure: The error and the coordinates of the first failed record, if any.
        part: The token of the part that it wrote directly to its sink, if any.
        sample_id: The diagnostic that the sample is for, if any.
        sample: Some records as lines of JSON, by side: see `RecordSample`.
    """

    run: str
    uid: OperatorUid
    subtask: SubtaskIndex
    changelog: ChangelogHandle | None = None
    read_records: int = 0
    records_of_origins: dict[str, int] = {}
    write_records: int = 0
    input_ms: float = 0.0
    open_ms: float = 0.0
    process_ms: float = 0.0
    output_ms: float = 0.0
    store_ms: float = 0.0
    finish_ms: float = 0.0
    processor_ms: float = 0.0
    processor_wait_ms: float = 0.0
    began_at_ms: float = 0.0
    largest_key_group: int | None = None
    largest_key_group_records: int = 0
    key_groups: dict[int, int] = {}
    latest_event_ms: int | None = None
    latest_of_origins: dict[str, int] = {}
    latest_of_splits: dict[str, dict[str, int]] = {}
    next_timers: NextTimers | None = None
    executor: str = ""
    source: StateSource | None = None
    state_bytes: int | None = None
    broadcast_digest: str | None = None
    counts: dict[str, int] = {}
    user_series: tuple[UserSeries, ...] = ()
    user_help: dict[str, str] = {}
    ahead_records: int = 0
    first_failure: str | None = None
    part: str | None = None
    sample_id: str = ""
    sample: dict[str, list[str]] = {}

    @property
    def duration_ms(self) -> float:
        """The time of the whole task."""
        return self.input_ms + self.busy_ms + self.output_ms

    @property
    def busy_ms(self) -> float:
        """The time without waits for records and for readers."""
        return self.open_ms + self.process_ms + self.store_ms + self.finish_ms

    def count_of(self, name: str) -> int:
        """Returns the value of a counter of the operator."""
        count: int = getattr(self, name) if name in self.__struct_fields__ else self.counts.get(name, 0)
        return count


class ReportCollector:
    """Collects the reports in the driver.

    Each attempt has one collector, as Spark keeps every accumulator.
    """

    def __init__(self, context: SparkContext) -> None:
        self.accumulator: Accumulator[list[TaskReport]] = list_accumulator(context)

    def clear(self) -> None:
        """Forgets the reports of earlier batches.

        Call it before a batch's tasks start.
        """
        self.accumulator.value = []

    def reports_of(self, run: str) -> list[TaskReport]:
        return [report for report in self.accumulator.value if report.run == run]


def complete_reports(
    reports: Iterable[TaskReport], uids: Sequence[OperatorUid], parallelism: int
) -> dict[OperatorUid, tuple[TaskReport, ...]]:
    """Returns the reports of a batch by operator and subtask.

    Raises:
        IncompleteReportsError: A subtask has not reported exactly once: its output and its state may come from two
            different runs.
    """
    found = list(reports)
    counts = Counter((report.uid, report.subtask) for report in found)
    expected = [(uid, SubtaskIndex(index)) for uid in uids for index in range(parallelism)]
    wrong = [
        f"{uid}[{index}] reported {counts[uid, index]} times" for uid, index in expected if counts[uid, index] != 1
    ]
    wrong += [f"{uid}[{index}] is unknown" for uid, index in sorted(counts.keys() - set(expected))]
    if wrong:
        raise IncompleteReportsError(f"not exactly one task per subtask: {', '.join(wrong)}")
    by_place = {(report.uid, report.subtask): report for report in found}
    return {uid: tuple(by_place[uid, SubtaskIndex(index)] for index in range(parallelism)) for uid in uids}
