"""Has a task run in the Python worker that keeps its subtask's state open, though Spark gave it to another one.

An executor with several task slots has as many Python workers, and Spark gives a task whichever is idle first. Two workers would so
change subtasks in every third batch: both stores are closed and opened again, with cold caches, and what RocksDB was merging is
merged anew. So a worker looks at which partition a task is of before it reads anything, and exchanges its connection to Spark with
the worker that keeps the partition's state, if that one is idle. If it is not, the task runs where it is, and the state comes to it.

The exchange is between two processes, over a socket that idle workers listen at. Who wants to exchange connects; the idle worker
sends its connection, and waits for the other's. Until then both keep their own, so either may end or give up at any moment: what a
process has of another's is closed with it. If several want to exchange in a circle, those of lower process ids are served first.

Spark, which knows a worker by its connection, takes each for the other from then on. To end a worker that does not react, it would
end the other one, whose task it then tries again, as after any loss of a worker.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import time
import uuid
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING

from pyspark.serializers import SpecialLengths

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITIONS_MAX = 1 << 15
"""As many as there can be key groups. Tasks of partitions beyond stay where Spark puts them."""

_PATIENCE_SECONDS = 1.0  # an idle worker answers at once, unless it is stopped
_WAITING_MAX = 64
_INT_BYTES = 4
_TASK_START = struct.Struct("!iii")  # what Spark sends first: the kind of the message, its length, the partition
_CREDENTIALS = struct.Struct("3i")  # process, user, group


class Switchboard:
    """Where the workers of one daemon find each other; made before the first of them is forked.

    Linux only, for sockets that are no files. Processes of other users are neither served nor trusted.
    """

    def __init__(self) -> None:
        self._name = uuid.uuid4().hex
        self._homes = memoryview(mmap.mmap(-1, PARTITIONS_MAX * _INT_BYTES)).cast("i")  # a process each, 0: none
        self._listener: socket.socket | None = None
        self._waiting: list[socket.socket] = []

    def claim(self, partition: int) -> None:
        """Tasks of the partition are at home in this process from now on."""
        if partition < PARTITIONS_MAX:
            self._homes[partition] = os.getpid()

    def open(self) -> None:
        """This process is idle: others may ask for its connection, and are answered when it awaits a task."""
        if self._listener is None:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(self._address(os.getpid()))
            self._listener.listen(_WAITING_MAX)

    def await_task(self, connection: socket.socket) -> None:
        """Returns when the connection, which may have been exchanged, has something to read that belongs here.

        Args:
            connection: A worker's to Spark, between two tasks. Nothing is read from it.
        """
        self.open()
        try:
            while (home := self._home(self._next_partition(connection))) is not None:
                if not self._exchange(connection, home):
                    return
        finally:
            self._close()

    def _next_partition(self, connection: socket.socket) -> int:
        """Serves others until there is something to read; -1: what is there is no task."""
        is_readable = False
        while not is_readable or self._waiting:
            if self._waiting:
                self._serve(connection, self._waiting.pop(0))
            is_readable = self._look(connection, 0 if self._waiting else None)
        start = b""
        with suppress(ConnectionError):  # which is for whoever reads to handle
            start = connection.recv(_TASK_START.size, socket.MSG_PEEK | socket.MSG_WAITALL)
        if len(start) < _TASK_START.size:
            return -1
        kind, _, partition = _TASK_START.unpack(start)
        return int(partition) if kind == SpecialLengths.START_OF_INIT_MESSAGE else -1

    def _home(self, partition: int) -> int | None:
        """The other process that the partition is at home in."""
        home = self._homes[partition] if 0 <= partition < PARTITIONS_MAX else 0
        return None if home in {0, os.getpid()} else home

    def _exchange(self, connection: socket.socket, home: int) -> bool:
        """Asks another process for its connection; whether this one's may be another now."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line, suppress(OSError):
            until = time.monotonic() + _PATIENCE_SECONDS
            line.settimeout(_PATIENCE_SECONDS)
            line.connect(self._address(home))
            if not _is_own_user(line):
                return False
            while not self._look(line, _PATIENCE_SECONDS):
                before_us = [other for other in self._waiting if _credentials(other)[0] < os.getpid()]
                if before_us:
                    line.close()  # and with it what has been sent to us meanwhile
                    self._waiting.remove(before_us[0])
                    self._serve(connection, before_us[0])
                    return True
                if time.monotonic() > until:
                    return False
            with _received(line) as theirs:
                if theirs is not None:
                    socket.send_fds(line, [b"."], [connection.fileno()])
                    os.dup2(theirs, connection.fileno(), inheritable=False)
                    return True
        return False

    def _serve(self, connection: socket.socket, line: socket.socket) -> None:
        """Exchanges with another process, unless it no longer wants to."""
        with line, suppress(OSError):
            socket.send_fds(line, [b"."], [connection.fileno()])
            with _received(line) as theirs:
                if theirs is not None:
                    os.dup2(theirs, connection.fileno(), inheritable=False)

    def _look(self, awaited: socket.socket, timeout_seconds: float | None) -> bool:
        """Waits until there is something to read, or somebody comes who wants to exchange; whether it is the first."""
        assert self._listener is not None  # noqa: S101 - it is open while this process is idle
        poller = select.poll()
        poller.register(awaited, select.POLLIN)
        poller.register(self._listener, select.POLLIN)
        ready = {number for number, _ in poller.poll(None if timeout_seconds is None else timeout_seconds * 1000)}
        if self._listener.fileno() in ready:
            line, _ = self._listener.accept()
            if _is_own_user(line):
                self._waiting.append(line)
            else:
                line.close()
        return awaited.fileno() in ready

    def _close(self) -> None:
        """This process is no longer idle: who waits for it goes on without."""
        for line in [*self._waiting, *([self._listener] if self._listener else [])]:
            line.close()
        self._listener, self._waiting = None, []

    def _address(self, process: int) -> bytes:
        return f"\0keyscale/{self._name}/{process}".encode()


@cache
def switchboard() -> Switchboard:
    """The one that this process shares with all that are forked after the first call."""
    return Switchboard()


@contextmanager
def _received(line: socket.socket) -> Iterator[int | None]:
    """What the other side sends; None: it has gone, or no longer wants to."""
    _, descriptors, _, _ = socket.recv_fds(line, 1, 1)
    try:
        yield descriptors[0] if descriptors else None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _is_own_user(line: socket.socket) -> bool:
    return _credentials(line)[1] == os.geteuid()


def _credentials(line: socket.socket) -> tuple[int, int]:
    """Process and user of the other side."""
    process, user, _ = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return process, user
