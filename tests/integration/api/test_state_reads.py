"""The state of a job over HTTP, from its store, while no driver runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.key_state import key_state
from keyscale.api.snapshots import snapshot_sql
from keyscale.db.models import Checkpoint, Job
from keyscale.identifiers import JobId
from keyscale.state.objects.opening import open_store
from keyscale.vocabulary import CheckpointStatus
from tests.support.control_plane.snapshots import Snapshots, checkpoint_counts
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from keyscale.api.access.principal import Principal
    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.either_database


@pytest.mark.real
def test_the_latest_checkpoint_is_that_of_the_history_which_the_job_continues(
    client: httpx.Client, context: Context, job: dict[str, Any], tmp_path: Path
) -> None:
    checkpoint_counts(context.sessions, job["id"], tmp_path, {1: 1})
    params = {"key": "1", "at": "checkpoint"}
    found = client.get("/v1/jobs/flights/state/count", params=params)
    assert (found.status_code, found.json()["states"][0]["rows"]) == (200, [{"value": 1}])
    with context.sessions.begin() as session:
        session.get_one(Job, job["id"]).rewound_by = 2  # the job went back, and has taken no checkpoint since
    refused = client.get("/v1/jobs/flights/state/count", params=params)
    assert (refused.status_code, refused.json()["code"]) == (404, "CHECKPOINT_NOT_FOUND")


@pytest.mark.real
def test_a_keys_state_is_that_after_the_last_committed_batch(
    client: httpx.Client, context: Context, job: dict[str, Any], tmp_path: Path
) -> None:
    with context.sessions() as session:
        store = open_store(session.get_one(Job, job["id"]).store_url)
    state = StateJob(store, tmp_path / "local", job_id=JobId(job["id"]))
    state.start(2)
    state.run_batch({1: 1})
    state.checkpoint()
    state.run_batch({1: 10})
    answer = client.get("/v1/jobs/flights/state/count/count", params={"key": "1"})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["batch_id"], found["key"]) == (1, {"id": 1})
    assert found["states"] == [{"state": "count", "kind": "value", "rows": [{"value": 11}]}]
    changes = client.get("/v1/jobs/flights/state-history/count", params={"key": "1"}).json()["changes"]
    assert [(each["batch_id"], each["row"]) for each in changes] == [(0, {"value": 1}), (1, {"value": 11})]
    refused = client.get("/v1/jobs/flights/state/count/count", params={"key": "ada"})
    assert (refused.status_code, refused.json()["code"]) == (422, "STATE_READ_REFUSED")
    assert refused.json()["detail"].startswith("STATE_KEY_INVALID: ")
    assert client.get("/v1/jobs/flights/state/count", params={"key": "1", "at": "never"}).status_code == 422
    missing = client.get("/v1/jobs/flights/state/count", params={"key": "1", "at": "checkpoint"})
    assert missing.json()["code"] == "CHECKPOINT_NOT_FOUND"


@pytest.mark.real
def test_sql_runs_over_the_state_in_a_checkpoint(
    client: httpx.Client, context: Context, job: dict[str, Any], tmp_path: Path
) -> None:
    checkpoint_counts(context.sessions, job["id"], tmp_path, {1: 1, 2: 2})
    place = "/v1/jobs/flights/checkpoints/1/sql"
    answer = client.post(place, json={"statement": "select key.id, value from count.count order by 1", "rows_max": 1})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "columns": [{"name": "id", "type": "int64"}, {"name": "value", "type": "int64"}],
        "rows": [[1, 1]],
        "is_truncated": True,
    }
    refused = client.post(place, json={"statement": "copy (select 1) to '/tmp/x'"})
    assert (refused.status_code, refused.json()["code"]) == (422, "STATE_READ_REFUSED")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What the processes that read state are asked for."""
    asked: list[tuple[str, dict[str, Any]]] = []
    of_key = {"key": {"id": 1}, "key_group": 3, "is_truncated": False}
    answers = {
        "history": {**of_key, "changes": []},
        "sql": {"columns": [], "rows": [], "is_truncated": True},
    }

    def read(_: object, user: Principal, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        asked.append((f"{kind} of {user.name}", request))
        return answers.get(kind, {**of_key, "batch_id": 5, "source_positions": {}, "states": []})

    monkeypatch.setattr(key_state, "read_state", read)
    monkeypatch.setattr(snapshot_sql, "read_state", read)
    monkeypatch.setattr(key_state, "read_latest_key", lambda *of: read(*of[:2], "latest", *of[2:]))
    return asked


def test_a_read_asks_for_what_its_request_names(
    client: httpx.Client, context: Context, job: dict[str, Any], reads: list[tuple[str, dict[str, Any]]]
) -> None:
    path = Snapshots(context.sessions, job["id"]).take(1, {})
    common = {"store_url": job["status"]["store_url"], "job_id": job["id"], "operator": "count", "key": "1"}
    of_key = {**common, "state": None, "after": None, "fetched_bytes_max": 2 << 30}
    for place, params, kind, more in (
        ("state/count", {}, "latest", {}),
        ("state/count/total", {"after": "7"}, "latest", {"state": "total", "after": "7"}),
        ("state/count/total", {"at": "batch-12"}, "key", {"state": "total", "batch_id": 12}),
        ("state/count", {"at": "time-34", "after": "clicks/0/8"}, "key", {"at_ms": 34, "after": "clicks/0/8"}),
        ("state/count", {"at": "checkpoint"}, "key", {"manifest_path": path}),
    ):
        answer = client.get(f"/v1/jobs/flights/{place}", params={"key": "1", **params})
        assert (answer.status_code, answer.json()["batch_id"]) == (200, 5), answer.text
        assert reads.pop() == (f"{kind} of admin", {**of_key, **more})
    answer = client.get("/v1/jobs/flights/state-history/count", params={"key": "1", "state": "total"})
    assert (answer.json()["key_group"], reads.pop()) == (3, ("history of admin", {**common, "state": "total"}))
    statement = {"statement": "select 1", "rows_max": 9}
    assert client.post("/v1/jobs/flights/checkpoints/1/sql", json=statement).json()["is_truncated"]
    assert reads.pop() == ("sql of admin", {**dict(list(common.items())[:2]), "manifest_path": path, **statement})


def test_sql_needs_a_completed_checkpoint_in_the_store(
    client: httpx.Client, context: Context, job: dict[str, Any], reads: list[tuple[str, dict[str, Any]]]
) -> None:
    Snapshots(context.sessions, job["id"]).take(1, {})
    incomplete = [status for status in CheckpointStatus if status is not CheckpointStatus.COMPLETED]
    for status in [*incomplete, CheckpointStatus.COMPLETED]:
        with context.sessions.begin() as session:
            found = session.get_one(Checkpoint, (job["id"], 1))
            found.status = status
            if status is CheckpointStatus.COMPLETED:
                found.external_path = None
        answer = client.post("/v1/jobs/flights/checkpoints/1/sql", json={"statement": "select 1"})
        assert (answer.status_code, answer.json()["code"]) == (404, "CHECKPOINT_NOT_FOUND"), status
    assert client.post("/v1/jobs/flights/checkpoints/2/sql", json={"statement": "select 1"}).status_code == 404
    assert reads == []


def test_the_latest_checkpoint_of_a_job_that_went_back_is_none_of_the_history_before(
    client: httpx.Client, context: Context, job: dict[str, Any], reads: list[tuple[str, dict[str, Any]]]
) -> None:
    Snapshots(context.sessions, job["id"]).take(1, {})
    params = {"key": "1", "at": "checkpoint"}
    assert client.get("/v1/jobs/flights/state/count", params=params).status_code == 200
    reads.clear()
    with context.sessions.begin() as session:
        session.get_one(Job, job["id"]).rewound_by = 2
    refused = client.get("/v1/jobs/flights/state/count", params=params)
    assert (refused.status_code, refused.json()["code"], reads) == (404, "CHECKPOINT_NOT_FOUND", [])
