"""The objects of a deleted job are deleted in the background, and an event says what was deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import keyscale.api.maintenance.object_removal
from keyscale.api.errors import LeadershipLostError
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.steps import Cause
from keyscale.api.maintenance.object_removal import RETRY_MS, SETTLED_MS, ObjectRemoval
from keyscale.clock import now_ms
from keyscale.db.repositories import jobs
from keyscale.identifiers import JobId
from keyscale.state.documents.claim import claim_path, read_claim, take_claim
from keyscale.state.documents.manifest import read_manifest
from keyscale.state.layout import location_of
from keyscale.state.log.recovery import missing_files
from keyscale.state.objects.errors import StoreUnavailableError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.vocabulary import ClaimMode
from tests.integration.api.conftest import ReplacedSoon
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from keyscale.api.control_plane.context import Context
    from keyscale.api.lifecycle.leadership import Leadership
    from keyscale.api.settings import Settings

pytestmark = pytest.mark.real


class Clock:
    """The time that the removal sees."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return now_ms() + self.ahead_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(keyscale.api.maintenance.object_removal, "now_ms", clock)
    return clock


@pytest.fixture
def removal(context: Context) -> ObjectRemoval:
    return ObjectRemoval(context.sessions, context.pulse)


@pytest.fixture
def store(settings: Settings) -> LocalObjectStore:
    return LocalObjectStore(settings.home / "store")


@pytest.fixture
def state(job: dict[str, Any], store: LocalObjectStore, tmp_path: Path) -> StateJob:
    """The job's state in the store: a checkpoint and a savepoint."""
    state = StateJob(store, tmp_path / "local", job_id=JobId(job["id"]))
    state.start(1)
    state.run_batch({1: 1})
    state.checkpoint()
    state.checkpoint("mine")
    return state


def objects(state: StateJob) -> list[str]:
    return [info.path for info in state.store.list(state.layout.job)]


def told(client: httpx.Client, kind: str) -> list[dict[str, Any]]:
    return [event for event in client.get("/v1/events").json()["events"] if event["kind"] == kind]


def test_the_objects_of_a_deleted_job_are_deleted_and_its_savepoints_stay(
    client: httpx.Client, state: StateJob, leadership: Leadership, removal: ObjectRemoval, clock: Clock
) -> None:
    assert not removal.work(leadership), "no job was deleted"
    assert client.delete(f"/v1/jobs/{state.job_id}").status_code == 204
    assert removal.work(leadership)
    assert not removal.work(leadership), "the last pass is due an hour later"
    left = [path for path in objects(state) if not path.startswith(state.layout.savepoints)]
    assert len(left) == 1, "the log's closing entry"
    (event,) = told(client, "JOB_OBJECTS_DELETED")
    assert event["details"]["objects"] > 3
    assert event["details"]["size_bytes"] > 0
    assert [location.rpartition("/savepoints/")[2] for location in event["details"]["savepoints"]] == [
        "mine/manifest.json"
    ]
    clock.ahead_ms = SETTLED_MS + 1000
    assert removal.work(leadership)
    assert {path.startswith(state.layout.savepoints) for path in objects(state)} == {True}
    assert len(told(client, "JOB_OBJECTS_DELETED")) == 1, "there was nothing more to tell"
    clock.ahead_ms *= 2
    assert not removal.work(leadership)


def test_the_objects_stay_on_request(
    client: httpx.Client, state: StateJob, leadership: Leadership, removal: ObjectRemoval
) -> None:
    before = objects(state)
    assert client.delete(f"/v1/jobs/{state.job_id}", params={"keep_objects": True}).status_code == 204
    assert removal.work(leadership), "its checkpoints in the database"
    assert not removal.work(leadership)
    assert objects(state) == before
    assert "kept its objects" in told(client, "JOB_DELETED")[0]["message"]


def test_while_the_store_does_not_answer_the_deletion_is_tried_again(  # noqa: PLR0917 - fixtures
    client: httpx.Client,
    state: StateJob,
    leadership: Leadership,
    removal: ObjectRemoval,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_answer(*_: object, **__: object) -> None:
        raise StoreUnavailableError("no answer")

    client.delete(f"/v1/jobs/{state.job_id}")
    with monkeypatch.context() as away:
        away.setattr(LocalObjectStore, "list", no_answer)
        assert removal.work(leadership)
        assert not removal.work(leadership)
        clock.ahead_ms = RETRY_MS + 1000
        assert removal.work(leadership)
    (event,) = told(client, "JOB_OBJECTS_KEPT")
    assert event["details"]["failure_code"] == "STATE_STORE_UNAVAILABLE"
    clock.ahead_ms = 2 * RETRY_MS + 2000
    assert removal.work(leadership)
    assert len(told(client, "JOB_OBJECTS_DELETED")) == 1


def test_a_leader_that_is_replaced_during_a_pass_deletes_nothing(
    client: httpx.Client, context: Context, state: StateJob, leadership: Leadership, removal: ObjectRemoval
) -> None:
    before = objects(state)
    client.delete(f"/v1/jobs/{state.job_id}")
    with pytest.raises(LeadershipLostError):
        removal.work(ReplacedSoon(context.sessions, leadership.epoch))
    assert objects(state) == before
    assert told(client, "JOB_OBJECTS_DELETED") == []


def test_the_claims_of_a_deleted_job_end(  # noqa: PLR0917 - fixtures
    client: httpx.Client,
    context: Context,
    job: dict[str, Any],
    state: StateJob,
    leadership: Leadership,
    removal: ObjectRemoval,
) -> None:
    """Also of one whose driver was killed after its claim, and before its log said so."""
    body = {
        "name": "claims",
        "spec": {"artifact_id": job["spec"]["artifact_id"], "parallelism": 1, "max_parallelism": 16},
    }
    other = client.post("/v1/jobs", json=body).json()["id"]
    manifest = read_manifest(state.store, f"{state.layout.savepoints}mine/manifest.json")
    take_claim(state.store, manifest, JobId(other))
    with context.sessions.begin() as session:
        row = jobs.lock(session, other)
        assert row is not None
        transaction = JobTransaction(session, row)
        attempt = transaction.create_attempt(row.revision, Cause.START)
        attempt.restore_from, attempt.claim_mode = (
            location_of(job["status"]["store_url"], manifest.path),
            ClaimMode.CLAIM,
        )
        transaction.end_attempt(attempt.number)
    assert client.delete(f"/v1/jobs/{other}").status_code == 204
    assert removal.work(leadership)
    assert read_claim(state.store, claim_path(manifest.path)) is None
    assert not missing_files(state.store, manifest)
