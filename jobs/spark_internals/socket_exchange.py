"""Runs a task in the Python worker with its subtask's state.

Spark may have given the task to another worker. An executor with several task slots has as many Python workers, and
Spark gives a task to the first idle worker. Two workers would swap their subtasks in every third batch: both stores are
closed and opened again, with cold caches, and RocksDB's running compactions start again. So a worker looks up the
partition of a task before it reads the task. If another worker keeps that partition's state and is idle, the two
workers exchange their connections to Spark. If the other worker is busy, the task runs where it is, and the state is
opened there.

Two processes exchange over a socket that idle workers listen at. The process that wants to exchange connects; the idle
process sends its connection and its variables, receives the connection and variables of the connecting process, and
confirms them. The confirmation decides for both processes: until it is sent both keep their own connection, so each may
end or give up at any moment, and closes the connection that it has received. The process that waits for the
confirmation can withdraw: after that it can no longer be sent. So a process without a free descriptor to receive a
connection takes no part, and a silent process delays its peer for at most a second. If several processes want to
exchange in a circle, processes with lower ids go first.

Spark identifies a worker by its connection, so it mistakes the two workers for each other from then on. Each also takes
over the broadcast variables that Spark counts for the other connection (`worker_broadcasts`). If Spark has to end a
worker that does not react, it ends the wrong worker, and runs the task of that worker again, as after any loss of a
worker.

It relies on the first 12 bytes that Spark sends to a worker for a task: the number
`SpecialLengths.START_OF_INIT_MESSAGE`, the length of the message, and the task's partition (Spark 4.3;
`pyspark.worker_message`). If the bytes begin with another number, tasks stay where they are.

The switch `worker-exchange` turns it off, together with the daemon that calls it.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import time
import uuid
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import msgspec
from pyspark.serializers import SpecialLengths

from .worker_broadcasts import held_broadcasts, hold_broadcasts

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITIONS_MAX = 1 << 15
"""The maximum number of key groups. Tasks of further partitions stay where Spark puts them."""

_WAIT_SECONDS = 1.0  # an idle worker answers at once, unless it is suspended
_WAITING_MAX = 64
_INT_BYTES = 4
_TASK_START = struct.Struct("!iii")  # Spark's first bytes: the kind of the message, its length, the partition
_TAKEN = b"!"  # confirms that a connection has arrived
_OFFER = struct.Struct("!i")  # sent with a connection: the length of the list of variables that follows
_OFFER_BYTES_MAX = 1 << 20
_BROADCASTS = msgspec.json.Decoder(dict[int, str])
_CREDENTIALS = struct.Struct("3i")  # process, user, group


@dataclass(frozen=True, slots=True)
class _Offer:
    """A connection by its descriptor, and its broadcast variables."""

    connection: int
    broadcasts: dict[int, str]

    @classmethod
    def of(cls, connection: socket.socket) -> _Offer | None:
        """Returns the offer of this process.

        Returns None if its variables cannot be handed on.
        """
        broadcasts = held_broadcasts()
        return None if broadcasts is None else cls(connection.fileno(), broadcasts)

    def send(self, line: socket.socket) -> None:
        broadcasts = msgspec.json.encode(self.broadcasts)
        if len(broadcasts) > _OFFER_BYTES_MAX:
            broadcasts = b""  # the other side refuses it
        socket.send_fds(line, [_OFFER.pack(len(broadcasts))], [self.connection])
        line.sendall(broadcasts)

    def take(self, connection: socket.socket) -> None:
        """Gives this process the connection and its variables."""
        os.dup2(self.connection, connection.fileno(), inheritable=False)
        hold_broadcasts(self.broadcasts)


class SocketExchange:
    """The table in which the workers of one daemon find each other.

    It is created before the first worker is forked. Linux only, as its sockets have no files. Connections are exchanged
    only with processes of the same user.
    """

    def __init__(self) -> None:
        self._name = uuid.uuid4().hex
        self._homes = memoryview(mmap.mmap(-1, PARTITIONS_MAX * _INT_BYTES)).cast("i")  # per partition, 0: none
        self._listener: socket.socket | None = None
        self._waiting: list[socket.socket] = []

    def claim(self, partition: int) -> None:
        """Makes this process the home of the partition's tasks."""
        if partition < PARTITIONS_MAX:
            self._homes[partition] = os.getpid()

    def claim_free(self, partition: int) -> None:
        """Makes this process the home of a partition without a home."""
        if partition < PARTITIONS_MAX and not self._homes[partition]:
            self.claim(partition)

    def open(self) -> None:
        """Declares this process idle.

        Other processes may then ask for its connection; they are served while it awaits a task.
        """
        if self._listener is None:
            with suppress(OSError), ExitStack() as unfinished:  # without a descriptor this process cannot be asked
                listener = unfinished.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                listener.bind(self._address(os.getpid()))
                listener.listen(_WAITING_MAX)
                unfinished.pop_all()
                self._listener = listener

    def await_task(self, connection: socket.socket) -> None:
        """Waits for a task that belongs in this process.

        The connection may be exchanged meanwhile.

        Args:
            connection: This worker's connection to Spark, between two tasks. Nothing is read from it.
        """
        self.open()
        try:
            while (home := self._home(self._next_partition(connection))) is not None:
                if not self._exchange(connection, home):
                    return
        finally:
            self._close()

    def _next_partition(self, connection: socket.socket) -> int:
        """Serves other processes until there is something to read.

        Returns the task's partition, or -1 if the bytes are not a task.
        """
        is_readable = False
        while not is_readable or self._waiting:
            if self._waiting:
                self._serve(connection, self._waiting.pop(0))
            is_readable = self._look(connection, 0 if self._waiting else None)
        start = b""
        with suppress(ConnectionError):  # the reader of the connection handles it
            start = connection.recv(_TASK_START.size, socket.MSG_PEEK | socket.MSG_WAITALL)
        if len(start) < _TASK_START.size:
            return -1
        kind, _, partition = _TASK_START.unpack(start)
        return int(partition) if kind == SpecialLengths.START_OF_INIT_MESSAGE else -1

    def _home(self, partition: int) -> int | None:
        """Returns the other process that is the partition's home, if any."""
        home = self._homes[partition] if 0 <= partition < PARTITIONS_MAX else 0
        return None if home in {0, os.getpid()} else home

    def _exchange(self, connection: socket.socket, home: int) -> bool:
        """Asks another process for its connection.

        Returns whether the connection of this process may have changed.
        """
        ours = _Offer.of(connection)
        if ours is None:
            return False
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            until = time.monotonic() + _WAIT_SECONDS
            line.settimeout(_WAIT_SECONDS)
            line.connect(self._address(home))
            if not _is_own_user(line):
                return False
            while not self._look(line, _WAIT_SECONDS):
                before_us = [other for other in self._waiting if _credentials(other)[0] < os.getpid()]
                if before_us:
                    line.close()  # closes connections that were sent to this process meanwhile
                    self._waiting.remove(before_us[0])
                    self._serve(connection, before_us[0])
                    return True
                if time.monotonic() > until:
                    return False
            with _received(line) as theirs:
                if theirs is not None:
                    ours.send(line)
                    if _is_taken(line):
                        theirs.take(connection)
                        return True
        return False

    def _serve(self, connection: socket.socket, line: socket.socket) -> None:
        """Exchanges connections with another process that still waits."""
        ours = _Offer.of(connection)
        with line, suppress(OSError):
            if ours is None:
                return
            line.settimeout(_WAIT_SECONDS)
            ours.send(line)
            with _received(line) as theirs:
                if theirs is not None:
                    line.sendall(_TAKEN)  # fails if the other process has withdrawn
                    theirs.take(connection)

    def _look(self, awaited: socket.socket, timeout_seconds: float | None) -> bool:
        """Waits for bytes to read or for an exchange.

        Returns whether there is something to read.
        """
        poller = select.poll()
        poller.register(awaited, select.POLLIN)
        if self._listener is not None:
            poller.register(self._listener, select.POLLIN)
        ready = {number for number, _ in poller.poll(None if timeout_seconds is None else timeout_seconds * 1000)}
        if self._listener is not None and self._listener.fileno() in ready:
            self._accept(self._listener)
        return awaited.fileno() in ready

    def _accept(self, listener: socket.socket) -> None:
        try:
            line, _ = listener.accept()
        except OSError:  # without a free descriptor this process cannot be asked until its next task
            listener.close()
            self._listener = None
            return
        if _is_own_user(line):
            self._waiting.append(line)
        else:
            line.close()

    def _close(self) -> None:
        """Declares this process busy.

        Processes that wait for it continue without an exchange.
        """
        for line in [*self._waiting, *([self._listener] if self._listener else [])]:
            line.close()
        self._listener, self._waiting = None, []

    def _address(self, process: int) -> bytes:
        return f"\0keyscale/{self._name}/{process}".encode()


@cache
def socket_exchange() -> SocketExchange:
    """Returns the exchange shared by this process and its forks.

    The forks after the first call share it.
    """
    return SocketExchange()


@contextmanager
def _received(line: socket.socket) -> Iterator[_Offer | None]:
    """Receives the offer of the other side.

    Yields None if the other side has ended, no longer waits, or can offer nothing.
    """
    start, descriptors, _, _ = socket.recv_fds(line, _OFFER.size, 1)
    try:
        broadcasts = _receive(line, *_OFFER.unpack(start)) if descriptors and len(start) == _OFFER.size else b""
        yield _Offer(descriptors[0], _BROADCASTS.decode(broadcasts)) if broadcasts else None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _receive(line: socket.socket, size_bytes: int) -> bytes:
    """Receives exactly this many bytes; none if the other side ends earlier."""
    received = bytearray()
    while len(received) < min(size_bytes, _OFFER_BYTES_MAX):
        piece = line.recv(size_bytes - len(received))
        if not piece:
            return b""
        received += piece
    return bytes(received)


def _is_taken(line: socket.socket) -> bool:
    """Returns whether the other side has confirmed this side's connection.

    A later confirmation is impossible.
    """
    poller = select.poll()
    poller.register(line, select.POLLIN)
    poller.poll(_WAIT_SECONDS * 1000)
    line.shutdown(socket.SHUT_RD)  # earlier bytes can still be received; sending fails from now on
    return line.recv(1) == _TAKEN


def _is_own_user(line: socket.socket) -> bool:
    return _credentials(line)[1] == os.geteuid()


def _credentials(line: socket.socket) -> tuple[int, int]:
    """Returns the process and user of the other side."""
    process, user, _ = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return process, user
