"""The state of a job over HTTP, from its store, while no driver runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.db.models import Job
from keyscale.identifiers import JobId
from keyscale.state.objects.opening import open_store
from tests.support.control_plane.snapshots import checkpoint_counts
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.real


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
