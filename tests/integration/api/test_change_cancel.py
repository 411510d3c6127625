"""A cancel of a change is stored, and takes effect by the next steps; a change that is in the way is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.tokens import token_sha256
from keyscale.api.lifecycle.downtime_breakdown import SETTLED_MS
from keyscale.clock import now_ms
from keyscale.db.models import Attempt, Job, Operation
from keyscale.db.repositories import operations
from keyscale.jobs.protocol.messages import DriverMetrics
from keyscale.vocabulary import AttemptStage, ChangePhase, JobStatus, OperationStatus

if TYPE_CHECKING:
    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.either_database


@pytest.fixture
def rescale(client: httpx.Client, context: Context, job: dict[str, Any]) -> str:
    """A rescale of a running job, as a user has just requested it."""
    metrics = DriverMetrics(batches=3, input_records_per_second=7.0, pending_records=5).model_dump()
    with context.sessions.begin() as session:
        found = session.get_one(Job, job["id"])
        found.status = JobStatus.RUNNING
        session.add(Attempt(job_id=job["id"], number=1, stage=AttemptStage.ACTIVE, cause="start", parallelism=2,
                            created_at_ms=1, metrics=metrics))  # fmt: skip
    answer = client.post("/v1/jobs/flights/rescale", json={"parallelism": 4, "id": "first"})
    assert answer.status_code == 202, answer.text
    return "first"


def set_change(context: Context, **values: Any) -> None:
    with context.sessions.begin() as session:
        found = session.get_one(Operation, "first")
        for name, value in values.items():
            setattr(found, name, value)


def test_a_cancel_is_stored_once(client: httpx.Client, context: Context, rescale: str) -> None:
    before = client.get(f"/v1/operations/{rescale}").json()
    assert (before["can_cancel"], before["cancel_requested_at_ms"]) == (True, None)
    cancelled = client.post(f"/v1/operations/{rescale}/cancel")
    assert cancelled.status_code == 202
    assert cancelled.json()["cancel_requested_at_ms"] is not None
    assert not cancelled.json()["can_cancel"]
    again = client.post(f"/v1/operations/{rescale}/cancel")
    assert (again.status_code, again.json()) == (202, cancelled.json())
    kinds = [event["kind"] for event in client.get("/v1/jobs/flights/events").json()["events"]]
    assert kinds.count("RESCALE_CANCEL_REQUESTED") == 1
    with context.sessions() as session:
        running = operations.running(session, before["job_id"])
        assert running is not None
        assert running.cancel_requested_at_ms == cancelled.json()["cancel_requested_at_ms"]


@pytest.mark.parametrize(
    "over", [{"status": OperationStatus.COMPLETED, "ended_at_ms": 9}, {"phase": ChangePhase.ROLL_BACK}]
)
def test_a_change_that_is_over_or_goes_back_cannot_be_cancelled(
    client: httpx.Client, context: Context, rescale: str, over: dict[str, Any]
) -> None:
    set_change(context, **over)
    refused = client.post(f"/v1/operations/{rescale}/cancel")
    assert (refused.status_code, refused.json()["code"]) == (409, "OPERATION_NOT_CANCELLABLE")
    assert not client.get(f"/v1/operations/{rescale}").json()["can_cancel"]
    unknown = client.post("/v1/operations/none/cancel")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "OPERATION_NOT_FOUND")


def test_a_second_rescale_is_told_which_one_is_in_its_way(client: httpx.Client, rescale: str) -> None:
    refused = client.post("/v1/jobs/flights/rescale", json={"parallelism": 3})
    problem = refused.json()
    assert (refused.status_code, problem["code"], problem["operation_id"]) == (409, "OPERATION_IN_PROGRESS", rescale)
    assert rescale in problem["detail"]
    assert client.post("/v1/jobs/flights/savepoint").json()["operation_id"] == rescale


def test_a_dry_run_of_a_rescale_is_its_plan_and_changes_nothing(client: httpx.Client, job: dict[str, Any]) -> None:
    planned = client.post("/v1/jobs/flights/rescale", json={"parallelism": 4, "dry_run": True})
    assert planned.status_code == 200, planned.text
    plan = client.patch("/v1/jobs/flights", json={"spec": {"parallelism": 4}, "dry_run": True}).json()["plan"]
    assert planned.json()["plan"] == plan
    assert (planned.json()["from_parallelism"], planned.json()["to_parallelism"]) == (2, 4)
    assert client.get("/v1/jobs/flights").json() == job
    refused = client.post("/v1/jobs/flights/rescale", json={"parallelism": 400, "dry_run": True})
    assert refused.json()["code"] == "PARALLELISM_OUT_OF_RANGE"


def test_a_change_keeps_where_its_downtime_went_and_what_the_job_did(
    client: httpx.Client, context: Context, rescale: str
) -> None:
    begun = {"REQUESTED": 100, "SAVEPOINT": 1000, "STOP": 1500, "RESTORE": 1700, "VERIFY": 2100}
    phases = [{"phase": phase, "started_at_ms": at_ms, "ended_at_ms": None} for phase, at_ms in begun.items()]
    times = {"launched_at_ms": 110, "attached_at_ms": 900, "restored_at_ms": 2000, "first_commit_at_ms": 2400}
    set_change(context, phases=phases, times=times, stopped_at_ms=1010, resumed_at_ms=2400, caught_up_at_ms=5000)
    shown = client.get(f"/v1/operations/{rescale}").json()
    assert {step["name"]: step["duration_ms"] for step in shown["steps"]} == {
        "SAVEPOINT": 490,
        "STOP": 200,
        "SUBMIT": 0,
        "SESSION": 0,
        "RESTORE": 300,
        "FIRST_BATCH": 400,
        "CAUGHT_UP": 2600,
    }
    in_downtime = [step["duration_ms"] for step in shown["steps"] if step["name"] != "CAUGHT_UP"]
    assert sum(in_downtime) == shown["downtime_ms"] == 1390
    assert shown["prepared_ms"] == 790
    before = shown["metrics_before"]
    assert (before["input_rate"], before["lag_records"], shown["metrics_after"]) == (7.0, 5, None)


def test_a_change_says_how_much_the_job_could_process_afterwards_though_its_files_do_not_say_what_is_left(
    client: httpx.Client, anonymous: httpx.Client, context: Context, rescale: str, job: dict[str, Any]
) -> None:
    set_change(context, new_attempt=1)
    with context.sessions.begin() as session:
        attempt = session.get_one(Attempt, (job["id"], 1))
        attempt.token_sha256 = token_sha256("the-driver")
        attempt.restored_at_ms, attempt.first_commit_at_ms = 1, now_ms() - SETTLED_MS
    report = {"state": "RUNNING", "restored_at_ms": 1, "metrics": {"batches": 9, "processed_records_per_second": 130}}
    for _ in range(2):
        headers = {"Authorization": "Bearer the-driver"}
        assert anonymous.post("/driver/heartbeat", json=report, headers=headers).status_code == 200
    shown = client.get(f"/v1/operations/{rescale}").json()
    assert shown["metrics_after"]["processed_rate"] == 130
    assert "CAUGHT_UP" not in {step["name"] for step in shown["steps"]}
