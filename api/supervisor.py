"""Runs one driver and notes what becomes of it.

Usage: supervisor.py RUN_DIRECTORY PROGRAM [ARGUMENT ...]

A process of its own, in a session of its own, so that a driver outlives the control plane and its exit code is known
afterwards. Writes into the run directory:

    process.json   this process, and the claim: of two supervisors of one attempt, the second one ends at once
    driver.log     what the driver prints
    exit_code      when the driver has ended

Needs nothing of Keyscale's: it must start fast.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

EXIT_CLAIMED = 0
EXIT_CANNOT_RUN = 127


def main(arguments: list[str]) -> int:
    """Runs the program; returns its exit code."""
    directory, command = Path(arguments[0]), arguments[1:]
    if not claim(directory):
        return EXIT_CLAIMED
    # A signal for the session is meant for the driver; the note of its end must still be written.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    code = run(directory, command)
    write_atomically(directory / "exit_code", str(code))
    return code


def claim(directory: Path) -> bool:
    """Returns whether the attempt is this process's to run: whoever links the file first has it."""
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
    """Runs the driver to its end; returns its exit code, that of the shell's convention if a signal ended it."""
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
    """Writes a file that is either there as a whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
