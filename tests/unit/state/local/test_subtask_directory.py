"""A subtask's directory on a host: who holds it, what is kept in it, and when its files count as clean."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import msgspec
import pytest

from keyscale.identifiers import Attempt, BatchId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.errors import DiskForbiddenError, DiskFullError, DiskReadOnlyError, StoreIOError
from keyscale.state.keyed.schema import KeyedSchema
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.local import subtask_directory
from keyscale.state.local.subtask_directory import (
    CleanMarker,
    LocalShard,
    SubtaskDirectory,
    attempt_root,
    boot_id,
    local_failures,
    local_snapshot_directories,
    lock_directory,
    remove_older_attempts,
    snapshots_root,
    subtask_root,
)

MARKER = CleanMarker(
    BatchId(7),
    "lineage",
    (LocalShard("data-1/0", 0, 3), LocalShard("data-2/0", 4, 7)),
    boot_id(),
    KeyedSchema((("id", "int64"),)),
    {"count": Ttl(1000)},
)


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_a_held_directory_is_left_for_the_next_one_and_removed_once_it_is_free(tmp_path: Path) -> None:
    first = SubtaskDirectory.acquire(tmp_path)
    (first.path / "data-1").mkdir()
    second = SubtaskDirectory.acquire(tmp_path, wait_seconds=0)
    assert (first.path.name, second.path.name, names(tmp_path)) == ("try-0", "try-1", ["try-0", "try-1"])
    assert first.hand_over_signal.is_requested
    assert not second.hand_over_signal.is_requested
    first.release()
    second.release()
    again = SubtaskDirectory.acquire(tmp_path)
    assert (again.path.name, names(tmp_path)) == ("try-1", ["try-1"])
    again.release()


def test_a_directory_without_a_signal_is_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.ENOSPC, "full", str(path))

    with monkeypatch.context() as failing:
        failing.setattr(subtask_directory, "HandOverSignal", refuse)
        with pytest.raises(DiskFullError):
            SubtaskDirectory.acquire(tmp_path)
    again = SubtaskDirectory.acquire(tmp_path, wait_seconds=0)
    assert again.path.name == "try-0"
    again.release()


def test_locks_that_are_not_kept_leave_no_open_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def held() -> set[str]:
        opened = [each.resolve() for each in Path("/proc/self/fd").iterdir()]
        return {place.name for place in opened if place.is_relative_to(tmp_path)}

    for number in range(3):
        (tmp_path / f"try-{number}").mkdir()
    last = SubtaskDirectory.acquire(tmp_path)
    assert (last.path.name, names(tmp_path)) == ("try-2", ["try-2"])
    assert held() == {"lock", "bell"}
    assert lock_directory(last.path) is None
    last.release()
    assert held() == set()
    flock = fcntl.flock

    def removed_meanwhile(lock: int, how: int) -> None:
        flock(lock, how)
        (last.path / "lock").unlink()

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    assert lock_directory(last.path) is None
    assert held() == set()


def test_a_marker_comes_back_once_and_only_in_its_form_and_boot(tmp_path: Path) -> None:
    held = SubtaskDirectory.acquire(tmp_path)
    assert held.take_clean_marker() is None
    held.mark_clean(MARKER)
    assert held.take_clean_marker() == MARKER
    assert held.take_clean_marker() is None
    for other in (
        msgspec.structs.replace(MARKER, boot_id="another"),
        msgspec.structs.replace(MARKER, format_version=2),
    ):
        held.mark_clean(other)
        assert held.take_clean_marker() is None
    held.release()


def test_only_the_shards_in_use_are_kept_and_a_clear_directory_keeps_its_lock(tmp_path: Path) -> None:
    held = SubtaskDirectory.acquire(tmp_path)
    for name in ("data-1", "data-2", "data-3"):
        (held.path / name / "0").mkdir(parents=True)
    (held.path / "index.json").write_text("{}")
    held.keep_only(MARKER.shards)
    assert names(held.path) == ["bell", "data-1", "data-2", "index.json", "lock"]
    fresh = held.fresh_data()
    assert (fresh.parent, fresh.exists(), fresh.name.startswith("data-")) == (held.path, False, True)
    held.clear()
    assert names(held.path) == ["bell", "lock"]
    assert lock_directory(held.path) is None
    (held.path / "data-4").mkdir()
    held.discard()
    assert names(held.path) == ["bell", "lock"]
    lock = lock_directory(held.path)
    assert lock is not None
    os.close(lock)


def test_an_attempt_removes_the_files_of_earlier_attempts_of_its_job_alone(tmp_path: Path) -> None:
    job, uid = JobId("job"), OperatorUid("count")
    for owner, attempt in ((job, 1), (job, 2), (job, 3), (JobId("other"), 1)):
        subtask_root(tmp_path, owner, Attempt(attempt), uid, SubtaskIndex(0)).mkdir(parents=True)
    (attempt_root(tmp_path, job, Attempt(1)).parent / "attempt-x").mkdir()
    remove_older_attempts(tmp_path, job, Attempt(3))
    assert names(tmp_path / "job") == ["attempt-3", "attempt-x"]
    assert names(tmp_path / "other") == ["attempt-1"]
    remove_older_attempts(tmp_path, JobId("never"), Attempt(3))


def test_local_snapshots_of_an_operator_are_found_the_newest_first(tmp_path: Path) -> None:
    job, uid = JobId("job"), OperatorUid("a/b")
    places = {}
    for attempt, subtask, at in ((1, 0, 30), (2, 1, 10), (2, 0, 20)):
        root = subtask_root(tmp_path, job, Attempt(attempt), uid, SubtaskIndex(subtask))
        places[at] = snapshots_root(root) / "7-u"
        places[at].mkdir(parents=True)
        os.utime(places[at], (at, at))
    snapshots_root(subtask_root(tmp_path, job, Attempt(2), OperatorUid("other"), SubtaskIndex(0))).mkdir(parents=True)
    assert local_snapshot_directories(tmp_path, job, uid) == [places[30], places[20], places[10]]


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (OSError(errno.ENOSPC, "full"), DiskFullError),
        (OSError(errno.EDQUOT, "full"), DiskFullError),
        (OSError(errno.EROFS, "read-only"), DiskReadOnlyError),
        (PermissionError(errno.EACCES, "forbidden"), DiskForbiddenError),
        (OSError(errno.EIO, "broken"), StoreIOError),
    ],
)
def test_each_failure_of_a_disk_has_its_own_error(tmp_path: Path, failure: OSError, kind: type[Exception]) -> None:
    with pytest.raises(kind) as raised, local_failures(tmp_path):
        raise failure
    assert type(raised.value) is kind
    assert raised.value.__cause__ is failure
