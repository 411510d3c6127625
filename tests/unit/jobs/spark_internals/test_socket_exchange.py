"""Workers that exchange their connections: real processes, with this test in place of Spark."""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import struct
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TYPE_CHECKING

import pytest
from pyspark.serializers import SpecialLengths

from keyscale.jobs.spark_internals import socket_exchange
from keyscale.jobs.spark_internals.socket_exchange import PARTITIONS_MAX, SocketExchange
from tests.support.readable_sources import readable
from tests.support.short_form import short_form

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.context import ForkProcess

_TASK = struct.Struct("!iiii")  # the start of a task as Spark sends it, and the value that the task shall return
_DONE = struct.Struct("!ii")  # the process that ran it, and the value
_TIMEOUT_SECONDS = 30
_USE_UP = -100  # a task of this number leaves its process no descriptors; of a lower one, as many as it is lower


def use_up_descriptors(but: int) -> None:
    """Leaves this process as many descriptors as given."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    opened: list[int] = []
    try:
        while True:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        for descriptor in opened[:but]:
            os.close(descriptor)


def work(board: SocketExchange, connection: socket.socket) -> None:
    """A worker: one task after the other, each of which claims its partition. Negative ones run until told to end."""
    while True:
        board.await_task(connection)
        start = connection.recv(_TASK.size, socket.MSG_WAITALL)
        if not start:
            return
        _, _, partition, number = _TASK.unpack(start)
        if partition >= 0:
            board.claim(partition)
        if number <= _USE_UP:
            board.open()
            use_up_descriptors(but=_USE_UP - number)
        elif number < 0:
            connection.sendall(b"!")
            connection.recv(1)
        board.open()
        connection.sendall(_DONE.pack(os.getpid(), number))


@dataclass
class Daemon:
    """Workers, and the test's ends of their connections."""

    board: SocketExchange = field(default_factory=SocketExchange)
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
        """Has each worker claim one of the partitions; returns the processes by partition."""
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


def test_a_task_does_not_wait_for_a_suspended_worker_and_takes_nothing_from_it(daemon: Daemon) -> None:
    homes = daemon.settle([0, 1])
    os.kill(homes[0], signal.SIGSTOP)
    start(daemon.connections[1], 0, 1)
    assert done(daemon.connections[1]) == (homes[1], 1)
    os.kill(homes[0], signal.SIGCONT)
    start(daemon.connections[0], 9, 2)
    assert done(daemon.connections[0]) == (homes[0], 2)


def test_after_its_worker_has_ended_a_partition_is_at_home_where_its_next_task_runs(daemon: Daemon) -> None:
    homes = daemon.settle([0, 1])
    daemon.kill(0)
    start(daemon.connections[1], 0, 1)
    assert done(daemon.connections[1]) == (homes[1], 1)
    new = daemon.fork()
    start(new, 0, 2)
    assert done(new) == (homes[1], 2)


@pytest.mark.parametrize("left", [0, 1, 2, 3])
@pytest.mark.parametrize("short", ["the home", "the other"])
def test_a_process_that_runs_out_of_descriptors_shares_no_connection_with_another(
    daemon: Daemon, left: int, short: str
) -> None:
    homes = daemon.settle([0, 1])
    at_home, other = daemon.connections
    poor = at_home if short == "the home" else other
    start(poor, 0 if short == "the home" else 1, _USE_UP - left)
    done(poor)
    for number in range(1, 4):
        start(other, 0, number)
        process, answered = done(other)
        assert (answered, process in homes.values()) == (number, True)
        start(at_home, 0, number + 10)
        assert done(at_home)[1] == number + 10
    processes = set()
    for connection in daemon.connections:  # both at once
        start(connection, 9, -1)
        assert connection.recv(1) == b"!"
    for connection in daemon.connections:
        connection.sendall(b".")
        processes.add(done(connection)[0])
    assert processes == set(homes.values()), "each connection has a process of its own"


def test_a_process_that_asks_and_sends_nothing_delays_other_processes_only_briefly(daemon: Daemon) -> None:
    homes = daemon.settle([0])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(daemon.board._address(homes[0]))
        start(daemon.connections[0], 0, 1)
        assert done(daemon.connections[0]) == (homes[0], 1)


def test_a_process_that_was_asked_cannot_take_a_connection_that_is_no_longer_offered(daemon: Daemon) -> None:
    homes = daemon.settle([1])
    daemon.board.claim(0)  # this test is the home of partition 0
    ours, _theirs = socket.socketpair()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, ours, _theirs:
        listener.bind(daemon.board._address(os.getpid()))
        listener.listen()
        start(daemon.connections[0], 0, 1)
        line, _ = listener.accept()
        with line:
            socket.send_fds(line, [struct.pack("!i", 2), b"{}"], [ours.fileno()])
            _, descriptors, _, _ = socket.recv_fds(line, 6, 1)
            assert descriptors, "it offers its own connection"
            assert done(daemon.connections[0]) == (homes[1], 1), "it waits no longer, and runs the task itself"
            with pytest.raises(BrokenPipeError):
                line.sendall(b"!")
            for descriptor in descriptors:
                os.close(descriptor)
    start(daemon.connections[0], 5, 2)
    assert done(daemon.connections[0]) == (homes[1], 2)


@pytest.mark.parametrize("partition", [-1, PARTITIONS_MAX, 1 << 30])
def test_a_message_without_a_partition_is_left_where_it_is(daemon: Daemon, partition: int) -> None:
    homes = daemon.settle([0, 1])
    start(daemon.connections[1], partition, 1)
    assert done(daemon.connections[1]) == (homes[1], 1)


def test_a_message_of_another_kind_is_left_where_it_is(daemon: Daemon) -> None:
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


@pytest.mark.parametrize("poor", [0, 1])
@pytest.mark.parametrize(
    "held", [None, dict.fromkeys(range(1 << 17), "a variable's file")], ids=["without a file", "too many"]
)
def test_nothing_is_exchanged_if_either_side_cannot_hand_on_its_broadcast_variables(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, poor: int, held: dict[int, str] | None
) -> None:
    for partition in [0, 1]:
        with monkeypatch.context() as patch:
            if partition == poor:
                patch.setattr(socket_exchange, "held_broadcasts", lambda: held)
            start(daemon.fork(), partition, 0)
    homes = [done(connection)[0] for connection in daemon.connections]
    for number in range(1, 4):
        start(daemon.connections[1], 0, number)
        assert done(daemon.connections[1]) == (homes[1], number)


def test_a_worker_ends_with_the_connection_that_it_has_after_an_exchange(daemon: Daemon) -> None:
    homes = daemon.settle([0, 1])
    start(daemon.connections[1], 0, 1)
    assert done(daemon.connections[1]) == (homes[0], 1)
    daemon.connections[1].close()
    daemon.workers[0].join(_TIMEOUT_SECONDS)
    assert daemon.workers[0].exitcode == 0
    start(daemon.connections[0], 5, 2)
    assert done(daemon.connections[0]) == (homes[1], 2)


@pytest.mark.parametrize("turns", short_form([20, 100], [20]))
def test_a_worker_that_is_killed_costs_one_connection_and_no_other_task(daemon: Daemon, turns: int) -> None:
    daemon.settle([0, 1, 2, 3])
    random_ = random.Random(5)
    for turn in range(1, turns + 1):
        given = random_.sample(daemon.connections, 4)
        for partition, connection in enumerate(given):
            start(connection, partition, 4 * turn + partition)
        daemon.kill(random_.randrange(4))
        unanswered = [
            connection
            for partition, connection in enumerate(given)
            if not is_answered(connection, 4 * turn + partition)
        ]
        ended = readable(given, _TIMEOUT_SECONDS)
        assert len(ended) == 1
        assert unanswered in ([], ended)
        daemon.connections.remove(ended[0])
        ended[0].close()
        daemon.fork()


def is_answered(connection: socket.socket, number: int) -> bool:
    """Whether the task's own result arrived; False if its worker has ended."""
    try:
        answer = connection.recv(_DONE.size, socket.MSG_WAITALL)
    except ConnectionResetError:
        return False
    assert not answer or _DONE.unpack(answer)[1] == number
    return bool(answer)


def test_only_a_partition_without_a_home_is_claimed_ahead_of_its_attempt(daemon: Daemon) -> None:
    homes = daemon.settle([0])
    for partition in (0, 1, PARTITIONS_MAX):
        daemon.board.claim_free(partition)
    assert [daemon.board._homes[partition] for partition in (0, 1)] == [homes[0], os.getpid()]


@pytest.mark.parametrize(("sent", "expected"), [((b"ab", b"cd"), b"abcd"), ((b"ab",), b""), ((), b"")])
def test_a_message_is_whole_or_nothing(sent: tuple[bytes, ...], expected: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for piece in sent:
            theirs.sendall(piece)
        theirs.shutdown(socket.SHUT_WR)
        assert socket_exchange._receive(ours, 4) == expected
