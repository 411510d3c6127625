"""The state of one key: now, after a batch, and over the batches of a job."""

from __future__ import annotations

import time
import uuid
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from keyscale.identifiers import BatchId, JobId
from keyscale.state.documents.log_entries import BatchCommitted, BatchPlanned
from keyscale.state.documents.manifest import write_manifest
from keyscale.state.inspection import shard_reader
from keyscale.state.inspection.fetched_shards import open_fetched
from keyscale.state.inspection.state_point import (
    BatchNotStoredError,
    ForeignStateError,
    StatePoint,
    UnknownStateError,
)
from keyscale.state.keyed.descriptors import ListStateDescriptor
from keyscale.state.keys.key_groups import KeyGroupRange
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state_io import key_state
from keyscale.state_io.key_state import KeyReadTooLargeError, KeyRequest, LatestKeys, read_history, read_key
from keyscale.state_io.key_text import KeyTextError
from tests.support.repository import GOLDEN
from tests.support.state import every_kind
from tests.support.state.state_job import UID, StateJob, group_of

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.state.subtask.store import SubtaskStore


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
    assert read_key(request(job, after="3"))["states"][0]["rows"] == [{"value": 111}]
    assert len(slept) == 1
    with pytest.raises(BatchNotStoredError, match="batch 9 within 0 seconds"):
        read_key(request(job, after="9", wait_s_max=0.0))


def test_the_state_at_a_time_is_that_after_the_last_batch_committed_by_then(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [
        (place, msgspec.structs.replace(entry, committed_at_ms=1000 * entry.batch_id))
        for place, entry in job.log.stored()
        if isinstance(entry, BatchCommitted)
    ]
    monkeypatch.setattr(CommitLog, "stored", lambda _: entries)
    found = {at_ms: read_key(request(job, at_ms=at_ms))["batch_id"] for at_ms in (0, 1000, 1999, 2000, 9999)}
    assert found == {0: 0, 1000: 1, 1999: 1, 2000: 2, 9999: 2}
    with pytest.raises(BatchNotStoredError, match="by that time"):
        read_key(request(job, at_ms=-1))


@pytest.mark.parametrize(
    ("record", "is_in"),
    [
        ("orders/0/4", True),
        ("orders/0/5", False),
        ("orders/1/0", False),
        ("orders/2/0", False),
        ("others/0/0", False),
        ("more/0/8", True),
    ],
)
def test_a_read_waits_for_a_record_of_a_topic(
    job: StateJob, monkeypatch: pytest.MonkeyPatch, record: str, is_in: bool
) -> None:
    ends = {"clicks": ['{"orders":{"0":5,"1":0}}', '{"more":{"0":9}}'], "files": ["17"]}
    monkeypatch.setattr(key_state, "source_ends", lambda _: ends)
    with nullcontext() if is_in else pytest.raises(BatchNotStoredError, match=f"{record} within 0 seconds"):
        assert read_key(request(job, after=record, wait_s_max=0.0))["batch_id"] == 2


def opened_shards(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    opened: list[object] = []
    monkeypatch.setattr(shard_reader, "open_fetched", lambda *a, **k: opened.append(a) or open_fetched(*a, **k))
    return opened


def value_of(keys: LatestKeys, job: StateJob, key: str = "1") -> tuple[int, Any]:
    answer = keys.read(request(job, key))
    return answer["batch_id"], answer["states"][0]["rows"]


def test_later_reads_follow_the_batches_without_fetching_the_shard_again(
    job: StateJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened, keys = opened_shards(monkeypatch), LatestKeys(tmp_path)
    assert value_of(keys, job) == (2, [{"value": 11}])
    job.run_batch({1: 100})
    job.run_batch({2: 100})
    assert value_of(keys, job) == (4, [{"value": 111}])
    job.checkpoint()
    assert value_of(keys, job) == (4, [{"value": 111}])
    assert len(opened) == 1
    assert value_of(keys, job, "2")[1] == [{"value": 122}]
    shards = len(opened)
    job.run_batch({1: 1, 2: 1})
    job.checkpoint()  # the batch before it may be cleaned up, so the next read begins with it
    assert value_of(keys, job) == (5, [{"value": 112}])
    assert len(opened) == shards + 1
    keys.close()
    assert list(tmp_path.glob("keyscale-state-*")) == []


def test_a_new_attempt_is_read_anew(job: StateJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened, keys = opened_shards(monkeypatch), LatestKeys(tmp_path)
    value_of(keys, job)
    job.start(1)
    job.run_batch({1: 5})
    assert value_of(keys, job) == (3, [{"value": 16}])
    assert len(opened) == 2
    keys.close()


def test_a_wrong_key_keeps_the_shards_and_a_failed_read_leaves_no_files(
    job: StateJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened, keys = opened_shards(monkeypatch), LatestKeys(tmp_path)
    value_of(keys, job)
    with pytest.raises(KeyTextError):
        keys.read(request(job, "ada"))
    assert value_of(keys, job)[0] == 2
    assert len(opened) == 1
    with pytest.raises(KeyReadTooLargeError):
        keys.read(request(job, fetched_bytes_max=1))
    assert list(tmp_path.glob("keyscale-state-*")) == []


def test_a_batch_that_is_planned_is_not_yet_committed(job: StateJob) -> None:
    job.position = job.log.append(job.position, BatchPlanned(job.attempt, BatchId(3), {}))
    assert read_key(request(job, after="2"))["batch_id"] == 2
    with pytest.raises(BatchNotStoredError):
        read_key(request(job, after="3", wait_s_max=0.0))


def test_the_rows_of_a_key_are_cut_at_their_limit(job: StateJob) -> None:
    whole, cut = (read_key(request(job, rows_max=rows)) for rows in (1, 0))
    assert (whole["states"][0]["rows"], whole["is_truncated"]) == ([{"value": 11}], False)
    assert (cut["states"][0]["rows"], cut["is_truncated"]) == ([], True)


def test_the_limit_of_rows_is_one_for_all_states_and_timers_of_a_key() -> None:
    store_url, savepoint = (GOLDEN / "savepoint-v1").as_uri(), f"{every_kind.JOB}/savepoints/{every_kind.SAVEPOINT}"
    asked: dict[str, Any] = {"key": '["a\\u0000b", 5]', "manifest_path": f"{savepoint}/manifest.json"}

    def found(rows_max: int) -> tuple[dict[str, int], bool]:
        answer = read_key(KeyRequest(store_url, every_kind.JOB, every_kind.UID, rows_max=rows_max, **asked))
        assert answer["key"] == {"name": "a\0b", "number": 5}
        return {each["state"]: len(each["rows"]) for each in answer["states"]}, answer["is_truncated"]

    whole, is_truncated = found(1000)
    total = sum(whole.values())
    assert (is_truncated, whole["map"], whole["list"]) == (False, 2, 2)
    assert found(total) == (whole, False)
    for rows_max in (total - 1, 4):
        cut, is_truncated = found(rows_max)
        assert (sum(cut.values()), cut.keys(), is_truncated) == (rows_max, whole.keys(), True)


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


def test_changelogs_of_another_job_in_a_jobs_log_are_not_read(job: StateJob, tmp_path: Path) -> None:
    thief = StateJob(job.store, tmp_path / "thief", job_id=JobId("thief"))
    thief.start(2)
    stolen = [entry for _, entry in job.log.stored() if isinstance(entry, BatchCommitted)]
    thief.commit(BatchId(0), stolen[0].operators[UID])
    for read in (read_key, read_history):
        for asked in (request(thief), request(thief, batch_id=0), request(thief, after="0")):
            with pytest.raises(ForeignStateError, match="the log of job 'thief' names job/"):
                read(asked)


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


def test_the_history_of_a_key_has_the_batch_the_attempt_and_the_time_of_each_change(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(1)
    job.run_batch({1: 100, 2: 7})
    entries = [
        (place, msgspec.structs.replace(entry, committed_at_ms=1000 + entry.batch_id))
        for place, entry in job.log.stored()
        if isinstance(entry, BatchCommitted)
    ]
    monkeypatch.setattr(CommitLog, "stored", lambda _: entries)
    change: dict[str, Any] = {"state": "count", "change": "PUT"}
    for asked in (request(job), request(job, state="count")):
        assert read_history(asked) == {
            "key": {"id": 1},
            "key_group": group_of(1),
            "changes": [
                {"batch_id": 0, "attempt": 1, "committed_at_ms": 1000, **change, "row": {"value": 1}},
                {"batch_id": 1, "attempt": 1, "committed_at_ms": 1001, **change, "row": {"value": 11}},
                {"batch_id": 3, "attempt": 2, "committed_at_ms": 1003, **change, "row": {"value": 111}},
            ],
            "is_truncated": False,
        }


def test_only_the_files_of_the_keys_shard_count_against_the_bytes_of_a_read(job: StateJob) -> None:
    point = StatePoint.of_job(job.store, job.job_id)
    sizes = {
        key: sum(point.size_bytes("count", shard) for shard in point.shard_ranges("count") if group_of(key) in shard)
        for key in (1, 2)
    }
    assert sum(sizes.values()) == point.size_bytes("count", KeyGroupRange(0, 15)), "each key has a shard of its own"
    for key, size in sizes.items():
        assert read_key(request(job, str(key), fetched_bytes_max=size))["batch_id"] == 2
        with pytest.raises(KeyReadTooLargeError, match=f"take {size:,} bytes, and a read may fetch {size - 1:,}"):
            read_key(request(job, str(key), fetched_bytes_max=size - 1))


def test_latest_keys_keep_the_shards_of_several_keys_open(
    job: StateJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened, keys = opened_shards(monkeypatch), LatestKeys(tmp_path)
    for _ in range(2):
        assert [value_of(keys, job, key)[1] for key in ("1", "2")] == [[{"value": 11}], [{"value": 22}]]
    assert len(opened) == 2
    keys.close()


def test_operator_state_has_no_keys(job: StateJob) -> None:
    def operate(store: SubtaskStore) -> None:
        store.operator.list_state(ListStateDescriptor("split", pa.string())).add("s")

    job.operate = operate
    job.run_batch({1: 100})
    assert [each["state"] for each in read_key(request(job))["states"]] == ["count"]
    for read in (read_key, read_history):
        with pytest.raises(UnknownStateError, match="'split' is operator state, which has no keys"):
            read(request(job, state="split"))


def test_the_history_of_a_key_begins_with_the_last_rewind(job: StateJob) -> None:
    assert job.manifest is not None
    job.start(2, job.manifest.path, rewinds=True)
    job.run_batch({1: 5})
    answer = read_history(request(job))
    assert [(each["batch_id"], each["row"]) for each in answer["changes"]] == [(1, {"value": 6})]
