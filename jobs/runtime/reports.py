"""What tasks tell the driver beside their rows: which changelog they wrote, and how they fared.

Reports travel in a Spark accumulator: the driver gets those of the tasks that succeeded, and gets two when a subtask ran twice.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
from pyspark.accumulators import AccumulatorParam

from jobs.errors import IncompleteReportsError
from jobs.runtime.body import NextTimers
from state.changelog import ChangelogHandle
from state.identifiers import OperatorUid, SubtaskIndex
from state.subtask import StateSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator


class TaskReport(msgspec.Struct, frozen=True):
    """One subtask's part of a batch.

    Attributes:
        run: Identifies the try of the batch: a task of an earlier try may still report.
        uid: The operator.
        subtask: Its subtask.
        changelog: What changed in its state; None if nothing did.
        input_records: Records that came in.
        output_records: Records that went out.
        open_ms: Time to open or rebuild the state.
        process_ms: Time between the first record and the last, that of Spark's waiting and writing included.
        finish_ms: Time to write the changelog and close the state.
        latest_event_ms: The latest event time among the records; None if there was none.
        latest_of_origins: The same of the records of each source or operator before it; empty where there is but one.
        next_timers: Its earliest timers after the batch; None if nobody has looked.
        executor: The executor that it ran on, by the name that `executor_name` gives.
        source: Where its state was; None if it had nothing to do, and did not look.
        state_bytes: Size of its state on its host, about; None if the state was not opened.
        broadcast_digest: Of its broadcast state after broadcast records; None if there were none.
        part: What it has written to its sink itself; None if it has not.
    """

    run: str
    uid: OperatorUid
    subtask: SubtaskIndex
    changelog: ChangelogHandle | None = None
    input_records: int = 0
    output_records: int = 0
    open_ms: float = 0.0
    process_ms: float = 0.0
    finish_ms: float = 0.0
    latest_event_ms: int | None = None
    latest_of_origins: dict[str, int] = {}
    next_timers: NextTimers | None = None
    executor: str = ""
    source: StateSource | None = None
    state_bytes: int | None = None
    broadcast_digest: str | None = None
    part: str | None = None


class _Lists(AccumulatorParam[list[TaskReport]]):
    def zero(self, value: list[TaskReport]) -> list[TaskReport]:  # noqa: ARG002 - Spark's signature
        return []

    def addInPlace(self, value1: list[TaskReport], value2: list[TaskReport]) -> list[TaskReport]:  # noqa: N802 - as above
        value1.extend(value2)
        return value1


class ReportCollector:
    """The driver's end: one accumulator for all batches of an attempt, as Spark never forgets one that was made."""

    def __init__(self, context: SparkContext) -> None:
        self.accumulator: Accumulator[list[TaskReport]] = context.accumulator([], _Lists())

    def clear(self) -> None:
        """Forgets earlier batches. Call it before a batch's tasks start."""
        self.accumulator.value = []

    def reports_of(self, run: str) -> list[TaskReport]:
        return [report for report in self.accumulator.value if report.run == run]


def complete_reports(
    reports: Iterable[TaskReport], uids: Sequence[OperatorUid], parallelism: int
) -> dict[OperatorUid, tuple[TaskReport, ...]]:
    """The reports of a batch by operator and subtask.

    Raises:
        IncompleteReportsError: Some subtask has not reported exactly once: what it put out and what its state became may be
            those of two different runs.
    """
    found = list(reports)
    counts = Counter((report.uid, report.subtask) for report in found)
    expected = [(uid, SubtaskIndex(index)) for uid in uids for index in range(parallelism)]
    wrong = [
        f"{uid}[{index}] reported {counts[uid, index]} times" for uid, index in expected if counts[uid, index] != 1
    ]
    wrong += [f"{uid}[{index}] is unknown" for uid, index in sorted(counts.keys() - set(expected))]
    if wrong:
        raise IncompleteReportsError(f"not exactly one task a subtask: {', '.join(wrong)}")
    by_place = {(report.uid, report.subtask): report for report in found}
    return {uid: tuple(by_place[uid, SubtaskIndex(index)] for index in range(parallelism)) for uid in uids}
