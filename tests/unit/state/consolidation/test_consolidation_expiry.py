"""Expired entries are left out when a store is rewritten beside the batches."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from keyscale.state.consolidation import consolidator
from keyscale.state.consolidation.policy import DEFAULT_POLICY
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keyed.ttl import Cleanup, Ttl
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.state.state_job import ALWAYS, StateJob, add
from tests.support.state.two_shards import sst_files

if TYPE_CHECKING:
    from pathlib import Path


def test_expired_entries_are_left_out_if_their_ttl_asks_for_it(tmp_path: Path) -> None:
    for compaction in (True, False):
        root = tmp_path / str(compaction)
        ttl = Ttl(1000, cleanup=Cleanup(incremental=None, compaction=compaction))
        counted = ValueStateDescriptor("count", pa.int64(), ttl)
        job = StateJob(LocalObjectStore(root / "store"), root / "local", policy=ALWAYS, descriptor=counted)
        job.start(2)
        job.run_batch(dict.fromkeys(range(50), 1))
        manifest, _ = job.checkpoint()
        job.start(1, manifest.path)
        job.clock.advance(processing_time_ms=700)
        job.run_batch(dict.fromkeys(range(10), 1))
        job.checkpoint()
        job.clock.advance(processing_time_ms=1000)
        assert job.consolidate()
        with job.open(0) as store:
            assert store.shard_count == 1
            assert len(list(store.engine.scan("count", b"", None))) == (10 if compaction else 50)


@pytest.mark.parametrize("compaction", [True, False])
def test_a_store_that_was_never_rescaled_is_compacted_to_free_expired_entries(tmp_path: Path, compaction: bool) -> None:
    ttl = Ttl(1000, cleanup=Cleanup(incremental=None, compaction=compaction))
    counted = ValueStateDescriptor("count", pa.int64(), ttl)
    policy = replace(DEFAULT_POLICY, foreign_bytes_min=1)
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local", policy=policy, descriptor=counted)
    job.start(1)
    job.run_batch(dict.fromkeys(range(500), 1))
    job.clock.advance(processing_time_ms=999)
    job.run_batch(dict.fromkeys(range(100), 1))
    job.checkpoint()
    assert not job.consolidate(), "no entry has expired"
    job.clock.advance(processing_time_ms=1000)
    job.checkpoint()
    assert job.consolidate() == compaction
    with job.open(0) as store:
        assert len(list(store.engine.scan("count", b"", None))) == (100 if compaction else 500)
    job.checkpoint()
    assert not job.consolidate(), "too little is left to free"
    assert len(job.dump()) == 100


def test_a_store_whose_entries_have_all_expired_shrinks_to_nothing_without_a_rescale(tmp_path: Path) -> None:
    counted = ValueStateDescriptor("count", pa.int64(), Ttl(1000, cleanup=Cleanup(incremental=None)))
    policy = replace(DEFAULT_POLICY, foreign_bytes_min=1)
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local", policy=policy, descriptor=counted)
    job.start(1)
    job.run_batch(dict.fromkeys(range(20_000), 1))
    job.checkpoint()
    before = sum(file.stat().st_size for file in sst_files(job))
    job.clock.advance(processing_time_ms=1000)
    job.checkpoint()
    assert job.consolidate()
    with job.open(0) as store:
        assert not list(store.engine.scan("count", b"", None))
    assert sum(file.stat().st_size for file in sst_files(job)) < before / 10
    manifest, _ = job.checkpoint()
    assert not job.consolidate(), "nothing is left"
    job.start(2, manifest.path)
    job.run_batch({7: 3})
    assert job.dump() == {7: 3}


def test_a_large_live_state_is_not_rewritten_for_a_small_expired_one(tmp_path: Path) -> None:
    brief = ValueStateDescriptor("brief", pa.int64(), Ttl(1000, cleanup=Cleanup(incremental=None)))
    policy = replace(DEFAULT_POLICY, foreign_bytes_min=1)
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local", policy=policy)
    job.operate = lambda store: add(store, dict.fromkeys(range(small), 1), brief)
    job.start(1)
    for small, worth_it in ((500, False), (20_000, True)):
        job.run_batch(dict.fromkeys(range(20_000), 1))
        job.clock.advance(processing_time_ms=job.clock.processing_time_ms + 1000)
        job.checkpoint()
        assert job.consolidate() == worth_it
        with job.open(0) as store:
            assert len(list(store.engine.scan("count", b"", None))) == 20_000
            assert len(list(store.engine.scan("brief", b"", None))) == (0 if worth_it else small)


@pytest.mark.parametrize("clock", [BatchClock(7000, 4000), None], ids=["a clock", "no clock"])
def test_a_process_of_its_own_removes_entries_by_the_same_processing_and_event_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: BatchClock | None
) -> None:
    commands: list[list[str]] = []
    consolidated: list[Any] = []

    def popen(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(wait=lambda: None)

    monkeypatch.setattr(consolidator, "subprocess", SimpleNamespace(Popen=popen, DEVNULL=None))
    consolidator.start_consolidator(tmp_path, os.getpid(), clock)
    monkeypatch.setattr(consolidator, "consolidate", lambda *given: consolidated.append(given))
    monkeypatch.setattr(consolidator, "_end_with", lambda _: None)
    monkeypatch.setattr(os, "nice", lambda _: None)
    [[_, _, _, *arguments]] = commands
    assert consolidator.main(arguments) == 0
    [(directory, given)] = consolidated
    assert directory == tmp_path
    times = [None if each is None else (each.processing_time_ms, each.event_time_ms) for each in (given, clock)]
    assert times[0] == times[1]
