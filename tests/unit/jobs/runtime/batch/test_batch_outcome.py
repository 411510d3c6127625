"""What a batch's reports add to the job's counters and to its time."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from keyscale.identifiers import OperatorUid, SubtaskIndex
from keyscale.jobs.runtime.batch.batch_outcome import BatchOutcome
from keyscale.jobs.runtime.executor.task import BatchTime
from keyscale.jobs.runtime.executor.task_reports import TaskReport
from keyscale.metrics import COUNTER, GAUGE
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.job_time import EventTime, JobTime
from keyscale.user_series import UserSeries

FIRST, SECOND = OperatorUid("first"), OperatorUid("second")


def report(
    uid: OperatorUid,
    index: int = 0,
    *,
    latest_ms: int | None = None,
    origins: dict[str, int] | None = None,
    splits: dict[str, dict[str, int]] | None = None,
    late: int = 0,
    dead_letters: int = 0,
) -> TaskReport:
    return TaskReport(
        "run",
        uid,
        SubtaskIndex(index),
        latest_event_ms=latest_ms,
        latest_of_origins=origins or {},
        latest_of_splits=splits or {},
        counts={"late_records": late, "dead_letters": dead_letters},
    )


def outcome(*reports: TaskReport) -> BatchOutcome:
    by_operator = {uid: tuple(each for each in reports if each.uid == uid) for uid in (FIRST, SECOND)}
    times = {uid: BatchTime(processing_ms=5000) for uid in (FIRST, SECOND)}
    return BatchOutcome({}, {}, 40, 30, by_operator, times, {OperatorUid("table"): 16, OperatorUid("topic"): 32})


def test_a_batch_counts_the_late_records_and_dead_letters_of_all_operators_and_sinks() -> None:
    counted = outcome(
        report(FIRST, late=1, dead_letters=1), report(FIRST, 1, late=2, dead_letters=2), report(SECOND, dead_letters=4)
    )
    assert counted.counters == JobCounters(input_records=40, output_records=30, late_records=3, dead_letters=7 + 48)


def test_a_batch_adds_up_what_the_functions_of_its_subtasks_count() -> None:
    def counted(value: int) -> TaskReport:
        series = (UserSeries("first", "orders", COUNTER, {}, (value,)), UserSeries("first", "age", GAUGE, {}, (value,)))
        return TaskReport("run", FIRST, SubtaskIndex(value), user_series=series)

    assert outcome(counted(2), counted(3)).counters.user_series == (UserSeries("first", "orders", COUNTER, {}, (5,)),)
    assert outcome(report(FIRST)).counters.user is UNSET


@pytest.mark.parametrize("is_turned", [False, True])
def test_the_latest_event_time_is_the_latest_of_all_subtasks_in_any_order(is_turned: bool) -> None:
    reports = [
        report(FIRST, latest_ms=70, origins={"left": 70, "right": 20}, splits={"left": {"0": 70, "1": 10}}),
        report(FIRST, 1, latest_ms=60, origins={"left": 50, "right": 60}, splits={"left": {"0": 30, "2": 50}}),
        report(FIRST, 2),
        report(SECOND, latest_ms=40),
    ]
    time = outcome(*(reversed(reports) if is_turned else reports)).time_after(JobTime(), of_spark=True)
    of_first = EventTime(70, origins={"left": 70, "right": 60}, splits={"left": {"0": 70, "1": 10, "2": 50}})
    assert time == JobTime({FIRST: of_first, SECOND: EventTime(40)}, time_batches=0, processing_ms=5000)


def test_a_batch_of_time_alone_counts_as_one() -> None:
    assert outcome(report(FIRST)).time_after(JobTime(time_batches=2), of_spark=False).time_batches == 3
