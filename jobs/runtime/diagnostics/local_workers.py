"""The Python workers of a driver on its host, and their stacks."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..executor.worker_stacks import ALL_THREADS, SAMPLES, TASK, StackFile

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROCESSES = Path("/proc")
_ANSWER_SECONDS = 2.0
_QUIET_SECONDS = 0.05  # a process writes its stacks in one go
_POLL_SECONDS = 0.01
_STACKS_BYTES_MAX = 16 << 20


class LocalWorker(NamedTuple):
    """A Python worker.

    Attributes:
        pid: Its process.
        name: The name by which it offers its stacks.
        descriptors: The descriptors of its stack files, by their labels.
    """

    pid: int
    name: str
    descriptors: dict[str, str]

    @property
    def task(self) -> str:
        """What the worker does or did last; empty before its first task."""
        return self.read(TASK).strip("\0 ")

    @property
    def title(self) -> str:
        """The name of the worker in a diagnostic."""
        task = self.task
        return f"worker {self.pid}: {task}" if task else f"worker {self.pid}"

    def dump(self) -> str:
        """Returns the stacks of all its threads.

        They are empty if the worker does not answer, as a stopped process.
        """
        self.empty(ALL_THREADS)
        self.ask(ALL_THREADS)
        return self._answer()

    def empty(self, asked: StackFile) -> None:
        """Removes earlier stacks."""
        with suppress(OSError), self._opened(asked) as file:
            os.ftruncate(file, 0)

    def ask(self, asked: StackFile) -> bool:
        """Asks for stacks; returns False if the worker has ended.

        A process is never sent a signal that would end it.
        """
        try:
            if not _catches(self.pid, asked.signal):
                return False
            os.kill(self.pid, asked.signal)
        except OSError:
            return False
        return True

    def read(self, asked: StackFile) -> str:
        """Returns the stacks since the file was emptied."""
        with suppress(OSError), self._opened(asked) as file:
            return os.pread(file, _STACKS_BYTES_MAX, 0).decode(errors="replace")
        return ""

    @contextmanager
    def _opened(self, wanted: StackFile) -> Iterator[int]:
        """Opens a file of the worker.

        Raises:
            OSError: The worker has ended; another process may have its number now.
        """
        file = os.open(_link_in(self.pid, self.descriptors[wanted.label]), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if _target(_link_in("self", str(file))) != wanted.link(self.name):
                raise FileNotFoundError(self.pid)
            yield file
        finally:
            os.close(file)

    def _answer(self) -> str:
        """Waits until the worker has written all stacks."""
        found, until, quiet_from = "", time.monotonic() + _ANSWER_SECONDS, time.monotonic()
        while (now := time.monotonic()) < until and not (found and now - quiet_from > _QUIET_SECONDS):
            time.sleep(_POLL_SECONDS)
            if (text := self.read(ALL_THREADS)) != found:
                found, quiet_from = text, time.monotonic()
        return found


def local_workers(name: str) -> list[LocalWorker]:
    """Returns the workers that offer their stacks by a name."""
    return sorted(_found(name))


def _found(name: str) -> Iterator[LocalWorker]:
    labels = {each.link(name): each.label for each in (ALL_THREADS, SAMPLES, TASK)}
    for process in filter(str.isdecimal, os.listdir(_PROCESSES)):  # noqa: PTH208 - paths cost ten times as much
        descriptors = {}
        with suppress(OSError):  # another user's, or it has ended
            for each in os.listdir(f"{_PROCESSES}/{process}/fd"):  # noqa: PTH208 - as above
                label = labels.get(_target(_link_in(process, each)))
                if label is not None:
                    descriptors[label] = each
        if len(descriptors) == len(labels):
            yield LocalWorker(int(process), name, descriptors)


def _link_in(process: int | str, descriptor: str) -> str:
    return f"{_PROCESSES}/{process}/fd/{descriptor}"


def _target(link: str) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115 - as above
    except OSError:
        return ""


def _catches(pid: int, number: int) -> bool:
    """Returns whether a process has a handler for a signal."""
    for line in (_PROCESSES / str(pid) / "status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "SigCgt":
            return bool(int(value, 16) >> (number - 1) & 1)
    return False
