"""Each guard of the state package is switched off once; then the property that it protects breaks.

Every test first shows the property with the guard, which proves that the guard makes the difference.
"""

from __future__ import annotations

import fcntl
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

import keyscale.state.documents.checked_document
import keyscale.state.keyed.formats
import keyscale.state.local.file_index
import keyscale.state.local.subtask_directory
import keyscale.state.objects.local_store
import keyscale.state.restore.opened_shards
import keyscale.state.restore.plan
import keyscale.state.restore.rebuild
import keyscale.state.serializers.value_serializer
import keyscale.state.subtask.store
from keyscale.identifiers import BatchId
from keyscale.state.documents.checked_document import DocumentCorruptError
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.engine.sharded import ShardedEngine
from keyscale.state.errors import PickleNotAskedForError, StoreCorruptError
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.cleanup import Sweeper
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keyed.formats import ValueFormats
from keyscale.state.keyed.ttl import Cleanup, IncrementalCleanup, Ttl
from keyscale.state.keys.key_groups import key_group_range
from keyscale.state.local.subtask_directory import CleanMarker, SubtaskDirectory
from keyscale.state.log.commit_log import FencedError
from keyscale.state.objects.errors import ConditionalCreateUnsupportedError, ObjectCorruptError
from keyscale.state.objects.local_store import LocalObjectStore, receive
from keyscale.state.objects.object_store import probe
from keyscale.state.restore.plan import CoverError, RestorePlan
from keyscale.state.serializers.pickled import Pickled, decode_pickle, encode_pickle
from keyscale.state.subtask.store import SORTED_FILE_MUTATIONS_MIN
from tests.support.state.state_job import KEY_SCHEMA, MAX_PARALLELISM, StateJob, add, entries, group_of

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.state.documents.manifest import Manifest

KEYS = dict.fromkeys(range(200), 1)


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    return StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")


def nothing(*_: Any, **__: Any) -> None:
    """Stands for a guard that is switched off."""


def foreign_keys(job: StateJob, local_root: Path) -> int:
    """Returns how many foreign keys the subtasks of a job show that are rebuilt below a local root."""
    job.local_root = local_root
    count = 0
    for index in range(job.parallelism):
        own = key_group_range(MAX_PARALLELISM, job.parallelism, index)
        with job.open(index) as store:
            count += sum(group_of(key) not in own for key in entries(store))
    return count


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def damage_a_shared_file(job: StateJob, manifest: Manifest) -> None:
    """Flips a byte of a file's first block, which RocksDB does not read when it opens the file."""
    path = next(file.path for file in manifest.files() if file.shared)
    job.store.put(path, flipped(job.store.get(path), 10))


def test_without_clipping_a_shard_shows_keys_of_its_neighbours(
    job: StateJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(2)
    job.run_batch(KEYS)
    savepoint, _ = job.checkpoint("s")
    job.start(4, savepoint.path)
    assert foreign_keys(job, tmp_path / "clipped") == 0
    monkeypatch.setattr(keyscale.state.restore.rebuild, "clip", nothing)
    assert foreign_keys(job, tmp_path / "not clipped") > 0


def test_without_clipping_changelogs_add_keys_of_neighbours(
    job: StateJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(2)
    job.run_batch(KEYS)
    job.start(4)
    assert foreign_keys(job, tmp_path / "clipped") == 0
    monkeypatch.setattr(keyscale.state.restore.rebuild, "clip_runs", lambda runs, _: runs)
    assert foreign_keys(job, tmp_path / "not clipped") > 0


def test_without_clipping_ingested_files_add_keys_of_neighbours(
    job: StateJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(1)
    job.run_batch(dict.fromkeys(range(SORTED_FILE_MUTATIONS_MIN), 1))
    job.start(2)
    assert foreign_keys(job, tmp_path / "clipped") == 0
    monkeypatch.setattr(ShardedEngine, "delete_range", nothing)
    assert foreign_keys(job, tmp_path / "not clipped") > 0


def test_without_the_cover_check_a_lost_snapshot_loses_state_silently(
    job: StateJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(2)
    job.run_batch(KEYS)
    savepoint, _ = job.checkpoint("s")
    job.start(1, savepoint.path)
    job.plans = [RestorePlan(job.plans[0].snapshots[:1])]
    job.local_root = tmp_path / "other"
    with pytest.raises(CoverError):
        job.dump()
    monkeypatch.setattr(keyscale.state.restore.plan, "check_cover", nothing)
    assert 0 < len(job.dump()) < len(KEYS)


def test_without_its_checksum_a_flipped_byte_of_a_file_gets_into_the_state(
    job: StateJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(1)
    job.run_batch(KEYS)
    manifest, _ = job.checkpoint()
    damage_a_shared_file(job, manifest)
    job.local_root = tmp_path / "checked"
    with pytest.raises(ObjectCorruptError):
        job.open(0)
    job.local_root = tmp_path / "not checked"
    monkeypatch.setattr(
        keyscale.state.objects.local_store,
        "receive",
        lambda source, path, target, **_: receive(source, path, target, size_bytes=None, sha256=None),
    )
    store = job.open(0)
    with pytest.raises(StoreCorruptError):  # RocksDB's own checksums find it in the middle of a batch
        entries(store)
    store.abandon()


def test_without_its_checksum_a_changed_document_is_accepted(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job.start(1)
    job.run_batch(KEYS)
    path = [info.path for info in job.store.list(job.layout.log)][-1]
    data = job.store.get(path)
    job.store.put(path, data.replace(b'"committed_at_ms":0', b'"committed_at_ms":9'))
    assert job.store.get(path) != data
    with pytest.raises(DocumentCorruptError):
        job.log.last()
    recorded = msgspec.json.decode(data)["sha256"]
    monkeypatch.setattr(
        keyscale.state.documents.checked_document,
        "hashlib",
        SimpleNamespace(sha256=lambda _: SimpleNamespace(hexdigest=lambda: recorded)),
    )
    last = job.log.last()
    assert last is not None
    assert last[1].committed_at_ms == 9  # type: ignore[union-attr]  # it is a BatchCommitted


def test_without_comparing_file_identities_a_changed_local_file_is_linked(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(1)
    job.run_batch(KEYS)
    savepoint, _ = job.checkpoint("s")
    for file in job.local_root.rglob("snapshots/*/0/*.sst"):
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(flipped(content, 10))
    job.start(2, savepoint.path)
    with job.open(0) as store:
        assert store.fetched is not None
        assert store.fetched.linked_files == 0
    monkeypatch.setattr(keyscale.state.local.file_index, "_is_unchanged", lambda path, _: path.exists())
    store = job.open(1)
    assert store.fetched is not None
    assert store.fetched.linked_files > 0
    store.abandon()


class ForgivingStore(LocalObjectStore):
    """Ignores the condition of a conditional create."""

    def create(self, path: str, data: bytes) -> None:
        self.put(path, data)


@pytest.mark.parametrize("kind", [LocalObjectStore, ForgivingStore])
def test_on_a_store_that_ignores_the_condition_two_attempts_commit(
    tmp_path: Path, kind: type[LocalObjectStore]
) -> None:
    older = StateJob(kind(tmp_path / "store"), tmp_path / "older")
    older.start(1)
    newer = StateJob(older.store, tmp_path / "newer")
    newer.start(1)
    newer.run_batch({1: 1})
    if kind is LocalObjectStore:
        probe(older.store)
        with pytest.raises(FencedError):
            older.run_batch({1: 100})
        assert newer.dump() == {1: 1}
        return
    with pytest.raises(ConditionalCreateUnsupportedError):
        probe(older.store)
    older.run_batch({1: 100})
    assert (older.dump(), newer.dump()) == ({1: 100}, {1: 1}), "each holds its own batch 0 for committed"


def test_if_the_clean_marker_stays_a_dirty_store_is_used(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def scenario() -> dict[int, int]:
        store = job.open(0)
        add(store, {1: 100})
        store.finish_batch(BatchId(1), os.urandom(4).hex())
        store.engine.flush()
        store.abandon()  # like a killed worker: finished, but never committed
        return job.dump()

    job.start(1)
    job.run_batch({1: 1})
    assert scenario() == {1: 1}
    taken = SubtaskDirectory.take_clean_marker

    def left_in_place(self: SubtaskDirectory) -> CleanMarker | None:
        marker = taken(self)
        if marker is not None:
            self.mark_clean(marker)
        return marker

    monkeypatch.setattr(SubtaskDirectory, "take_clean_marker", left_in_place)
    assert scenario() == {1: 101}


def test_if_the_lineage_is_not_compared_an_uncommitted_batch_is_kept(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(1)
    job.run_batch({1: 1})
    wanted = job.version(0).lineage
    job.run_task(0, BatchId(1), {1: 100})  # finished and closed cleanly, but never committed
    assert job.dump() == {1: 1}
    taken = SubtaskDirectory.take_clean_marker

    def believed(self: SubtaskDirectory) -> CleanMarker | None:
        marker = taken(self)
        return None if marker is None else msgspec.structs.replace(marker, lineage=wanted)

    job.run_task(0, BatchId(1), {1: 100})
    monkeypatch.setattr(SubtaskDirectory, "take_clean_marker", believed)
    assert job.dump() == {1: 101}


def test_without_the_lock_two_tasks_have_the_same_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = SubtaskDirectory.acquire(tmp_path)
    second = SubtaskDirectory.acquire(tmp_path, wait_seconds=0)
    assert first.path != second.path
    monkeypatch.setattr(fcntl, "flock", nothing)
    third = SubtaskDirectory.acquire(tmp_path, wait_seconds=0)
    assert third.path == second.path
    for directory in (first, second, third):
        directory.release()


def test_a_sweep_that_ignores_the_batch_removes_what_the_batch_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    def left_after_a_sweep() -> int | None:
        clock = BatchClock(processing_time_ms=1000)
        engine = HeapEngine()
        backend = KeyedStateBackend(engine, KEY_SCHEMA, clock)
        cleanup = Cleanup(full_snapshot=False, incremental=IncrementalCleanup(1000), compaction=False)
        value = backend.state(ValueStateDescriptor("count", pa.int64(), Ttl(100, cleanup=cleanup)))
        backend.set_current_key(0, (1,))
        value.update(1)
        engine.write_runs(backend.drain())
        clock.advance(processing_time_ms=2000)
        value.update(2)
        backend.set_current_key(0, (2,))
        value.value()
        engine.write_runs(backend.drain())
        backend.set_current_key(0, (1,))
        found: int | None = value.value()
        return found

    def reckless(self: Sweeper) -> None:
        pending = self._pending
        pending.settle()
        expired = self._expired()
        pending.entries.update({key: None for key, raw in self._engine.scan(pending.family, b"", None) if expired(raw)})

    assert left_after_a_sweep() == 2
    monkeypatch.setattr(Sweeper, "step", reckless)
    assert left_after_a_sweep() is None


ran: list[str] = []


class Payload:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (run, ("code",))


def run(what: str) -> None:
    ran.append(what)


def test_without_the_refusal_a_checkpoints_own_schema_runs_code(monkeypatch: pytest.MonkeyPatch) -> None:
    ran.clear()
    backend = KeyedStateBackend(HeapEngine(), KEY_SCHEMA)
    backend.state(ValueStateDescriptor("any", Pickled()))
    schema = backend.schema.state("any")
    assert schema is not None
    raw = b"\0" + encode_pickle(Payload())
    with pytest.raises(PickleNotAskedForError):
        ValueFormats(schema, 0).unpack(raw)
    assert ran == []
    monkeypatch.setattr(keyscale.state.serializers.value_serializer, "refuse_pickle", decode_pickle)
    ValueFormats(schema, 0).unpack(raw)
    assert ran == ["code"]


def test_if_the_boot_is_not_compared_files_damaged_by_a_power_loss_are_used(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_power() -> None:
        """Only the marker was synced: a file has a hole where its first block was."""
        with job.open(0):
            pass
        for file in job.local_root.rglob("data-*/*/*.sst"):
            file.write_bytes(bytes(100) + file.read_bytes()[100:])

    job.start(1)
    job.run_batch(KEYS)
    lose_power()
    monkeypatch.setattr(keyscale.state.local.subtask_directory, "boot_id", lambda: "the next one")
    assert job.dump() == KEYS
    monkeypatch.setattr(
        keyscale.state.subtask.store, "boot_id", lambda: "the next one"
    )  # as if all of it had happened in one boot
    lose_power()
    store = job.open(0)
    assert store.fetched is None
    with pytest.raises(StoreCorruptError):
        entries(store)
    store.abandon()
