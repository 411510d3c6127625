"""A report that cannot be true is refused at the first value beyond its bounds, and accepted at the last one within."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.api.drivers.report_validity import (
    CHECKPOINT_ID_STEP_MAX,
    ReportedAttempt,
    why_not_checkpoint,
    why_not_heartbeat,
    why_not_result,
)
from keyscale.jobs.protocol.messages import CheckpointReport, CommandResult, Commit, Heartbeat, SubtaskCheckpointReport
from keyscale.vocabulary import AttemptStage, CheckpointStatus, DriverState

BY = ReportedAttempt("job", "file:///store", 3, parallelism=2, max_parallelism=8, newest_checkpoint_id=5)
ID_MAX = 5 + CHECKPOINT_ID_STEP_MAX


def subtask(index: int = 0, start: int = 0, end: int = 3, uid: str = "totals") -> SubtaskCheckpointReport:
    status = CheckpointStatus.COMPLETED
    return SubtaskCheckpointReport(
        operator_uid=uid, index=index, key_group_start=start, key_group_end=end, status=status
    )


def checkpoint(checkpoint_id: int = 6, **fields: Any) -> CheckpointReport:
    given = {"status": CheckpointStatus.IN_PROGRESS, "trigger_timestamp": 1, **fields}
    return CheckpointReport(checkpoint_id=checkpoint_id, **given)


def completed(checkpoint_id: int = 6, savepoint_id: str | None = None, **fields: Any) -> CheckpointReport:
    path = BY.location(checkpoint_id, savepoint_id)
    given = {"status": CheckpointStatus.COMPLETED, "external_path": path, **fields}
    return checkpoint(checkpoint_id, is_savepoint=savepoint_id is not None, savepoint_id=savepoint_id, **given)


@pytest.mark.parametrize(
    "report",
    [
        checkpoint(1),
        checkpoint(ID_MAX),
        completed(batch_id=-1),
        completed(savepoint_id="mine"),
        completed(subsumed_checkpoint_ids=[1, 5]),
        completed(subtasks=[subtask(0), subtask(1, 4, 7), subtask(0, uid="other")]),
        completed(subtasks=[subtask(1, 7, 7)]),
    ],
)
def test_a_report_of_a_checkpoint_is_accepted_up_to_its_bounds(report: CheckpointReport) -> None:
    assert why_not_checkpoint(report, BY) is None


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (checkpoint(0), "checkpoint_id"),
        (checkpoint(ID_MAX + 1), "checkpoint_id"),
        (checkpoint(is_savepoint=True), "savepoint_id"),
        (checkpoint(savepoint_id="mine"), "savepoint_id"),
        (checkpoint(external_path=BY.location(6, None)), "external_path"),
        (completed(external_path=None), "external_path"),
        (completed(external_path=BY.location(7, None)), "external_path"),
        (completed(batch_id=-2), "batch_id"),
        (completed(subsumed_checkpoint_ids=[0]), "only earlier"),
        (completed(subsumed_checkpoint_ids=[5, 6]), "only earlier"),
        (completed(subtasks=[subtask(0), subtask(0)]), "twice"),
        (completed(subtasks=[subtask(2)]), "such a subtask"),
        (completed(subtasks=[subtask(0, 4, 3)]), "key groups"),
        (completed(subtasks=[subtask(0, 0, 8)]), "key groups"),
    ],
)
def test_a_report_of_a_checkpoint_beyond_its_bounds_is_refused(report: CheckpointReport, reason: str) -> None:
    assert reason in (why_not_checkpoint(report, BY) or "")


@pytest.mark.parametrize("state", DriverState)
def test_a_standby_warms_up_or_ends_and_commits_nothing(state: DriverState) -> None:
    may_be = state in {DriverState.STANDBY, DriverState.FAILED, DriverState.FENCED}
    assert (why_not_heartbeat(Heartbeat(state=state), AttemptStage.STANDBY, 1) is None) is may_be
    assert why_not_heartbeat(Heartbeat(state=state), AttemptStage.ACTIVE, 1) is None
    commit = Commit(batch_id=0, at_ms=1)
    for name in ("first_commit", "last_commit"):
        assert why_not_heartbeat(Heartbeat(state=state, **{name: commit}), AttemptStage.STANDBY, 1) is not None
        assert why_not_heartbeat(Heartbeat(state=state, **{name: commit}), AttemptStage.ACTIVE, 1) is None


def test_a_heartbeat_is_about_the_attempt_of_its_token() -> None:
    running = DriverState.RUNNING
    assert why_not_heartbeat(Heartbeat(state=running, attempt=2), AttemptStage.ACTIVE, 2) is None
    assert why_not_heartbeat(Heartbeat(state=running, attempt=1), AttemptStage.ACTIVE, 2) is not None


def test_a_reserved_attempt_is_opened_by_a_driver_that_runs() -> None:
    assert why_not_heartbeat(Heartbeat(state=DriverState.RUNNING, attempt=2), AttemptStage.RESERVED, 2) is None
    assert why_not_heartbeat(Heartbeat(state=DriverState.RUNNING), AttemptStage.RESERVED, 2) is not None
    assert why_not_heartbeat(Heartbeat(state=DriverState.STANDBY, attempt=2), AttemptStage.RESERVED, 2) is not None


@pytest.mark.parametrize(
    ("result", "is_true"),
    [
        (CommandResult(command_id="c", status="COMPLETED", location=BY.location(0, "mine"), checkpoint_id=6), True),
        (CommandResult(command_id="c", status="COMPLETED", location=BY.location(0, "other"), checkpoint_id=6), False),
        (CommandResult(command_id="c", status="COMPLETED", checkpoint_id=6), False),
        (CommandResult(command_id="c", status="FAILED"), True),
        (CommandResult(command_id="c", status="FAILED", checkpoint_id=ID_MAX), True),
        (CommandResult(command_id="c", status="FAILED", checkpoint_id=ID_MAX + 1), False),
    ],
)
def test_a_result_names_the_savepoint_that_was_commanded(result: CommandResult, is_true: bool) -> None:
    assert (why_not_result(result, "mine", BY) is None) is is_true
