"""A local file whose bytes change by themselves costs one failed batch at most: the object store has a good copy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import keyscale.state.local.file_index
import keyscale.state.objects.local_store
from keyscale.identifiers import BatchId
from keyscale.state.errors import StoreCorruptError
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keyed.ttl import Cleanup, Ttl
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.restore.opened_shards import StateSource
from keyscale.state.subtask.open_store_cache import OpenStoreCache
from tests.support.state.state_job import ALWAYS, StateJob, add, entries

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from pathlib import Path

    from keyscale.state.subtask.store import SubtaskStore

KEYS = dict.fromkeys(range(200), 1)


class RemoteStore(LocalObjectStore):
    """A store on another disk: it shares no bytes with local files."""

    def upload(self, source: Path, path: str, *, immutable: bool = False) -> None:  # noqa: ARG002
        super().upload(source, path, immutable=False)


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    job = StateJob(RemoteStore(tmp_path / "store"), tmp_path / "local")
    job.start(1)
    job.run_batch(KEYS)
    job.checkpoint()
    return job


def local_files(job: StateJob) -> dict[int, Path]:
    """Returns one link to each local file."""
    return {file.stat().st_ino: file for file in job.local_root.rglob("*.sst")}


def damage(job: StateJob, *, spared: Container[int] = (), at: Callable[[int], int] = lambda _: 10) -> None:
    """Flips a byte of each local file in place, as a failing disk does: its time of modification stays."""
    damaged = {inode: file for inode, file in local_files(job).items() if inode not in spared}
    assert damaged
    for file in damaged.values():
        found = file.stat()
        content = bytearray(file.read_bytes())
        content[at(len(content))] ^= 1
        with file.open("r+b") as opened:
            opened.write(content)
        os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


def read_damage(store: SubtaskStore) -> None:
    with pytest.raises(StoreCorruptError):
        entries(store)
    store.abandon()


def test_a_damaged_file_is_fetched_again_once_a_batch_has_found_the_damage(job: StateJob) -> None:
    damage(job)
    job.recover(1)
    store = job.open(0)
    assert store.fetched is not None
    assert store.fetched.linked_files > 0, "nothing tells yet that the file is damaged"
    read_damage(store)
    job.recover(1)
    with job.open(0) as store:
        assert store.fetched is not None
        assert (store.fetched.linked_files, entries(store)) == (0, KEYS)


def test_sound_files_are_still_linked_once_damage_was_found(job: StateJob) -> None:
    first = set(local_files(job))
    job.run_batch(dict.fromkeys(range(1000, 1200), 1))
    job.checkpoint()
    damage(job, spared=first)
    job.recover(1)
    read_damage(job.open(0))
    with job.open(0) as store:
        assert store.fetched is not None
        assert store.fetched.linked_files > 0
        assert store.fetched.downloaded_files > 0
    assert job.dump() == job.reference


def test_damage_that_is_found_when_the_store_is_opened_is_repaired_at_once(job: StateJob) -> None:
    damage(job, at=lambda size_bytes: size_bytes - 1)  # the end of a file is read first
    job.recover(1)
    with job.open(0) as store:
        assert store.source is StateSource.REBUILT
        assert entries(store) == KEYS


def test_damage_is_not_forgotten_when_a_users_function_catches_the_error(job: StateJob) -> None:
    job.recover(1)
    store = job.open(0)
    damage(job)
    with pytest.raises(StoreCorruptError):
        entries(store)
    add(store, {1000: 1})
    with pytest.raises(StoreCorruptError):
        store.finish_batch(BatchId(1), "unique")
    store.close()
    assert job.dump() == KEYS


def test_files_of_an_earlier_boot_are_verified_before_they_are_linked(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyscale.state.local.file_index, "boot_id", lambda: "the next one")
    job.recover(1)
    with job.open(0) as store:
        assert store.fetched is not None
        assert store.fetched.linked_files > 0
    damage(job)
    monkeypatch.setattr(keyscale.state.local.file_index, "boot_id", lambda: "the one after that")
    job.recover(1)
    with job.open(0) as store:
        assert store.fetched is not None
        assert store.fetched.linked_files == 0
    assert job.dump() == KEYS


def test_a_downloaded_file_is_on_disk_before_it_has_its_name(
    job: StateJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.local_root = tmp_path / "another host"
    synced = set()

    def fsync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(keyscale.state.objects.local_store.os, "fsync", fsync)
    target = tmp_path / "target"
    job.store.download(next(iter(job.store.list(job.layout.shared))).path, target)
    assert target.stat().st_ino in synced


def test_a_savepoint_that_finds_damage_makes_the_open_store_give_its_files_up(tmp_path: Path) -> None:
    clock = BatchClock(processing_time_ms=1000)
    count = ValueStateDescriptor("count", pa.int64(), Ttl(100, cleanup=Cleanup(incremental=None)))
    job = StateJob(RemoteStore(tmp_path / "store"), tmp_path / "local", clock=clock, descriptor=count)
    job.start(1)
    job.run_batch(KEYS)
    job.checkpoint()
    warm = OpenStoreCache()
    job.open = lambda _: warm.take(  # type: ignore[method-assign]
        job.spec(0), job.version(0), job.plans[0], job.local_root, job.store, clock=clock
    )
    store = job.open(0)
    damage(job)
    warm.give_back(store)
    clock.advance(processing_time_ms=1200)  # all entries have expired, so a savepoint reads them
    with pytest.raises(StoreCorruptError):
        job.checkpoint("first")
    savepoint, _ = job.checkpoint("second")
    assert savepoint.savepoint_id == "second"
    warm.close()


def test_a_consolidation_that_finds_damage_makes_the_store_give_its_files_up(tmp_path: Path) -> None:
    job = StateJob(RemoteStore(tmp_path / "store"), tmp_path / "local", policy=ALWAYS)
    job.start(2)
    job.run_batch(KEYS)
    savepoint, _ = job.checkpoint("s")
    job.start(1, savepoint.path)
    job.checkpoint()
    damage(job)
    with pytest.raises(StoreCorruptError):
        job.consolidate()
    assert job.dump() == KEYS
