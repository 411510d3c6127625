"""Shards are merged and trimmed beside the batches, and taken over between two: same state, fewer files."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from keyscale.identifiers import BatchId
from keyscale.state.consolidation import take_over
from keyscale.state.consolidation.catch_up_log import CatchUpEntry, changelogs_between, committed_after
from keyscale.state.consolidation.consolidator import LEFT_TO_TAKE_OVER_MAX, merge_shards
from keyscale.state.consolidation.policy import Consolidation, ConsolidationFacts, decide, foreign_bytes
from keyscale.state.consolidation.take_over import TAKE_OVER_CHANGELOGS_MAX
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.engine.key_group_sizes import FileFacts
from keyscale.state.engine.rocksdb import RocksDbEngine
from keyscale.state.engine.sharded import ShardedEngine
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keys.key_groups import KeyGroupRange
from keyscale.state.local.subtask_directory import SubtaskDirectory
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.subtask.open_store_cache import OpenStoreCache
from tests.support.state.state_job import ALWAYS, COUNT, StateJob, add
from tests.support.state.two_shards import leftovers, sst_files, two_shards

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.state.engine.engine import Engine

MEBIBYTE = 1 << 20
FACTS = ConsolidationFacts(shards=1, file_bytes=100 * MEBIBYTE, foreign_bytes=0, free_bytes=1000 * MEBIBYTE)


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    return two_shards(tmp_path)


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
def test_whether_a_consolidation_is_worth_its_cost_is_decided_from_facts(
    facts: ConsolidationFacts, decided: Consolidation
) -> None:
    assert decide(facts) is decided


def test_a_files_foreign_bytes_follow_from_its_share_of_foreign_key_groups() -> None:
    own = KeyGroupRange(4, 7)
    assert foreign_bytes([FileFacts(b"\0\4x", b"\0\7x", 1, 1000)], own) == 0
    assert foreign_bytes([FileFacts(b"\0\0x", b"\0\3x", 1, 1000)], own) == 1000
    assert foreign_bytes([FileFacts(b"\0\0x", b"\0\7x", 1, 1000), FileFacts(b"\0\7", b"\0\x08", 1, 10)], own) == 505


def test_changelogs_lead_from_one_version_to_another_past_those_of_failed_tries() -> None:
    one, lost, two = (
        CatchUpEntry(BatchId(1), "a", "b"),
        CatchUpEntry(BatchId(2), "b", "x"),
        CatchUpEntry(BatchId(2), "b", "c"),
    )
    assert changelogs_between([one, lost, two], "a", "c") == [one, two]
    assert changelogs_between([one, lost, two], "c", "c") == []
    assert changelogs_between([lost, two], "a", "c") is None
    assert changelogs_between([one, lost, two], "a", "nowhere") is None


def test_only_changelogs_that_a_later_one_builds_on_are_known_to_be_committed() -> None:
    one, lost, two = (
        CatchUpEntry(BatchId(1), "a", "b"),
        CatchUpEntry(BatchId(2), "b", "x"),
        CatchUpEntry(BatchId(2), "b", "c"),
    )
    assert committed_after([one, lost, two], "a") == [one]
    assert committed_after([one, lost, two, CatchUpEntry(BatchId(3), "c", "d")], "a") == [one, two]
    assert committed_after([one, lost, two], "b") == []


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


# From the snapshot to the take-over.


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


def test_a_clipped_shard_is_freed_of_foreign_entries(tmp_path: Path) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local", policy=ALWAYS)
    job.start(1)
    job.run_batch(dict.fromkeys(range(8_000), 1))
    manifest, _ = job.checkpoint()
    job.start(2, manifest.path)
    before = [sum(file.stat().st_size for file in files_of(job, index)) for index in range(2)]
    for index in range(2):  # a host runs one at a time
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


def test_a_merge_catches_up_with_the_batches_beside_it(job: StateJob) -> None:
    job.checkpoint()
    for number in range(10):
        job.run_batch({number: 1, 500 + number: 2})
    assert job.consolidate()
    for number in range(TAKE_OVER_CHANGELOGS_MAX - 1):
        job.run_batch({number: 10})
    assert job.shards() == [1]
    assert job.dump() == job.reference


@pytest.mark.parametrize("batches_after", [1, 2, 5])
def test_changelogs_of_lost_tries_do_not_count_as_batches_to_catch_up_with(job: StateJob, batches_after: int) -> None:
    job.checkpoint()
    for number in range(LEFT_TO_TAKE_OVER_MAX + 1):
        job.run_task(0, BatchId(job.batch_id + 1), {number: 100})  # never committed
    for number in range(batches_after):
        job.run_batch({number: 1})
    assert job.consolidate()
    job.run_batch({7: 1})
    assert job.shards() == [1]
    assert job.dump() == job.reference


def test_states_that_are_declared_before_beside_and_after_a_merge_are_known_after_the_take_over(job: StateJob) -> None:
    def run(name: str) -> None:
        job.descriptor = ValueStateDescriptor(name, pa.int64())
        job.run_batch({1: 1})

    run("a_before")
    job.checkpoint()
    run("b_beside")
    run(COUNT.name)  # until a batch builds on it, the merge takes a changelog for one of a lost try
    assert job.consolidate()
    run("c_after")
    with job.open(0) as store:
        assert store.shard_count == 1
        assert [each.name for each in store.keyed.schema.states] == ["a_before", "b_beside", "c_after", COUNT.name]


def test_checkpoints_do_not_disturb_a_merge_beside_them(job: StateJob) -> None:
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


def test_a_merge_catches_up_with_large_batches_by_their_sorted_files(tmp_path: Path) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local", policy=ALWAYS)
    job.start(1)
    job.run_batch(dict.fromkeys(range(2_000), 1))
    manifest, _ = job.checkpoint()
    job.start(2, manifest.path)
    job.checkpoint()
    job.run_batch(dict.fromkeys(range(1_000, 22_000), 3))
    job.run_batch(dict.fromkeys(range(500, 2_000), 3))
    assert list(job.local_root.rglob("catch-up/**/*.sst")), "no changelog was large enough for a sorted file"
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
    for number in range(TAKE_OVER_CHANGELOGS_MAX + 1):
        (tail / "started").unlink(missing_ok=True)
        job.run_batch({number: 1})
    (tail / "READY").write_bytes(ready)
    assert job.shards() == [2]
    assert job.consolidate()
    assert job.shards() == [1]
    assert job.dump() == job.reference


def test_a_process_that_dies_between_the_last_steps_of_a_take_over_loses_no_state(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.checkpoint()
    job.run_batch({1: 1})
    assert job.consolidate()

    def die(reached: str) -> None:
        if reached == "take_over.unmarked":
            raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(take_over, "failpoint", die)
        dying.setattr(take_over, "shutil", SimpleNamespace(rmtree=lambda *_, **__: None))  # the dead remove nothing
        dying.setattr(SubtaskDirectory, "clear", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            job.run_batch({2: 1})
    job.run_batch({3: 1})
    assert job.dump() == job.reference


def test_a_warm_store_takes_the_result_over_between_two_batches(job: StateJob) -> None:
    warm = OpenStoreCache()

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
