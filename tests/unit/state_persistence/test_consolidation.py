"""Shards are merged and trimmed beside the batches, and taken in between two of them: the same state, on fewer files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import state.consolidator
from state.consolidation import DEFAULT_POLICY, Consolidation, ConsolidationFacts, decide, foreign_bytes
from state.consolidation_directory import consolidations
from state.consolidator import ConsolidationUnwantedError, consolidate, start_consolidator
from state.descriptors import ValueStateDescriptor
from state.errors import StateError
from state.heap import HeapEngine
from state.identifiers import BatchId
from state.key_group_sizes import FileFacts
from state.key_groups import KeyGroupRange
from state.merging import merge_shards
from state.objects import LocalObjectStore
from state.rocksdb import RocksDbEngine
from state.shards import ShardedEngine
from state.swap import SWAP_CHANGELOGS_MAX
from state.tail import TailEntry, certain, leading
from state.ttl import Cleanup, Ttl
from state.warm_stores import WarmStores
from tests.support.state_job import ALWAYS, StateJob, add
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from state.engine import Engine

MEBIBYTE = 1 << 20
FACTS = ConsolidationFacts(shards=1, file_bytes=100 * MEBIBYTE, foreign_bytes=0, free_bytes=1000 * MEBIBYTE)


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    """Two subtasks, rescaled to one: it has two shards."""
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local", policy=ALWAYS)
    job.start(2)
    job.run_batch(dict.fromkeys(range(300), 1))
    job.run_batch(dict.fromkeys(range(0, 300, 7), 5))
    manifest, _ = job.checkpoint()
    job.start(1, manifest.path)
    return job


def leftovers(job: StateJob) -> list[Path]:
    """What there is of consolidations on this host."""
    return [path for path in job.local_root.rglob("consolidation/*") if path.is_dir()]


def sst_files(job: StateJob, index: int = 0) -> list[Path]:
    return sorted(job.spec(index).local_directory(job.local_root).glob("try-*/**/*.sst"))


# Deciding.


@pytest.mark.parametrize(
    ("facts", "decided"),
    [
        (FACTS, Consolidation.NOTHING),
        (replace(FACTS, shards=2), Consolidation.MERGE),
        (replace(FACTS, shards=2, foreign_bytes=90 * MEBIBYTE), Consolidation.MERGE),
        (replace(FACTS, foreign_bytes=50 * MEBIBYTE), Consolidation.TRIM),
        (replace(FACTS, foreign_bytes=24 * MEBIBYTE), Consolidation.NOTHING),
        (replace(FACTS, file_bytes=20 * MEBIBYTE, foreign_bytes=15 * MEBIBYTE), Consolidation.NOTHING),
        (replace(FACTS, expired_bytes=50 * MEBIBYTE), Consolidation.TRIM),
        (replace(FACTS, foreign_bytes=15 * MEBIBYTE, expired_bytes=15 * MEBIBYTE), Consolidation.TRIM),
        (replace(FACTS, expired_bytes=24 * MEBIBYTE), Consolidation.NOTHING),
        (replace(FACTS, shards=2, free_bytes=199 * MEBIBYTE), Consolidation.NOTHING),
        (replace(FACTS, shards=2, given_up_seconds=599.0), Consolidation.NOTHING),
        (replace(FACTS, shards=2, given_up_seconds=600.0), Consolidation.MERGE),
    ],
)
def test_what_is_worth_its_cost_is_decided_from_facts(facts: ConsolidationFacts, decided: Consolidation) -> None:
    assert decide(facts) is decided


def test_a_file_is_foreign_by_the_share_of_the_key_groups_it_spans_that_are() -> None:
    own = KeyGroupRange(4, 7)
    assert foreign_bytes([FileFacts(b"\0\4x", b"\0\7x", 1, 1000)], own) == 0
    assert foreign_bytes([FileFacts(b"\0\0x", b"\0\3x", 1, 1000)], own) == 1000
    assert foreign_bytes([FileFacts(b"\0\0x", b"\0\7x", 1, 1000), FileFacts(b"\0\7", b"\0\x08", 1, 10)], own) == 505


def test_changelogs_lead_from_one_version_to_another_past_those_of_failed_tries() -> None:
    one, lost, two = (TailEntry(BatchId(1), "a", "b"), TailEntry(BatchId(2), "b", "x"), TailEntry(BatchId(2), "b", "c"))
    assert leading([one, lost, two], "a", "c") == [one, two]
    assert leading([one, lost, two], "c", "c") == []
    assert leading([lost, two], "a", "c") is None
    assert leading([one, lost, two], "a", "nowhere") is None


def test_only_changelogs_that_a_later_one_builds_upon_are_certain() -> None:
    one, lost, two = (TailEntry(BatchId(1), "a", "b"), TailEntry(BatchId(2), "b", "x"), TailEntry(BatchId(2), "b", "c"))
    assert certain([one, lost, two], "a") == [one]
    assert certain([one, lost, two, TailEntry(BatchId(3), "c", "d")], "a") == [one, two]
    assert certain([one, lost, two], "b") == []


# Merging on engines alone.


@pytest.mark.parametrize("kind", ["heap", "rocksdb"])
def test_merging_keeps_every_own_entry_and_no_other(tmp_path: Path, kind: str) -> None:
    def engine(name: str) -> Engine:
        return HeapEngine() if kind == "heap" else RocksDbEngine(tmp_path / name)

    first, second = engine("first"), engine("second")
    both = {family: {bytes([0, n % 16, n]): bytes([n]) for n in range(128)} for family in ("a", "b")}
    for made in (first, second):
        for family, items in both.items():
            for key, value in items.items():
                made.write([(family, key, value)])  # type: ignore[list-item]  # a mutation is a tuple
    only_second = bytes([0, 9]), b"here"
    second.write([("c", *only_second)])  # type: ignore[list-item]
    own, others = KeyGroupRange(2, 7), KeyGroupRange(8, 11)
    expected = ShardedEngine([(own, first), (others, second)])
    before = {family: list(expected.scan(family, b"", None)) for family in ("a", "b", "c")}
    merge_shards(first, own, [(others, second)], tmp_path)
    assert {family: list(first.scan(family, b"", None)) for family in ("a", "b", "c")} == before
    assert before["c"] == [only_second]
    assert len(before["a"]) == 80
    first.close()
    second.close()
    assert not list(tmp_path.glob("*.sst"))


# The whole way.


def test_several_shards_become_one(job: StateJob) -> None:
    assert job.shards() == [2]
    job.checkpoint()
    assert job.consolidate()
    job.run_batch({1: 1, 1000: 3})
    assert job.shards() == [1]
    assert job.dump() == job.reference
    assert leftovers(job) == []
    job.checkpoint()
    assert job.consolidation is None
    job.recover(1)
    assert job.dump() == job.reference


def test_a_shard_that_was_clipped_gets_rid_of_what_is_foreign(tmp_path: Path) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local", policy=ALWAYS)
    job.start(1)
    job.run_batch(dict.fromkeys(range(8_000), 1))
    manifest, _ = job.checkpoint()
    job.start(2, manifest.path)
    before = [sum(file.stat().st_size for file in files_of(job, index)) for index in range(2)]
    for index in range(2):  # one at a time on a host
        assert job.shards() == [1, 1]
        job.checkpoint()
        assert job.consolidation is not None
        assert job.consolidate(), index
        job.run_batch({index: 1})
    after = [sum(file.stat().st_size for file in files_of(job, index)) for index in range(2)]
    assert all(now < then * 0.7 for now, then in zip(after, before, strict=True)), (before, after)
    assert job.dump() == job.reference
    job.checkpoint()
    assert job.consolidation is None


def files_of(job: StateJob, index: int) -> list[Path]:
    with job.open(index):
        pass
    return sst_files(job, index)


def test_batches_go_on_while_shards_are_merged_and_are_caught_up_with(job: StateJob) -> None:
    job.checkpoint()
    for number in range(10):
        job.run_batch({number: 1, 500 + number: 2})
    assert job.consolidate()
    for number in range(SWAP_CHANGELOGS_MAX - 1):
        job.run_batch({number: 10})
    assert job.shards() == [1]
    assert job.dump() == job.reference


def test_checkpoints_beside_a_merge_do_not_spoil_it(job: StateJob) -> None:
    job.checkpoint()
    begun = job.consolidation
    job.run_batch({1: 1})
    job.checkpoint()
    assert job.consolidation == begun
    job.run_batch({2: 1})
    assert job.consolidate()
    job.run_batch({3: 1})
    assert job.shards() == [1]
    assert job.dump() == job.reference


def test_large_batches_are_caught_up_with_by_their_sorted_files(tmp_path: Path) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local", policy=ALWAYS)
    job.start(1)
    job.run_batch(dict.fromkeys(range(2_000), 1))
    manifest, _ = job.checkpoint()
    job.start(2, manifest.path)
    job.checkpoint()
    job.run_batch(dict.fromkeys(range(1_000, 22_000), 3))
    job.run_batch(dict.fromkeys(range(500, 2_000), 3))
    assert list(job.local_root.rglob("tail/**/*.sst")), "no changelog was large enough for a sorted file"
    assert job.consolidate()
    job.run_batch({1: 1})
    assert leftovers(job) == []
    assert job.dump() == job.reference


def test_a_result_that_lags_too_far_behind_waits_and_catches_up_later(job: StateJob) -> None:
    job.checkpoint()
    assert job.consolidate()
    tail = leftovers(job)[0]
    ready = (tail / "READY").read_bytes()
    (tail / "READY").unlink()  # as if the process had been this slow to write it
    for number in range(SWAP_CHANGELOGS_MAX + 1):
        (tail / "started").unlink(missing_ok=True)
        job.run_batch({number: 1})
    (tail / "READY").write_bytes(ready)
    assert job.shards() == [2]
    assert job.consolidate()
    assert job.shards() == [1]
    assert job.dump() == job.reference


def test_a_warm_store_takes_the_result_in_between_two_batches(job: StateJob) -> None:
    warm = WarmStores()

    def run_batch(increments: dict[int, int]) -> int:
        store = warm.take(job.spec(0), job.version(0), job.plans[0], job.local_root, job.store)
        add(store, increments)
        handle = store.finish_batch(BatchId(job.batch_id + 1), "unique")
        shards = store.shard_count
        warm.give_back(store)
        job.commit(BatchId(job.batch_id + 1), [handle])
        for key, increment in increments.items():
            job.reference[key] = job.reference.get(key, 0) + increment
        return shards

    job.checkpoint()
    assert run_batch({1: 1}) == 2
    assert run_batch({2: 1}) == 2
    assert job.consolidate()
    assert run_batch({3: 1}) == 1
    warm.close()
    assert job.dump() == job.reference


# What may go wrong.


def test_a_task_that_is_tried_again_leaves_nothing_in_the_result(job: StateJob) -> None:
    job.checkpoint()
    job.run_task(0, BatchId(job.batch_id + 1), {7: 1_000_000})  # never committed
    job.run_batch({7: 1})
    job.run_task(0, BatchId(job.batch_id + 1), {8: 1_000_000})
    assert job.consolidate()
    job.run_batch({9: 1})
    assert job.shards() == [1]
    assert job.dump() == job.reference


def test_a_state_that_was_rebuilt_elsewhere_gives_the_merge_up(job: StateJob, tmp_path: Path) -> None:
    job.checkpoint()
    here, job.local_root = job.local_root, tmp_path / "elsewhere"
    job.run_batch({1: 1})
    job.local_root = here
    job.run_batch({2: 1})
    assert leftovers(job) == []
    assert job.shards() == [2]
    assert job.dump() == job.reference


def test_a_missing_changelog_gives_the_merge_up(job: StateJob) -> None:
    """The negative control of the chain of lineages: with a hole in the tail the result would lack a batch."""
    job.checkpoint()
    job.run_batch({1: 1})
    job.run_batch({2: 1})
    [tail] = job.local_root.rglob("tail")
    next(path for path in sorted(tail.iterdir()) if path.is_file()).unlink()
    assert job.consolidate()  # it stands where it began
    job.run_batch({3: 1})
    assert job.shards() == [2]
    assert job.dump() == job.reference
    assert leftovers(job) == []


def test_after_a_kill_in_a_batch_the_result_serves_as_well_as_a_rebuild(job: StateJob) -> None:
    job.checkpoint()
    job.run_batch({1: 1})
    assert job.consolidate()
    for marker in job.local_root.rglob("CLEAN"):
        marker.unlink()
    assert job.dump() == job.reference
    assert job.shards() == [1]


def test_a_damaged_result_is_not_used(job: StateJob) -> None:
    job.checkpoint()
    assert job.consolidate()
    for file in leftovers(job)[0].glob("shard/MANIFEST-*"):
        file.write_bytes(b"damaged")
    job.run_batch({1: 1})
    assert job.shards() == [2]
    assert job.dump() == job.reference
    assert leftovers(job) == []


def test_a_merge_whose_snapshot_is_gone_is_given_up_and_not_tried_again_at_once(job: StateJob) -> None:
    job.policy = replace(ALWAYS, retry_seconds=600)
    job.checkpoint()
    shutil.rmtree(next(job.spec(0).local_directory(job.local_root).glob("snapshots/*")))
    with pytest.raises(StateError, match="No such file"):
        job.consolidate()
    assert leftovers(job) == []
    job.checkpoint()
    assert job.consolidation is None
    job.policy = ALWAYS
    job.checkpoint()
    assert job.consolidation is not None


def test_a_merge_that_nobody_wants_any_more_ends(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job.checkpoint()
    directory = job.consolidation
    assert directory is not None
    monkeypatch.setattr(state.consolidator, "merge_shards", lambda *_, **__: shutil.rmtree(directory / "tail"))
    with pytest.raises(ConsolidationUnwantedError):
        consolidate(directory)
    assert leftovers(job) == []


def test_only_one_process_works_on_a_merge(job: StateJob) -> None:
    job.checkpoint()
    [consolidation] = consolidations(job.spec(0).local_directory(job.local_root))
    assert consolidation.acquire()
    assert not job.consolidate()
    consolidation.release()
    assert job.consolidate()


def test_only_one_subtask_of_a_host_is_merged_at_a_time(tmp_path: Path) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local", policy=ALWAYS)
    job.start(4)
    job.run_batch(dict.fromkeys(range(100), 1))
    manifest, _ = job.checkpoint()
    job.start(2, manifest.path)
    for done in ([1, 2], [1, 1]):
        job.checkpoint()
        assert len(leftovers(job)) == 1
        assert job.consolidate()
        assert job.shards() == done
    assert job.dump() == job.reference


def test_consolidation_can_be_turned_off(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = job.spec(0)
    off = replace(spec, settings=replace(spec.settings, background_consolidation=False))
    monkeypatch.setattr(job, "spec", lambda _index: off)
    job.checkpoint()
    assert job.consolidation is None


def test_expired_entries_are_left_out_when_their_ttl_says_so(tmp_path: Path) -> None:
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
def test_a_store_that_was_never_rescaled_is_compacted_for_what_is_expired(tmp_path: Path, compaction: bool) -> None:
    ttl = Ttl(1000, cleanup=Cleanup(incremental=None, compaction=compaction))
    counted = ValueStateDescriptor("count", pa.int64(), ttl)
    policy = replace(DEFAULT_POLICY, foreign_bytes_min=1)
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local", policy=policy, descriptor=counted)
    job.start(1)
    job.run_batch(dict.fromkeys(range(500), 1))
    job.clock.advance(processing_time_ms=999)
    job.run_batch(dict.fromkeys(range(100), 1))
    job.checkpoint()
    assert not job.consolidate(), "nothing is expired"
    job.clock.advance(processing_time_ms=1000)
    job.checkpoint()
    assert job.consolidate() == compaction
    with job.open(0) as store:
        assert len(list(store.engine.scan("count", b"", None))) == (100 if compaction else 500)
    job.checkpoint()
    assert not job.consolidate(), "what is left is worth nothing more"
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


def test_a_state_that_lives_on_is_not_written_anew_for_a_small_one_that_has_expired(tmp_path: Path) -> None:
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


# In a process of its own.


def test_a_process_of_its_own_does_it(job: StateJob) -> None:
    job.checkpoint()
    assert job.consolidation is not None
    start_consolidator(job.consolidation, os.getpid())
    ready = job.consolidation / "READY"
    wait_until(ready.exists, what="the merge in a process of its own")
    job.run_batch({1: 1})
    assert job.shards() == [1]
    assert job.dump() == job.reference


def test_it_ends_with_the_process_that_it_watches(
    job: StateJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.checkpoint()
    directory = job.consolidation
    assert directory is not None
    barrier = tmp_path / "barrier"
    barrier.mkdir()
    monkeypatch.setenv("KEYSCALE_SYNC_POINT", "consolidate.linked")
    monkeypatch.setenv("KEYSCALE_SYNC_DIRECTORY", str(barrier))
    watched = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start_consolidator(directory, watched.pid)
    wait_until(lambda: list(barrier.iterdir()), what="the consolidator to be at work")
    [held] = barrier.iterdir()
    watched.communicate(b"\n")
    wait_until(lambda: has_ended(int(held.suffix[1:])), what="the consolidator to end")
    assert job.dump() == job.reference
    assert leftovers(job) == []


def has_ended(process: int) -> bool:
    """Whether all threads have ended: the first may be a zombie while another still holds the process's locks."""
    directory = Path(f"/proc/{process}")
    try:
        status = (directory / "stat").read_text(encoding="ascii")
        threads = len(list((directory / "task").iterdir()))
    except FileNotFoundError:
        return True
    return threads <= 1 and status.rpartition(")")[2].split()[0] == "Z"
