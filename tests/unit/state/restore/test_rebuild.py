"""The steps of a rebuild: files are linked or downloaded, and changelogs are read ahead in small groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import keyscale.state.restore.rebuild
import keyscale.state.snapshot.snapshot
from keyscale.identifiers import BatchId, SubtaskIndex
from keyscale.state.documents.changelog import ChangelogFormat, ChangelogHandle
from keyscale.state.engine.engine import Mutation
from keyscale.state.engine.rocksdb_settings import RocksDbSettings
from keyscale.state.local.file_index import hash_file
from keyscale.state.local.subtask_directory import SubtaskDirectory
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.restore.opened_shards import FetchReport, StateSource
from keyscale.state.restore.rebuild import DOWNLOADS_AT_A_TIME, READ_AHEAD_BYTES_MAX, read_together, rebuild_shards
from tests.support.state.state_job import StateJob
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

ALL = READ_AHEAD_BYTES_MAX
KEYS = dict.fromkeys(range(100), 1)


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(1)
    job.run_batch(KEYS)
    return job


def handle(number: int, size_bytes: int) -> ChangelogHandle:
    return ChangelogHandle(
        str(number), size_bytes, "", ChangelogFormat.FRAMES, BatchId(number), SubtaskIndex(0), 0, 1, mutations=1
    )


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], []),
        ([1], [1]),
        ([1] * DOWNLOADS_AT_A_TIME, [DOWNLOADS_AT_A_TIME]),
        ([1] * (2 * DOWNLOADS_AT_A_TIME + 1), [DOWNLOADS_AT_A_TIME, DOWNLOADS_AT_A_TIME, 1]),
        ([ALL - 1, 1, 1], [2, 1]),
        ([ALL, 1], [1, 1]),
        ([2 * ALL, 2 * ALL], [1, 1]),
        ([1, 2 * ALL, 1, 1], [1, 1, 2]),
        ([ALL // 2, ALL // 2, ALL // 2, ALL // 2], [2, 2]),
    ],
)
def test_changelogs_are_read_ahead_up_to_a_number_and_up_to_a_size(sizes: list[int], groups: list[int]) -> None:
    handles = [handle(number, size) for number, size in enumerate(sizes)]
    found = list(read_together(handles))
    assert [len(group) for group in found] == groups
    assert [each for group in found for each in group] == handles


def test_a_file_that_its_attempt_removes_before_it_is_linked_is_downloaded(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, _ = job.checkpoint()
    asked: list[Path] = []

    def gone(source: Path, target: Path) -> None:  # noqa: ARG001
        asked.append(source)
        raise FileNotFoundError(source)

    monkeypatch.setattr(keyscale.state.restore.rebuild, "link_or_copy", gone)
    job.start(1, manifest.path)
    with job.open(0) as store:
        assert store.fetched is not None
        assert (store.fetched.linked_files, store.fetched.downloaded_files) == (0, len(list(manifest.files())))
    assert asked
    assert job.dump() == job.reference


def test_a_rebuilt_store_has_the_schema_of_its_history_and_counts_its_files(job: StateJob, tmp_path: Path) -> None:
    manifest, _ = job.checkpoint()
    job.run_batch(KEYS)
    job.start(1, manifest.path)
    elsewhere = tmp_path / "elsewhere"
    directory = SubtaskDirectory.acquire(job.spec(0).local_directory(elsewhere))
    opened = rebuild_shards(job.spec(0), job.plans[0], directory, elsewhere, job.store)
    opened.close()
    directory.release()
    assert opened.schema == job.history.schema is not None
    assert opened.source is StateSource.REBUILT
    assert opened.fetched == FetchReport(linked_files=0, downloaded_files=len(list(manifest.files())))


def test_fetched_files_are_not_hashed_again_for_the_next_snapshot(
    job: StateJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, _ = job.checkpoint()
    job.local_root = tmp_path / "another host"
    job.start(1, manifest.path)
    with job.open(0) as store:
        assert store.fetched is not None
        assert store.fetched.downloaded_files > 0
    hashed: list[Path] = []

    def noted(path: Path) -> str:
        hashed.append(path)
        return hash_file(path)

    monkeypatch.setattr(keyscale.state.snapshot.snapshot, "hash_file", noted)
    job.checkpoint()
    shared = {file.sha256 for file in manifest.files() if file.shared}
    assert shared
    assert shared.isdisjoint(map(hash_file, hashed))


def test_a_rebuilt_store_compacts_its_files_from_its_first_batch_on(job: StateJob) -> None:
    manifest, _ = job.checkpoint()
    job.start(1, manifest.path)
    store = job.open(0)

    def files() -> int:
        return len(list(store.local_directory.glob("try-*/**/*.sst")))

    many = 3 * RocksDbSettings().level_zero_compaction_trigger
    for number in range(many):
        store.engine.write([Mutation("count", bytes(8), bytes([number]))])
        store.engine.flush()
    assert files() > many
    store.finish_batch(BatchId(job.batch_id + 1), "unique")
    wait_until(lambda: files() < many)
    store.abandon()
