"""The metrics of a batch: rates, lags, busy ratios and sizes, from reports alone."""

from __future__ import annotations

import pytest

from keyscale.identifiers import OperatorUid, SubtaskIndex
from keyscale.jobs.protocol.messages import (
    BatchMetrics,
    Commit,
    OperatorMetrics,
    SinkOutage,
    SourceMetrics,
    SubtaskMetrics,
)
from keyscale.jobs.runtime.batch.batch_metrics import (
    PROGRESS_AGE_MAX_MS,
    added_up,
    lag_ms,
    lost_records,
    operator_metrics,
    pending_records,
    sink_metrics,
    source_metrics,
    source_retention_ms,
    state_bytes_of,
)
from keyscale.jobs.runtime.batch.record_rates import AVERAGED_MS, Span
from keyscale.jobs.runtime.control.driver_status import IDLE_MS, DriverStatus
from keyscale.jobs.runtime.executor.task_reports import TaskReport
from keyscale.state.documents.job_counters import NOTHING_COUNTED
from keyscale.state.documents.job_time import EventTime, JobTime

UID = OperatorUid("counts")
COMMIT = Commit(batch_id=1, at_ms=9000)


def report(index: int, *, records: int = 10, state_bytes: int | None = 500, latest_ms: int | None = None) -> TaskReport:
    return TaskReport(
        "run",
        UID,
        SubtaskIndex(index),
        read_records=records,
        write_records=records // 2,
        input_ms=900,
        open_ms=10,
        process_ms=25,
        output_ms=900,
        store_ms=5,
        finish_ms=10,
        processor_ms=20,
        largest_key_group=7,
        largest_key_group_records=3,
        latest_event_ms=latest_ms,
        state_bytes=state_bytes,
    )


SECOND = Span(1000, 1.0)


class Clock:
    """A clock of seconds that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lags_are_measured_from_the_time_of_the_commit() -> None:
    time = JobTime({UID: EventTime(latest_ms=8000, watermark_ms=7000)})
    (operator,) = operator_metrics({UID: (report(0, latest_ms=8000), report(1, latest_ms=6000))}, time, 9000)
    assert (operator.watermark_ms, operator.watermark_lag_ms, operator.event_time_lag_ms) == (7000, 2000, 1000)
    assert [subtask.index for subtask in operator.subtasks] == [0, 1]


@pytest.mark.parametrize(("event_ms", "lag"), [(7000, 2000), (None, None), (9500, 0), (69_000, 0), (69_001, None)])
def test_an_event_far_ahead_of_the_clock_has_no_lag(event_ms: int | None, lag: int | None) -> None:
    assert lag_ms(event_ms, 9000) == lag


def test_an_operator_without_event_time_has_no_lag() -> None:
    (operator,) = operator_metrics({UID: (report(0),)}, JobTime(), 9000)
    assert (operator.watermark_lag_ms, operator.event_time_lag_ms) == (None, None)


def test_records_add_up_over_batches_and_other_figures_are_those_of_the_last_batch() -> None:
    first = added_up(
        [], operator_metrics({UID: (report(0), report(1))}, JobTime(), 0), 100, reads=SECOND, writes=SECOND
    )
    idle = TaskReport("run", UID, SubtaskIndex(1))
    second = added_up(
        first,
        operator_metrics({UID: (report(0, records=4, state_bytes=700), idle)}, JobTime(), 0),
        200,
        reads=SECOND,
        writes=SECOND,
    )
    assert (second[0].read_records, second[0].write_records) == (24, 12)
    assert [subtask.busy_ratio for subtask in second[0].subtasks] == [0.25, 0.0]
    assert [subtask.state_bytes for subtask in second[0].subtasks] == [700, 500], (
        "state that was not opened is as it was"
    )
    assert state_bytes_of(second) == 1200


def test_late_records_and_dead_letters_add_up_over_subtasks_and_batches() -> None:
    status = DriverStatus()
    sinks = {OperatorUid("table"): 4, OperatorUid("topic"): 0}
    counted = [
        TaskReport("run", UID, SubtaskIndex(at), counts={"late_records": 1 + at, "dead_letters": 2 + at})
        for at in range(2)
    ]
    for dead_letters in (sinks, {}, sinks):  # a batch of time alone may leave the sinks out
        operators = operator_metrics({UID: counted}, JobTime(), 0)
        status.committed(
            COMMIT,
            counters=NOTHING_COUNTED,
            input_records=0,
            output_records=0,
            duration_ms=1,
            operators=operators,
            sinks=sink_metrics(dead_letters),
        )
    metrics = status.heartbeat().metrics
    assert [(each.uid, each.late_records, each.dead_letters) for each in metrics.operators] == [(UID, 9, 15)]
    assert [(each.uid, each.dead_letters) for each in metrics.sinks] == [("table", 8), ("topic", 0)]


def test_a_subtask_that_waits_for_records_or_for_the_reader_of_its_rows_is_not_busy() -> None:
    (operator,) = added_up([], operator_metrics({UID: (report(0),)}, JobTime(), 0), 100, reads=SECOND, writes=SECOND)
    (subtask,) = operator.subtasks
    assert subtask.busy_ratio == 0.5
    assert (subtask.input_ms, subtask.output_ms, subtask.store_ms, subtask.processor_ms) == (900, 900, 5, 20)
    assert (subtask.largest_key_group, subtask.largest_key_group_records, subtask.read_records) == (7, 3, 10)


def test_the_parts_of_batches_are_averaged_and_the_last_twelve_are_kept() -> None:
    status = DriverStatus()
    for times, expected in ((1, (20, 30, 40)), (2, (26, 39, 52))):  # a new time has a weight of 0.3
        status.published(
            BatchMetrics(batch_id=times, at_ms=0, plan_ms=20 * times, append_ms=30 * times, publish_ms=40 * times), {}
        )
        metrics = status.heartbeat().metrics
        assert (metrics.batch_plan_ms, metrics.batch_append_ms, metrics.batch_publish_ms) == pytest.approx(expected)
    for batch_id in range(3, 20):
        status.published(BatchMetrics(batch_id=batch_id, at_ms=0), {})
    assert [each.batch_id for each in status.heartbeat().metrics.recent_batches] == list(range(8, 20))


def test_a_sink_keeps_its_dead_letters_when_a_batch_is_timed() -> None:
    status = DriverStatus()
    for _ in range(2):
        status.committed(
            COMMIT,
            counters=NOTHING_COUNTED,
            input_records=0,
            output_records=0,
            duration_ms=1,
            sinks=sink_metrics({OperatorUid("table"): 2}),
        )
        status.published(BatchMetrics(batch_id=0, at_ms=0), {OperatorUid("table"): 7.5, OperatorUid("files"): 1.5})
    sinks = status.heartbeat().metrics.sinks
    assert [(sink.uid, sink.dead_letters, sink.write_ms) for sink in sinks] == [("table", 4, 7.5), ("files", None, 1.5)]


def test_an_operator_reports_the_largest_key_groups_of_all_subtasks() -> None:
    reports = [
        TaskReport(
            "run", UID, SubtaskIndex(at), read_records=1000, key_groups={at * 16 + g: 10 * g + at for g in range(16)}
        )
        for at in range(2)
    ]
    (operator,) = operator_metrics({UID: reports}, JobTime(), 0)
    assert [(each.key_group, each.records) for each in operator.key_groups[:3]] == [(31, 151), (15, 150), (30, 141)]
    assert (len(operator.key_groups), operator.batch_records) == (16, 2000)


def test_the_input_rate_counts_waiting_and_the_processed_rate_does_not() -> None:
    clock = Clock()
    status = DriverStatus(clock)
    for clock.now in (1.0, 2.0, 3.0):
        status.committed(COMMIT, counters=NOTHING_COUNTED, input_records=50, output_records=0, duration_ms=250)
    metrics = status.heartbeat().metrics
    assert metrics.processed_records_per_second == pytest.approx(200)
    assert 50 < metrics.input_records_per_second < 200, "it comes down to 50 from the first batch's 200"
    assert 0.25 < metrics.busy_ratio < 1


def test_an_operator_that_reads_all_input_reads_at_the_jobs_input_rate() -> None:
    clock = Clock()
    status = DriverStatus(clock)
    for clock.now, records in ((1.0, 50), (2.0, 10), (4.0, 400)):
        read = [TaskReport("run", UID, SubtaskIndex(0), read_records=records, write_records=2 * records)]
        operators = operator_metrics({UID: read}, JobTime(), 0)
        status.committed(
            COMMIT,
            counters=NOTHING_COUNTED,
            input_records=records,
            output_records=0,
            duration_ms=9,
            operators=operators,
        )
        metrics = status.heartbeat().metrics
        (operator,) = metrics.operators
        assert operator.read_records_per_second == pytest.approx(metrics.input_records_per_second)
        assert operator.write_records_per_second == pytest.approx(2 * metrics.input_records_per_second)


def test_a_batch_of_timers_alone_leaves_the_lag_of_the_latest_event_as_it_was() -> None:
    time = JobTime({UID: EventTime(latest_ms=8000, watermark_ms=7000)})
    events = operator_metrics({UID: (report(0, latest_ms=8000),)}, time, 9000)
    timers = operator_metrics({UID: (TaskReport("run", UID, SubtaskIndex(0)),)}, time, 10_000)
    before = added_up([], events, 100, reads=SECOND, writes=SECOND)
    (operator,) = added_up(before, timers, 100, reads=None, writes=SECOND)
    assert (operator.event_time_lag_ms, operator.watermark_lag_ms) == (1000, 3000)


def test_the_input_rate_is_the_same_while_records_arrive_at_the_same_rate() -> None:
    clock = Clock()
    status = DriverStatus(clock)
    status.restored(0, NOTHING_COUNTED)
    arrived = 0.0
    for number, seconds in enumerate((3.0, 0.2, 5.0, 0.1, 0.1, 9.0, 2.0, 0.5, 12.0, 1.0) * 10):
        clock.now += seconds
        has_input = number % 3 == 0
        records = round(220 * (clock.now - arrived)) if has_input else 0
        arrived = clock.now if has_input else arrived
        commit(status, records, has_input=has_input)
        metrics = status.heartbeat().metrics
        assert metrics.input_records_per_second == pytest.approx(220, rel=0.01), "timers alone are no zeros"
        assert metrics.operators[0].read_records_per_second == pytest.approx(220, rel=0.01)


def test_the_input_rate_is_that_of_the_last_minute_by_time_and_not_by_batches() -> None:
    clock = Clock()
    status = DriverStatus(clock)
    status.restored(0, NOTHING_COUNTED)
    for clock.now, records in ((20.0, 2000), (20.5, 0), (21.0, 0), (40.0, 1900)):
        commit(status, records)
    assert status.heartbeat().metrics.input_records_per_second == pytest.approx(3900 / 40)
    for second in range(41, 401):
        clock.now = float(second)
        commit(status, 10)
    assert status.heartbeat().metrics.input_records_per_second == pytest.approx(10, rel=0.05)


def test_a_job_whose_batches_are_far_apart_is_not_idle_between_them() -> None:
    clock = Clock()
    status = DriverStatus(clock)
    status.restored(0, NOTHING_COUNTED)
    for clock.now in (20.0, 40.0, 60.0):
        commit(status, 4400)
        status.waits_for_input(True)
    clock.now = 79.0
    assert status.heartbeat().metrics.input_records_per_second == pytest.approx(220)
    clock.now = 90.0
    assert status.heartbeat().metrics.input_records_per_second == pytest.approx(110), "half of the minute has none"


def test_the_input_rate_falls_to_zero_within_a_minute_without_input() -> None:
    clock = Clock()
    clock.now = began = 100.0
    status = DriverStatus(clock)
    operators = operator_metrics({UID: (report(0),)}, JobTime(), 0)
    status.committed(
        COMMIT, counters=NOTHING_COUNTED, input_records=50, output_records=0, duration_ms=250, operators=operators
    )
    status.sources_are_behind(7)
    status.waits_for_input(True)
    metrics = status.heartbeat().metrics
    assert metrics.input_records_per_second > 0
    assert metrics.operators[0].subtasks[0].busy_ratio > 0
    clock.now = began + IDLE_MS / 1000
    metrics = status.heartbeat().metrics
    assert metrics.busy_ratio > 0
    assert metrics.pending_records == 7
    clock.now = began + IDLE_MS / 1000 + 1
    metrics = status.heartbeat().metrics
    assert (metrics.busy_ratio, metrics.pending_records) == (0, 0)
    assert metrics.input_records_per_second == pytest.approx(50 / 6.25)
    clock.now = began + AVERAGED_MS / 1000
    metrics = status.heartbeat().metrics
    assert metrics.input_records_per_second == 0
    (operator,) = metrics.operators
    assert (operator.read_records_per_second, operator.write_records_per_second) == (0, 0)
    assert operator.subtasks[0].busy_ratio > 0, "it is that of the last batch"
    assert metrics.processed_records_per_second > 0


def commit(status: DriverStatus, records: int, *, has_input: bool = True) -> None:
    """Commits a batch in which an operator has read some records."""
    read = [TaskReport("run", UID, SubtaskIndex(0), read_records=records)]
    operators = operator_metrics({UID: read}, JobTime(), 0)
    status.committed(
        COMMIT,
        counters=NOTHING_COUNTED,
        input_records=records,
        output_records=0,
        duration_ms=9,
        operators=operators,
        has_input=has_input,
    )


def test_an_idle_job_whose_sources_never_count_reports_no_number_of_waiting_records() -> None:
    clock = Clock()
    status = DriverStatus(clock)
    commit(status, 50)
    status.sources_are_behind(None)
    status.waits_for_input(True)
    clock.now += IDLE_MS / 1000 + 1
    assert status.heartbeat().metrics.pending_records is None


def test_rates_do_not_come_back_when_timers_run_after_the_input_has_ended() -> None:
    clock = Clock()
    status = DriverStatus(clock)
    for clock.now in (1.0, 2.0):
        commit(status, 50)
    status.waits_for_input(True)
    rates = [status.heartbeat().metrics.input_records_per_second]
    for clock.now in (8.0, 15.0, 90.0):
        status.heartbeat()
        commit(status, 0, has_input=False)
        metrics = status.heartbeat().metrics
        rates.append(metrics.input_records_per_second)
        assert metrics.operators[0].read_records_per_second == pytest.approx(rates[-1])
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == 0
    clock.now = 150.0
    commit(status, 60)
    assert status.heartbeat().metrics.input_records_per_second == pytest.approx(1), "60 records in a minute"


def test_while_a_sink_is_away_nothing_is_read_and_what_waits_still_waits() -> None:
    clock = Clock()
    status = DriverStatus(clock)
    commit(status, 50)
    status.sources_are_behind(7)
    status.sink_waited_for(SinkOutage(uid=UID, since_ms=1, reason="away"))
    assert status.heartbeat().metrics.input_records_per_second > 0
    clock.now += AVERAGED_MS / 1000 + 1
    metrics = status.heartbeat().metrics
    assert (metrics.input_records_per_second, metrics.busy_ratio, metrics.pending_records) == (0, 0, 7)


def test_the_rate_stays_down_when_an_outage_is_over_and_its_batch_is_not() -> None:
    clock = Clock()
    status = DriverStatus(clock)
    commit(status, 50)
    status.sink_waited_for(SinkOutage(uid=UID, since_ms=1, reason="away"))
    clock.now += AVERAGED_MS / 1000 + 1
    assert status.heartbeat().metrics.input_records_per_second == 0
    status.sink_waited_for(None)
    metrics = status.heartbeat().metrics
    assert (metrics.input_records_per_second, metrics.operators[0].read_records_per_second) == (0, 0)


def test_the_rate_falls_while_a_batch_takes_more_than_twice_as_long_as_the_last_one() -> None:
    clock = Clock()
    status = DriverStatus(clock)
    status.restored(0, NOTHING_COUNTED)
    for clock.now in (20.0, 40.0):
        commit(status, 4400)
    clock.now = 80.0
    assert status.heartbeat().metrics.input_records_per_second == pytest.approx(220)
    clock.now = 85.0
    metrics = status.heartbeat().metrics
    assert metrics.input_records_per_second == pytest.approx(55), "a quarter of the minute has records"
    assert metrics.busy_ratio > 0, "the batch runs"
    clock.now = 140.0
    commit(status, 22_000)
    assert status.heartbeat().metrics.input_records_per_second == pytest.approx(220)


def test_lost_records_add_up_over_the_queries_of_a_driver_and_are_those_since_it_started() -> None:
    status = DriverStatus()
    for query, lost in (("first", 0), ("first", 5), ("first", 5), ("second", 0), ("second", 2), ("third", 2)):
        silent: dict[str, object] = {"latestOffset": None}  # a source that reports no offset
        progress = {"runId": query, "sources": [silent, {"latestOffset": {"records_lost": lost}}]}
        status.sources_have_lost(lost_records(progress), of_query=query)
    metrics = status.heartbeat().metrics
    assert metrics.lost_records == 9
    assert metrics.lost_records_since_ms


def test_the_state_s_size_is_that_of_the_last_batch() -> None:
    status = DriverStatus()
    assert status.heartbeat().metrics.state_bytes == 0
    operators = operator_metrics({UID: (report(0),)}, JobTime(), 0)
    status.committed(
        COMMIT, counters=NOTHING_COUNTED, input_records=10, output_records=5, duration_ms=1, operators=operators
    )
    assert status.heartbeat().metrics.state_bytes == 500
    status.committed(COMMIT, counters=NOTHING_COUNTED, input_records=0, output_records=0, duration_ms=1)
    assert status.heartbeat().metrics.state_bytes == 500, "no operator has said anything"


@pytest.mark.parametrize(
    ("sources", "behind"),
    [
        ([], None),
        ([{"endOffset": {"logOffset": 3}, "latestOffset": None}], None),
        ([{"endOffset": {"logOffset": 3}, "latestOffset": {"logOffset": 4}}], None),
        ([{"endOffset": '{"topic":{"0":5,"1":7}}', "latestOffset": '{"topic":{"0":9,"1":7}}'}], 4),
        ([{"endOffset": {"topic": {"0": 5}}, "latestOffset": {"topic": {"0": 6, "1": 3}}}], 1),
        ([{"endOffset": {"version": 1, "splits": {}}, "latestOffset": '{"records_behind": 8}'}], 8),
        ([{"endOffset": {"version": 1, "splits": {}}, "latestOffset": {"records_behind": 0}}], 0),
        (
            [
                {"endOffset": {"a": {"0": 5}}, "latestOffset": {"a": {"0": 6}}},
                {"endOffset": {"b": {"0": 5}}, "latestOffset": {"b": {"0": 15}}},
            ],
            11,
        ),
        (
            [
                {"endOffset": {"a": {"0": 5}}, "latestOffset": {"a": {"0": 6}}},
                {"endOffset": "not JSON", "latestOffset": "not JSON"},
            ],
            None,
        ),
    ],
)
def test_the_backlog_is_the_sum_over_sources_if_all_number_their_offsets(
    sources: list[dict[str, object]], behind: int | None
) -> None:
    assert pending_records({"sources": sources}) == behind
    assert pending_records(None) is None


def test_what_sources_still_have_is_in_the_heartbeat_by_their_uids() -> None:
    inputs = [{"latestOffset": '{"earliest":{"a":5}}'}, {"latestOffset": {"t": {"0": 6}}}]
    progress = {"timestamp": "2026-11-26T00:00:00.250Z", "sources": inputs}
    at_ms = 1_795_651_200_250
    status = DriverStatus()
    assert status.heartbeat().metrics.sources == []
    status.sources_still_have(source_metrics(progress, ["orders", "clicks"], at_ms))
    assert status.heartbeat().metrics.sources == [SourceMetrics(uid="orders", earliest={"a": 5})]
    status.sources_still_have(source_metrics(progress, ["of two inputs"], at_ms))
    assert status.heartbeat().metrics.sources == []
    assert source_metrics(None, ["orders"], at_ms) == []


@pytest.mark.parametrize(("later_ms", "is_known"), [(PROGRESS_AGE_MAX_MS, True), (PROGRESS_AGE_MAX_MS + 1, False)])
def test_what_sources_still_have_is_not_known_while_a_batch_runs_or_waits_for_long(
    later_ms: int, is_known: bool
) -> None:
    progress = {"timestamp": "2026-11-26T00:00:00.000Z", "sources": [{"latestOffset": '{"earliest":{"a":5}}'}]}
    found = source_metrics(progress, ["orders"], 1_795_651_200_000 + later_ms)
    assert [source.uid for source in found] == (["orders"] if is_known else [])


def test_the_shortest_retention_of_the_sources_stays_in_the_heartbeat() -> None:
    inputs = [{"latestOffset": '{"retention_ms":70}'}, {"latestOffset": {"retention_ms": 60}}, {"latestOffset": None}]
    status = DriverStatus()
    assert status.heartbeat().metrics.source_retention_ms is None
    for progress in ({"sources": inputs}, {"sources": inputs[2:]}, None):
        status.sources_keep_records(source_retention_ms(progress))
        assert status.heartbeat().metrics.source_retention_ms == 60
    assert source_retention_ms({"sources": [{"latestOffset": {"retention_ms": "60"}}]}) is None


def test_a_driver_has_looked_for_input_once_it_has_found_none_or_has_committed_some():
    for find in ("none", "some"):
        status = DriverStatus(Clock())
        assert not status.has_looked_for_input
        if find == "none":
            status.waits_for_input(False)
            assert not status.has_looked_for_input
            status.waits_for_input(True)
            status.waits_for_input(False)
        else:
            for records in (0, 5):
                assert not status.has_looked_for_input
                status.committed(
                    COMMIT,
                    counters=NOTHING_COUNTED,
                    input_records=records,
                    output_records=0,
                    duration_ms=1,
                    operators=[],
                    has_input=records > 0,
                )
        assert status.has_looked_for_input


def test_a_heartbeat_of_very_many_subtasks_leaves_them_out():
    status = DriverStatus(Clock())
    for count, shown in ((4096, 4096), (8193, 0)):
        subtasks = [SubtaskMetrics(index=index) for index in range(count)]
        operators = [OperatorMetrics(uid=UID, subtasks=subtasks, late_records=3)]
        status.committed(
            COMMIT, counters=NOTHING_COUNTED, input_records=1, output_records=0, duration_ms=1, operators=operators
        )
        (operator,) = status.heartbeat().metrics.operators
        assert (len(operator.subtasks), operator.late_records % 3) == (shown, 0)


def full_report(index: int, at: int, state_bytes: int | None) -> TaskReport:
    """Returns a report whose measurements all differ, from `at` on."""
    return TaskReport(
        "run",
        UID,
        SubtaskIndex(index),
        read_records=at + 1,
        write_records=at + 2,
        input_ms=at + 3,
        open_ms=at + 4,
        process_ms=at + 5,
        output_ms=at + 6,
        store_ms=at + 7,
        finish_ms=at + 8,
        processor_ms=at + 9,
        processor_wait_ms=at + 10,
        largest_key_group=at + 11,
        largest_key_group_records=at + 12,
        key_groups={at + 11: at + 12, at: 1},
        latest_event_ms=at + 13,
        state_bytes=state_bytes,
        counts={"late_records": at + 15, "dead_letters": at + 16},
    )


def full_subtask(index: int, at: int, busy_ratio: float, state_bytes: int) -> SubtaskMetrics:
    """Returns the metrics that `full_report` leads to."""
    return SubtaskMetrics(
        index=index,
        read_records=at + 1,
        write_records=at + 2,
        busy_ratio=busy_ratio,
        input_ms=at + 3,
        open_ms=at + 4,
        process_ms=at + 5,
        output_ms=at + 6,
        store_ms=at + 7,
        finish_ms=at + 8,
        processor_ms=at + 9,
        processor_wait_ms=at + 10,
        largest_key_group=at + 11,
        largest_key_group_records=at + 12,
        state_bytes=state_bytes,
    )


def test_the_metrics_of_an_operator_have_each_measurement_of_its_tasks_in_its_place() -> None:
    time = JobTime({UID: EventTime(400, 300), OperatorUid("other"): EventTime(1, 1)})
    (first,) = operator_metrics({UID: (full_report(0, 100, 114), full_report(1, 200, 214))}, time, 1000)
    assert first == OperatorMetrics(
        uid=UID,
        subtasks=[full_subtask(0, 100, 0.0, 114), full_subtask(1, 200, 0.0, 214)],
        key_groups=[
            {"key_group": group, "records": count} for group, count in ((211, 212), (111, 112), (100, 1), (200, 1))
        ],
        batch_records=302,
        read_records=302,
        write_records=304,
        watermark_ms=300,
        watermark_lag_ms=700,
        event_time_lag_ms=787,
        late_records=330,
        dead_letters=332,
    )
    time = JobTime({UID: EventTime(400, 350)})
    batch = operator_metrics({UID: (full_report(0, 10, 24), full_report(1, 20, None))}, time, 2000)
    (total,) = added_up([first], batch, 100.0, reads=Span(1000, 0.5), writes=Span(500, 0.25))
    assert total == OperatorMetrics(
        uid=UID,
        subtasks=[full_subtask(0, 10, 0.64, 24), full_subtask(1, 20, 1.0, 214)],
        key_groups=[{"key_group": group, "records": count} for group, count in ((31, 32), (21, 22), (10, 1), (20, 1))],
        batch_records=32,
        read_records=334,
        write_records=338,
        read_records_per_second=32.0,
        write_records_per_second=68.0,
        watermark_ms=350,
        watermark_lag_ms=1650,
        event_time_lag_ms=1967,
        late_records=390,
        dead_letters=394,
    )
    (waiting,) = added_up([total], batch, 0.0, reads=None, writes=Span(500, 0.25))
    assert (waiting.read_records_per_second, waiting.write_records_per_second) == (32.0, 68.0)
    assert [subtask.busy_ratio for subtask in waiting.subtasks] == [1.0, 1.0]
