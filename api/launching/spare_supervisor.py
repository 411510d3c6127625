"""Runs a spare driver until it gets a run.

It also ends with its control plane.

Usage: spare_supervisor.py SPARE_DIRECTORY PROGRAM [ARGUMENT ...]

The control plane holds the other end of its standard input, and writes one line there: the assignment. The end of the
input without an assignment is the end of the control plane, so the spare ends, too. The driver connects to the socket
`assignment` in the spare's directory, which only its user may enter, and this program sends the assignment there. From
then on it is the run's supervisor, as `keyscale.api.launching.supervisor` describes. It writes:

    ready        into the spare's directory, when the driver is warm
    driver.log   into the spare's directory, until the assignment; then into the run's

A driver that does not take the assignment is ended, and the run's own command is started in its place: a run is never
lost with its spare.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[3]))  # it is started by its path, apart from the package
from keyscale.api.launching.driver_log import LogWriter
from keyscale.api.launching.supervisor import (
    DRIVER_USER_VARIABLE,
    EXIT_CODE_FILE,
    EXIT_SUPERVISED_ALREADY,
    Output,
    ended,
    leave_signals_to_driver,
    quota_of_environment,
    register,
    run,
    start,
    write_atomically,
)
from keyscale.jobs.protocol.redaction import Mask
from keyscale.jobs.protocol.spare import ASSIGNMENT_SOCKET, READY, TAKEN

if TYPE_CHECKING:
    import subprocess
    import threading
    from collections.abc import Mapping

READY_FILE = "ready"
TAKEN_WITHIN_S = 10.0
"""How long a warm driver may take to answer; then it hangs. The control plane limits the time of any other start."""
_POLL_S = 0.5
_STANDARD_INPUT = 0
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


@dataclass(slots=True)
class Driver:
    """A spare's driver.

    Attributes:
        process: The process of spark-submit.
        copying: The thread that copies its output.
        listener: The socket to which it connects.
        connection: Its connection, once there is one.
        is_ready: Whether it is warm.
    """

    process: subprocess.Popen[bytes]
    copying: threading.Thread
    listener: socket.socket
    connection: socket.socket | None = None
    is_ready: bool = False

    def accept(self) -> None:
        """Accepts a connection of a process of this session, the first one."""
        connection, _ = self.listener.accept()
        pid, _, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if self.connection is not None or not pid or _session_of(pid) != os.getpid():
            connection.close()
        else:
            self.connection = connection

    def hears(self) -> bool:
        """Reads what the driver says; returns whether it still lives."""
        said = b"" if self.connection is None else self.connection.recv(64)
        self.is_ready |= READY in said
        return bool(said)

    def takes(self, variables: Mapping[str, str]) -> bool:
        """Sends the assignment; returns whether the driver has taken it."""
        try:
            while self.connection is None:
                if self.process.poll() is not None:
                    return False
                if select.select([self.listener], [], [], _POLL_S)[0]:
                    self.accept()
            self.connection.settimeout(TAKEN_WITHIN_S if self.is_ready else None)
            self.connection.sendall(json.dumps(dict(variables)).encode() + b"\n")
            answer = b""
            while TAKEN not in answer:  # `ready` may come first
                said = self.connection.recv(64)
                if not said:
                    return False
                answer += said
        except OSError:
            return False
        return True


def main(arguments: list[str]) -> int:
    """Runs the spare; returns the exit code of its driver."""
    directory, command = Path(arguments[0]), arguments[1:]
    leave_signals_to_driver()
    output = Output(LogWriter(directory), Mask(os.environ))
    quota = quota_of_environment()
    listener = _listen(os.environ.get(DRIVER_USER_VARIABLE, ""))
    try:
        driver = Driver(*start(directory, command, output, quota), listener)
    except OSError as error:
        output.log.write(f"the driver cannot be started: {error}\n".encode())
        return 1
    assignment = _assignment(driver, directory)
    if assignment is None:
        _end_session()
        return 0
    return _run(driver, directory, assignment, output, quota)


def _listen(user: str) -> socket.socket:
    """Returns the socket to which the driver connects.

    Its path is relative to the spare's directory, as a socket's path must be short.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(ASSIGNMENT_SOCKET)
    Path(ASSIGNMENT_SOCKET).chmod(0o600)
    if user:
        uid, gid, *_ = map(int, user.split(":"))
        os.chown(ASSIGNMENT_SOCKET, uid, gid)
    listener.listen(1)
    return listener


def _assignment(driver: Driver, directory: Path) -> dict[str, Any] | None:
    """Waits for the assignment.

    Returns None if the control plane or the driver has ended before. An assignment that has come by then still counts.
    """
    selector = selectors.DefaultSelector()
    selector.register(_STANDARD_INPUT, selectors.EVENT_READ)
    selector.register(driver.listener, selectors.EVENT_READ)
    lives = True
    while lives and driver.process.poll() is None:
        for key, _ in selector.select(_POLL_S):
            if key.fileobj == _STANDARD_INPUT:
                return _read_message()
            if key.fileobj is driver.listener:
                driver.accept()
                if driver.connection is not None:
                    selector.unregister(driver.listener)
                    selector.register(driver.connection, selectors.EVENT_READ)
            else:
                lives = driver.hears()
                if driver.is_ready:
                    (directory / READY_FILE).touch()
    came = bool(select.select([_STANDARD_INPUT], [], [], 0)[0])
    return _read_message() if came else None


def _read_message() -> dict[str, Any] | None:
    """Reads a whole line, which the control plane writes at once.

    Returns None at the end of the input.
    """
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(_STANDARD_INPUT, 1 << 16)
        if not chunk:
            return None
        line += chunk
    message: dict[str, Any] = json.loads(line)
    return message


def _run(
    driver: Driver, directory: Path, assignment: Mapping[str, Any], output: Output, quota: Mapping[str, Any]
) -> int:
    """Runs the assigned run until it ends."""
    run_directory, variables = Path(assignment["run"]), assignment["variables"]
    if not register(run_directory, spare=directory.name):
        _end_session()
        return EXIT_SUPERVISED_ALREADY
    output.mask = Mask({**os.environ, **variables})
    output.log = LogWriter(run_directory)
    if driver.takes({**variables, **assignment["of_spare"]}):
        code = ended(driver.process, driver.copying, output, quota, [run_directory.parent, directory])
    else:
        output.log.write(b"the spare driver does not answer; another driver is started\n")
        _end_session()
        os.environ.clear()
        os.environ.update(variables)
        code = run(run_directory, assignment["command"])
    write_atomically(run_directory / EXIT_CODE_FILE, str(code))
    return code


def _session_of(pid: int) -> int | None:
    """Returns the session of a process; None: the process has ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _end_session() -> None:
    """Kills the driver and all processes that it has started."""
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and os.getsid(process.pid) == os.getpid():
                process.kill()
        except (psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
