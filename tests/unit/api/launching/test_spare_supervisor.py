"""The steps of a spare's supervisor, in this process. `test_spare_drivers` runs whole spares."""

from __future__ import annotations

import json
import os
import socket
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.launching import spare_supervisor
from keyscale.api.launching.driver_log import LOG_FILE, LogWriter
from keyscale.api.launching.spare_supervisor import Driver
from keyscale.api.launching.supervisor import EXIT_CODE_FILE, EXIT_SUPERVISED_ALREADY, Output
from keyscale.jobs.protocol.redaction import Mask
from keyscale.jobs.protocol.spare import READY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ASSIGNMENT = {"run": "/runs/job/1", "command": ["own"], "variables": {"A": "b"}, "of_spare": {"C": "d"}}
LINE = json.dumps(ASSIGNMENT).encode() + b"\n"


class Input:
    """The standard input of a spare's supervisor, and the socket of its driver."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = tmp_path
        self.read, self.write = os.pipe()
        self.exit_code: int | None = None
        self.listener = socket.socket(socket.AF_UNIX)
        self.address = str(tmp_path / "s")
        self.listener.bind(self.address)
        self.listener.listen(1)
        monkeypatch.setattr(spare_supervisor, "_STANDARD_INPUT", self.read)
        monkeypatch.setattr(spare_supervisor, "_POLL_S", 0.01)
        monkeypatch.setattr(spare_supervisor, "_session_of", lambda _: os.getpid())

    def send(self, text: bytes) -> None:
        os.write(self.write, text)

    def end(self) -> None:
        os.close(self.write)
        self.write = -1

    def assignment(self) -> Any:
        process: Any = SimpleNamespace(poll=lambda: self.exit_code)
        driver = Driver(process, threading.current_thread(), self.listener)
        try:
            return spare_supervisor._assignment(driver, self.directory)
        finally:
            if driver.connection is not None:
                driver.connection.close()

    def close(self) -> None:
        self.listener.close()
        for descriptor in {self.read, self.write} - {-1}:
            os.close(descriptor)


@pytest.fixture
def stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Input]:
    given = Input(tmp_path, monkeypatch)
    yield given
    given.close()


def test_a_message_is_a_whole_line_and_the_end_of_the_input_is_none(
    stdin: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.read
    monkeypatch.setattr(spare_supervisor.os, "read", lambda file, _: read(file, 10))
    stdin.send(LINE)
    assert spare_supervisor._read_message() == ASSIGNMENT
    stdin.send(LINE[:-1])
    stdin.end()
    assert spare_supervisor._read_message() is None, "a control plane that ended in the middle of a line"


def test_a_spare_waits_until_its_driver_is_warm_and_its_run_comes(
    stdin: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    hears = Driver.hears
    heard: list[bool] = []

    def then_assigned(driver: Driver) -> bool:
        heard.append(hears(driver))
        stdin.send(LINE)
        return heard[-1]

    monkeypatch.setattr(Driver, "hears", then_assigned)
    with socket.socket(socket.AF_UNIX) as driver:
        driver.connect(stdin.address)
        driver.sendall(READY)
        assert stdin.assignment() == ASSIGNMENT
    assert (heard, (stdin.directory / "ready").exists()) == ([True], True)


def test_the_first_process_of_the_spares_session_that_connects_is_its_driver(
    stdin: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    process: Any = SimpleNamespace(poll=lambda: None)
    driver = Driver(process, threading.current_thread(), stdin.listener)
    session = os.getpid() + 1
    monkeypatch.setattr(spare_supervisor, "_session_of", lambda _: session)

    def connected() -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.connect(stdin.address)
        made.setblocking(False)
        driver.accept()
        return made

    with connected() as stranger:
        assert (driver.connection, stranger.recv(1)) == (None, b"")
    session = os.getpid()
    with connected() as own, connected() as second:
        assert driver.connection is not None
        assert second.recv(1) == b""
        own.sendall(READY)
        assert driver.hears()
        assert driver.is_ready
        driver.connection.close()


def test_a_spare_whose_driver_ends_is_over_unless_a_run_has_come(stdin: Input) -> None:
    with socket.socket(socket.AF_UNIX) as driver:
        driver.connect(stdin.address)
    assert stdin.assignment() is None, "the driver has closed its connection"
    assert not (stdin.directory / "ready").exists()
    stdin.exit_code = 1
    assert stdin.assignment() is None
    stdin.send(LINE)
    assert stdin.assignment() == ASSIGNMENT, "a run is never lost"


def test_a_spare_is_over_when_its_control_plane_ends(stdin: Input) -> None:
    stdin.end()
    assert stdin.assignment() is None


@pytest.mark.parametrize(("is_registered", "takes"), [(True, True), (True, False), (False, True)])
def test_an_assigned_run_is_run_by_the_warm_driver_or_else_by_one_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_registered: bool, takes: bool
) -> None:
    steps: list[Any] = []
    run, spare = tmp_path / "runs" / "job" / "1", tmp_path / "spares" / "s"
    for directory in (run, spare):
        directory.mkdir(parents=True)
    variables = {"KEYSCALE_JOB_SECRET_ORDERS": "of-the-orders"}
    assignment = {**ASSIGNMENT, "run": str(run), "variables": variables}
    environment = {"OF_SPARE": "x"}
    monkeypatch.setattr(spare_supervisor.os, "environ", environment)
    monkeypatch.setattr(spare_supervisor, "register", lambda *of, spare: steps.append((*of, spare)) or is_registered)
    monkeypatch.setattr(spare_supervisor, "_end_session", lambda: steps.append("ended"))
    monkeypatch.setattr(Driver, "takes", lambda _, given: steps.append(given) or takes)
    monkeypatch.setattr(spare_supervisor, "ended", lambda *given: steps.append(given) or 4)
    monkeypatch.setattr(spare_supervisor, "run", lambda *given: steps.append((*given, dict(environment))) or 5)
    driver: Any = Driver("process", "copying", "listener")  # type: ignore[arg-type]
    output, quota = Output(LogWriter(spare), Mask({})), {"disk_bytes": 5}
    code = spare_supervisor._run(driver, spare, assignment, output, quota)
    registered, *after = steps
    assert registered == (run, "s")
    if not is_registered:
        assert (code, after) == (EXIT_SUPERVISED_ALREADY, ["ended"])
        assert list(run.iterdir()) == []
        return
    assert output.mask("of-the-orders") == "*****"
    given = {**variables, "C": "d"}
    if takes:
        assert after == [given, ("process", "copying", output, quota, [run.parent, spare])]
    else:
        assert after == [given, "ended", (run, ["own"], variables)]
    told = "" if takes else "the spare driver does not answer; another driver is started\n"
    assert (run / LOG_FILE).read_text() == told
    assert (run / EXIT_CODE_FILE).read_text() == str(code) == ("4" if takes else "5")


@pytest.mark.parametrize("case", ["assigned", "over", "no driver"])
def test_a_spare_starts_its_driver_and_ends_it_without_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    steps: list[Any] = []

    def start(directory: Path, command: list[str], _: Output, quota: Any) -> Any:
        steps.append((directory, command, quota))
        if case == "no driver":
            raise OSError("no program")
        return "process", "copying"

    monkeypatch.setattr(spare_supervisor, "leave_signals_to_driver", lambda: steps.append("signals"))
    monkeypatch.setattr(spare_supervisor, "quota_of_environment", lambda: {"disk_bytes": 5})
    monkeypatch.setattr(spare_supervisor, "_listen", lambda user: f"socket of {user}")
    monkeypatch.setattr(spare_supervisor, "start", start)
    monkeypatch.setattr(spare_supervisor, "_end_session", lambda: steps.append("ended"))
    monkeypatch.setattr(spare_supervisor, "_assignment", lambda *_: ASSIGNMENT if case == "assigned" else None)
    monkeypatch.setattr(spare_supervisor, "_run", lambda driver, *rest: steps.append((driver.listener, *rest)) or 6)
    monkeypatch.setenv("KEYSCALE_DRIVER_USER", "1:2")
    code = spare_supervisor.main([str(tmp_path), "driver", "-v"])
    begun, *after = steps[1:]
    assert (steps[0], begun) == ("signals", (tmp_path, ["driver", "-v"], {"disk_bytes": 5}))
    if case == "assigned":
        [(listener, directory, assignment, _, quota)] = after
        assert (code, listener, directory) == (6, "socket of 1:2", tmp_path)
        assert (assignment, quota) == (ASSIGNMENT, {"disk_bytes": 5})
    else:
        assert (code, after) == ((0, ["ended"]) if case == "over" else (1, []))
    told = "the driver cannot be started: no program\n" if case == "no driver" else ""
    assert (tmp_path / LOG_FILE).read_text() == told
