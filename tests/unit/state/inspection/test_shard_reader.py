"""Shards that stay open follow a job's batches, are fetched anew when they cannot, and leave no files behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.state.inspection import shard_reader
from keyscale.state.inspection.shard_reader import ShardReader
from keyscale.state.inspection.state_point import StatePoint
from keyscale.state.objects.errors import ObjectNotFoundError
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from pathlib import Path

KEYS = dict.fromkeys(range(20), 1)


def started(tmp_path: Path, parallelism: int) -> StateJob:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(parallelism)
    job.run_batch(KEYS)
    job.checkpoint()
    return job


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    return started(tmp_path, 1)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first key group of each shard that is fetched."""
    found: list[int] = []
    real = shard_reader.open_fetched

    def noted(*arguments: Any, **named: Any) -> Any:
        found.append(arguments[2].start)
        return real(*arguments, **named)

    monkeypatch.setattr(shard_reader, "open_fetched", noted)
    return found


def point(job: StateJob) -> StatePoint:
    return StatePoint.of_job(job.store, job.job_id)


def count(reader: ShardReader, at: StatePoint) -> list[int]:
    """The number of entries of each shard."""
    return [
        len(list(reader.entries("count", "count", shard, shard.start_key, shard.end_key)))
        for shard in at.shard_ranges("count")
    ]


def test_open_shards_follow_later_batches_and_are_fetched_anew_after_a_checkpoint(
    job: StateJob, tmp_path: Path, fetched: list[int]
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    reader = ShardReader(point(job), scratch, open_max=1)
    before = count(reader, point(job))
    assert (sum(before), fetched) == (20, [0])
    job.run_batch(dict.fromkeys(range(20, 30), 1))
    reader.advance(point(job))
    followed = count(reader, point(job))
    assert (sum(followed), fetched) == (30, [0])
    job.run_batch({30: 1})
    job.checkpoint()
    job.store.delete([info.path for info in job.store.list(job.layout.changelogs)])
    job.run_batch({31: 1})
    reader.advance(point(job))
    assert (sum(count(reader, point(job))), fetched) == (32, [0, 0])
    assert len(list(scratch.iterdir())) == 1, "files of the shard before are gone"
    reader.close()
    reader.close()
    assert list(scratch.iterdir()) == []


def test_a_shard_that_cannot_follow_is_closed_and_leaves_no_files(job: StateJob, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    reader = ShardReader(point(job), scratch, open_max=1)
    count(reader, point(job))
    job.run_batch(KEYS)
    later = point(job)
    gone = {info.path: job.store.get(info.path) for info in job.store.list(job.layout.changelogs)}
    job.store.delete(gone)
    reader.advance(later)
    with pytest.raises(ObjectNotFoundError):
        count(reader, later)
    with pytest.raises(ObjectNotFoundError):
        count(reader, later)
    assert list(scratch.iterdir()) == []
    for path, data in gone.items():
        job.store.put(path, data)
    assert sum(count(reader, later)) == 20
    reader.close()


def test_shards_beyond_a_number_of_bytes_are_closed_once_they_are_not_read(tmp_path: Path, fetched: list[int]) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    at = point(started(tmp_path, 2))
    first, second = (at.size_bytes("count", shard) for shard in at.shard_ranges("count"))
    reader = ShardReader(at, scratch, open_max=9, open_bytes_max=first + second)
    for _ in range(2):
        count(reader, at)
    assert fetched == [0, 8]
    reader.close()
    fetched.clear()
    reader = ShardReader(at, scratch, open_max=9, open_bytes_max=max(first, second))
    for _ in range(2):
        count(reader, at)
    assert fetched == [0, 8, 0, 8]
    assert len(list(scratch.iterdir())) == 1, "the shard that was read last stays"
    reader.close()


def test_a_shard_stays_open_while_it_is_read_although_others_are_opened(tmp_path: Path, fetched: list[int]) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    at = point(started(tmp_path, 2))
    shard = at.shard_ranges("count")[0]
    reader = ShardReader(at, scratch, open_max=1)
    reading = reader.entries("count", "count", shard, shard.start_key, shard.end_key)
    next(reading)
    (directory,) = scratch.iterdir()
    counted = count(reader, at)
    assert (directory.exists(), fetched) == (True, [0, 8])
    assert len(list(reading)) == counted[0] - 1
    reader.close()
