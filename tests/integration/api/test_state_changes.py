"""The state of a key is changed over HTTP, in a savepoint that a job starts from when it is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.key_state import changed_keys
from keyscale.api.key_state.schemas import KeyChangeRequest
from keyscale.api.lifecycle.reconciler import ReconcilerPulse
from keyscale.api.maintenance.savepoint_release import SavepointRelease
from keyscale.db.models import Attempt, Event, Job
from keyscale.db.repositories import checkpoints
from keyscale.state_io import StateReader, key_change, reading_process
from keyscale.state_io.verified_state import verify_state
from keyscale.vocabulary import AttemptStage, JobStatus, Role
from tests.support.control_plane.snapshots import checkpoint_counts

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from keyscale.api.control_plane.context import Context
    from keyscale.api.lifecycle.leadership import Leadership

pytestmark = pytest.mark.either_database
CHANGES = "/v1/jobs/flights/state-changes"


def test_a_key_of_a_stopped_job_is_set_in_a_savepoint_that_is_not_the_jobs_history(
    client: httpx.Client, context: Context, job: dict[str, Any], tmp_path: Path
) -> None:
    change = {"operator": "count", "state": "count", "key": "1", "value": 40, "id": "repaired"}
    missing = client.post(CHANGES, json=change)
    assert (missing.status_code, missing.json()["code"]) == (404, "CHECKPOINT_NOT_FOUND")
    taken = checkpoint_counts(context.sessions, job["id"], tmp_path, {1: 1, 2: 2}, parallelism=2)

    answer = client.post(CHANGES, json=change)
    assert answer.status_code == 201, answer.text
    changed = answer.json()
    assert (changed["key"], changed["before"], changed["after"]) == ({"id": 1}, [{"value": 1}], [{"value": 40}])
    assert verify_state(changed["location"]).problems == []
    with StateReader.open(changed["location"]) as reader:
        rows = reader.table("count", "count").reader().read_all().to_pylist()
    assert {row["key"]["id"]: row["value"] for row in rows} == {1: 40, 2: 2}
    shown = client.get("/v1/jobs/flights/savepoints/repaired").json()
    assert (shown["external_path"], shown["owner"], shown["checkpoint_id"]) == (changed["location"], "USER", 2)
    with context.sessions() as session:
        latest = checkpoints.latest_completed(session, job["id"])
        assert latest is not None
        assert latest.checkpoint_id == 1, "the job's history is unchanged"
    with context.sessions() as session:
        (event,) = session.query(Event).filter_by(kind="STATE_CHANGED").all()
        rows = {"rows_before": 1, "rows_after": 1}
        places = {"location": changed["location"], "derived_from": taken}
        assert event.details == {"checkpoint_id": 2, **places, **rows}
        assert event.actor
        assert "40" not in event.message

    unknown = client.post(CHANGES, json={**change, "id": "other", "checkpoint_id": 2**63})
    assert (unknown.status_code, unknown.json()["code"]) == (422, "REQUEST_INVALID")
    again = client.post(CHANGES, json=change)
    assert (again.status_code, again.json()) == (201, changed), "a repeated request gets the first answer"
    other = client.post(CHANGES, json={**change, "value": 41})
    assert (other.status_code, other.json()["code"]) == (409, "SAVEPOINT_ID_TAKEN")
    started = client.post("/v1/jobs/flights/start", json={"restore_from": {"savepoint_id": "repaired"}})
    assert started.status_code == 202, started.text
    with context.sessions() as session:
        assert session.get_one(Job, job["id"]).status is JobStatus.SUBMITTING
    with context.sessions.begin() as session:
        session.get_one(Job, job["id"]).status = JobStatus.RUNNING
    running = client.post(CHANGES, json={**change, "id": "running"})
    assert (running.status_code, running.json()["code"]) == (409, "JOB_STATUS_CONFLICT")
    assert "jobs stop flights" in running.json()["detail"]


def test_several_keys_are_changed_in_one_savepoint_or_not_at_all(
    client: httpx.Client, context: Context, job: dict[str, Any], tmp_path: Path
) -> None:
    taken = checkpoint_counts(context.sessions, job["id"], tmp_path, {1: 1, 2: 2}, parallelism=2)
    place = {"operator": "count", "state": "count"}
    changes = [{**place, "key": "1", "deletes": True}, {**place, "key": "2", "value": 7}]
    several = client.post(CHANGES, json={"changes": changes, "id": "several"})
    assert several.status_code == 201, several.text
    assert [each["after"] for each in several.json()["changes"]] == [[], [{"value": 7}]]
    refused = client.post(CHANGES, json={"changes": [*changes, {**place, "key": "x"}], "id": "refused"})
    assert (refused.status_code, refused.json()["code"]) == (422, "STATE_CHANGE_REFUSED")
    assert "change 3: " in refused.json()["detail"]
    repeated = client.post(CHANGES, json={"changes": changes, "id": "several"})
    assert (repeated.status_code, repeated.json()) == (201, several.json())
    with context.sessions() as session:
        (event,) = session.query(Event).filter_by(kind="STATE_CHANGED").all()
    assert event.message == "savepoint several has 1 set and 1 deleted entries of count.count"
    assert (event.details["rows_before"], event.details["rows_after"]) == (2, 1)
    with context.sessions() as session:
        asked = session.query(Event).filter_by(kind="STATE_CHANGE_REQUESTED").order_by(Event.id).all()
    assert (asked[0].message, asked[0].actor) == (event.message, event.actor)
    assert asked[0].details == {"savepoint_id": "several", "checkpoint_id": 2, "derived_from": taken, "attempt": 0}
    further = {"changes": [{**place, "key": "3", "value": 9}], "checkpoint_id": several.json()["checkpoint_id"]}
    last = client.post(CHANGES, json=further)
    with StateReader.open(last.json()["location"]) as reader:
        rows = reader.table("count", "count").reader().read_all()
    assert sorted(rows["value"].to_pylist()) == [7, 9], "the changes of both parts"


@pytest.fixture
def checkpointed(context: Context, job: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job with a checkpoint, and a control plane that changes states in its own process."""
    checkpoint_counts(context.sessions, job["id"], tmp_path, {1: 1, 2: 2}, parallelism=2)

    def read_state(_context: Context, _user: Principal, read: str, asked: dict[str, Any]) -> dict[str, Any]:
        return reading_process._answer(read, dict(asked))

    monkeypatch.setattr(changed_keys, "read_state", read_state)


@pytest.fixture
def killed_change(
    client: httpx.Client,
    checkpointed: None,  # noqa: ARG001 - the job's checkpoint
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, Any]:
    """A request whose control plane is killed after its savepoint is published, before its row is written."""

    def kill(name: str) -> None:
        assert name == "changed-savepoint-published"
        raise RuntimeError("killed")

    change = {"operator": "count", "state": "count", "key": "1", "value": 40, "id": "repaired"}
    with monkeypatch.context() as patched:
        patched.setattr(changed_keys, "failpoint", kill)
        assert client.post(CHANGES, json=change).status_code == 500
    assert client.get("/v1/jobs/flights/savepoints/repaired").status_code == 404
    return change


def test_a_savepoint_is_listed_whose_control_plane_was_killed_before_its_row(
    client: httpx.Client, context: Context, leadership: Leadership, killed_change: dict[str, Any]
) -> None:
    for _ in range(2):
        SavepointRelease(context.sessions, ReconcilerPulse(), context.store).run(leadership)
    shown = client.get("/v1/jobs/flights/savepoints/repaired").json()
    assert (shown["owner"], shown["checkpoint_id"]) == ("USER", 2)
    with context.sessions() as session:
        asked, changed = session.query(Event).filter(Event.kind.startswith("STATE_CHANGE")).order_by(Event.id).all()
    assert (asked.kind, changed.kind) == ("STATE_CHANGE_REQUESTED", "STATE_CHANGED")
    assert (changed.actor, changed.message) == (asked.actor, asked.message)
    again = client.post(CHANGES, json=killed_change)
    assert (again.status_code, again.json()["after"]) == (201, [{"value": 40}]), "the request gets its answer"


@pytest.mark.usefixtures("checkpointed")
def test_a_change_that_finds_no_place_takes_no_number(client: httpx.Client, context: Context) -> None:
    change = {"operator": "count", "state": "count", "key": "1", "value": 40}
    with context.state_reads.place("ann"), context.state_reads.place("bob"):
        refused = client.post(CHANGES, json=change)
    assert (refused.status_code, refused.json()["code"]) == (429, "TOO_MANY_IN_FLIGHT")
    with context.sessions() as session:
        assert session.query(Event).filter(Event.kind.startswith("STATE_CHANGE")).all() == []


@pytest.mark.usefixtures("checkpointed")
def test_two_changes_at_once_get_a_savepoint_each(
    client: httpx.Client, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = {"operator": "count", "state": "count", "key": "1", "value": 40}
    during: list[Any] = []

    def change_too(_name: str) -> None:
        if not during:
            during.append(None)
            second = KeyChangeRequest.model_validate({**change, "id": "second"})
            during.append(changed_keys.change(context, Principal("1", "admin", Role.ADMIN), "flights", second))

    monkeypatch.setattr(changed_keys, "failpoint", change_too)
    first = client.post(CHANGES, json={**change, "id": "first"})
    assert (first.status_code, first.json().get("checkpoint_id")) == (201, 2), first.text
    assert during[1].checkpoint_id == 3


@pytest.mark.parametrize(("value", "status"), [(40, 201), (41, 409)])
@pytest.mark.usefixtures("checkpointed")
def test_two_changes_of_one_id_at_once_are_answered_like_one_after_the_other(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, value: int, status: int
) -> None:
    change = {"operator": "count", "state": "count", "key": "1", "value": 40, "id": "repaired"}
    write, first = key_change.change_point, []

    def write_second(*given: Any, **more: Any) -> Any:
        if not first:
            first.append(None)
            first.append(client.post(CHANGES, json=change))
        return write(*given, **more)

    monkeypatch.setattr(key_change, "change_point", write_second)
    second = client.post(CHANGES, json={**change, "value": value})
    assert (first[1].status_code, second.status_code) == (201, status), second.text
    if status == 201:
        assert second.json() == first[1].json()
    else:
        assert second.json()["code"] == "SAVEPOINT_ID_TAKEN"


@pytest.mark.real
@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_killed_change_goes_on_after_another_change(
    client: httpx.Client, context: Context, leadership: Leadership, killed_change: dict[str, Any], is_repeated: bool
) -> None:
    assert client.post(CHANGES, json={**killed_change, "id": "other"}).json()["checkpoint_id"] == 3
    if is_repeated:
        again = client.post(CHANGES, json=killed_change)
        assert again.status_code == 201, again.text
    SavepointRelease(context.sessions, ReconcilerPulse(), context.store).run(leadership)
    assert client.get("/v1/jobs/flights/savepoints/repaired").json()["checkpoint_id"] == 2


def test_a_change_is_refused_if_the_job_has_run_meanwhile(  # noqa: PLR0917 - fixtures
    client: httpx.Client, context: Context, leadership: Leadership, job: dict[str, Any], killed_change: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def run(_name: str) -> None:
        with context.sessions.begin() as session:
            session.add(
                Attempt(
                    job_id=job["id"], number=1, stage=AttemptStage.ENDED, cause="start", revision=1, parallelism=2,
                    created_at_ms=1,
                )
            )  # fmt: skip

    monkeypatch.setattr(changed_keys, "failpoint", run)
    refused = client.post(CHANGES, json={**killed_change, "id": "other"})
    assert (refused.status_code, refused.json()["code"]) == (409, "JOB_STATUS_CONFLICT")
    assert "started meanwhile" in refused.json()["detail"]
    SavepointRelease(context.sessions, ReconcilerPulse(), context.store).run(leadership)
    for savepoint in ("other", "repaired"):
        assert client.get(f"/v1/jobs/flights/savepoints/{savepoint}").status_code == 404


def test_a_savepoint_stays_unlisted_once_an_attempt_may_use_its_number(
    client: httpx.Client, context: Context, leadership: Leadership, job: dict[str, Any], killed_change: dict[str, Any]
) -> None:
    with context.sessions.begin() as session:
        session.get_one(Job, job["id"]).status = JobStatus.RUNNING
    SavepointRelease(context.sessions, ReconcilerPulse(), context.store).run(leadership)
    assert client.get(f"/v1/jobs/flights/savepoints/{killed_change['id']}").status_code == 404
