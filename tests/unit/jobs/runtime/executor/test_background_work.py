"""Work continues when the task that started it is over, is done once, and starts again if its process has died."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.runtime.executor.background_work import BackgroundWork
from keyscale.state.errors import StoreIOError
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


def wait_for_its_end() -> None:
    wait_until(lambda: not any(thread.name == "background-work" for thread in threading.enumerate()), what="its end")


class Held:
    """Work that counts its starts and waits until it may continue."""

    def __init__(self) -> None:
        self.begun = 0
        self.released = threading.Event()

    def __call__(self) -> bytes:
        self.begun += 1
        self.released.wait()
        return b"done"


def test_the_result_of_quick_work_is_returned_at_once(tmp_path: Path) -> None:
    assert BackgroundWork(tmp_path, lambda: b"done").result(60) == b"done"


def test_long_work_starts_once_and_a_later_call_gets_the_result(tmp_path: Path) -> None:
    held = Held()
    assert BackgroundWork(tmp_path, held).result(0) is None
    assert BackgroundWork(tmp_path, held).result(0) is None
    held.released.set()
    wait_until(lambda: BackgroundWork(tmp_path, held).result(0) is not None, what="the result")
    assert BackgroundWork(tmp_path, held).result(0) == b"done"
    assert held.begun == 1


def test_an_error_is_raised_once_and_the_next_call_starts_the_work_again(tmp_path: Path) -> None:
    def fail() -> bytes:
        raise StoreIOError("no such disk")

    with pytest.raises(StoreIOError, match="no such disk"):
        BackgroundWork(tmp_path, fail).result(60)
    assert BackgroundWork(tmp_path, lambda: b"done").result(60) == b"done"


def test_an_error_that_cannot_be_pickled_is_replaced_by_its_text(tmp_path: Path) -> None:
    class LocalError(Exception):
        pass

    def fail() -> bytes:
        raise LocalError("only here")

    with pytest.raises(RuntimeError, match=r"LocalError.*only here"):
        BackgroundWork(tmp_path, fail).result(60)


def test_work_whose_process_was_killed_starts_again(tmp_path: Path) -> None:
    program = (
        "import sys, threading; from pathlib import Path; "
        "from keyscale.jobs.runtime.executor.background_work import BackgroundWork; "
        "directory = Path(sys.argv[1]); never = threading.Event(); "
        "BackgroundWork(directory, lambda: never.wait() and b'theirs').result(0); "
        "(directory / 'begun').touch(); never.wait()"
    )
    process = subprocess.Popen([sys.executable, "-c", program, tmp_path], cwd=ROOT)
    wait_until((tmp_path / "begun").exists, what="the work in the other process")
    assert BackgroundWork(tmp_path, lambda: b"ours").result(0) is None
    process.kill()
    process.wait()
    assert BackgroundWork(tmp_path, lambda: b"ours").result(60) == b"ours"


@pytest.mark.parametrize("error", [None, StoreIOError("no such disk")])
def test_an_outcome_that_cannot_be_written_is_returned_in_the_same_process(
    tmp_path: Path, error: Exception | None
) -> None:
    directory = tmp_path / f"of {error}"  # pytest gives a removed directory's name to the next test
    directory.mkdir()

    def work() -> bytes:
        (directory / "work.result.new").mkdir()  # it refuses the file as a full disk does
        if error is not None:
            raise error
        return b"done"

    if error is None:
        assert BackgroundWork(directory, work).result(60) == b"done"
        return
    with pytest.raises(StoreIOError, match="no such disk"):
        BackgroundWork(directory, work).result(60)
    (directory / "work.result.new").rmdir()
    assert BackgroundWork(directory, lambda: b"done").result(60) == b"done"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_work_that_ends_its_thread_releases_the_lock(tmp_path: Path) -> None:
    def leave() -> bytes:
        raise SystemExit

    assert BackgroundWork(tmp_path, leave).result(60) is None
    wait_for_its_end()  # or the thread's exception fails another test
    assert BackgroundWork(tmp_path, lambda: b"done").result(60) == b"done"


def test_work_without_its_directory_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        BackgroundWork(tmp_path / "elsewhere", lambda: b"done").result(60)


def test_a_directory_that_is_removed_meanwhile_causes_no_error(tmp_path: Path) -> None:
    held = Held()
    directory = tmp_path / "snapshot"
    directory.mkdir()
    assert BackgroundWork(directory, held).result(0) is None
    directory.rename(tmp_path / "removed")
    held.released.set()
    wait_for_its_end()
