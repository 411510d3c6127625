"""A report is stored value by value: each one in its own column, and the times of first events stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.api.drivers import stored_reports
from keyscale.api.drivers.stored_reports import store_checkpoint, store_heartbeat, subtask_columns
from keyscale.db.models import Attempt, Checkpoint
from keyscale.jobs.protocol.messages import (
    CheckpointReport,
    Commit,
    DriverMetrics,
    Failure,
    Heartbeat,
    LiveRescale,
    SubtaskCheckpointReport,
)
from keyscale.vocabulary import CheckpointStatus, DriverState, RescalePhase

if TYPE_CHECKING:
    import pytest

FAILURE = Failure(code="X", message="it broke")


def beat(state: DriverState = DriverState.RUNNING, **fields: Any) -> Heartbeat:
    return Heartbeat(state=state, **fields)


def report(status: CheckpointStatus, **fields: Any) -> CheckpointReport:
    return CheckpointReport.model_validate(
        {"checkpoint_id": 7, "status": str(status), "trigger_timestamp": 100, **fields}
    )


def part(index: int, **fields: Any) -> SubtaskCheckpointReport:
    given = {"operator_uid": "count", "key_group_start": 0, "key_group_end": 1, "status": "COMPLETED", **fields}
    return SubtaskCheckpointReport.model_validate({"index": index, **given})


class TestHeartbeat:
    def test_every_value_has_its_column(self) -> None:
        attempt = Attempt(number=1)
        message = beat(
            restored_at_ms=3,
            first_commit=Commit(batch_id=5, at_ms=50),
            last_commit=Commit(batch_id=6, at_ms=60),
            metrics=DriverMetrics(batches=2),
            failure=FAILURE,
        )
        assert store_heartbeat(attempt, message, 1000, 2000)
        assert (attempt.driver_state, attempt.heartbeat_at_ms, attempt.running_at_ms) == ("RUNNING", 2000, 1000)
        assert attempt.restored_at_ms == 3
        assert (attempt.first_commit_batch_id, attempt.first_commit_at_ms) == (5, 50)
        assert (attempt.last_commit_batch_id, attempt.last_commit_at_ms) == (6, 60)
        assert attempt.metrics == DriverMetrics(batches=2).model_dump()
        assert attempt.failure == FAILURE.model_dump()

    def test_the_progress_of_a_live_rescale_stays_until_there_is_a_newer_one(self) -> None:
        attempt = Attempt(number=1)
        progress = LiveRescale(command_id="r", phase=RescalePhase.PREPARE, from_attempt=1, to_attempt=2, began_at_ms=7)
        store_heartbeat(attempt, beat(rescale=progress, slots=8), 1000, 2000)
        assert (attempt.rescale, attempt.slots) == (progress.model_dump(), 8)
        store_heartbeat(attempt, beat(slots=4), 1000, 3000)
        assert (attempt.rescale, attempt.slots) == (progress.model_dump(), 4)

    def test_a_standby_that_warms_up_is_alive_and_not_ready(self) -> None:
        attempt = Attempt(number=1)
        assert not store_heartbeat(attempt, beat(DriverState.STANDBY, warms_up=True), 1000, 2000)
        assert (attempt.driver_state, attempt.heartbeat_at_ms) == (None, 2000)
        assert store_heartbeat(attempt, beat(DriverState.STANDBY), 1100, 2100)
        assert (attempt.driver_state, attempt.heartbeat_at_ms) == ("STANDBY", 2100)

    def test_the_time_at_which_it_first_ran_stays_and_only_running_counts(self) -> None:
        attempt = Attempt(number=1)
        seen = []
        for state, now in ((DriverState.RESTORING, 10), (DriverState.RUNNING, 20), (DriverState.RUNNING, 30)):
            store_heartbeat(attempt, beat(state), now, now)
            seen.append((attempt.running_at_ms, attempt.heartbeat_at_ms))
        assert seen == [(None, 10), (20, 20), (20, 30)]

    def test_the_time_at_which_it_fell_asleep_stays(self) -> None:
        attempt = Attempt(number=1)
        seen = []
        for state, now in ((DriverState.RUNNING, 10), (DriverState.SLEEPING, 20), (DriverState.SLEEPING, 30)):
            store_heartbeat(attempt, beat(state), now, now)
            seen.append(attempt.fell_asleep_at_ms)
        assert seen == [None, 20, 20]

    def test_a_new_state_and_a_first_commit_wake_the_reconciler_and_nothing_else_does(self) -> None:
        attempt = Attempt(number=1)
        first, last = Commit(batch_id=0, at_ms=1), Commit(batch_id=1, at_ms=2)
        for message, wakes in (
            (beat(DriverState.RESTORING), True),
            (beat(DriverState.RESTORING, restored_at_ms=4), False),
            (beat(), True),
            (beat(first_commit=first, last_commit=first), True),
            (beat(first_commit=first, last_commit=last), False),
            (beat(DriverState.FAILED, first_commit=first, failure=FAILURE), True),
        ):
            assert store_heartbeat(attempt, message, 1, 1) is wakes

    def test_a_commit_and_a_failure_stay_when_a_later_heartbeat_lacks_them(self) -> None:
        attempt = Attempt(number=1)
        commit = Commit(batch_id=4, at_ms=40)
        store_heartbeat(attempt, beat(first_commit=commit, last_commit=commit, failure=FAILURE), 1, 1)
        store_heartbeat(attempt, beat(), 2, 2)
        assert (attempt.first_commit_at_ms, attempt.last_commit_batch_id) == (40, 4)
        assert attempt.failure == FAILURE.model_dump()


class TestCheckpoint:
    def test_every_value_has_its_column(self) -> None:
        values = {
            "is_savepoint": True,
            "savepoint_id": "mine",
            "trigger_timestamp": 1,
            "latest_ack_timestamp": 2,
            "end_to_end_duration": 3,
            "checkpointed_size": 4,
            "state_size": 5,
            "processed_records": 6,
            "external_path": "file:///here",
            "batch_id": 7,
        }
        checkpoint = Checkpoint(job_id="job", checkpoint_id=7)
        store_checkpoint(checkpoint, 3, CheckpointStatus.COMPLETED, report(CheckpointStatus.COMPLETED, **values))
        assert {name: getattr(checkpoint, name) for name in values} == values
        assert (checkpoint.attempt, checkpoint.status) == (3, CheckpointStatus.COMPLETED)
        assert (checkpoint.failure_timestamp, checkpoint.failure_message) == (None, None)

    def test_only_subtasks_that_have_ended_are_acknowledged(self) -> None:
        checkpoint = Checkpoint(job_id="job", checkpoint_id=7)
        parts = [part(0, ack_timestamp=0), part(1), part(2, ack_timestamp=9)]
        given = report(CheckpointStatus.IN_PROGRESS).model_copy(update={"subtasks": parts})
        store_checkpoint(checkpoint, 1, CheckpointStatus.IN_PROGRESS, given)
        assert (checkpoint.num_subtasks, checkpoint.num_acknowledged_subtasks) == (3, 2)

    def test_a_failure_keeps_the_time_of_its_first_report_until_a_late_success(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        times = iter((500, 600))
        monkeypatch.setattr(stored_reports, "now_ms", lambda: next(times))
        checkpoint = Checkpoint(job_id="job", checkpoint_id=7)
        failed = report(CheckpointStatus.FAILED, failure_message="X: it broke")
        for _ in range(2):
            store_checkpoint(checkpoint, 1, CheckpointStatus.FAILED, failed)
            assert (checkpoint.failure_timestamp, checkpoint.failure_message) == (500, "X: it broke")
        store_checkpoint(checkpoint, 1, CheckpointStatus.COMPLETED, report(CheckpointStatus.COMPLETED))
        assert (checkpoint.failure_timestamp, checkpoint.failure_message) == (None, None)

    def test_a_part_is_stored_under_its_subtask_with_all_its_values(self) -> None:
        given = part(3, ack_timestamp=8, state_size=5, checkpointed_size=4, sync_duration=2, async_duration=1)
        columns = subtask_columns(given)
        assert (columns["subtask"], columns["status"]) == (3, CheckpointStatus.COMPLETED)
        assert "index" not in columns
        expected = given.model_dump(exclude={"index", "status"})
        assert {name: columns[name] for name in expected} == expected
