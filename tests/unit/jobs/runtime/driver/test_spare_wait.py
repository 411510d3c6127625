"""The wait of a spare driver for its run, with its supervisor's end of the socket in the test."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.jobs.protocol.spare import ASSIGNMENT_SOCKET, READY, TAKEN
from keyscale.jobs.runtime.driver.spare_wait import SpareWait

if TYPE_CHECKING:
    from collections.abc import Iterator


class WarmUp:
    """A warm-up that ends when the test says so."""

    def __init__(self) -> None:
        self.is_done = threading.Event()
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def wait(self) -> None:
        self.is_done.wait()

    def finish(self) -> None:
        self.calls.append("finish")
        self.is_done.set()


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(ASSIGNMENT_SOCKET)
        made.listen(1)
        yield made


def waiting(listener: socket.socket, warm_up: WarmUp) -> tuple[socket.socket, threading.Thread, list[Any]]:
    """Returns the supervisor's end, the thread that waits, and what it has got."""
    wait, got = SpareWait(Path.cwd()), list[Any]()
    thread = threading.Thread(target=lambda: got.append(wait.variables(cast("Any", warm_up))))
    thread.start()
    connection, _ = listener.accept()
    connection.settimeout(30)
    return connection, thread, got


def test_a_warm_spare_says_so_and_takes_its_run(listener: socket.socket) -> None:
    warm_up = WarmUp()
    connection, thread, got = waiting(listener, warm_up)
    with connection:
        warm_up.is_done.set()
        assert connection.recv(64) == READY
        connection.sendall(json.dumps({"KEYSCALE_ATTEMPT": "job:7"}).encode() + b"\n")
        assert connection.recv(64) == TAKEN
        thread.join(30)
    assert got == [{"KEYSCALE_ATTEMPT": "job:7"}]
    assert warm_up.calls == ["start", "finish"]


def test_a_run_that_comes_early_cuts_the_warm_up_short(listener: socket.socket) -> None:
    warm_up = WarmUp()
    connection, thread, got = waiting(listener, warm_up)
    with connection:
        connection.sendall(b"{}\n")
        assert connection.recv(64) == TAKEN
        thread.join(30)
    assert (got, warm_up.calls) == ([{}], ["start", "finish"])


@pytest.mark.parametrize("sent", [b"", b'{"KEYSCALE_ATT'])
def test_a_spare_without_its_supervisor_ends(listener: socket.socket, sent: bytes) -> None:
    warm_up = WarmUp()
    connection, thread, got = waiting(listener, warm_up)
    with connection:
        connection.sendall(sent)
    thread.join(30)
    warm_up.is_done.set()
    assert got == [None]
