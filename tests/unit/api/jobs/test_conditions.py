"""The conditions of a job follow from its facts, each with its reason."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.health.schemas import HealthAnswer, HealthReasonAnswer
from keyscale.api.jobs.conditions import ConditionFacts, conditions_of
from keyscale.api.lifecycle.current_report import SILENT_MS
from keyscale.db.repositories.overviews import LatestSnapshot
from keyscale.vocabulary import AttemptStage, ConditionType, HealthLevel, JobStatus, OperationKind

if TYPE_CHECKING:
    from keyscale.api.jobs.schemas.condition import ConditionAnswer

NOW_MS = 1_000_000


def attempt(**columns: Any) -> Any:
    given = {
        "number": 3,
        "stage": AttemptStage.ACTIVE,
        "driver_state": "RUNNING",
        "created_at_ms": 1,
        "restored_at_ms": 400,
        "running_at_ms": 500,
        "heartbeat_at_ms": NOW_MS - 10,
    }
    return SimpleNamespace(**{**given, **columns})


ASLEEP = attempt(driver_state="SLEEPING", fell_asleep_at_ms=600)
FACTS = ConditionFacts(
    status=JobStatus.RUNNING,
    ended_at_ms=None,
    attempt=attempt(),
    health=HealthAnswer(level=HealthLevel.OK, score=100, reasons=[]),
    snapshot=LatestSnapshot(7, 600, 2, 3, 4),
    restorable_until_at_ms=None,
    operation=None,
    lag_records=90,
    lag_before=9,
    caught_up_at_ms=700,
    at_ms=NOW_MS,
)


def condition(type_: str, **facts: Any) -> ConditionAnswer:
    found = {each.type: each for each in conditions_of(replace(FACTS, **facts))}
    assert list(found) == list(ConditionType), "one of each type"
    return found[ConditionType(type_)]


def told(type_: str, **facts: Any) -> tuple[str, str, int | None]:
    found = condition(type_, **facts)
    assert found.message
    return found.status, found.reason, found.since_ms


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, ("TRUE", "DRIVER_RUNS", 500)),
        ({"status": JobStatus.RESCALING, "operation": OperationKind.RESCALE}, ("TRUE", "DRIVER_RUNS", 500)),
        ({"attempt": attempt(heartbeat_at_ms=NOW_MS - SILENT_MS)}, ("UNKNOWN", "DRIVER_SILENT", NOW_MS - SILENT_MS)),
        ({"attempt": ASLEEP, "status": JobStatus.SLEEPING}, ("FALSE", "SLEEPING", 600)),
        (
            {"attempt": attempt(driver_state="SLEEPING", heartbeat_at_ms=NOW_MS - SILENT_MS)},
            ("UNKNOWN", "DRIVER_SILENT", NOW_MS - SILENT_MS),
        ),
        ({"attempt": attempt(driver_state=None, heartbeat_at_ms=None)}, ("FALSE", "DRIVER_STARTS", 1)),
        ({"attempt": attempt(driver_state="RESTORING")}, ("FALSE", "DRIVER_STARTS", 1)),
        ({"attempt": attempt(stage=AttemptStage.ENDED), "status": JobStatus.RESTARTING}, ("FALSE", "RESTARTING", None)),
        ({"status": JobStatus.STOPPED, "ended_at_ms": 900}, ("FALSE", "STOPPED", 900)),
        ({"status": JobStatus.CREATED, "attempt": None}, ("FALSE", "CREATED", None)),
    ],
)
def test_a_job_runs_while_its_driver_reports_that_it_does(facts: dict[str, Any], expected: Any) -> None:
    assert told("RUNNING", **facts) == expected


def test_a_job_is_healthy_until_a_reason_is_known() -> None:
    reasons = [
        HealthReasonAnswer(code="SINK_UNAVAILABLE", message="sink", severity=90, since_ms=20),
        HealthReasonAnswer(code="STATE_STORE_UNAVAILABLE", message="store", severity=90, since_ms=10),
    ]
    ill = HealthAnswer(level=HealthLevel.CRITICAL, score=0, reasons=reasons)
    assert told("HEALTHY") == ("TRUE", "NO_FAULT", None)
    assert told("HEALTHY", health=ill) == ("FALSE", "SINK_UNAVAILABLE", 20)
    assert condition("HEALTHY", health=ill).message == "sink; store"


def test_a_job_is_restorable_from_its_first_snapshot_on() -> None:
    assert told("RESTORABLE") == ("TRUE", "SNAPSHOT", 600)
    assert told("RESTORABLE", snapshot=None) == ("FALSE", "NO_SNAPSHOT", None)
    assert told("RESTORABLE", restorable_until_at_ms=NOW_MS + 1) == ("TRUE", "SNAPSHOT", 600)
    assert told("RESTORABLE", restorable_until_at_ms=NOW_MS) == ("UNKNOWN", "RETENTION_OVER", NOW_MS)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, ("FALSE", "CAUGHT_UP", 700)),
        ({"caught_up_at_ms": None}, ("TRUE", "RECORDS_LEFT", 400)),
        ({"caught_up_at_ms": None, "lag_records": None}, ("UNKNOWN", "NOT_COUNTED", None)),
        ({"status": JobStatus.STOPPED}, ("UNKNOWN", "NOT_RUNNING", None)),
        ({"attempt": attempt(heartbeat_at_ms=0)}, ("UNKNOWN", "NOT_RUNNING", None)),
    ],
)
def test_a_job_catches_up_until_no_more_records_are_left_than_before_its_start(
    facts: dict[str, Any], expected: Any
) -> None:
    assert told("CATCHING_UP", **facts) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, ("FALSE", "NO_OPERATION", None)),
        ({"status": JobStatus.UPGRADING, "operation": OperationKind.UPGRADE}, ("TRUE", "UPGRADE", None)),
        ({"status": JobStatus.SUBMITTING, "operation": OperationKind.START}, ("TRUE", "START", None)),
        ({"status": JobStatus.RESTARTING}, ("TRUE", "RECOVERY", None)),
        ({"status": JobStatus.FAILED}, ("FALSE", "NO_OPERATION", None)),
    ],
)
def test_a_job_progresses_while_an_operation_changes_it(facts: dict[str, Any], expected: Any) -> None:
    assert told("PROGRESSING", **cast("dict[str, Any]", facts)) == expected


def test_a_sleeping_job_says_what_wakes_it_and_has_caught_up() -> None:
    asleep = {"attempt": ASLEEP, "status": JobStatus.SLEEPING}
    wakes = "the job sleeps; it wakes when its sources have records"
    assert condition("RUNNING", **asleep).message == f"{wakes}, and for an operation"
    due = condition("RUNNING", **asleep, timers_due_at_ms=NOW_MS + 60_000)
    assert due.message == f"{wakes}, for its timer in 60 s, and for an operation"
    assert told("CATCHING_UP", **asleep) == ("FALSE", "CAUGHT_UP", 700)


def test_an_operation_that_waits_for_the_store_says_so() -> None:
    found = condition("PROGRESSING", operation=OperationKind.UPGRADE, waits_for="the bucket does not answer")
    assert (found.status, found.reason) == ("TRUE", "UPGRADE")
    assert found.message.endswith("; it waits for the object store: the bucket does not answer")


def test_a_start_that_fails_and_is_tried_again_says_why() -> None:
    failing = "a step of the job failed (STORE_UNAVAILABLE); it is tried again"
    found = condition("RUNNING", attempt=attempt(driver_state=None), failing_start=failing)
    assert (found.status, found.reason) == ("FALSE", "DRIVER_STARTS")
    assert found.message == f"the driver of attempt 3 is STARTING; {failing}"


def test_each_condition_names_what_it_is_about() -> None:
    silent = attempt(heartbeat_at_ms=NOW_MS - SILENT_MS)
    assert condition("RUNNING").message == "attempt 3 runs the job"
    assert condition("RUNNING", attempt=silent).message == "the driver of attempt 3 is silent"
    assert condition("RUNNING", attempt=attempt(driver_state="RESTORING")).message.endswith("attempt 3 is RESTORING")
    assert condition("RUNNING", status=JobStatus.FAILED).message == "the job is FAILED"
    assert condition("RESTORABLE").message == "the job can start from checkpoint 7"
    over = condition("RESTORABLE", restorable_until_at_ms=NOW_MS)
    assert over.message == "the sources may have deleted records after checkpoint 7"
    behind = condition("CATCHING_UP", caught_up_at_ms=None)
    assert behind.message == "90 records left; 9 left before the start"
    unknown = condition("CATCHING_UP", caught_up_at_ms=None, lag_before=None, lag_records=1)
    assert unknown.message == "1 record left; 0 left before the start"
    changed = condition("PROGRESSING", status=JobStatus.RESTARTING, operation=OperationKind.UPGRADE)
    assert (changed.reason, changed.message) == ("UPGRADE", "the operation UPGRADE changes the job")


def test_a_job_that_stops_runs_until_its_driver_has_ended_and_catches_up_no_more() -> None:
    stopping = {"attempt": attempt(driver_state="STOPPING"), "caught_up_at_ms": None}
    assert told("RUNNING", **stopping) == ("TRUE", "DRIVER_RUNS", 500)
    assert told("CATCHING_UP", **stopping) == ("UNKNOWN", "NOT_RUNNING", None)
    settled = {**stopping, "status": JobStatus.STOPPED, "ended_at_ms": 900}
    assert told("RUNNING", **settled) == ("FALSE", "STOPPED", 900)
