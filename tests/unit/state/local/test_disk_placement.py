"""Several local directories: subtasks are spread over them, found again, and deleted with their attempt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyscale.state.engine.rocksdb_settings import RocksDbSettings
from keyscale.state.errors import SettingsError, StoreIOError
from keyscale.state.local.disk_placement import DirectoryUse, least_used_first, place_subtask
from keyscale.state.local.subtask_directory import remove_older_attempts
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from keyscale.state.local.subtask_spec import SubtaskSpec

A, B, C = Path("/a"), Path("/b"), Path("/c")


class SpreadJob(StateJob):
    """A job whose settings name local directories."""

    directories: tuple[str, ...] = ()

    def spec(self, index: int) -> SubtaskSpec:
        return replace(super().spec(index), settings=RocksDbSettings(local_directories=self.directories))


@pytest.fixture
def job(tmp_path: Path) -> SpreadJob:
    job = SpreadJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.directories = (str(tmp_path / "one"), str(tmp_path / "two"))
    return job


def subtasks_in(directory: str) -> int:
    return len(list(Path(directory).glob("*/attempt-*/*/subtask-*")))


@pytest.mark.parametrize(
    ("uses", "first"),
    [
        ([DirectoryUse(A, 100, 0), DirectoryUse(B, 200, 0)], B),
        ([DirectoryUse(A, 100, 0), DirectoryUse(B, 100, 0)], A),
        ([DirectoryUse(A, 100, 1), DirectoryUse(B, 100, 0)], B),
        ([DirectoryUse(A, 300, 1), DirectoryUse(B, 100, 0)], A),
        ([DirectoryUse(A, 0, 0), DirectoryUse(B, 90, 5), DirectoryUse(C, 80, 9)], B),
    ],
)
def test_the_directory_that_leaves_a_further_subtask_the_most_space_comes_first(
    uses: list[DirectoryUse], first: Path
) -> None:
    assert least_used_first(uses)[0] == first


def test_subtasks_spread_over_the_directories_and_keep_their_state_through_a_rescale(job: SpreadJob) -> None:
    job.start(4)
    job.run_batch(dict.fromkeys(range(50), 1))
    assert [subtasks_in(directory) for directory in job.directories] == [2, 2]
    savepoint, _ = job.checkpoint("s")
    job.start(2, savepoint.path)
    job.run_batch(dict.fromkeys(range(50), 1))
    assert job.dump() == job.reference


def test_a_subtask_stays_where_it_is_even_if_another_directory_has_more_space_now(job: SpreadJob) -> None:
    job.start(1)
    job.run_batch({1: 1})
    place = job.spec(0).local_directory(job.local_root).resolve()
    job.directories = tuple(reversed(job.directories))
    with job.open(0) as store:
        assert store.fetched is None, "the local files were found"
    assert job.spec(0).local_directory(job.local_root).resolve() == place


def test_an_older_attempts_files_are_removed_from_every_disk(job: SpreadJob) -> None:
    job.start(2)
    job.run_batch({1: 1, 2: 2})
    job.start(2)
    remove_older_attempts(job.local_root, job.job_id, job.attempt)
    assert [subtasks_in(directory) for directory in job.directories] == [0, 0]
    assert job.dump() == job.reference


def test_a_directory_that_cannot_be_used_is_skipped(
    job: SpreadJob, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "one").write_text("a file, so no directory")
    job.start(2)
    job.run_batch({1: 1, 2: 2})
    assert subtasks_in(job.directories[1]) == 2
    assert "a local directory cannot be used" in caplog.text
    (tmp_path / "three").write_text("none either")
    with pytest.raises(StoreIOError):
        place_subtask(tmp_path / "local" / "x", tmp_path / "local", [str(tmp_path / "three")])


def test_a_directory_whose_files_were_lost_is_rebuilt_in_place(job: SpreadJob) -> None:
    job.start(1)
    job.run_batch({1: 1})
    place = job.spec(0).local_directory(job.local_root).resolve()
    place.rename(place.with_name("lost"))
    assert job.dump() == job.reference


def test_relative_directories_are_refused() -> None:
    with pytest.raises(SettingsError):
        RocksDbSettings(local_directories=("state",))
