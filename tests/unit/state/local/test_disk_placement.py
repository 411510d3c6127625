"""Several local directories: subtasks are spread over them, found again, and deleted with their attempt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
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


def test_a_new_subtask_goes_to_the_disk_with_the_most_free_space_and_not_to_the_largest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {"large": 10, "free": 400, "busy": 500}
    usage = {name: SimpleNamespace(total=1000, used=1000 - left, free=left) for name, left in free.items()}
    usage["large"].total = 10_000
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage[Path(path).name])
    directories = [str(tmp_path / name) for name in free]
    (tmp_path / "busy" / "other" / "attempt-1" / "count" / "subtask-0").mkdir(parents=True)
    root = tmp_path / "local" / "job" / "attempt-1" / "count" / "subtask-3"
    place_subtask(root, tmp_path / "local", directories)
    assert root.readlink() == tmp_path / "free" / "job" / "attempt-1" / "count" / "subtask-3"
    assert root.is_dir()
    assert not list((tmp_path / "large").rglob("*"))


def test_a_disk_on_which_no_directory_can_be_made_gives_way_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usage = {"broken": 900, "sound": 100}
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=usage[Path(path).name]))
    directories = [str(tmp_path / name) for name in usage]
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "job").write_text("a file, so no directory")
    root = tmp_path / "local" / "job" / "subtask-3"
    place_subtask(root, tmp_path / "local", directories)
    assert root.readlink() == tmp_path / "sound" / "job" / "subtask-3"
    assert "a local directory cannot be used" in caplog.text
    with pytest.raises(StoreIOError):
        place_subtask(root.with_name("subtask-4"), tmp_path / "local", directories[:1])
    assert not root.with_name("subtask-4").is_symlink()


def test_of_two_tasks_that_place_a_subtask_at_once_the_first_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, relative = tmp_path / "local" / "job" / "subtask-3", Path("job") / "subtask-3"
    (tmp_path / "two" / relative).mkdir(parents=True)

    def usage(path: Path) -> SimpleNamespace:  # the other task places it now
        root.parent.mkdir(parents=True, exist_ok=True)
        if not root.is_symlink():
            root.symlink_to(tmp_path / "two" / relative)
        return SimpleNamespace(free=900 if path.name == "one" else 10)

    monkeypatch.setattr("shutil.disk_usage", usage)
    place_subtask(root, tmp_path / "local", [str(tmp_path / "one"), str(tmp_path / "two")])
    assert root.readlink() == tmp_path / "two" / relative
    assert not (tmp_path / "one" / relative).exists(), "the loser leaves no directory"
    assert root.is_dir()


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
