"""Workers that exchange their connections: real processes, whose Spark is this test."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import struct
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TYPE_CHECKING

import pytest
from pyspark.serializers import SpecialLengths

from jobs.runtime.switchboard import PARTITIONS_MAX, Switchboard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.context import ForkProcess

_TASK = struct.Struct("!iiii")  # as Spark begins a task, and what the task is to give back
_DONE = struct.Struct("!ii")  # by which process, and what
_TIMEOUT_SECONDS = 30


def work(board: Switchboard, connection: socket.socket) -> None:
    """A worker: one task after the other, each of which claims its partition. Negative ones take until they are told to end."""
    while True:
        board.await_task(connection)
        start = connection.recv(_TASK.size, socket.MSG_WAITALL)
        if not start:
            return
        _, _, partition, number = _TASK.unpack(start)
        if partition >= 0:
            board.claim(partition)
        if number < 0:
            connection.sendall(b"!")
            connection.recv(1)
        board.open()
        connection.sendall(_DONE.pack(os.getpid(), number))


@dataclass
class Daemon:
    """Workers, and this side's ends of their connections."""

    board: Switchboard = field(default_factory=Switchboard)
    workers: list[ForkProcess] = field(default_factory=list)
    connections: list[socket.socket] = field(default_factory=list)

    def fork(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(_TIMEOUT_SECONDS)
        worker = get_context("fork").Process(target=self._work_in_child, args=(theirs,), daemon=True)
        self.connections.append(ours)
        self.workers.append(worker)
        worker.start()
        theirs.close()
        return ours

    def _work_in_child(self, theirs: socket.socket) -> None:
        for ours in self.connections:
            ours.close()  # or the end of a connection would not be seen at its other end
        work(self.board, theirs)

    def settle(self, partitions: list[int]) -> dict[int, int]:
        """Has each worker claim one of the partitions; the processes, by partition."""
        for partition in partitions:
            start(self.fork(), partition, 0)
        return {
            partition: done(connection)[0] for partition, connection in zip(partitions, self.connections, strict=True)
        }

    def kill(self, number: int) -> None:
        worker = self.workers.pop(number)
        worker.kill()
        worker.join(_TIMEOUT_SECONDS)

    def end(self) -> None:
        for connection in self.connections:
            connection.close()
        for worker in self.workers:
            worker.join(_TIMEOUT_SECONDS)
        assert not [worker for worker in self.workers if worker.is_alive()]


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    daemon = Daemon()
    yield daemon
    daemon.end()


def start(
    connection: socket.socket, partition: int, number: int, kind: int = SpecialLengths.START_OF_INIT_MESSAGE
) -> None:
    connection.sendall(_TASK.pack(kind, _TASK.size, partition, number))


def done(connection: socket.socket) -> tuple[int, int]:
    process, number = _DONE.unpack(connection.recv(_DONE.size, socket.MSG_WAITALL))
    return process, number


@pytest.mark.parametrize("workers", [2, 3, 6])
def test_tasks_run_where_their_partition_is_whichever_worker_they_are_given_to(daemon: Daemon, workers: int) -> None:
    homes = daemon.settle(list(range(workers)))
    random_ = random.Random(workers)
    for turn in range(1, 101):
        given = random_.sample(daemon.connections, workers)
        for partition, connection in enumerate(given):
            start(connection, partition, turn * workers + partition)
        for partition, connection in enumerate(given):
            assert done(connection) == (homes[partition], turn * workers + partition)


def test_a_task_given_to_another_worker_alone_runs_where_its_partition_is(daemon: Daemon) -> None:
    homes = daemon.settle([4, 7])
    for number in range(1, 21):
        connection = daemon.connections[number % 2]
        start(connection, 4, number)
        assert done(connection) == (homes[4], number)


def test_a_task_does_not_wait_for_a_worker_that_is_busy(daemon: Daemon) -> None:
    homes = daemon.settle([0, 1])
    busy, idle = daemon.connections
    start(busy, 0, -1)
    assert busy.recv(1) == b"!"
    start(idle, 0, 2)
    assert done(idle) == (homes[1], 2)
    busy.sendall(b".")
    assert done(busy) == (homes[0], -1)


def test_a_task_does_not_wait_for_a_worker_that_is_stopped_and_takes_nothing_from_it(daemon: Daemon) -> None:
    homes = daemon.settle([0, 1])
    os.kill(homes[0], signal.SIGSTOP)
    start(daemon.connections[1], 0, 1)
    assert done(daemon.connections[1]) == (homes[1], 1)
    os.kill(homes[0], signal.SIGCONT)
    start(daemon.connections[0], 9, 2)
    assert done(daemon.connections[0]) == (homes[0], 2)


def test_a_partition_of_a_worker_that_is_gone_is_at_home_where_its_next_task_runs(daemon: Daemon) -> None:
    homes = daemon.settle([0, 1])
    daemon.kill(0)
    start(daemon.connections[1], 0, 1)
    assert done(daemon.connections[1]) == (homes[1], 1)
    new = daemon.fork()
    start(new, 0, 2)
    assert done(new) == (homes[1], 2)


@pytest.mark.parametrize("partition", [-1, PARTITIONS_MAX, 1 << 30])
def test_what_is_no_task_of_a_partition_is_left_where_it_is(daemon: Daemon, partition: int) -> None:
    homes = daemon.settle([0, 1])
    start(daemon.connections[1], partition, 1)
    assert done(daemon.connections[1]) == (homes[1], 1)


def test_what_begins_as_no_task_does_is_left_where_it_is(daemon: Daemon) -> None:
    homes = daemon.settle([0, 1])
    start(daemon.connections[1], 0, 1, kind=SpecialLengths.END_OF_STREAM)
    assert done(daemon.connections[1]) == (homes[1], 1)


@pytest.mark.parametrize("suspicious", [0, 1])
def test_nothing_is_exchanged_if_either_side_takes_the_other_for_another_user(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, suspicious: int
) -> None:
    for partition in [0, 1]:
        with monkeypatch.context() as patch:
            if partition == suspicious:
                patch.setattr(os, "geteuid", lambda: -1)
            start(daemon.fork(), partition, 0)
    homes = [done(connection)[0] for connection in daemon.connections]
    start(daemon.connections[1], 0, 1)
    assert done(daemon.connections[1]) == (homes[1], 1)


def test_a_worker_whose_connection_was_exchanged_ends_with_the_one_that_it_has(daemon: Daemon) -> None:
    homes = daemon.settle([0, 1])
    start(daemon.connections[1], 0, 1)
    assert done(daemon.connections[1]) == (homes[0], 1)
    daemon.connections[1].close()
    daemon.workers[0].join(_TIMEOUT_SECONDS)
    assert daemon.workers[0].exitcode == 0
    start(daemon.connections[0], 5, 2)
    assert done(daemon.connections[0]) == (homes[1], 2)


def test_a_worker_that_is_killed_costs_one_connection_and_no_other_task(daemon: Daemon) -> None:
    daemon.settle([0, 1, 2, 3])
    random_ = random.Random(5)
    for turn in range(1, 101):
        given = random_.sample(daemon.connections, 4)
        for partition, connection in enumerate(given):
            start(connection, partition, 4 * turn + partition)
        daemon.kill(random_.randrange(4))
        unanswered = [
            connection
            for partition, connection in enumerate(given)
            if not is_answered(connection, 4 * turn + partition)
        ]
        ended, _, _ = select.select(given, [], [], _TIMEOUT_SECONDS)
        assert len(ended) == 1
        assert unanswered in ([], ended)
        daemon.connections.remove(ended[0])
        ended[0].close()
        daemon.fork()


def is_answered(connection: socket.socket, number: int) -> bool:
    """Whether a task's own result came, and no other; not if its worker has ended."""
    try:
        answer = connection.recv(_DONE.size, socket.MSG_WAITALL)
    except ConnectionResetError:
        return False
    assert not answer or _DONE.unpack(answer)[1] == number
    return bool(answer)
