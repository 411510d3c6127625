"""The state of one key: now, after a batch, and over the batches of a job."""

from __future__ import annotations

import time
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from keyscale.identifiers import BatchId, JobId
from keyscale.state.documents.log_entries import BatchPlanned
from keyscale.state.documents.manifest import write_manifest
from keyscale.state.inspection.state_point import BatchNotStoredError, ForeignStateError, UnknownStateError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state_io import key_state
from keyscale.state_io.key_state import KeyReadTooLargeError, KeyRequest, read_history, read_key
from keyscale.state_io.key_text import KeyTextError
from tests.support.state.state_job import StateJob, group_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(2)
    job.run_batch({1: 1, 2: 2})
    job.checkpoint()
    job.run_batch({1: 10})
    job.run_batch({2: 20})
    return job


def request(job: StateJob, key: str = "1", **more: Any) -> KeyRequest:
    return KeyRequest(job.store.url, job.job_id, "count", key, **more)


def test_the_latest_state_of_a_key_says_which_batch_it_belongs_to(job: StateJob) -> None:
    answer = read_key(request(job))
    assert (answer["batch_id"], answer["key"]) == (2, {"id": 1})
    assert answer["states"] == [{"state": "count", "kind": "value", "rows": [{"value": 11}]}]
    assert read_key(request(job, "77"))["states"][0]["rows"] == []


def test_a_key_can_be_read_in_a_checkpoint_and_after_any_stored_batch(job: StateJob) -> None:
    assert job.manifest is not None
    assert read_key(request(job, manifest_path=job.manifest.path))["states"][0]["rows"] == [{"value": 1}]
    values = {batch: read_key(request(job, "2", batch_id=batch))["states"][0]["rows"] for batch in range(3)}
    assert values == {0: [{"value": 2}], 1: [{"value": 2}], 2: [{"value": 22}]}


def test_a_read_waits_for_a_batch(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        job.run_batch({1: 100})

    monkeypatch.setattr(key_state, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    assert read_key(request(job, after_batch=3))["states"][0]["rows"] == [{"value": 111}]
    assert len(slept) == 1
    monkeypatch.setattr(key_state, "WAIT_S_MAX", 0.0)
    with pytest.raises(BatchNotStoredError, match="within 0 seconds"):
        read_key(request(job, after_batch=9))


def test_a_batch_that_is_planned_is_not_yet_committed(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job.position = job.log.append(job.position, BatchPlanned(job.attempt, BatchId(3), {}))
    monkeypatch.setattr(key_state, "WAIT_S_MAX", 0.0)
    assert read_key(request(job, after_batch=2))["batch_id"] == 2
    with pytest.raises(BatchNotStoredError):
        read_key(request(job, after_batch=3))


def test_the_rows_of_a_key_are_cut_at_their_limit(job: StateJob) -> None:
    whole, cut = (read_key(request(job, rows_max=rows)) for rows in (1, 0))
    assert (whole["states"][0]["rows"], whole["is_truncated"]) == ([{"value": 11}], False)
    assert (cut["states"][0]["rows"], cut["is_truncated"]) == ([], True)


def test_what_cannot_be_read_is_refused(job: StateJob) -> None:
    with pytest.raises(UnknownStateError):
        read_key(request(job, state="other"))
    with pytest.raises(KeyTextError):
        read_key(request(job, "ada"))
    with pytest.raises(KeyReadTooLargeError):
        read_key(request(job, fetched_bytes_max=10))
    with pytest.raises(BatchNotStoredError):
        read_key(request(job, batch_id=99))


def test_objects_of_another_job_are_not_read_for_a_job(job: StateJob) -> None:
    assert job.manifest is not None
    thief = JobId("thief")
    stolen = msgspec.structs.replace(job.manifest, job_id=thief)
    write_manifest(job.store, stolen)
    with pytest.raises(ForeignStateError):
        read_key(KeyRequest(job.store.url, thief, "count", "1", manifest_path=stolen.path))
    with pytest.raises(ForeignStateError, match="begins with a snapshot of job"):
        read_key(KeyRequest(job.store.url, thief, "count", "1", manifest_path=job.manifest.path))


def test_the_history_of_a_key_has_each_change_of_the_stored_batches(job: StateJob) -> None:
    with job.open(0) as zero, job.open(1) as one:
        handles = []
        for store in (zero, one):
            state = store.keyed.state(job.descriptor)
            for key in job.own(store.spec.index, {1: 0}):
                store.keyed.set_current_key(group_of(key), (key,))
                state.clear()
            handles.append(store.finish_batch(BatchId(3), uuid.uuid4().hex))
    job.position = job.log.append(job.position, BatchPlanned(job.attempt, BatchId(3), {}))
    job.commit(BatchId(3), handles)
    answer = read_history(request(job))
    assert [(each["batch_id"], each["change"], each["row"]) for each in answer["changes"]] == [
        (0, "PUT", {"value": 1}),
        (1, "PUT", {"value": 11}),
        (3, "REMOVED", {}),
    ]
    assert not answer["is_truncated"]
    cut = read_history(request(job, rows_max=1))
    assert [each["batch_id"] for each in cut["changes"]] == [3]
    assert cut["is_truncated"]


def test_the_history_of_a_key_begins_with_the_last_rewind(job: StateJob) -> None:
    assert job.manifest is not None
    job.start(2, job.manifest.path, rewinds=True)
    job.run_batch({1: 5})
    answer = read_history(request(job))
    assert [(each["batch_id"], each["row"]) for each in answer["changes"]] == [(1, {"value": 6})]
