"""Runs one driver and records its exit code.

Usage: supervisor.py RUN_DIRECTORY PROGRAM [ARGUMENT ...]

It is a process of its own, in a session of its own: the driver outlives the control plane, and its exit code is known
afterwards. It writes into the run directory:

    process.json   this process, as the run's supervisor: a second supervisor of the same attempt ends at once
    driver.log     the driver's output, with the secrets of its environment masked
    exit_code      written when the driver has ended

It imports nothing of Keyscale but the mask, so that it starts fast.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[3]))  # it is started by its path, apart from the package
from keyscale.jobs.protocol.redaction import Mask

EXIT_SUPERVISED_ALREADY = 0
EXIT_CANNOT_RUN = 127
_CHUNK_BYTES = 1 << 16
_LINE_BYTES_MAX = 1 << 20
_PAUSE_S = 1.0
_LAST_WORDS_S = 2.0


def main(arguments: list[str]) -> int:
    """Runs the program; returns its exit code."""
    directory, command = Path(arguments[0]), arguments[1:]
    if not register(directory):
        return EXIT_SUPERVISED_ALREADY
    # A signal to the session is for the driver; the supervisor must still record how the driver ended.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    code = run(directory, command)
    write_atomically(directory / "exit_code", str(code))
    return code


def register(directory: Path) -> bool:
    """Registers this process as the run's supervisor: the first process to link the file wins.

    Returns:
        Whether this process is the run's supervisor.
    """
    process = psutil.Process()
    mine = directory / f"process.json.{process.pid}"
    write_atomically(mine, json.dumps({"pid": process.pid, "started_at_s": process.create_time()}))
    try:
        os.link(mine, directory / "process.json")
    except FileExistsError:
        return False
    finally:
        mine.unlink()
    return True


def run(directory: Path, command: list[str]) -> int:
    """Runs the driver until it ends; returns its exit code, by the shell's convention if a signal ended it."""
    log = os.open(directory / "driver.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    output, of_driver = os.pipe()
    try:
        driver = subprocess.Popen(  # noqa: S603 - the launcher made the command
            command, stdin=subprocess.DEVNULL, stdout=of_driver, stderr=subprocess.STDOUT, cwd=directory
        )
    except OSError as error:
        os.write(log, f"the driver cannot be started: {error}\n".encode())
        return EXIT_CANNOT_RUN
    os.close(of_driver)
    # A process that the driver has left behind may hold the pipe forever, and must not keep the exit code back.
    copying = threading.Thread(target=copy_masked, args=(output, log, Mask(os.environ)), daemon=True)
    copying.start()
    code = driver.wait()
    copying.join(_LAST_WORDS_S)
    return code if code >= 0 else 128 - code


def copy_masked(source: int, target: int, mask: Mask) -> None:
    """Copies lines from one descriptor to another, with secrets masked, until the source ends."""
    rest = b""
    while True:
        # The beginning of a line that pauses may hold the beginning of a secret, so it waits; but not forever.
        if rest and (len(rest) > _LINE_BYTES_MAX or not select.select([source], [], [], _PAUSE_S)[0]):
            write_all(target, masked(rest, mask))
            rest = b""
        chunk = os.read(source, _CHUNK_BYTES)
        lines, newline, rest = (rest + chunk).rpartition(b"\n")
        write_all(target, masked(lines + newline, mask))
        if not chunk:
            write_all(target, masked(rest, mask))
            return


def masked(text: bytes, mask: Mask) -> bytes:
    """Returns a part of a log with secrets masked; bytes that are not UTF-8 stay as they are."""
    return mask(text.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def write_all(target: int, text: bytes) -> None:
    """Writes to a file; what does not fit on a full disk is lost, and the driver goes on."""
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(target, text) :]


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that it exists either completely or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
