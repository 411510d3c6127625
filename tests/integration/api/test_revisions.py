"""A job's specification changes by revisions: on a settled job at once, on a running one by a change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.identities import DriverIdentity
from keyscale.api.drivers import drivers
from keyscale.api.errors import ChangeIncompatibleError
from keyscale.api.lifecycle import steps
from keyscale.api.lifecycle.apply import apply
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.operation_results import settle_command
from keyscale.api.operations import plans
from keyscale.db.models import Attempt, Operation
from keyscale.db.repositories import jobs, operations
from keyscale.jobs.protocol.messages import Heartbeat
from keyscale.jobs.protocol.specification import NoRestart
from keyscale.vocabulary import ChangePhase, CommandStatus, DriverState, JobStatus
from tests.support.control_plane.bodies import with_spec

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.either_database

SAVEPOINT = "file:///store/savepoints/u/manifest.json"
FAILURE = {"code": "USER_FUNCTION_FAILED", "message": "ValueError: no such airport"}

FAILURE = {"code": "USER_CODE_FAILED", "message": "KeyError: 'u9'"}


def patch(client: httpx.Client, revision: int, **body: Any) -> httpx.Response:
    return client.patch("/v1/jobs/flights", json=with_spec(**body), headers={"If-Match": f'"{revision}"'})


def test_a_settled_job_gets_a_revision_at_once_and_only_for_the_revision_that_was_seen(
    client: httpx.Client, job: dict[str, Any], upload: Callable[..., Any]
) -> None:
    assert client.get("/v1/jobs/flights").headers["ETag"] == '"1"'
    assert client.patch("/v1/jobs/flights", json={"spec": {"parallelism": 4}}).json()["code"] == "REVISION_REQUIRED"
    assert patch(client, 1, parallelism=2).json()["to_revision"] == 1, "nothing changes"
    other = upload(b"print(2)\n").json()["id"]
    answer = patch(client, 1, artifact_id=other, parameters={"input": "https://ann:hunter2@files/in"}, message="why")
    assert (answer.status_code, answer.headers["ETag"], answer.json()["status"]) == (200, '"2"', "COMPLETED")
    late = patch(client, 1, parallelism=4)
    assert (late.status_code, late.json()["code"], late.json()["revision"]) == (412, "REVISION_CONFLICT", 2)
    for seen, status in (("2", 200), ('W/"2"', 200), ('"1", "2"', 200), ("1", 412), ("two", 412), ("1, 2", 412)):
        again = client.patch("/v1/jobs/flights", json={"spec": {"parallelism": 2}}, headers={"If-Match": seen})
        assert again.status_code == status, seen
    shown = client.get("/v1/jobs/flights/revisions").json()["revisions"]
    assert [(each["number"], each["is_current"], each["message"]) for each in shown] == [
        (2, True, "why"),
        (1, False, None),
    ]
    by = {who: client.get("/v1/jobs/flights/revisions", params={"created_by": who}).json() for who in ("admin", "ada")}
    assert [len(found["revisions"]) for found in by.values()] == [2, 0]
    for before, after, side in ((1, 2, "after"), (2, 1, "before")):
        found = client.get(f"/v1/jobs/flights/revisions/{before}/diff", params={"to": after})
        diff = found.json()["differences"]
        assert [each["path"] for each in diff] == ["artifact_id", "parameters.input"]
        assert "files/in" in diff[1][side]
        assert "hunter2" not in found.text
    kept = client.delete(f"/v1/artifacts/{job['spec']['artifact_id']}").json()
    assert (kept["code"], "revision 1 of job flights" in kept["detail"]) == ("ARTIFACT_IN_USE", True)


def test_a_running_job_is_upgraded_by_a_change_and_goes_back_to_its_revision_if_that_fails(
    context: Context, client: httpx.Client, job: dict[str, Any]
) -> None:
    def take(*wanted: steps.Step) -> None:
        for step in wanted:
            with context.sessions.begin() as session:
                found = jobs.lock(session, job["id"])
                assert found is not None
                apply(step, JobTransaction(session, found))

    client.post("/v1/jobs/flights/start")
    take(steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING))
    body = {"parallelism": 4, "parameters": {"input": "/in"}, "id": "u", "plan_first": False}
    first = patch(client, 1, **body)
    assert (first.status_code, first.json()["kind"], first.json()["from_revision"]) == (202, "UPGRADE", 1)
    assert patch(client, 1, **body).json()["to_revision"] == 2, "the same id is the same change"
    assert patch(client, 1, parallelism=3).json()["code"] == "OPERATION_IN_PROGRESS"
    take(steps.CreateAttempt(2, steps.Cause.UPGRADE, standby=True), steps.BeginSavepoint())
    with context.sessions.begin() as session:
        command = operations.find(session, "u")
        assert command is not None
        settle_command(session, command, status=CommandStatus.COMPLETED, location=SAVEPOINT, checkpoint_id=9)
    take(steps.AdvanceChange(ChangePhase.STOP), steps.SwitchOver())
    shown = client.get("/v1/jobs/flights").json()
    assert (shown["revision"], shown["status"]["attempt"]["revision"], shown["status"]["attempt"]["restore_from"]) == (
        2,
        2,
        SAVEPOINT,
    )
    take(steps.RollBack(2, FAILURE), steps.CompleteChange(True, None))
    shown = client.get("/v1/jobs/flights").json()
    assert (shown["revision"], shown["spec"]["parallelism"], shown["status"]["restore"]["mode"]) == (1, 2, "REWIND")
    change = client.get("/v1/operations/u").json()
    assert (change["status"], change["failure"]["message"]) == ("ROLLED_BACK", FAILURE["message"])
    assert client.get("/v1/jobs/flights/revisions/2").json()["operation"]["status"] == "ROLLED_BACK"
    assert client.get("/v1/jobs/flights/operations?kind=RESCALE").json()["operations"] == []
    assert client.get("/v1/operations/u").json()["failure"]["code"] == FAILURE["code"]


def test_a_running_job_follows_settings_that_need_no_restart_and_its_driver_is_told_until_it_does(
    context: Context, client: httpx.Client, job: dict[str, Any]
) -> None:
    client.post("/v1/jobs/flights/start")
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        apply(steps.CreateAttempt(1, steps.Cause.START), JobTransaction(session, found))
        apply(steps.ShowStatus(JobStatus.RUNNING), JobTransaction(session, found))
    driver = DriverIdentity(job["id"], 1, over=False)
    told = drivers.heartbeat(context, driver, Heartbeat(state=DriverState.RUNNING, revision=1))
    assert told.settings is None
    settings = {"checkpoints": {"interval_ms": 7000}, "restart": {"type": "none"}, "batch_interval_ms": 50}
    answer = patch(client, 1, **settings)
    assert (answer.status_code, answer.json()["status"], answer.json()["phases"]) == (200, "COMPLETED", [])
    shown = client.get("/v1/jobs/flights").json()
    assert (shown["revision"], shown["status"]["attempt"]["number"], shown["status"]["attempt"]["revision"]) == (
        2,
        1,
        2,
    )
    told = drivers.heartbeat(context, driver, Heartbeat(state=DriverState.RUNNING, revision=1))
    assert told.settings is not None
    assert (told.settings.revision, told.settings.spec.checkpoints.interval_ms) == (2, 7000)
    assert (told.settings.spec.batch_interval_ms, told.settings.spec.restart) == (50, NoRestart())
    assert drivers.heartbeat(context, driver, Heartbeat(state=DriverState.RUNNING, revision=2)).settings is None
    assert drivers.heartbeat(context, driver, Heartbeat(state=DriverState.RUNNING)).settings is None, "an older driver"

    back = client.post("/v1/jobs/flights/rollback", json={"revision": 1, "state": "CURRENT"})
    assert (back.status_code, back.json()["status"], back.json()["to_revision"]) == (200, "COMPLETED", 1)
    needs = {"checkpoints": {"store_outage_max_ms": 1}}
    assert patch(client, 1, **needs).json()["kind"] == "UPGRADE"
    refused = patch(client, 1, **settings)
    assert refused.json()["code"] == "OPERATION_IN_PROGRESS"


def test_a_running_job_is_refused_a_program_that_could_not_take_over_its_state_and_keeps_its_driver(
    context: Context, client: httpx.Client, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.post("/v1/jobs/flights/start")
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        apply(steps.CreateAttempt(1, steps.Cause.START), JobTransaction(session, found))
        apply(steps.ShowStatus(JobStatus.RUNNING), JobTransaction(session, found))
    asked: list[dict[str, Any]] = []

    def judge(*_: Any, allow_non_restored_state: bool) -> None:
        asked.append({"allow": allow_non_restored_state})
        raise ChangeIncompatibleError("state 'visits' was int64 and is now string")

    monkeypatch.setattr(plans, "require_takeover", judge)
    body = {"parameters": {"input": "/in"}}
    assert patch(client, 9, **body).json()["code"] == "REVISION_CONFLICT", "this is known without a plan"
    refused = patch(client, 1, **body, allow_non_restored_state=True)
    assert (refused.status_code, refused.json()["code"]) == (409, "CHANGE_INCOMPATIBLE")
    assert client.get("/v1/jobs/flights").json()["status"]["state"] == "RUNNING"
    assert len(client.get("/v1/jobs/flights/revisions").json()["revisions"]) == 1
    assert asked == [{"allow": True}]
    assert patch(client, 1, **body, plan_first=False).status_code == 202
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("metrics", "mode"),
    [
        (None, "LAST_STATE"),
        ({"input_batches": 9, "last_failure": FAILURE, "failures": {"count": 1, "times_ms": [1000]}}, "SAVEPOINT"),
        ({"input_batches": 9, "last_failure": FAILURE, "failures": {"count": 1, "times_ms": [9000]}}, "LAST_STATE"),
        ({"input_batches": 0, "last_failure": FAILURE, "failures": {"count": 1, "times_ms": [1000]}}, "LAST_STATE"),
        ({"input_batches": 0}, "SAVEPOINT"),
        ({"input_batches": 1}, "LAST_STATE"),
    ],
    ids=[
        "waits for its restart",
        "has recovered",
        "fails again and again",
        "has committed timers alone",
        "is well",
        "was restarted by the control plane",
    ],
)
def test_a_job_that_fails_again_and_again_goes_back_without_a_savepoint_that_it_could_not_take(
    context: Context, client: httpx.Client, job: dict[str, Any], metrics: dict[str, Any] | None, mode: str
) -> None:
    assert patch(client, 1, parallelism=4).status_code == 200
    client.post("/v1/jobs/flights/start")
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        attempt = JobTransaction(session, found).create_attempt(2, steps.Cause.START)
        attempt.metrics, attempt.last_commit_at_ms = metrics, 5000
        apply(steps.ShowStatus(JobStatus.RUNNING), JobTransaction(session, found))
        if metrics is None:
            apply(steps.ShowStatus(JobStatus.RESTARTING), JobTransaction(session, found))
        if metrics == {"input_batches": 1}:
            found.failure = FAILURE
    body = {"revision": 1, "state": "CURRENT", "plan_first": False, "allow_non_restored_state": True}
    change = client.post("/v1/jobs/flights/rollback", json=body).json()
    assert change["upgrade_mode"] == mode
    with context.sessions() as session:
        assert session.get_one(Operation, change["id"]).allow_non_restored_state


@pytest.mark.parametrize(("status", "mode"), [(JobStatus.RESTARTING, "LAST_STATE"), (JobStatus.RUNNING, "SAVEPOINT")])
def test_a_job_that_fails_again_and_again_is_upgraded_from_its_last_state(
    context: Context, client: httpx.Client, job: dict[str, Any], status: JobStatus, mode: str
) -> None:
    client.post("/v1/jobs/flights/start")
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        JobTransaction(session, found).create_attempt(1, steps.Cause.START)
        for shown in dict.fromkeys((JobStatus.RUNNING, status)):
            apply(steps.ShowStatus(shown), JobTransaction(session, found))
    body = {"parameters": {"input": "/corrected"}, "id": "u", "plan_first": False}
    first = patch(client, 1, **body)
    assert (first.status_code, first.json()["upgrade_mode"]) == (202, mode)
    assert patch(client, 1, **body).json() == first.json()


def test_a_driver_that_only_warmed_up_does_not_hide_the_savepoint_of_its_revision(
    context: Context, client: httpx.Client, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(*wanted: steps.Step) -> None:
        for step in wanted:
            with context.sessions.begin() as session:
                found = jobs.lock(session, job["id"])
                assert found is not None
                apply(step, JobTransaction(session, found))

    client.post("/v1/jobs/flights/start")
    take(steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING))
    assert patch(client, 1, parameters={"input": "/in"}, id="u", plan_first=False).status_code == 202
    take(steps.CreateAttempt(2, steps.Cause.UPGRADE, standby=True), steps.BeginSavepoint())
    with context.sessions.begin() as session:
        session.get_one(Attempt, (job["id"], 1)).assigned_at_ms = 1
        command = operations.find(session, "u")
        assert command is not None
        settle_command(session, command, status=CommandStatus.COMPLETED, location=SAVEPOINT, checkpoint_id=9)
    take(steps.AdvanceChange(ChangePhase.STOP), steps.SwitchOver(), steps.CompleteChange(False, 5))
    for _ in range(2):
        take(steps.ShowStatus(JobStatus.RUNNING))
        answer = client.post("/v1/jobs/flights/rollback", json={"revision": 1})
        assert answer.status_code == 202, answer.text
        with context.sessions() as session:
            assert session.get_one(Operation, answer.json()["id"]).rewind_to == SAVEPOINT
        take(steps.CreateAttempt(1, steps.Cause.UPGRADE, standby=True), steps.AbandonChange(FAILURE))
    take(steps.ShowStatus(JobStatus.RUNNING))
    monkeypatch.setattr(context.store, "keeps_output", lambda *_, **__: False)
    refused = client.post("/v1/jobs/flights/rollback", json={"revision": 1})
    assert (refused.status_code, refused.json()["code"]) == (422, "RESTORE_OUTPUT_WITHDRAWN")


def test_a_settled_job_returns_to_a_revision_with_its_program_alone_if_no_savepoint_was_taken(
    client: httpx.Client, job: dict[str, Any]
) -> None:
    assert patch(client, 1, parallelism=4).status_code == 200
    refused = client.post(f"/v1/jobs/{job['id']}/rollback", json={"revision": 1})
    assert (refused.status_code, refused.json()["code"]) == (409, "REVISION_WITHOUT_SAVEPOINT")
    answer = client.post(f"/v1/jobs/{job['id']}/rollback", json={"revision": 1, "state": "CURRENT"})
    assert (answer.status_code, answer.json()["to_parallelism"]) == (200, 2)
    assert client.post(f"/v1/jobs/{job['id']}/rollback", json={"revision": 7}).json()["code"] == "REVISION_NOT_FOUND"
