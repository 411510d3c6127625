"""The stacks of a Python worker, for other processes of its user.

A worker answers signals, in C and without Python's lock: it answers while a function hangs, also inside a C extension.
It writes into files in memory, which end with the worker; other processes find the files among its descriptors. One
signal asks for the stacks of all threads. Another signal asks for a sample: the stack of the main thread alone, which
runs the functions. A thread can read its own stack at any time; to read the stacks of running threads is slightly
unsafe, and therefore done once per dump, not fifty times a second.

Linux only, as are files in memory and the descriptors of processes.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import sys
from typing import NamedTuple

NAME_VARIABLE = "KEYSCALE_WORKER_STACKS"
"""The environment variable with the name by which a driver finds its workers."""
_TASK_BYTES = 400


class StackFile(NamedTuple):
    """A file for stacks, and the signal that asks for them."""

    label: str
    signal: int

    def link(self, name: str) -> str:
        """Returns what a worker's descriptor of the file links to."""
        return f"/memfd:{_file_name(name, self.label)} (deleted)"


_FIRST_SIGNAL = getattr(signal, "SIGRTMIN", 0) + 7  # programs and libraries use the first ones for themselves
ALL_THREADS = StackFile("threads", _FIRST_SIGNAL)
SAMPLES = StackFile("samples", _FIRST_SIGNAL + 1)
TASK = StackFile("task", 0)
"""The file that says what the worker does; no signal asks for it."""


class WorkerStacks:
    """The stack files of this process.

    Args:
        name: The name by which the driver finds its workers.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._files: list[int] = []

    def offer(self) -> None:
        """Answers requests from now on.

        Call it in each new process: a fork would answer into the files of its parent.
        """
        if sys.platform != "linux":
            return
        for file in self._files:
            os.close(file)
        self._files = [os.memfd_create(_file_name(self._name, each.label)) for each in (ALL_THREADS, SAMPLES, TASK)]
        for each, file in zip((ALL_THREADS, SAMPLES), self._files, strict=False):
            fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)  # the reader empties the file
            faulthandler.register(each.signal, file, all_threads=each is ALL_THREADS)

    def begin_task(self, task: str) -> None:
        """Says what this worker does."""
        if self._files:
            os.pwrite(self._files[-1], task.encode()[:_TASK_BYTES].ljust(_TASK_BYTES), 0)


_OF_PROCESS: list[WorkerStacks] = []


def offer_stacks_in_forks(name: str) -> None:
    """Makes every process that this one forks offer its stacks."""
    stacks = WorkerStacks(name)
    _OF_PROCESS[:] = [stacks]
    os.register_at_fork(after_in_child=stacks.offer)


def begin_task(task: str) -> None:
    """Says what this worker does, if it offers its stacks."""
    for stacks in _OF_PROCESS:
        stacks.begin_task(task)


def _file_name(name: str, label: str) -> str:
    return f"keyscale-{name}-{label}"
