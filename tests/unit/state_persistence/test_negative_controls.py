"""Each guard of the state package is switched off once: then the property breaks that it is there for.

Every test shows the property with the guard first, so that it is the guard that makes the difference.
"""

from __future__ import annotations

import fcntl
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

import state.directory
import state.formats
import state.local_files
import state.objects.local
import state.opened_shards
import state.rebuild
import state.restore
import state.sealed
import state.serializers.values
import state.subtask
from state.descriptors import ValueStateDescriptor
from state.directory import CleanMarker, SubtaskDirectory
from state.errors import (
    PickleNotAskedForError,
    StoreCorruptError,
)
from state.formats import ValueFormats
from state.heap import HeapEngine
from state.identifiers import BatchId
from state.key_groups import key_group_range
from state.keyed import KeyedStateBackend
from state.log import FencedError
from state.objects import LocalObjectStore, ObjectCorruptError
from state.objects.errors import ConditionalCreateUnsupportedError
from state.objects.local import receive
from state.objects.probe import probe
from state.restore import CoverError, RestorePlan
from state.sealed import DocumentCorruptError
from state.serializers import Pickled
from state.serializers.pickled import decode_pickle, encode_pickle
from state.shards import ShardedEngine
from state.subtask import SORTED_FILE_MUTATIONS_MIN
from state.sweep import Sweeper
from state.ttl import BatchClock, Cleanup, IncrementalCleanup, Ttl
from tests.support.state_job import KEY_SCHEMA, MAX_PARALLELISM, StateJob, add, entries, group_of

if TYPE_CHECKING:
    from pathlib import Path

    from state.manifest import Manifest

KEYS = dict.fromkeys(range(200), 1)


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    return StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")


def nothing(*_: Any, **__: Any) -> None:
    """A guard that is switched off."""


def foreign_keys(job: StateJob, local_root: Path) -> int:
    """How many keys the subtasks of a job, rebuilt below a local root, show that are not theirs."""
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
    monkeypatch.setattr(state.opened_shards, "clip", nothing)
    assert foreign_keys(job, tmp_path / "not clipped") > 0


def test_without_clipping_changelogs_bring_keys_of_neighbours(
    job: StateJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(2)
    job.run_batch(KEYS)
    job.start(4)
    assert foreign_keys(job, tmp_path / "clipped") == 0
    monkeypatch.setattr(state.rebuild, "clip_runs", lambda runs, _: runs)
    assert foreign_keys(job, tmp_path / "not clipped") > 0


def test_without_clipping_ingested_files_bring_keys_of_neighbours(
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
    monkeypatch.setattr(state.restore, "check_cover", nothing)
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
        state.objects.local,
        "receive",
        lambda source, path, target, **_: receive(source, path, target, size_bytes=None, sha256=None),
    )
    store = job.open(0)
    with pytest.raises(StoreCorruptError):  # RocksDB's own checksums are the last line: they find it in mid-batch
        entries(store)
    store.abandon()


def test_without_its_checksum_a_document_says_what_nobody_wrote(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> None:
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
        state.sealed, "hashlib", SimpleNamespace(sha256=lambda _: SimpleNamespace(hexdigest=lambda: recorded))
    )
    last = job.log.last()
    assert last is not None
    assert last[1].committed_at_ms == 9  # type: ignore[union-attr]  # it is a BatchCommitted


def test_without_the_identity_of_files_a_changed_local_file_is_linked(
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
    monkeypatch.setattr(state.local_files, "_is_still", lambda path, _: path.exists())
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


def test_when_the_clean_marker_stays_a_dirty_store_is_used(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def scenario() -> dict[int, int]:
        store = job.open(0)
        add(store, {1: 100})
        store.finish_batch(BatchId(1), os.urandom(4).hex())
        store.engine.flush()
        store.abandon()  # as a killed worker: finished, and never committed
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


def test_when_the_lineage_is_not_compared_an_uncommitted_batch_is_kept(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(1)
    job.run_batch({1: 1})
    wanted = job.version(0).lineage
    job.run_task(0, BatchId(1), {1: 100})  # finished, closed cleanly, and never committed
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
        value = backend.value_state(ValueStateDescriptor("count", pa.int64(), Ttl(100, cleanup=cleanup)))
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


def test_without_the_refusal_a_checkpoints_own_schema_would_run_code(monkeypatch: pytest.MonkeyPatch) -> None:
    ran.clear()
    backend = KeyedStateBackend(HeapEngine(), KEY_SCHEMA)
    backend.value_state(ValueStateDescriptor("any", Pickled()))
    schema = backend.schema.state("any")
    assert schema is not None
    raw = b"\0" + encode_pickle(Payload())
    with pytest.raises(PickleNotAskedForError):
        ValueFormats(schema, 0).unpack(raw)
    assert ran == []
    monkeypatch.setattr(state.serializers.values, "refuse_pickle", decode_pickle)
    ValueFormats(schema, 0).unpack(raw)
    assert ran == ["code"]


def test_when_the_boot_is_not_compared_files_that_lost_power_are_used(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_power() -> None:
        """Nothing was synced but the marker: a file has a hole where its first block was."""
        with job.open(0):
            pass
        for file in job.local_root.rglob("data-*/*/*.sst"):
            file.write_bytes(bytes(100) + file.read_bytes()[100:])

    job.start(1)
    job.run_batch(KEYS)
    lose_power()
    monkeypatch.setattr(state.directory, "boot_id", lambda: "the next one")
    assert job.dump() == KEYS
    monkeypatch.setattr(state.subtask, "boot_id", lambda: "the next one")  # as if all that had been in one boot
    lose_power()
    store = job.open(0)
    assert store.fetched is None
    with pytest.raises(StoreCorruptError):
        entries(store)
    store.abandon()
