"""A report that cannot be true is refused at the first value beyond its bounds, and accepted at the last one within."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.api.drivers import report_validity
from keyscale.api.drivers.report_validity import (
    CHECKPOINT_ID_STEP_MAX,
    ReportedAttempt,
    why_not_checkpoint,
    why_not_heartbeat,
    why_not_result,
)
from keyscale.jobs.protocol.messages import (
    CheckpointReport,
    CommandResult,
    Commit,
    DriverMetrics,
    Heartbeat,
    SubtaskCheckpointReport,
)
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


@pytest.mark.parametrize("name", ["first_commit", "last_commit"])
@pytest.mark.parametrize(("batch_id", "is_true"), [(0, True), (2**53, True), (2**53 + 1, False), (-1, False)])
def test_a_commit_is_of_a_batch_whose_number_every_reader_reads(name: str, batch_id: int, is_true: bool) -> None:
    commit = Commit.model_construct(batch_id=batch_id, at_ms=1)
    message = Heartbeat(state=DriverState.RUNNING).model_copy(update={name: commit})
    assert (why_not_heartbeat(message, AttemptStage.ACTIVE, 1) is None) is is_true


def parts(*uids: str, subtasks: int = 0) -> list[dict[str, Any]]:
    return [{"uid": uid, "subtasks": [{"index": index} for index in range(subtasks)]} for uid in uids]


def node(uid: str, *inputs: str) -> dict[str, Any]:
    return {"uid": uid, "kind": "OPERATOR", "inputs": list(inputs)}


def source(uid: str, splits: int) -> dict[str, Any]:
    return {"uid": uid, "earliest": {f"s-{number}": number for number in range(splits)}}


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"operators": parts("a", "b", subtasks=2)}, None),
        ({"operators": parts("a", "b", "c", subtasks=2)}, "more than 4 subtasks"),
        ({"graph": [node("a", "b"), node("b", *"aaaaaaa")]}, None),
        ({"graph": [node("a", "b"), node("b", *"aaaaaaaa")]}, "more than 10 nodes and edges"),
        ({"operators": parts("abcde"), "sinks": [{"uid": "abcde"}], "sources": [source("abcde", 0)]}, None),
        ({"operators": parts("abcdef")}, "more than 5 characters"),
        ({"sinks": [{"uid": "abcdef"}]}, "more than 5 characters"),
        ({"sources": [source("abcdef", 0)]}, "more than 5 characters"),
        ({"graph": [node("abcdef")]}, "more than 5 characters"),
        ({"graph": [node("a", "abcdef")]}, "more than 5 characters"),
        ({"sources": [source("a", 2), source("b", 1)]}, None),
        ({"sources": [source("a", 2), source("b", 2)]}, "more than 3 splits"),
        ({"sources": [source("a", 1), source("a", 1)]}, "a source is reported twice"),
    ],
)
def test_a_report_has_no_more_than_a_job_can_have(
    monkeypatch: pytest.MonkeyPatch, metrics: dict[str, Any], reason: str | None
) -> None:
    limits = {"SUBTASKS_MAX": 4, "OPERATORS_MAX": 1, "UID_CHARACTERS_MAX": 5, "REPORTED_SPLITS_MAX": 3}
    for name, most in limits.items():
        monkeypatch.setattr(report_validity, name, most)
    message = Heartbeat(state=DriverState.RUNNING, metrics=DriverMetrics.model_validate(metrics))
    why = why_not_heartbeat(message, AttemptStage.ACTIVE, 1)
    assert (why is None) if reason is None else (why is not None and reason in why)


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
