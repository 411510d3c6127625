"""The bell by which a process asks another one for the directory that it holds."""

from __future__ import annotations

import errno
import os
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest

from state.directory import SubtaskDirectory
from state.doorbell import Doorbell, ring
from state.errors import DiskFullError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_bell_has_not_been_rung_before_somebody_rings_it(tmp_path: Path) -> None:
    with closing(Doorbell(tmp_path / "bell")) as bell:
        assert not bell.was_rung
        ring(tmp_path / "bell")
        assert bell.was_rung
        ring(tmp_path / "bell")
        assert bell.was_rung, "until it is closed"


def test_ringing_where_nobody_listens_does_nothing(tmp_path: Path) -> None:
    ring(tmp_path / "bell")
    assert not (tmp_path / "bell").exists()
    Doorbell(tmp_path / "bell").close()
    ring(tmp_path / "bell")


def test_what_the_last_holder_did_not_answer_is_not_heard_by_the_next_one(tmp_path: Path) -> None:
    with closing(Doorbell(tmp_path / "bell")):
        ring(tmp_path / "bell")
    with closing(Doorbell(tmp_path / "bell")) as next_one:
        assert not next_one.was_rung


def test_a_holder_that_does_not_answer_for_long_blocks_nobody(tmp_path: Path) -> None:
    with closing(Doorbell(tmp_path / "bell")) as bell:
        with suppress(BlockingIOError):
            while True:
                os.write(bell.fileno(), b"!" * 4096)
        ring(tmp_path / "bell")
        assert bell.was_rung


def test_a_directory_that_can_have_no_bell_is_not_left_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "mkfifo", full)
        with pytest.raises(DiskFullError):
            SubtaskDirectory.acquire(tmp_path)
    directory = SubtaskDirectory.acquire(tmp_path, wait_seconds=0)
    assert directory.path.name == "try-0"
    directory.release()


def test_a_holder_that_lets_go_while_it_is_rung_no_longer_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bell, opened = Doorbell(tmp_path / "bell"), os.open

    def open_too_late(*arguments: Any) -> int:
        descriptor = opened(*arguments)
        bell.close()
        return descriptor

    monkeypatch.setattr(os, "open", open_too_late)
    ring(tmp_path / "bell")
