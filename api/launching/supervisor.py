"""Runs one driver and records its exit code.

Usage: supervisor.py RUN_DIRECTORY PROGRAM [ARGUMENT ...]

It is a process of its own, in a session of its own: the driver outlives the control plane, and its exit code is known
afterwards. It writes into the run directory:

    process.json   this process, as the run's supervisor: a second supervisor of the same attempt ends at once
    driver.log     the driver's output
    exit_code      written when the driver has ended

It imports nothing of Keyscale, so that it starts fast.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

EXIT_SUPERVISED_ALREADY = 0
EXIT_CANNOT_RUN = 127


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
    with (directory / "driver.log").open("ab") as log:
        try:
            driver = subprocess.Popen(  # noqa: S603 - the launcher made the command
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=directory
            )
        except OSError as error:
            log.write(f"the driver cannot be started: {error}\n".encode())
            return EXIT_CANNOT_RUN
        code = driver.wait()
    return code if code >= 0 else 128 - code


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that it exists either completely or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
