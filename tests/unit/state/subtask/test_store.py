"""A subtask's store opens at exactly the wanted version, whatever happened before."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pyarrow as pa
import pytest

from keyscale.identifiers import BatchId, CheckpointId, SubtaskIndex
from keyscale.state.engine.rocksdb_settings import RocksDbSettings
from keyscale.state.errors import StateError
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.local.subtask_directory import (
    CleanMarker,
    SubtaskDirectory,
    boot_id,
    lock_directory,
    snapshots_root,
)
from keyscale.state.objects.errors import ObjectCorruptError, ObjectNotFoundError, StoreUnavailableError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.restore.opened_shards import FetchReport, OpenedShards, StateSource
from keyscale.state.restore.plan import RestorePlan
from keyscale.state.retention.deletion import delete_planned, gather_facts
from keyscale.state.retention.deletion_plan import RetentionPolicy, plan_deletion
from keyscale.state.snapshot.snapshot import LocalSnapshot
from keyscale.state.subtask import store
from keyscale.state.subtask.store import LineageError, StoreUnusableError, open_subtask
from tests.support.short_form import short_form
from tests.support.state.faulty_store import FaultyStore
from tests.support.state.state_job import COUNT, MAX_PARALLELISM, UID, StateJob, add, entries, group_of, random_batch

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.state.subtask.store import SubtaskStore


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    return StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")


def test_batches_build_up_state_in_the_subtask_that_owns_each_key(job: StateJob) -> None:
    job.start(2)
    for seed in range(5):
        job.run_batch(random_batch(seed))
    assert job.dump() == job.reference


def test_state_rescales_by_assigning_shards_and_rewrites_no_record(job: StateJob) -> None:
    job.start(2)
    job.run_batch(random_batch(0))  # few batches and so few files, so that RocksDB does not compact
    for number, parallelism in enumerate([3, 5, 1], 1):
        before, _ = job.checkpoint(f"savepoint-{number}")
        job.start(parallelism, before.path)
        assert job.dump() == job.reference
        after, _ = job.checkpoint(f"check-{number}")
        shared = [{file.sha256 for file in manifest.files() if file.shared} for manifest in (before, after)]
        assert shared[0] <= shared[1]
        new_bytes = sum(file.size_bytes for file in after.files() if file.shared and file.sha256 not in shared[0])
        assert new_bytes < 2000 * parallelism, "only the range deletes are new"
        job.run_batch(random_batch(100 + number))
        assert job.dump() == job.reference


def test_clean_local_files_are_reused_and_nothing_is_fetched(job: StateJob) -> None:
    job.start(2)
    with job.open(0) as store:
        assert (store.source, store.fetched) == (StateSource.NEW, FetchReport())
    job.run_batch({1: 1})
    with job.open(0) as store:
        assert (store.source, store.fetched) == (StateSource.LOCAL, None)


def test_a_batch_without_changes_does_not_change_the_content(job: StateJob) -> None:
    job.start(1)
    job.run_batch({1: 1})
    job.commit(BatchId(job.batch_id + 1), [None])
    with job.open(0) as store:
        assert store.fetched is None
        assert store.version.batch_id == 1


def test_state_that_a_failed_try_of_a_batch_left_behind_is_never_used(job: StateJob) -> None:
    job.start(2)
    job.run_batch({1: 1, 2: 2, 3: 3})
    for index in range(2):
        job.run_task(index, BatchId(1), {1: 100, 2: 100, 3: 100})  # finished, closed cleanly, and never committed
    assert job.dump() == {1: 1, 2: 2, 3: 3}
    job.run_batch({1: 1})
    assert job.dump() == {1: 2, 2: 2, 3: 3}


def test_abandoned_local_files_are_not_reused(job: StateJob) -> None:
    job.start(1)
    job.run_batch({1: 1})
    store = job.open(0)
    add(store, {1: 5})
    store.abandon()
    with job.open(0) as store:
        assert store.source is StateSource.REBUILT
        assert entries(store) == {1: 1}


def test_an_unfinished_batch_is_dropped_when_the_store_is_closed(job: StateJob) -> None:
    job.start(1)
    job.run_batch({1: 1})
    store = job.open(0)
    add(store, {1: 5})
    store.close()
    assert job.dump() == {1: 1}


def test_a_batch_without_changes_writes_no_changelog(job: StateJob) -> None:
    job.start(1)
    with job.open(0) as store:
        assert store.finish_batch(BatchId(0), "unique") is None
    assert list(job.store.list(job.layout.changelogs)) == []


def test_only_a_changelog_that_changes_the_schema_holds_it(job: StateJob) -> None:
    job.start(1)
    with job.open(0) as store:
        schemas = []
        for number in range(2):
            add(store, {1: 1}, job.descriptor)
            handle = store.finish_batch(BatchId(number), f"unique-{number}")
            assert handle is not None
            schemas.append(handle.schema is not None)
    assert schemas == [True, False]


def test_a_state_of_an_unfinished_batch_is_in_the_next_changelogs_schema(job: StateJob) -> None:
    job.start(1)
    job.run_batch({1: 1})
    declared = ValueStateDescriptor("declared", pa.int64())
    with job.open(0) as store:
        add(store, {1: 1}, declared)
    with job.open(0) as store:
        assert store.source is StateSource.LOCAL
        add(store, {1: 1}, declared)
        handle = store.finish_batch(BatchId(1), "unique")
    assert handle is not None
    assert handle.schema is not None
    assert [each.name for each in handle.schema.states] == [COUNT.name, "declared"]


def test_a_store_whose_changelog_could_not_be_written_can_no_longer_be_used(tmp_path: Path) -> None:
    objects = FaultyStore(tmp_path / "store")
    job = StateJob(objects, tmp_path / "local")
    job.start(1)
    job.run_batch({1: 1})
    store = job.open(0)
    add(store, {1: 5})
    objects.away = True
    with pytest.raises(StoreUnavailableError):
        store.finish_batch(BatchId(1), "unique")
    objects.away = False
    with pytest.raises(StoreUnusableError):
        store.finish_batch(BatchId(1), "unique")
    with pytest.raises(StoreUnusableError):
        store.snapshot(CheckpointId(1))
    store.close()
    assert job.dump() == {1: 1}


def test_a_plan_that_does_not_lead_to_the_version_is_refused(job: StateJob) -> None:
    job.start(1)
    job.run_batch({1: 1})
    with pytest.raises(LineageError):
        open_subtask(job.spec(0), job.version(0), RestorePlan(), job.local_root, job.store)


def test_a_failed_opening_leaves_nothing_open_and_no_file_behind(
    job: StateJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(2)
    job.run_batch(random_batch(1))
    manifest, _ = job.checkpoint()
    job.start(1, manifest.path)
    job.local_root = tmp_path / "another host"
    closed: list[OpenedShards] = []
    close = OpenedShards.close
    monkeypatch.setattr(OpenedShards, "close", lambda opened: (closed.append(opened), close(opened)))
    place = job.spec(0).local_directory(job.local_root) / "try-0"

    def is_free() -> bool:
        lock = lock_directory(place)
        if lock is not None:
            os.close(lock)
        return lock is not None and {entry.name for entry in place.iterdir()} == {"bell", "lock"}

    with monkeypatch.context() as failing:
        failing.setattr(store, "SubtaskStore", Mock(side_effect=RuntimeError("no memory")))
        with pytest.raises(RuntimeError, match="no memory"):
            job.open(0)
    assert ([len(each.shards) for each in closed], is_free()) == ([2], True)
    gone = next(file.path for file in manifest.files() if file.shared)
    content = job.store.get(gone)
    job.store.delete([gone])
    with pytest.raises(ObjectNotFoundError):
        job.open(0)
    assert is_free()
    job.store.put(gone, content)
    assert job.dump() == job.reference


def test_a_batch_number_cannot_be_used_twice(job: StateJob) -> None:
    job.start(1)
    job.run_batch({1: 1})
    with pytest.raises(LineageError), job.open(0) as store:
        store.finish_batch(BatchId(0), "unique")


def test_state_is_rebuilt_on_another_host_from_checkpoint_and_changelogs(job: StateJob, tmp_path: Path) -> None:
    job.start(2)
    job.run_batch(random_batch(1))
    job.checkpoint()
    for seed in (2, 3):
        job.run_batch(random_batch(seed))
    job.local_root = tmp_path / "another host"
    assert job.dump() == job.reference
    with job.open(0) as store:
        assert store.fetched is None, "the first open has rebuilt it"


def test_a_rescale_on_the_same_host_downloads_no_data(job: StateJob, tmp_path: Path) -> None:
    job.start(2)
    job.run_batch(random_batch(1))
    savepoint, _ = job.checkpoint("s")
    for local_root, downloads_data in ((job.local_root, False), (tmp_path / "another host", True)):
        job.local_root = local_root
        job.start(4, savepoint.path)
        with job.open(0) as store:
            assert store.fetched is not None
            assert (store.fetched.linked_files > 0) is not downloads_data
        assert job.dump() == job.reference


def test_a_local_file_that_has_changed_is_not_linked(job: StateJob) -> None:
    job.start(1)
    job.run_batch(random_batch(1))
    savepoint, _ = job.checkpoint("s")
    for file in job.local_root.rglob("snapshots/*/0/*.sst"):
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    job.start(2, savepoint.path)
    with job.open(0) as store:
        assert store.fetched is not None
        assert store.fetched.linked_files == 0
    assert job.dump() == job.reference


def test_two_processes_cannot_hold_a_subtask_and_waiting_for_one_is_bounded(tmp_path: Path) -> None:
    first = SubtaskDirectory.acquire(tmp_path)
    second = SubtaskDirectory.acquire(tmp_path, wait_seconds=0.05)
    assert second.path != first.path
    third = SubtaskDirectory.acquire(tmp_path, wait_seconds=0.05)
    assert len({first.path, second.path, third.path}) == 3
    for directory in (first, second, third):
        directory.release()
    last = SubtaskDirectory.acquire(tmp_path, wait_seconds=0.05)
    assert last.path == third.path
    assert not first.path.exists(), "older tries are garbage and removed once no process holds them"
    last.release()


def test_a_damaged_marker_or_one_of_another_boot_is_ignored(tmp_path: Path) -> None:
    directory = SubtaskDirectory.acquire(tmp_path)
    marker = CleanMarker(BatchId(1), "lineage", (), boot_id())
    directory.mark_clean(marker)
    assert directory.take_clean_marker() == marker
    assert directory.take_clean_marker() is None, "taken once: from then on the files are dirty"
    directory.mark_clean(CleanMarker(BatchId(1), "lineage", (), "another boot"))
    assert directory.take_clean_marker() is None
    (directory.path / "CLEAN").write_bytes(b"{")
    assert directory.take_clean_marker() is None
    directory.release()


def test_damaged_local_files_are_rebuilt(job: StateJob, caplog: pytest.LogCaptureFixture) -> None:
    job.start(1)
    job.run_batch(random_batch(1))
    for file in job.local_root.rglob("CURRENT"):
        file.write_bytes(b"nonsense\n")
    assert job.dump() == job.reference
    assert "rebuilding" in caplog.text


def test_a_read_only_disk_has_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"")
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(1)
    with pytest.raises(StateError):
        job.open(0)


def test_state_of_changed_formats_is_read_after_a_rescale(job: StateJob) -> None:
    job.start(2)
    job.run_batch({1: 1, 2: 2, 3: 3, 4: 4})
    savepoint, _ = job.checkpoint("s")
    assert all(snapshot.schema for operator in savepoint.operators for snapshot in operator.subtasks)
    job.start(1, savepoint.path)
    assert job.history.schema is not None
    assert [state.name for state in job.history.schema.states] == [COUNT.name]


@pytest.mark.parametrize("parallelisms", short_form([(1, 1), (1, 3), (3, 2)], [(3, 2)]))
def test_large_batches_are_sorted_files_that_serve_store_and_changelog(
    job: StateJob, tmp_path: Path, parallelisms: tuple[int, int]
) -> None:
    job.start(parallelisms[0])
    for round_number in (1, 2):
        job.run_batch(dict.fromkeys(range(40000), round_number))
    job.run_batch(random_batch(1))
    assert any(info.path.endswith(".sst") for info in job.store.list(job.layout.changelogs))
    assert job.dump() == job.reference
    job.local_root = tmp_path / "another host"
    job.start(parallelisms[1])
    assert job.dump() == job.reference
    job.checkpoint()
    facts = gather_facts(job.store, job.job_id, now_ms=4_000_000_000_000)
    delete_planned(job.store, plan_deletion(facts, RetentionPolicy()))
    assert list(job.store.list(job.layout.changelogs)) == []


def test_a_damaged_sorted_file_is_noticed(job: StateJob, tmp_path: Path) -> None:
    job.start(1)
    job.run_batch(dict.fromkeys(range(20000), 1))
    path = next(info.path for info in job.store.list(job.layout.changelogs) if info.path.endswith(".sst"))
    content = job.store.get(path)
    job.store.put(path, content[:-1] + bytes([content[-1] ^ 1]))
    job.local_root = tmp_path / "another host"
    with pytest.raises(ObjectCorruptError):
        job.dump()
    job.store.put(path, content)
    assert job.dump() == job.reference


def test_a_small_state_is_counted_by_key_group_and_a_large_one_estimated(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def look(subtask: SubtaskStore) -> None:
        subtask.engine.flush()
        sizes.extend(subtask.key_group_sizes().entries)

    job.start(2)
    job.run_batch(dict.fromkeys(range(100), 1))
    job.run_batch(dict.fromkeys(range(100), 2))
    job.operate = look
    job.run_batch({})
    groups = [group_of(key) for key in range(100)]
    counted = [groups.count(group) for group in range(MAX_PARALLELISM)]
    assert sizes == counted
    sizes.clear()
    monkeypatch.setattr(store, "ENTRIES_COUNTED_MAX", 99)
    job.run_batch({})
    assert sizes != counted


def test_a_snapshot_a_changelog_and_a_marker_have_all_facts_of_the_store(tmp_path: Path) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    brief = ValueStateDescriptor("brief", pa.int64(), Ttl(1_000))
    job.start(2)
    job.run_batch({})
    settings = RocksDbSettings(bloom_bits=9)
    spec = replace(job.spec(1), settings=settings)
    store = open_subtask(spec, job.version(1), job.plans[1], job.local_root, job.store, clock=BatchClock(5))
    store.keyed.state(brief)
    add(store, dict.fromkeys(list(job.own(1, dict.fromkeys(range(50), 1)))[:1], 1))
    before = store.version
    handle = store.finish_batch(BatchId(1), "unique")
    assert handle is not None
    assert (handle.path, handle.batch_id, handle.subtask, handle.key_groups, handle.mutations) == (
        job.layout.changelog(UID, batch_id=BatchId(1), subtask=SubtaskIndex(1), attempt=job.attempt, unique="unique"),
        1,
        1,
        spec.key_group_range,
        1,
    )
    assert (store.version, handle.schema) == (before.advanced(BatchId(1), handle.path), store.keyed.schema)
    local = store.snapshot(CheckpointId(4))
    assert local == LocalSnapshot(
        directory=str(snapshots_root(store.local_directory) / f"4-{local.unique}"),
        local_root=str(job.local_root),
        job_id=job.job_id,
        operator_uid=UID,
        subtask=SubtaskIndex(1),
        attempt=job.attempt,
        checkpoint_id=CheckpointId(4),
        unique=local.unique,
        version=store.version,
        key_groups=spec.key_group_range,
        shards=(spec.key_group_range,),
        schema=store.keyed.schema,
        ttls={"brief": Ttl(1_000)},
        settings=settings,
    )
    version, schema = store.version, store.keyed.schema
    store.close()
    store.close()
    (marker,) = spec.local_directory(job.local_root).glob("try-*/CLEAN")
    found = CleanMarker.usable(marker.read_bytes())
    assert found is not None
    (shard,) = found.shards
    assert shard.key_groups == spec.key_group_range
    assert found == CleanMarker(BatchId(1), version.lineage, (shard,), boot_id(), schema, {"brief": Ttl(1_000)})
    with open_subtask(spec, version, job.plans[1].followed_by(handle), job.local_root, job.store) as again:
        assert (again.source, again.ttls) == (StateSource.LOCAL, {"brief": Ttl(1_000)})
        assert again.snapshot(CheckpointId(5)).schema == schema
