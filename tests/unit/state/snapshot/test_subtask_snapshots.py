"""Checkpoints and savepoints of subtasks: their uploads, and restores when some are damaged or missing."""

from __future__ import annotations

import hashlib
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import keyscale.state.log.recovery
from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.documents.manifest import FileHandle, ShardHandle, SnapshotHandle, read_manifest
from keyscale.state.documents.state_version import StateVersion
from keyscale.state.keyed.schema import KeyedSchema
from keyscale.state.keys.key_groups import KeyGroupRange
from keyscale.state.layout import Layout
from keyscale.state.local.file_index import read_index
from keyscale.state.log.recovery import NothingUsableError, choose_base
from keyscale.state.objects.errors import ObjectCorruptError, StoreUnavailableError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.restore.plan import RestorePlan
from keyscale.state.snapshot.snapshot import LocalSnapshot, LocalSnapshotLostError, upload_snapshot
from tests.support.state.state_job import StateJob, add, random_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.state.objects.object_store import ObjectInfo


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    return StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")


def test_the_second_checkpoint_uploads_only_new_files(job: StateJob) -> None:
    job.start(1)
    job.run_batch(dict.fromkeys(range(20000), 1))
    _, full_bytes = job.checkpoint()
    job.run_batch(dict.fromkeys(range(0, 20000, 100), 1))
    second, new_bytes = job.checkpoint()
    assert new_bytes < second.state_size_bytes / 5
    assert full_bytes > new_bytes


def test_an_object_that_two_shards_have_counts_once(job: StateJob) -> None:
    job.start(1)
    job.run_batch(dict.fromkeys(range(2000), 1))
    path = job.checkpoint("one")[0].path
    for parallelism, name in ((2, "two"), (1, "one again")):
        job.start(parallelism, path)
        path = job.checkpoint(name)[0].path
    job.start(1, path)
    manifest, added_bytes = job.checkpoint()
    [handle] = manifest.operators[0].subtasks
    assert len(handle.shards) == 2
    stored = {file.path: job.store.get(file.path) for file in manifest.files()}
    assert len(stored) < len(list(manifest.files())), "the shards share files"
    assert added_bytes == handle.state_size_bytes == sum(map(len, stored.values()))


def local_snapshot(tmp_path: Path, **changes: Any) -> LocalSnapshot:
    """A snapshot of two shards, which share no file, with operator state."""
    directory = tmp_path / "job" / "attempt-2" / "count" / "subtask-3" / "snapshots" / "7-u"
    for shard, names in enumerate((("1.sst", "CURRENT"), ("2.sst",))):
        (directory / str(shard)).mkdir(parents=True)
        for name in names:
            (directory / str(shard) / name).write_bytes(f"{name} of {shard}".encode())
    (directory / "operator-state").write_bytes(b"operator state")
    facts: dict[str, Any] = {
        "directory": str(directory),
        "local_root": str(tmp_path),
        "job_id": JobId("job"),
        "operator_uid": OperatorUid("count"),
        "subtask": SubtaskIndex(3),
        "attempt": Attempt(2),
        "checkpoint_id": CheckpointId(7),
        "unique": "u",
        "version": StateVersion(BatchId(9), "lineage"),
        "key_groups": KeyGroupRange(4, 9),
        "shards": (KeyGroupRange(4, 6), KeyGroupRange(7, 9)),
        "schema": KeyedSchema((("id", "int64"),)),
    }
    return LocalSnapshot(**{**facts, **changes})


def sha256(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


@pytest.mark.parametrize("savepoint_id", [None, "s"])
def test_an_uploaded_snapshot_has_all_facts_and_files_of_the_local_one(
    tmp_path: Path, savepoint_id: str | None
) -> None:
    store, layout = LocalObjectStore(tmp_path / "store"), Layout(JobId("job"))
    one, two = sha256("1.sst of 0"), sha256("2.sst of 1")
    known = {two: "job/shared/known"}
    store.put("job/shared/known", b"2.sst of 1")
    local = local_snapshot(tmp_path / "local")
    uploaded = upload_snapshot(local, store, layout, known, savepoint_id)
    folder = "job/chk-7" if savepoint_id is None else "job/savepoints/s"
    paths = (
        (f"job/shared/{one}-2-7", "job/shared/known")
        if savepoint_id is None
        else (f"{folder}/files/{one}-2-7", f"{folder}/files/{two}-2-7")
    )
    current = FileHandle("CURRENT", f"{folder}/count/3-u/0/CURRENT", 12, sha256("CURRENT of 0"))
    state = FileHandle("operator-state", f"{folder}/count/3-u/operator-state", 14, sha256("operator state"))
    assert uploaded.handle == SnapshotHandle(
        subtask=SubtaskIndex(3),
        key_group_start=4,
        key_group_end=9,
        batch_id=BatchId(9),
        lineage="lineage",
        shards=(
            ShardHandle(4, 6, (FileHandle("1.sst", paths[0], 10, one, shared=True), current)),
            ShardHandle(7, 9, (FileHandle("2.sst", paths[1], 10, two, shared=True),)),
        ),
        schema=KeyedSchema((("id", "int64"),)),
        operator_state=state,
    )
    for file in uploaded.handle.files():
        assert hashlib.sha256(store.get(file.path)).hexdigest() == file.sha256
    assert uploaded.uploaded_bytes == 10 + 12 + 14 + (0 if savepoint_id is None else 10)
    assert {file.sha256 for file in read_index(Path(local.directory)).files} == {one, two}


def test_a_savepoint_copies_the_files_that_the_store_has_and_uploads_those_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, layout = LocalObjectStore(tmp_path / "store"), Layout(JobId("job"))
    one, two = sha256("1.sst of 0"), sha256("2.sst of 1")
    store.put("other/savepoints/x/files/1", b"1.sst of 0")
    uploaded: list[str] = []
    upload = store.upload

    def noted(source: Path, path: str, **how: Any) -> None:
        uploaded.append(source.name)
        upload(source, path, **how)

    monkeypatch.setattr(store, "upload", noted)
    copies = {one: "other/savepoints/x/files/1", two: "other/savepoints/x/files/gone"}
    handle = upload_snapshot(local_snapshot(tmp_path / "local"), store, layout, {}, "s", copies=copies).handle
    assert sorted(uploaded) == ["2.sst", "CURRENT", "operator-state"]
    assert {store.get(file.path) for file in handle.files() if file.shared} == {b"1.sst of 0", b"2.sst of 1"}
    uploaded.clear()
    upload_snapshot(local_snapshot(tmp_path / "again"), store, layout, {}, copies=copies)
    assert sorted(uploaded) == ["2.sst", "CURRENT", "operator-state"], "a checkpoint may copy them, too"
    uploaded.clear()
    known = {one: "other/savepoints/x/files/1"}
    handle = upload_snapshot(local_snapshot(tmp_path / "known"), store, layout, known, "t", copies={}).handle
    assert sorted(uploaded) == ["2.sst", "CURRENT", "operator-state"], "known files are copied, too"
    assert all(file.path.startswith("job/savepoints/t/") for file in handle.files())


def test_a_snapshot_without_operator_state_has_none(tmp_path: Path) -> None:
    local = local_snapshot(tmp_path / "local", schema=None)
    (Path(local.directory) / "operator-state").unlink()
    handle = upload_snapshot(local, LocalObjectStore(tmp_path / "store"), Layout(JobId("job")), {}).handle
    assert (handle.operator_state_file, handle.schema) == (None, None)


def test_a_snapshot_uploads_beside_batches(job: StateJob) -> None:
    job.start(1)
    job.run_batch({1: 1})
    with job.open(0) as store:
        local = store.snapshot(CheckpointId(1))
        add(store, {1: 10, 2: 20})
        handle = store.finish_batch(BatchId(1), "unique")
        sent = pickle.loads(pickle.dumps(local))  # noqa: S301 - our own bytes
        upload = upload_snapshot(sent, job.store, job.layout, {})
    job.commit(BatchId(1), [handle])
    assert upload.handle.batch_id == 0
    job.plans = [RestorePlan((upload.handle,), ())]
    job.batch_id = BatchId(0)
    assert job.dump() == {1: 1}


def test_an_upload_fails_if_the_local_snapshot_is_gone(job: StateJob) -> None:
    job.start(1)
    with job.open(0) as store:
        local = store.snapshot(CheckpointId(1))
    shutil.rmtree(local.directory)
    with pytest.raises(LocalSnapshotLostError):
        upload_snapshot(local, job.store, job.layout, {})


def test_the_files_of_earlier_attempts_stay_until_an_upload_is_complete(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("away")

    job.start(1)
    job.run_batch(random_batch(1))
    manifest, _ = job.checkpoint()
    earlier = job.spec(0).local_directory(job.local_root)
    job.start(1, manifest.path)
    job.run_batch(random_batch(2))
    with job.open(0) as store:
        local = store.snapshot(CheckpointId(2))
    with monkeypatch.context() as patch:
        patch.setattr(type(job.store), "upload", refuse)
        with pytest.raises(StoreUnavailableError):
            upload_snapshot(local, job.store, job.layout, {})
    assert earlier.exists(), "another attempt can link these files"
    upload_snapshot(local, job.store, job.layout, {})
    assert not earlier.exists()


def test_local_snapshots_do_not_pile_up(job: StateJob) -> None:
    job.start(1)
    for seed in range(5):
        job.run_batch(random_batch(seed))
        job.checkpoint()
    directory = job.spec(0).local_directory(job.local_root) / "snapshots"
    assert sorted(int(entry.name.partition("-")[0]) for entry in directory.iterdir()) == [4, 5]


def test_a_savepoint_is_restored_without_any_other_file(job: StateJob, tmp_path: Path) -> None:
    job.start(2)
    job.run_batch(random_batch(1))
    job.checkpoint()
    job.run_batch(random_batch(2))
    savepoint, _ = job.checkpoint("mine")
    job.store.delete(
        [info.path for info in job.store.list("") if not info.path.startswith(job.layout.savepoint("mine"))]
    )
    copy = StateJob(job.store, tmp_path / "another host", reference=job.reference)
    copy.start(3, savepoint.path, rewinds=True)
    assert copy.dump() == copy.reference


def test_a_job_started_from_another_jobs_savepoint_soon_no_longer_needs_it(job: StateJob, tmp_path: Path) -> None:
    job.start(2)
    job.run_batch(random_batch(1))
    savepoint, _ = job.checkpoint("mine")
    other = StateJob(job.store, tmp_path / "local", job_id=JobId("other"), reference=dict(job.reference))
    other.start(2, savepoint.path)
    other.run_batch(random_batch(2))
    own, _ = other.checkpoint()
    job.store.delete([info.path for info in job.store.list(job.layout.job)])
    other.local_root = tmp_path / "another host"
    other.start(3, own.path)
    assert other.dump() == other.reference


@pytest.mark.parametrize("damage", ["flipped", "cut off", "gone"])
def test_a_damaged_checkpoint_is_skipped_loudly_for_the_one_before(
    job: StateJob, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    job.start(1)
    job.run_batch(random_batch(1))
    good, _ = job.checkpoint()
    job.run_batch(random_batch(2))
    bad, _ = job.checkpoint()
    job.run_batch(random_batch(3))
    known = {file.path for file in good.files()}
    victim = next(file.path for file in bad.files() if file.path not in known and file.shared)
    content = job.store.get(victim)
    job.store.delete([victim])
    if damage != "gone":
        job.store.put(victim, content[:-1] + (b"" if damage == "cut off" else bytes([content[-1] ^ 1])))
    job.local_root = tmp_path / "another host"
    excluded: list[str] = []
    base = choose_base(job.store, job.job_id, bad.path)
    assert base.manifest is not None
    if damage == "flipped":  # only a read notices it
        job.start(1, base.manifest.path)
        with pytest.raises(ObjectCorruptError):
            job.open(0)
        excluded.append(base.manifest.path)
        base = choose_base(job.store, job.job_id, bad.path, excluded=excluded)
    assert base.manifest == good
    assert [skip.path for skip in base.skipped] == [bad.path]
    assert bad.path in caplog.text or damage == "flipped", "the failed restore has said so"
    job.start(1, good.path)
    assert job.dump() == job.reference, "nothing is lost: the log has all that was committed after it"


def test_a_job_with_only_damaged_checkpoints_does_not_start_empty(job: StateJob) -> None:
    job.start(1)
    job.run_batch(random_batch(1))
    manifest, _ = job.checkpoint()
    job.store.put(manifest.path, b"{}")
    with pytest.raises(NothingUsableError):
        choose_base(job.store, job.job_id, None)


def test_a_job_without_checkpoints_starts_from_its_log(job: StateJob, tmp_path: Path) -> None:
    job.start(2)
    for seed in range(3):
        job.run_batch(random_batch(seed))
    assert choose_base(job.store, job.job_id, None).manifest is None
    job.local_root = tmp_path / "another host"
    job.start(3)
    assert job.dump() == job.reference


def age(job: StateJob, paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes objects look old to the store."""
    listed = job.store.list

    def aged(prefix: str) -> Iterator[ObjectInfo]:
        return (replace(info, modified_ms=0) if info.path in paths else info for info in listed(prefix))

    monkeypatch.setattr(job.store, "list", aged)


def test_savepoints_from_before_a_usable_checkpoint_are_not_read(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(1)
    old = []
    for number in range(3):
        job.run_batch(random_batch(number))
        old.append(job.checkpoint(f"old-{number}")[0].path)
    age(job, old, monkeypatch)
    job.run_batch(random_batch(4))
    checkpoint, _ = job.checkpoint()
    later, _ = job.checkpoint("later")
    read: list[str] = []
    monkeypatch.setattr(
        keyscale.state.log.recovery,
        "read_manifest",
        lambda store, path: (read.append(path), read_manifest(store, path))[1],
    )
    assert choose_base(job.store, job.job_id, None).manifest == later
    assert read == [checkpoint.path, later.path]
    assert choose_base(job.store, job.job_id, old[0]).manifest == later
    assert read[2:] == [checkpoint.path, old[0], later.path]


def test_without_a_usable_checkpoint_every_savepoint_is_considered(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(1)
    job.run_batch(random_batch(1))
    savepoint, _ = job.checkpoint("old")
    age(job, [savepoint.path], monkeypatch)
    job.run_batch(random_batch(2))
    damaged, _ = job.checkpoint()
    job.store.put(damaged.path, b"{}")
    base = choose_base(job.store, job.job_id, damaged.path)
    assert base.manifest == savepoint
    assert [skip.path for skip in base.skipped] == [damaged.path]
