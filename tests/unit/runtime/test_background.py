"""Work goes on when the task that began it is over, is done once, and is begun anew when its process died."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jobs.runtime.background import BackgroundWork
from state.errors import StoreIOError
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]


def wait_for_its_end() -> None:
    wait_until(lambda: not any(thread.name == "background-work" for thread in threading.enumerate()), what="its end")


class Held:
    """Work that counts its beginnings and waits to be let go on."""

    def __init__(self) -> None:
        self.begun = 0
        self.released = threading.Event()

    def __call__(self) -> bytes:
        self.begun += 1
        self.released.wait()
        return b"done"


def test_quick_work_is_answered_at_once(tmp_path: Path) -> None:
    assert BackgroundWork(tmp_path, lambda: b"done").result(60) == b"done"


def test_long_work_is_begun_once_and_answered_to_whoever_asks_later(tmp_path: Path) -> None:
    held = Held()
    assert BackgroundWork(tmp_path, held).result(0) is None
    assert BackgroundWork(tmp_path, held).result(0) is None
    held.released.set()
    wait_until(lambda: BackgroundWork(tmp_path, held).result(0) is not None, what="the result")
    assert BackgroundWork(tmp_path, held).result(0) == b"done"
    assert held.begun == 1


def test_an_error_is_raised_once_and_who_asks_again_begins_anew(tmp_path: Path) -> None:
    def fail() -> bytes:
        raise StoreIOError("no such disk")

    with pytest.raises(StoreIOError, match="no such disk"):
        BackgroundWork(tmp_path, fail).result(60)
    assert BackgroundWork(tmp_path, lambda: b"done").result(60) == b"done"


def test_an_error_that_cannot_be_pickled_is_told_in_words(tmp_path: Path) -> None:
    class LocalError(Exception):
        pass

    def fail() -> bytes:
        raise LocalError("only here")

    with pytest.raises(RuntimeError, match=r"LocalError.*only here"):
        BackgroundWork(tmp_path, fail).result(60)


def test_work_whose_process_was_killed_is_begun_anew(tmp_path: Path) -> None:
    program = (
        "import sys, threading; from pathlib import Path; from jobs.runtime.background import BackgroundWork; "
        "directory = Path(sys.argv[1]); for_ever = threading.Event(); "
        "BackgroundWork(directory, lambda: for_ever.wait() and b'theirs').result(0); "
        "(directory / 'begun').touch(); for_ever.wait()"
    )
    process = subprocess.Popen([sys.executable, "-c", program, tmp_path], cwd=ROOT)
    wait_until((tmp_path / "begun").exists, what="the work in the other process")
    assert BackgroundWork(tmp_path, lambda: b"ours").result(0) is None
    process.kill()
    process.wait()
    assert BackgroundWork(tmp_path, lambda: b"ours").result(60) == b"ours"


@pytest.mark.parametrize("error", [None, StoreIOError("no such disk")])
def test_what_cannot_be_written_is_told_all_the_same(tmp_path: Path, error: Exception | None) -> None:
    def work() -> bytes:
        (tmp_path / "work.result.new").mkdir()  # as a full disk does, it refuses the file
        if error is not None:
            raise error
        return b"done"

    if error is None:
        assert BackgroundWork(tmp_path, work).result(60) == b"done"
        return
    with pytest.raises(StoreIOError, match="no such disk"):
        BackgroundWork(tmp_path, work).result(60)
    (tmp_path / "work.result.new").rmdir()
    assert BackgroundWork(tmp_path, lambda: b"done").result(60) == b"done"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_work_that_ends_its_thread_lets_go_of_the_lock(tmp_path: Path) -> None:
    def leave() -> bytes:
        raise SystemExit

    assert BackgroundWork(tmp_path, leave).result(60) is None
    wait_for_its_end()  # else another test is told of the thread's exception
    assert BackgroundWork(tmp_path, lambda: b"done").result(60) == b"done"


def test_work_without_its_directory_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        BackgroundWork(tmp_path / "elsewhere", lambda: b"done").result(60)


def test_a_directory_that_is_removed_meanwhile_is_nobodys_error(tmp_path: Path) -> None:
    held = Held()
    directory = tmp_path / "snapshot"
    directory.mkdir()
    assert BackgroundWork(directory, held).result(0) is None
    directory.rename(tmp_path / "removed")
    held.released.set()
    wait_for_its_end()
