"""A heartbeat has what the driver's threads have last reported, each in its own place."""

from __future__ import annotations

import pytest
from msgspec import to_builtins

from keyscale.identifiers import OperatorUid
from keyscale.jobs.protocol.messages import (
    RECENT_BATCHES_MAX,
    BatchMetrics,
    CleanUp,
    CommandResult,
    Commit,
    Counters,
    DriverMetrics,
    Failure,
    FailureHistory,
    GraphNode,
    LiveRescale,
    OperatorMetrics,
    ReportedSeries,
    SinkMetrics,
    SinkOutage,
    SourceLag,
    SourceMetrics,
    SubtaskMetrics,
)
from keyscale.jobs.protocol.specification import NoRestart
from keyscale.jobs.runtime.batch.locality import Locality
from keyscale.jobs.runtime.control import driver_status
from keyscale.jobs.runtime.control.driver_status import IDLE_MS, TERMINAL_STATES, DriverStatus
from keyscale.metrics import MetricKind
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.retention.deletion import Deleted
from keyscale.user_series import UserSeries
from keyscale.vocabulary import DriverState, RescalePhase

FAILURE = Failure(code="X", message="it broke")
OTHER = Failure(code="Y", message="it broke again")
RESCALE = LiveRescale(command_id="c", phase=RescalePhase.PREPARE, from_attempt=1, to_attempt=2, began_at_ms=1)
GRAPH_NODE = GraphNode(uid="orders", kind="SOURCE")
GAUGE = UserSeries("count", "g", MetricKind.GAUGE, {"l": "v"}, (1.5,))
COUNTERS = JobCounters(input_records=1, output_records=2, late_records=3, dead_letters=4)


def commit(status: DriverStatus, batch_id: int, records: int = 10, *, has_input: bool = True) -> None:
    status.committed(
        Commit(batch_id=batch_id, at_ms=1000 + batch_id),
        counters=COUNTERS,
        input_records=records,
        output_records=records + 1,
        duration_ms=100.0,
        sinks=[SinkMetrics(uid="sink", dead_letters=2)],
        has_input=has_input,
    )


def result(command_id: str) -> CommandResult:
    return CommandResult(command_id=command_id, status="COMPLETED")


def test_the_first_terminal_state_stays_with_its_failure() -> None:
    status = DriverStatus()
    status.enter(DriverState.RUNNING)
    status.enter(DriverState.FAILED, FAILURE)
    status.enter(DriverState.STOPPED)
    beat = status.heartbeat()
    assert (status.state, beat.state, beat.failure) == (DriverState.FAILED, DriverState.FAILED, FAILURE)


@pytest.mark.parametrize("state", [state for state in DriverState if state not in TERMINAL_STATES])
def test_a_state_that_is_not_terminal_is_left_again_and_its_failure_with_it(state: DriverState) -> None:
    status = DriverStatus()
    status.enter(state, FAILURE)
    status.enter(DriverState.RUNNING)
    assert (status.heartbeat().state, status.heartbeat().failure) == (DriverState.RUNNING, None)


def test_the_first_and_the_last_commit_are_told_with_the_sums_of_all() -> None:
    status = DriverStatus()
    status.restored(7, JobCounters(input_records=9))
    assert status.heartbeat().first_commit is None
    assert status.heartbeat().restored_at_ms == 7
    assert status.heartbeat().metrics.counters == Counters(input_records=9)
    commit(status, 5)
    commit(status, 6, 0, has_input=False)
    commit(status, 7)
    beat = status.heartbeat()
    assert beat.first_commit == Commit(batch_id=5, at_ms=1005)
    assert beat.last_commit == Commit(batch_id=7, at_ms=1007)
    metrics = beat.metrics
    assert (metrics.batches, metrics.input_batches) == (3, 2), "a batch of timers alone has no input"
    assert (metrics.input_records, metrics.output_records) == (20, 23)
    assert (status.commits, status.input_records) == (3, 20)
    assert metrics.counters == Counters(input_records=1, output_records=2, late_records=3, dead_letters=4)
    assert metrics.sinks == [SinkMetrics(uid="sink", dead_letters=6)]


def test_the_revision_that_the_driver_follows_is_told() -> None:
    status = DriverStatus()
    assert status.heartbeat().revision is None
    status.follows(3)
    assert status.heartbeat().revision == 3


def test_a_failure_is_shown_until_another_one_replaces_it() -> None:
    status = DriverStatus()
    status.restarts(None, FailureHistory())
    assert status.heartbeat().metrics.last_failure is None
    status.restarts(NoRestart(), FailureHistory(count=1, times_ms=[5]), FAILURE)
    status.restarts(NoRestart(), FailureHistory(count=1, times_ms=[5]))
    metrics = status.heartbeat().metrics
    assert (metrics.restart, metrics.failures.count, metrics.last_failure) == (NoRestart(), 1, FAILURE)
    status.restarts(NoRestart(), FailureHistory(count=2, times_ms=[5, 6]), OTHER)
    assert status.heartbeat().metrics.last_failure == OTHER


def test_passes_of_the_clean_up_add_up_and_a_good_one_ends_the_failures() -> None:
    status = DriverStatus()
    status.cleaned_up(10, Deleted(2, 300), 1)
    status.clean_up_failed(20, FAILURE)
    status.clean_up_failed(30, OTHER)
    failing = CleanUp(
        passes=1,
        last_at_ms=10,
        deleted_objects=2,
        deleted_bytes=300,
        removed_writes=1,
        failing_since_ms=20,
        failure=OTHER,
    )
    assert status.heartbeat().metrics.clean_up == failing
    status.cleaned_up(40, Deleted(1, 30), 4)
    assert status.heartbeat().metrics.clean_up == CleanUp(
        passes=2, last_at_ms=40, deleted_objects=3, deleted_bytes=330, removed_writes=5
    )


def test_an_outage_of_a_sink_began_with_its_first_failure_and_that_of_another_sink_with_its_own() -> None:
    status = DriverStatus()
    for uid, since_ms, reason, shown_since_ms in (("a", 10, "x", 10), ("a", 20, "y", 10), ("b", 30, "x", 30)):
        status.sink_waited_for(SinkOutage(uid=uid, since_ms=since_ms, reason=reason))
        shown = status.heartbeat().metrics.sink_outage
        assert shown == SinkOutage(uid=uid, since_ms=shown_since_ms, reason=reason)
    status.sink_waited_for(None)
    assert status.heartbeat().metrics.sink_outage is None
    status.sink_waited_for(SinkOutage(uid="b", since_ms=40, reason="x"))
    assert (shown := status.heartbeat().metrics.sink_outage) is not None
    assert shown.since_ms == 40


def test_a_store_that_is_away_is_told_until_it_answers() -> None:
    status = DriverStatus()
    status.store_seen(9)
    assert status.heartbeat().metrics.store_away_since_ms == 9
    status.store_seen(None)
    assert status.heartbeat().metrics.store_away_since_ms is None


def test_records_are_lost_since_the_first_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((100, 200, 300))
    monkeypatch.setattr(driver_status, "now_ms", lambda: next(times))
    status = DriverStatus()
    status.sources_have_lost(0, "first")
    assert status.heartbeat().metrics.lost_records_since_ms is None
    for lost, query, total in ((2, "first", 2), (5, "first", 5), (1, "second", 6)):
        status.sources_have_lost(lost, query)
        metrics = status.heartbeat().metrics
        assert (metrics.lost_records, metrics.lost_records_since_ms) == (total, 100)


def test_a_driver_that_waits_for_input_has_looked_for_it_for_good() -> None:
    status = DriverStatus()
    commit(status, 0, 0, has_input=False)
    status.waits_for_input(False)
    looked = [status.has_looked_for_input]
    for waits in (True, False):
        status.waits_for_input(waits)
        looked.append(status.has_looked_for_input)
    assert looked == [False, True, True], "a batch of timers is no look for input"
    assert not status.heartbeat().metrics.waits_for_input


def test_the_next_attempt_of_a_driver_has_not_looked_for_input_restored_or_committed() -> None:
    status = DriverStatus()
    assert [status.begins(attempt) for attempt in (1, 1)] == [True, False]
    status.restored(7, COUNTERS)
    commit(status, 0)
    status.waits_for_input(True)
    status.waits_for_input(False)
    status.sources_have_lost(3, "query")
    status.records_wait(9)
    assert status.begins(2)
    beat = status.heartbeat()
    assert (beat.attempt, beat.restored_at_ms, beat.first_commit, beat.last_commit) == (2, None, None, None)
    assert not status.has_looked_for_input
    assert (status.commits, status.input_records, beat.metrics.lost_records) == (0, 0, 0)
    assert status.heartbeat().metrics.lag_growth is None


def test_the_growth_of_the_lag_is_measured_anew_in_the_next_attempt() -> None:
    now_s = [0.0]
    status = DriverStatus(lambda: now_s[0])
    status.begins(1)
    status.records_wait(0)
    now_s[0] = 30.0
    status.records_wait(300)
    assert status.heartbeat().metrics.lag_growth == 10
    status.begins(2)
    now_s[0] = 35.0
    status.records_wait(350)
    assert status.heartbeat().metrics.lag_growth is None


def test_the_first_rate_of_the_next_attempt_covers_the_time_since_its_restore() -> None:
    now_s = [0.0]
    status = DriverStatus(lambda: now_s[0])
    for attempt in (1, 2):
        now_s[0] += 10.0
        status.begins(attempt)
        now_s[0] += 10.0
        status.restored(7, COUNTERS)
        now_s[0] += 2.0
        commit(status, attempt, 40)
        assert status.heartbeat().metrics.input_records_per_second == 20


def test_waiting_records_that_sources_have_counted_stay_known_in_the_next_attempt_of_a_driver() -> None:
    status = DriverStatus()
    status.begins(1)
    status.records_wait(700)
    status.begins(2)
    assert status.heartbeat().metrics.pending_records == 700
    status.sources_are_behind(0)  # the first batch has read to the end, and is not committed
    assert status.heartbeat().metrics.pending_records == 700
    status.records_wait(650)
    assert status.heartbeat().metrics.pending_records == 650


def test_the_pause_of_a_live_rescale_is_from_the_last_commit_before_to_the_first_commit_after_it() -> None:
    status = DriverStatus()
    status.begins(1)
    for batch_id in (100, 250):
        commit(status, batch_id)
    status.rescales(RESCALE)
    status.begins(2)
    status.rescale_verified()
    assert status.heartbeat().rescale == RESCALE, "a rescale that is verified without input has no pause yet"
    for batch_id in (400, 900):
        commit(status, batch_id)
    status.rescale_verified()
    rescale = status.heartbeat().rescale
    assert rescale is not None
    assert (rescale.pause_ms, rescale.committed_at_ms) == (150, 1400)


def test_how_often_subtasks_ran_moved_and_were_rebuilt_is_told() -> None:
    status = DriverStatus()
    locality = Locality()
    locality.runs, locality.moved, locality.rebuilt = 7, 2, 1
    status.locality_measured(locality)
    metrics = status.heartbeat().metrics
    assert (metrics.subtask_runs, metrics.subtask_runs_moved, metrics.subtask_runs_rebuilt) == (7, 2, 1)


def test_a_result_is_told_until_the_control_plane_stops_asking_for_it() -> None:
    status = DriverStatus()
    for name in ("asked", "known", "unsent"):
        status.answer(result(name))
    status.acknowledge([result("asked"), result("known")], ["asked"])
    assert [told.command_id for told in status.heartbeat().results] == ["asked", "unsent"]


def test_a_batch_that_is_measured_keeps_its_duration_and_rates() -> None:
    status = DriverStatus()
    status.committed(
        Commit(batch_id=0, at_ms=1), counters=COUNTERS, input_records=50, output_records=0, duration_ms=200.0
    )
    metrics = status.heartbeat().metrics
    assert metrics.batch_duration_ms == 200.0
    assert (metrics.input_records_per_second, metrics.processed_records_per_second) == (250.0, 250.0)


def test_each_thing_that_the_driver_notes_is_told_under_its_own_name() -> None:
    status = DriverStatus()
    status.has_slots(5)
    status.prepares()
    status.declared([GRAPH_NODE])
    status.garbage_collected(0.25)
    status.may_sleep(["kafka", "rate"])
    status.timers_due(77)
    status.host_measured({"jvm_heap_bytes": 3, "process_ms": 4})
    status.sources_still_have([SourceMetrics(uid="s", earliest={"0": 1})])
    status.sources_keep_records(60_000)
    status.sources_keep_records(None)
    status.user_metrics_set([GAUGE], {"g": "a gauge"})
    status.user_metrics_set([], {})
    before = DriverStatus().heartbeat()
    beat = status.heartbeat()
    changed = {
        name: value for name, value in beat.metrics.model_dump().items() if value != before.metrics.model_dump()[name]
    }
    assert changed == {
        "graph": [GRAPH_NODE.model_dump()],
        "garbage_collection_ratio": 0.25,
        "can_sleep": True,
        "unwatched": ["kafka", "rate"],
        "timers_due_at_ms": 77,
        "jvm_heap_bytes": 3,
        "process_ms": 4,
        "sources": [SourceMetrics(uid="s", earliest={"0": 1}).model_dump()],
        "source_retention_ms": 60_000,
        "user_gauges": [ReportedSeries.model_validate(to_builtins(GAUGE)).model_dump()],
        "user_help": {"g": "a gauge"},
    }
    assert (beat.slots, status.slots, beat.warms_up, before.warms_up) == (5, 5, True, False)
    status.ready()
    status.may_sleep([])
    status.timers_due(None)
    metrics = status.heartbeat().metrics
    assert (metrics.can_sleep, metrics.unwatched, metrics.timers_due_at_ms) == (True, [], None)
    assert not status.heartbeat().warms_up
    status.prepares()
    status.enter(DriverState.RUNNING)
    assert not status.heartbeat().warms_up, "only a standby warms up"
    status.may_sleep(None)
    assert (status.heartbeat().metrics.can_sleep, status.heartbeat().metrics.unwatched) == (False, [])


def test_the_meanings_of_metrics_are_told_without_gauges() -> None:
    status = DriverStatus()
    status.user_metrics_set([], {"orders": "Orders so far."})
    assert status.heartbeat().metrics.user_help == {"orders": "Orders so far."}


def test_records_that_wait_are_known_only_from_sources_that_count() -> None:
    status = DriverStatus()
    assert (status.pending_records, status.is_idle) == (None, False)
    status.sources_are_behind(4)
    assert (status.pending_records, status.heartbeat().metrics.pending_records) == (None, 4)
    status.records_wait(7, [SourceLag(uid="s", lag_records=7)])
    status.waits_for_input(True)
    assert (status.pending_records, status.is_idle) == (7, True)
    status.records_wait(0)
    assert status.pending_records == 0
    assert status.heartbeat().metrics.source_lags == []
    status.waits_for_input(False)
    assert not status.is_idle


def test_why_a_live_rescale_goes_back_is_told_with_it() -> None:
    status = DriverStatus()
    status.rescale_failed(FAILURE)
    assert status.heartbeat().rescale is None
    status.rescales(RESCALE)
    status.rescale_failed(FAILURE)
    status.rescale_reaches(RescalePhase.SWITCH, switched_at_ms=9)
    assert status.heartbeat().rescale == RESCALE.model_copy(
        update={"failure": FAILURE, "phase": RescalePhase.SWITCH, "switched_at_ms": 9}
    )


def test_the_next_attempt_keeps_what_is_of_the_driver_and_of_its_sources_and_nothing_else() -> None:
    status = DriverStatus()
    status.begins(1)
    status.declared([GRAPH_NODE])
    status.restored(7, COUNTERS)
    commit(status, 0)
    status.published(BatchMetrics(batch_id=0, at_ms=1, input_records=5, spark_ms=3), {OperatorUid("sink"): 8.0})
    status.records_wait(9, [SourceLag(uid="s", lag_records=9)])
    status.sources_have_lost(3, "query")
    status.sources_still_have([SourceMetrics(uid="s", earliest={"0": 1})])
    status.sink_waited_for(SinkOutage(uid="sink", since_ms=10, reason="x"))
    status.store_seen(9)
    status.cleaned_up(10, Deleted(2, 300), 1)
    status.restarts(NoRestart(), FailureHistory(count=1, times_ms=[5]), FAILURE)
    status.waits_for_input(True)
    status.host_measured({"jvm_heap_bytes": 3})
    before = status.heartbeat().metrics.model_dump()
    status.begins(2)
    after, none = status.heartbeat().metrics.model_dump(), DriverMetrics().model_dump()
    kept = {name for name in after if after[name] != none[name]}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert kept == {
        "clean_up",
        "counters",
        "failures",
        "graph",
        "lag_age_ms",
        "last_failure",
        "pending_records",
        "restart",
        "sink_outage",
        "sources",
        "store_away_since_ms",
    }


def test_the_parts_of_batches_are_averaged_and_the_last_batches_are_kept() -> None:
    status = DriverStatus()
    for batch_id in range(RECENT_BATCHES_MAX + 2):
        commit(status, batch_id)
        parts = {f"{part}_ms": 10 * (batch_id + 1) for part in ("spark", "wait", "state")}
        batch = BatchMetrics(batch_id=batch_id, at_ms=1000 + batch_id, input_records=batch_id, **parts)
        status.published(batch, {OperatorUid("sink"): float(batch_id)})
        if batch_id == 1:
            metrics = status.heartbeat().metrics
            assert metrics.batch_spark_ms == metrics.batch_wait_ms == metrics.batch_state_ms == pytest.approx(13)
            assert metrics.batch_plan_ms == 0
    metrics = status.heartbeat().metrics
    assert [batch.batch_id for batch in metrics.recent_batches] == list(range(2, RECENT_BATCHES_MAX + 2))
    assert metrics.recent_batches[-1] == batch
    (sink,) = metrics.sinks
    assert (sink.write_ms, sink.dead_letters) == (RECENT_BATCHES_MAX + 1.0, 2 * (RECENT_BATCHES_MAX + 2))


def test_an_overlong_heartbeat_leaves_the_metrics_of_single_subtasks_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_status, "_HEARTBEAT_SUBTASKS_MAX", 2)
    status = DriverStatus()
    for count, shown in ((1, 2), (2, 0)):
        subtasks = [SubtaskMetrics(index=index, state_bytes=5) for index in range(count)]
        status.committed(
            Commit(batch_id=0, at_ms=1),
            counters=COUNTERS,
            input_records=1,
            output_records=1,
            duration_ms=1,
            operators=[OperatorMetrics(uid=uid, read_records=1, subtasks=subtasks) for uid in ("a", "b")],
        )
        metrics = status.heartbeat().metrics
        assert [operator.read_records for operator in metrics.operators] == [count, count]
        assert sum(len(operator.subtasks) for operator in metrics.operators) == shown
        assert metrics.state_bytes == 10 * count


def test_an_old_answer_of_the_sources_is_told_with_its_age_and_is_no_point_of_the_trend() -> None:
    now_s = [100.0]
    status = DriverStatus(lambda: now_s[0])

    def told() -> tuple[int | None, int | None, float | None]:
        metrics = status.heartbeat().metrics
        return metrics.pending_records, metrics.lag_age_ms, metrics.lag_growth

    assert told() == (None, None, None)
    status.records_wait(50)
    now_s[0] = 112.0
    assert told() == (50, 12_000, None)
    status.records_wait(900, age_s=11.5)
    assert told() == (900, 11_000, None), "the sources gave this number 11.5 s ago"
    now_s[0] = 114.0
    assert told() == (900, 13_000, None)
    status.records_wait(190, age_s=0.5)
    assert told() == (190, 0, 10.0)
    now_s[0] = 123.0
    assert told() == (190, 0, 10.0)


def test_the_state_of_a_subtask_without_work_keeps_its_size() -> None:
    status = DriverStatus()
    for sizes, expected in (((5, 7), 12), ((0, 8), 13), ((0, 0), 13), ((6, 0), 14)):
        subtasks = [SubtaskMetrics(index=index, state_bytes=size) for index, size in enumerate(sizes)]
        status.committed(
            Commit(batch_id=0, at_ms=1),
            counters=COUNTERS,
            input_records=1,
            output_records=1,
            duration_ms=1,
            operators=[OperatorMetrics(uid="a", subtasks=subtasks)],
        )
        assert status.heartbeat().metrics.state_bytes == expected
    commit(status, 9)
    assert status.heartbeat().metrics.state_bytes == 14


@pytest.mark.parametrize("away", ["sink", "store", "input", None])
def test_a_job_that_has_nothing_to_read_or_must_wait_is_not_busy(away: str | None) -> None:
    now_s = [100.0]
    status = DriverStatus(lambda: now_s[0])
    for now_s[0] in (100.0, 100.1):
        commit(status, 0)
    status.records_wait(7)
    busy_ratio = status.heartbeat().metrics.busy_ratio
    assert busy_ratio > 0
    if away == "sink":
        status.sink_waited_for(SinkOutage(uid="sink", since_ms=1, reason="x"))
    if away == "store":
        status.store_seen(1)
    status.waits_for_input(away == "input")
    now_s[0] += IDLE_MS / 1000
    assert status.heartbeat().metrics.busy_ratio == busy_ratio
    now_s[0] += 0.5
    metrics = status.heartbeat().metrics
    assert metrics.busy_ratio == (busy_ratio if away is None else 0.0)
    assert metrics.pending_records == 7, "the sources have counted"
