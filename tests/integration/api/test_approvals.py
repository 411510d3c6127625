"""A change of a job that requires approvals waits until another user approves or cancels it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from keyscale.api.jobs.restore_sources import FoundSource
from keyscale.api.lifecycle.restoring import Restore
from keyscale.api.operations import operation_requests
from keyscale.clock import now_ms
from keyscale.db.models import Attempt, Checkpoint, Job, Token
from keyscale.vocabulary import AttemptStage, CheckpointStatus, JobStatus, RestoreMode, Role
from tests.integration.api.conftest import add_token

if TYPE_CHECKING:
    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.either_database

BEN = {"Authorization": "Bearer the-ben-token"}
RESCALE = "/v1/operations/more"


@pytest.fixture
def guarded(client: httpx.Client, context: Context, job: dict[str, Any]) -> dict[str, Any]:
    """A running job whose changes need the approval of another user, such as the operator Ben."""
    required = client.patch("/v1/jobs/flights", json={"spec": {"approval": "REQUIRED"}}, headers={"If-Match": "*"})
    assert (required.status_code, required.json()["status"]) == (200, "COMPLETED")
    with context.sessions.begin() as session:
        add_token(session, "the-ben-token", Role.OPERATOR)
        session.get_one(Job, job["id"]).status = JobStatus.RUNNING
        session.add(
            Attempt(
                job_id=job["id"],
                number=1,
                stage=AttemptStage.ACTIVE,
                cause="start",
                revision=2,
                parallelism=2,
                created_at_ms=1,
            )
        )
    return job


def request_rescale(client: httpx.Client) -> dict[str, Any]:
    answer = client.post("/v1/jobs/flights/rescale", json={"parallelism": 4, "id": "more"})
    assert answer.status_code == 202, answer.text
    return answer.json()


@pytest.mark.usefixtures("guarded")
def test_a_change_waits_until_another_user_approves_it(client: httpx.Client) -> None:
    waiting = request_rescale(client)
    assert (waiting["status"], waiting["phases"], waiting["can_cancel"]) == ("PENDING_APPROVAL", [], True)
    assert (waiting["from_revision"], waiting["to_revision"], waiting["to_parallelism"]) == (2, 3, 4)
    job = client.get("/v1/jobs/flights").json()
    assert (job["status"]["state"], job["revision"], job["spec"]["parallelism"]) == ("RUNNING", 2, 2)
    assert request_rescale(client) == waiting, "the same request again is the same operation"

    own = client.post(f"{RESCALE}/approve")
    assert (own.status_code, own.json()["code"]) == (403, "OWN_APPROVAL")
    approved = client.post(f"{RESCALE}/approve", headers=BEN)
    assert approved.status_code == 202, approved.text
    begun = approved.json()
    assert (begun["status"], begun["phase"], begun["requested_by"]) == ("IN_PROGRESS", "REQUESTED", "admin")
    assert (begun["approved_by"], begun["old_attempt"]) == ("ben", 1)
    assert client.get("/v1/jobs/flights").json()["status"]["state"] == "RESCALING"
    assert client.post(f"{RESCALE}/approve", headers=BEN).json() == begun, "a repeated approval changes nothing"
    kinds = [event["kind"] for event in client.get("/v1/jobs/flights/events").json()["events"]]
    assert kinds[:3] == ["CHANGE_APPROVED", "APPROVAL_REQUESTED", "REVISION_CREATED"]


@pytest.mark.usefixtures("guarded")
def test_a_user_with_a_new_name_stays_the_same_user(client: httpx.Client, context: Context) -> None:
    request_rescale(client)
    with context.sessions.begin() as session:
        session.scalars(select(Token).where(Token.name == "admin")).one().name = "ada"
    own = client.post(f"{RESCALE}/approve")
    assert (own.status_code, own.json()["code"]) == (403, "OWN_APPROVAL")
    assert client.post(f"{RESCALE}/approve", headers=BEN).status_code == 202


@pytest.mark.usefixtures("guarded")
def test_a_change_that_waits_is_cancelled_at_once_and_keeps_other_changes_off_until_then(client: httpx.Client) -> None:
    request_rescale(client)
    unguarded = {"json": {"spec": {"approval": "NONE"}}, "headers": {"If-Match": "*"}}
    refused = client.patch("/v1/jobs/flights", **unguarded)
    assert (refused.status_code, refused.json()["operation_id"]) == (409, "more")
    cancelled = client.post(f"{RESCALE}/cancel").json()
    assert (cancelled["status"], cancelled["failure"]) == ("CANCELLED", None)
    late = client.post(f"{RESCALE}/approve", headers=BEN)
    assert (late.status_code, late.json()["code"]) == (409, "APPROVAL_REFUSED")
    setting = client.patch("/v1/jobs/flights", **unguarded)
    assert (setting.status_code, setting.json()["status"]) == (202, "PENDING_APPROVAL"), "the setting is guarded, too"
    followed = client.post(f"/v1/operations/{setting.json()['id']}/approve", headers=BEN)
    assert (followed.status_code, followed.json()["status"]) == (200, "COMPLETED")
    assert client.get("/v1/jobs/flights").json()["spec"]["approval"] == "NONE"


def test_a_change_is_approved_for_the_revision_that_it_was_requested_for(
    client: httpx.Client, context: Context, guarded: dict[str, Any]
) -> None:
    request_rescale(client)
    with context.sessions.begin() as session:
        job = session.get_one(Job, guarded["id"])
        job.revision, job.status = 1, JobStatus.STOPPED
    outdated = client.post(f"{RESCALE}/approve", headers=BEN)
    assert (outdated.status_code, outdated.json()["code"]) == (409, "APPROVAL_REFUSED")
    with context.sessions.begin() as session:
        session.get_one(Job, guarded["id"]).revision = 2
    start = client.post("/v1/jobs/flights/start", json={"parallelism": 3})
    assert (start.status_code, start.json()["code"]) == (409, "APPROVAL_REQUIRED")
    settled = client.post(f"{RESCALE}/approve", headers=BEN)
    assert (settled.status_code, settled.json()["status"]) == (200, "COMPLETED")
    assert client.get("/v1/jobs/flights").json()["spec"]["parallelism"] == 4


def settle(context: Context, job_id: str) -> None:
    with context.sessions.begin() as session:
        session.get_one(Job, job_id).status = JobStatus.STOPPED
        session.get_one(Attempt, (job_id, 1)).stage = AttemptStage.ENDED


def test_a_start_that_may_lose_something_needs_an_approval(
    client: httpx.Client, context: Context, guarded: dict[str, Any]
) -> None:
    settle(context, guarded["id"])
    for option in ("skip_lost_records", "reset_time", "allow_non_restored_state"):
        refused = client.post("/v1/jobs/flights/start", json={option: True})
        assert (refused.status_code, refused.json()["code"]) == (409, "APPROVAL_REQUIRED"), option
        assert option in refused.json()["detail"]
    assert client.post("/v1/jobs/flights/start", json={}).status_code == 202


@pytest.mark.parametrize(("mode", "expected"), [(RestoreMode.REWIND, 409), (RestoreMode.CONTINUE, 202)])
def test_a_start_that_goes_back_in_the_state_needs_an_approval(  # noqa: PLR0917 - fixtures and two parameters
    client: httpx.Client,
    context: Context,
    guarded: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    mode: RestoreMode,
    expected: int,
) -> None:
    settle(context, guarded["id"])
    source = FoundSource(Restore("restore", mode, "file:///store/job/savepoints/older"), 128, "spark")
    monkeypatch.setattr(operation_requests, "find_source", lambda *_: source)
    monkeypatch.setattr(operation_requests, "store_restore", lambda *_: None)
    assert client.post("/v1/jobs/flights/start").status_code == expected


def test_a_job_is_deleted_only_after_another_user_has_approved_the_end_of_approvals(
    client: httpx.Client, context: Context, guarded: dict[str, Any]
) -> None:
    settle(context, guarded["id"])
    for user in ({}, BEN):
        refused = client.delete("/v1/jobs/flights", headers=user)
        assert (refused.status_code, refused.json()["code"]) == (409, "APPROVAL_REQUIRED")
    asked = client.patch("/v1/jobs/flights", json={"spec": {"approval": "NONE"}}, headers={"If-Match": "*"}).json()
    assert client.post(f"/v1/operations/{asked['id']}/approve", headers=BEN).json()["status"] == "COMPLETED"
    assert client.delete("/v1/jobs/flights").status_code == 204


def test_a_change_from_the_last_state_is_refused_at_its_approval_if_the_checkpoint_is_too_old_by_then(
    client: httpx.Client, context: Context, guarded: dict[str, Any]
) -> None:
    key = (guarded["id"], 1)

    def complete(age_ms: int) -> None:
        with context.sessions.begin() as session:
            session.get_one(Checkpoint, key).latest_ack_timestamp = now_ms() - age_ms

    with context.sessions.begin() as session:
        taken = Checkpoint(job_id=key[0], checkpoint_id=key[1], attempt=1, status=CheckpointStatus.COMPLETED)
        taken.is_savepoint, taken.trigger_timestamp, taken.latest_ack_timestamp = False, 1, now_ms()
        taken.end_to_end_duration = taken.checkpointed_size = taken.state_size = taken.processed_records = 0
        taken.num_subtasks = taken.num_acknowledged_subtasks = 0
        session.add(taken)
    change = {"spec": {"parallelism": 4}, "upgrade_mode": "LAST_STATE", "last_state_age_ms_max": 60_000, "id": "more"}
    asked = client.patch("/v1/jobs/flights", json={**change, "plan_first": False}, headers={"If-Match": "*"})
    assert (asked.json()["status"], asked.json()["last_state_age_ms_max"]) == ("PENDING_APPROVAL", 60_000), asked.text
    complete(61_000)
    late = client.post(f"{RESCALE}/approve", headers=BEN)
    assert (late.status_code, late.json()["code"]) == (409, "LAST_STATE_TOO_OLD")
    assert client.get(RESCALE).json()["status"] == "PENDING_APPROVAL", "it can be approved after the next checkpoint"
    complete(0)
    assert client.post(f"{RESCALE}/approve", headers=BEN).json()["status"] == "IN_PROGRESS"
