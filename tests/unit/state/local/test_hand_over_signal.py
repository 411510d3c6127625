"""The signal by which a process asks another one to hand over a directory."""

from __future__ import annotations

import errno
import os
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.state.errors import DiskFullError
from keyscale.state.local.hand_over_signal import HandOverSignal, request_hand_over
from keyscale.state.local.subtask_directory import SubtaskDirectory, lock_directory

if TYPE_CHECKING:
    from pathlib import Path


def test_a_signal_is_not_requested_before_another_process_asks(tmp_path: Path) -> None:
    with closing(HandOverSignal(tmp_path / "bell")) as bell:
        assert not bell.is_requested
        request_hand_over(tmp_path / "bell")
        assert bell.is_requested
        request_hand_over(tmp_path / "bell")
        assert bell.is_requested, "until it is closed"


def test_a_request_does_nothing_if_no_holder_listens(tmp_path: Path) -> None:
    request_hand_over(tmp_path / "bell")
    assert not (tmp_path / "bell").exists()
    HandOverSignal(tmp_path / "bell").close()
    request_hand_over(tmp_path / "bell")


def test_a_request_that_the_last_holder_left_is_not_passed_to_the_next_one(tmp_path: Path) -> None:
    with closing(HandOverSignal(tmp_path / "bell")):
        request_hand_over(tmp_path / "bell")
    with closing(HandOverSignal(tmp_path / "bell")) as next_one:
        assert not next_one.is_requested


def test_a_holder_that_does_not_answer_for_long_blocks_no_requester(tmp_path: Path) -> None:
    with closing(HandOverSignal(tmp_path / "bell")) as bell:
        with suppress(BlockingIOError):
            while True:
                os.write(bell.fileno(), b"!" * 4096)
        request_hand_over(tmp_path / "bell")
        assert bell.is_requested


def test_a_directory_whose_signal_cannot_be_created_is_not_left_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "mkfifo", full)
        with pytest.raises(DiskFullError):
            SubtaskDirectory.acquire(tmp_path)
    directory = SubtaskDirectory.acquire(tmp_path, wait_seconds=0)
    assert directory.path.name == "try-0"
    directory.release()


def test_a_holder_that_releases_during_a_request_no_longer_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bell, opened = HandOverSignal(tmp_path / "bell"), os.open

    def open_too_late(*arguments: Any) -> int:
        descriptor = opened(*arguments)
        bell.close()
        return descriptor

    monkeypatch.setattr(os, "open", open_too_late)
    request_hand_over(tmp_path / "bell")


def test_a_directory_is_unlocked_only_once_its_holder_no_longer_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = SubtaskDirectory.acquire(tmp_path)
    was_locked: list[bool] = []
    close = held.hand_over_signal.close

    def noted() -> None:
        was_locked.append(lock_directory(held.path) is None)
        close()

    monkeypatch.setattr(held.hand_over_signal, "close", noted)
    held.release()
    held.release()
    assert was_locked == [True], "the next holder would get requests that it cannot see"
    lock = lock_directory(held.path)
    assert lock is not None
    os.close(lock)
