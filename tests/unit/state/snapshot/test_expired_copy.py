"""A savepoint leaves out expired entries without changing the job."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from keyscale.identifiers import CheckpointId
from keyscale.state.inspection.checkpoint_reader import CheckpointReader
from keyscale.state.inspection.summary import summarize
from keyscale.state.keyed.batch_clock import BatchClock, TimeDomain
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keyed.ttl import Cleanup, Ttl
from keyscale.state.layout import location_of
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.snapshot import expired_copy as cleaned_copy
from keyscale.state.snapshot.snapshot import upload_snapshot
from keyscale.state.subtask.store import SubtaskStore
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from keyscale.state.documents.manifest import Manifest

QUIET = Cleanup(incremental=None)
TTL = Ttl(100, cleanup=QUIET)


def counting(ttl: Ttl | None) -> ValueStateDescriptor:
    return ValueStateDescriptor("count", pa.int64(), ttl)


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    """500 expired keys, and 300 that have not expired."""
    return filled(tmp_path, TTL)


def filled(tmp_path: Path, ttl: Ttl | None) -> StateJob:
    clock = BatchClock(processing_time_ms=1000, event_time_ms=1000)
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local", clock=clock, descriptor=counting(ttl))
    job.start(2)
    job.run_batch(dict.fromkeys(range(500), 1))
    clock.advance(processing_time_ms=1060, event_time_ms=1060)
    job.run_batch(dict.fromkeys(range(500, 800), 1))
    clock.advance(processing_time_ms=1100, event_time_ms=1100)
    return job


def stored_in(job: StateJob, manifest: Manifest, scratch: Path) -> int:
    """Returns how many entries a snapshot holds, including expired ones."""
    summary = summarize(CheckpointReader.open(location_of(job.store.url, manifest.path), scratch))
    return sum(state.entries for operator in summary.operators for state in operator.states)


def stored_locally(job: StateJob) -> int:
    count = 0
    for index in range(job.parallelism):
        with job.open(index) as store:
            count += sum(1 for _ in store.engine.scan("count", b"", None))
    return count


def test_a_savepoint_holds_no_expired_entry(job: StateJob, tmp_path: Path) -> None:
    savepoint, _ = job.checkpoint("s")
    assert stored_in(job, savepoint, tmp_path) == 300
    assert stored_locally(job) == 800, "the job's own files are not touched"
    assert job.dump() == dict.fromkeys(range(500, 800), 1)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_cleaned_savepoint_is_restored(job: StateJob, tmp_path: Path, parallelism: int) -> None:
    savepoint, _ = job.checkpoint("s")
    for path in (tmp_path / "local", tmp_path / "store" / job.layout.shared):
        shutil.rmtree(path, ignore_errors=True)
    job.start(parallelism, savepoint.path)
    assert job.dump() == dict.fromkeys(range(500, 800), 1)
    assert stored_locally(job) == 300


def test_a_cleaned_savepoint_is_smaller_and_holds_only_rocksdbs_files(job: StateJob, tmp_path: Path) -> None:
    cleaned, _ = job.checkpoint("cleaned")
    job.descriptor = counting(replace(TTL, cleanup=replace(QUIET, full_snapshot=False)))
    job.start(2)
    job.dump()  # declares the TTL without cleanup
    whole, _ = job.checkpoint("whole")
    assert stored_in(job, whole, tmp_path) == 800
    assert cleaned.state_size_bytes < whole.state_size_bytes
    assert {file.name.strip("0123456789-.") for file in cleaned.files()} == {
        file.name.strip("0123456789-.") for file in whole.files()
    }


def test_a_checkpoint_keeps_expired_entries(job: StateJob, tmp_path: Path) -> None:
    checkpoint, _ = job.checkpoint()
    assert stored_in(job, checkpoint, tmp_path) == 800


def test_by_event_time_the_watermark_decides(tmp_path: Path) -> None:
    job = filled(tmp_path, replace(TTL, time_domain=TimeDomain.EVENT))
    job.clock = BatchClock(processing_time_ms=9_999_999, event_time_ms=1099)
    early, _ = job.checkpoint("early")
    assert stored_in(job, early, tmp_path) == 800
    job.clock.advance(event_time_ms=1100)
    due, _ = job.checkpoint("due")
    assert stored_in(job, due, tmp_path) == 300


def test_a_ttl_that_this_attempt_has_not_declared_removes_nothing(job: StateJob, tmp_path: Path) -> None:
    """The user may have made the TTL longer, so an earlier attempt's TTL no longer counts."""
    job.start(2)
    undeclared, _ = job.checkpoint("undeclared")
    assert stored_in(job, undeclared, tmp_path) == 800
    job.descriptor = counting(replace(TTL, duration_ms=10_000))
    assert len(job.dump()) == 800
    longer, _ = job.checkpoint("longer")
    assert stored_in(job, longer, tmp_path) == 800


def test_entries_from_before_the_ttl_was_turned_on_stay(tmp_path: Path) -> None:
    job = filled(tmp_path, None)
    job.descriptor = counting(TTL)
    assert len(job.dump()) == 800
    savepoint, _ = job.checkpoint("s")
    assert stored_in(job, savepoint, tmp_path) == 800


def test_if_an_earlier_attempts_ttl_counted_live_entries_would_be_lost(
    job: StateJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(2)
    monkeypatch.setattr(SubtaskStore, "ttls", {"count": TTL})
    lost, _ = job.checkpoint("lost")
    assert stored_in(job, lost, tmp_path) == 300


@pytest.mark.parametrize("step", ["snapshot.copy_cleaned", "snapshot.copy_removed"])
def test_a_cleaning_that_died_is_repeated(job: StateJob, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    with job.open(0) as store:
        local = store.snapshot(CheckpointId(7))

    def die(name: str) -> None:
        if name == step:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cleaned_copy, "failpoint", die)
        with pytest.raises(KeyboardInterrupt):
            upload_snapshot(local, job.store, job.layout, {}, "s", clock=job.clock)
    uploaded = upload_snapshot(local, job.store, job.layout, {}, "s", clock=job.clock)
    whole = upload_snapshot(local, job.store, job.layout, {}, "again", clock=job.clock)
    assert uploaded.handle.state_size_bytes == whole.handle.state_size_bytes > 0
    assert not list(Path(local.directory).glob("*.cleaned"))
