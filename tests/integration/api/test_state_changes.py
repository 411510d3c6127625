"""The state of a key is changed over HTTP, in a savepoint that a job starts from when it is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.db.models import Checkpoint, Event, Job
from keyscale.db.repositories import checkpoints
from keyscale.identifiers import JobId
from keyscale.state.layout import location_of
from keyscale.state.objects.opening import open_store
from keyscale.state_io import StateReader
from keyscale.state_io.verified_state import verify_state
from keyscale.vocabulary import CheckpointStatus, JobStatus, SnapshotOwner
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.real
CHANGES = "/v1/jobs/flights/state-changes"


def test_a_key_of_a_stopped_job_is_set_in_a_savepoint_that_is_not_the_jobs_history(
    client: httpx.Client, context: Context, job: dict[str, Any], tmp_path: Path
) -> None:
    with context.sessions() as session:
        store = open_store(session.get_one(Job, job["id"]).store_url)
    change = {"operator": "count", "state": "count", "key": "1", "value": 40, "id": "repaired"}
    missing = client.post(CHANGES, json=change)
    assert (missing.status_code, missing.json()["code"]) == (404, "CHECKPOINT_NOT_FOUND")
    state = StateJob(store, tmp_path / "local", job_id=JobId(job["id"]))
    state.start(2)
    state.run_batch({1: 1, 2: 2})
    taken = location_of(store.url, state.checkpoint()[0].path)
    with context.sessions.begin() as session:
        session.add(
            Checkpoint(
                job_id=job["id"], checkpoint_id=1, status=CheckpointStatus.COMPLETED, attempt=1, is_savepoint=False,
                checkpointed_size=1, state_size=1, end_to_end_duration=1, owner=SnapshotOwner.PLATFORM,
                trigger_timestamp=1, processed_records=0, num_subtasks=1, num_acknowledged_subtasks=1,
                external_path=taken,
            )
        )  # fmt: skip

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
    assert (again.status_code, again.json()["code"]) == (409, "SAVEPOINT_ID_TAKEN")
    started = client.post("/v1/jobs/flights/start", json={"restore_from": {"savepoint_id": "repaired"}})
    assert started.status_code == 202, started.text
    with context.sessions() as session:
        assert session.get_one(Job, job["id"]).status is JobStatus.SUBMITTING
    with context.sessions.begin() as session:
        session.get_one(Job, job["id"]).status = JobStatus.RUNNING
    running = client.post(CHANGES, json={**change, "id": "running"})
    assert (running.status_code, running.json()["code"]) == (409, "JOB_STATUS_CONFLICT")
    assert "jobs stop flights" in running.json()["detail"]
