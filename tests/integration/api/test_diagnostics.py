"""A user looks into a running job: the driver gets the request with a heartbeat, and its report is shown."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.tokens import token_sha256
from keyscale.api.database_clock import shared_now_ms
from keyscale.api.diagnostics import diagnostics as service
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.steps import Cause
from keyscale.db.models import Diagnostic, Job
from keyscale.db.repositories import diagnostics, jobs, operations
from keyscale.db.repositories.operations import Listening
from keyscale.jobs.protocol.messages import DIAGNOSTIC_CHARACTERS_MAX
from keyscale.vocabulary import DiagnosticKind, JobStatus, Role
from tests.integration.api.conftest import add_token
from tests.support.distinct_values import fields_of

if TYPE_CHECKING:
    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.either_database

SECRET = "of-the-orders"  # noqa: S105 - the value that tests give it
DRIVER = {"Authorization": "Bearer driver-1"}


class Looked:
    """A running job, its driver and its user."""

    def __init__(self, client: httpx.Client, context: Context, job_id: str) -> None:
        self.client, self.context, self.job_id = client, context, job_id
        self.path = f"/v1/jobs/{job_id}/diagnostics"

    def request(self, status: int = 202, **body: Any) -> dict[str, Any]:
        answer = self.client.post(self.path, json={"kind": "THREAD_DUMP", **body})
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def wanted(self, **heartbeat: Any) -> list[dict[str, Any]]:
        body = {"state": "RUNNING", "revision": 1, **heartbeat}
        found: list[dict[str, Any]] = self.client.post("/driver/heartbeat", json=body, headers=DRIVER).json()[
            "diagnostics"
        ]
        return found

    def report(self, diagnostic_id: str, **report: Any) -> None:
        body = {"diagnostic_id": diagnostic_id, **report}
        assert self.client.post("/driver/diagnostics", json=body, headers=DRIVER).status_code == 204

    def show(self, diagnostic_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"{self.path}/{diagnostic_id}").json()
        return found

    def expire(self) -> None:
        with self.context.sessions.begin() as session:
            for each in diagnostics.list_of(session, self.job_id):
                each.until_ms = shared_now_ms() - 1


@pytest.fixture
def looked(client: httpx.Client, context: Context, job: dict[str, Any]) -> Looked:
    spec = {"artifact_id": job["spec"]["artifact_id"], "secrets": ["ORDERS"]}
    job_id = str(client.post("/v1/jobs", json={"name": "looked", "spec": spec}).json()["id"])
    client.post(f"/v1/jobs/{job_id}/start")
    with context.sessions.begin() as session:
        found = jobs.lock(session, job_id)
        assert found is not None
        attempt = JobTransaction(session, found).create_attempt(found.revision, Cause.START)
        attempt.token_sha256, attempt.attached_at_ms = token_sha256("driver-1"), 1
    return Looked(client, context, job_id)


@pytest.mark.real
def test_the_driver_gets_a_request_until_it_has_reported_and_the_report_has_no_secret(
    looked: Looked,
) -> None:
    looked.wanted()
    listening = Listening(looked.job_id, 1, 1)
    with looked.context.reads() as session:
        assert listening not in operations.wanted(session, [listening])
    asked = looked.request()
    assert (asked["status"], asked["parts"], asked["attempt"]) == ("IN_PROGRESS", [], 1)
    with looked.context.reads() as session:
        assert listening in operations.wanted(session, [listening]), "a waiting driver is called"
    for _ in range(2):
        (command,) = looked.wanted()
        assert (command["id"], command["kind"]) == (asked["id"], "THREAD_DUMP")
    looked.report(asked["id"], parts=[{"name": "driver", "text": f"in run({SECRET})"}])
    assert looked.wanted() == []
    shown = looked.show(asked["id"])
    assert (shown["status"], shown["failure"]) == ("COMPLETED", None)
    assert shown["parts"] == [{"name": "driver", "text": "in run(*****)"}]
    looked.report(asked["id"], parts=[{"name": "driver", "text": "later"}])
    assert looked.show(asked["id"]) == shown, "a repeated report changes nothing"
    (listed,) = looked.client.get(looked.path).json()["diagnostics"]
    assert listed == {name: value for name, value in shown.items() if name != "parts"}


@pytest.mark.real
def test_an_idle_driver_whose_report_repeats_itself_gets_the_request(looked: Looked) -> None:
    with looked.context.sessions.begin() as session:
        found = jobs.lock(session, looked.job_id)
        assert found is not None
        attempt = JobTransaction(session, found).attempt(1)
        attempt.caught_up_at_ms = attempt.settled_at_ms = 1
    idle = {"metrics": {"waits_for_input": True}}
    assert looked.wanted(**idle) == looked.wanted(**idle) == []
    asked = looked.request()
    assert [each["id"] for each in looked.wanted(**idle)] == [asked["id"]]


@pytest.mark.real
def test_a_driver_that_cannot_take_it_and_a_driver_that_is_silent_end_it_with_the_reason(looked: Looked) -> None:
    asked = looked.request()
    looked.report(asked["id"], failure={"code": "DRIVER_DIAGNOSTIC_FAILED", "message": f"no {SECRET}"})
    assert looked.show(asked["id"])["failure"]["message"] == "no *****"
    silent = looked.request()
    looked.expire()
    shown = looked.show(silent["id"])
    assert (shown["status"], shown["failure"]["code"]) == ("FAILED", "DIAGNOSTIC_UNANSWERED")
    assert looked.wanted() == [], "nobody waits for it any more"


@pytest.mark.real
def test_the_same_id_is_the_same_diagnostic_and_each_request_is_an_event(looked: Looked) -> None:
    assert looked.request(id="mine") == looked.request(id="mine")
    found = looked.client.get(f"/v1/jobs/{looked.job_id}/events").json()["events"]
    (event,) = [each for each in found if each["kind"] == "DIAGNOSTIC_REQUESTED"]
    assert (event["actor"], event["details"]) == ("admin", {"diagnostic_id": "mine", "diagnostic_kind": "THREAD_DUMP"})


def test_a_driver_and_the_audit_trail_get_the_arguments_of_the_kind(looked: Looked) -> None:
    others = {"duration_ms": 0, "operator_uid": "", "rows": 0, "with_values": False}
    kinds: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"kind": "PROFILE", "duration_ms": 3000, "rows": 7}, {"duration_ms": 3000}),
        ({"kind": "EXECUTOR_LOGS", "duration_ms": 3000}, {}),
        (
            {"kind": "SAMPLE", "operator_uid": "count", "rows": 5, "with_values": False},
            {"duration_ms": 10_000, "operator_uid": "count", "rows": 5, "with_values": False},
        ),
    ]
    for wanted, sent in kinds:
        asked = looked.request(**wanted)
        assert looked.wanted() == [{"id": asked["id"], "kind": wanted["kind"], **others, **sent}]
        event = looked.client.get(f"/v1/jobs/{looked.job_id}/events").json()["events"][0]
        told = {name: value for name, value in sent.items() if value is not False}
        assert event["details"] == {"diagnostic_id": asked["id"], "diagnostic_kind": wanted["kind"], **told}
        looked.report(asked["id"])


@pytest.mark.real
def test_wrong_requests_are_refused_with_the_reason(looked: Looked, job: dict[str, Any]) -> None:
    for _ in range(service.IN_PROGRESS_MAX):
        looked.request()
    assert looked.request(429)["code"] == "TOO_MANY_IN_FLIGHT"
    looked.expire()
    looked.request()
    assert looked.request(422, kind="MIND_READING")["code"] == "REQUEST_INVALID"
    assert "operator_uid" in str(looked.request(422, kind="SAMPLE"))
    for wrong in ({"duration_ms": 61_000}, {"rows": 0}, {"seconds": 3}):
        assert looked.request(422, kind="PROFILE", **wrong)["code"] == "REQUEST_INVALID"
    assert looked.client.get(f"{looked.path}/unknown").json()["code"] == "DIAGNOSTIC_NOT_FOUND"
    idle = looked.client.post(f"/v1/jobs/{job['name']}/diagnostics", json={"kind": "THREAD_DUMP"}).json()
    assert idle["code"] == "JOB_STATUS_CONFLICT"
    assert "`./keyscale jobs start flights --wait` starts it" in idle["detail"]
    with looked.context.sessions.begin() as session:
        session.get_one(Job, job["id"]).status = JobStatus.FAILED
    failed = looked.client.post(f"/v1/jobs/{job['name']}/diagnostics", json={"kind": "THREAD_DUMP"}).json()
    assert failed["detail"].endswith(
        "FAILED: `./keyscale jobs show flights` shows why, and `./keyscale logs flights` what its driver wrote"
    )
    asked = looked.request()
    long = {"diagnostic_id": asked["id"], "parts": [{"name": "", "text": "x" * (DIAGNOSTIC_CHARACTERS_MAX + 1)}]}
    answer = looked.client.post("/driver/diagnostics", json=long, headers=DRIVER)
    assert answer.json()["code"] == "REPORT_INVALID"


@pytest.mark.real
def test_a_viewer_may_neither_request_nor_read(looked: Looked) -> None:
    asked = looked.request()
    with looked.context.sessions.begin() as session:
        add_token(session, "the-viewer-token", Role.VIEWER)
    looked.client.headers["Authorization"] = "Bearer the-viewer-token"
    for path in (looked.path, f"{looked.path}/{asked['id']}"):
        assert looked.client.get(path).status_code == 403
    assert looked.request(403)["code"] == "ROLE_TOO_LOW"
    bundle = looked.client.get(f"/v1/jobs/{looked.job_id}/bundle").content
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        assert b"ROLE_TOO_LOW" in archive.read("looked/missing.json")


@pytest.mark.real
def test_the_newest_diagnostics_are_kept_and_old_ones_are_removed(
    looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnostics, "KEPT", 2)
    for number in range(3):
        looked.report(looked.request(id=f"d{number}")["id"])
    found = looked.client.get(looked.path).json()["diagnostics"]
    assert [each["id"] for each in found] == ["d2", "d1"]
    with looked.context.sessions.begin() as session:
        session.get_one(Diagnostic, (looked.job_id, "d1")).requested_at_ms = 5
        assert diagnostics.remove_old(session, before_ms=6, some=10) == 1
    assert [each["id"] for each in looked.client.get(looked.path).json()["diagnostics"]] == ["d2"]


def test_an_added_diagnostic_has_each_value_and_takes_the_place_of_its_jobs_oldest(
    looked: Looked, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnostics, "KEPT", 2)
    common: dict[str, Any] = {"attempt": 9, "kind": DiagnosticKind.SAMPLE, "request": {}, "requested_by": "bob"}
    made: dict[str, Any] = {"attempt": 3, "kind": DiagnosticKind.PROFILE, "request": {"rows": 7}, "requested_by": "ann"}
    with looked.context.sessions.begin() as session:
        for job_id, name, at_ms in (
            *((looked.job_id, name, at_ms) for name, at_ms in (("z", 10), ("w", 20), ("x", 20))),
            *((job["id"], name, 99) for name in ("y", "z")),
        ):
            session.add(Diagnostic(job_id=job_id, id=name, requested_at_ms=at_ms, until_ms=1, **common))
        diagnostics.add(session, "y", job_id=looked.job_id, at_ms=20, until_ms=40, **made)
    with looked.context.sessions() as session:
        kept = {job_id: diagnostics.list_of(session, job_id) for job_id in (looked.job_id, job["id"])}
        assert [[each.id for each in found] for found in kept.values()] == [["y", "x"], ["z", "y"]]
        found = diagnostics.find(session, looked.job_id, "y")
        of_row = {"job_id": looked.job_id, "id": "y", "requested_at_ms": 20, "until_ms": 40}
        unanswered = {"ended_at_ms": None, "parts": None, "failure": None}
        assert fields_of(found) == {**made, **of_row, **unanswered}
        assert diagnostics.find(session, looked.job_id, "z") is None


@pytest.mark.real
def test_a_bundle_has_the_stacks_of_a_running_job(looked: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(_: float) -> None:
        for command in looked.wanted():
            looked.report(command["id"], parts=[{"name": "driver", "text": "in run_forever"}])

    monkeypatch.setattr(service.time, "sleep", answer)
    with zipfile.ZipFile(io.BytesIO(looked.client.get(f"/v1/jobs/{looked.job_id}/bundle").content)) as archive:
        assert archive.read("looked/threads.txt") == b"=== driver ===\nin run_forever"
