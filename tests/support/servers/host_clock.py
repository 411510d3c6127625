"""Processes whose clock is moved while they run: by Debian's faketime, or in Python alone.

faketime moves the clock by which C code computes until when it waits, but not the kernel's, by which it then waits. So
Kafka's client waits for as long as the clock was moved on, or not at all: for its processes, move Python's clock.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_LIBRARY = "usr/lib/*/faketime/libfaketimeMT.so.1"
_SLEEP = """# time.sleep fails under faketime, always: EINVAL. The waits of threading do not.
import threading
import time

time.sleep = lambda seconds: (threading.Event().wait(seconds), None)[1]
"""
_PYTHON_CLOCK = """# The clock of Python, moved by the seconds that a file says.
import pathlib
import time

_file, _host_ns = pathlib.Path({file!r}), time.time_ns


def _moved_ns():
    return _host_ns() + 1_000_000_000 * int(_file.read_text())


time.time_ns = _moved_ns
time.time = lambda: _moved_ns() / 1e9
"""


def clock_library() -> Path | None:
    """Returns the library that moves the clock of whoever preloads it, installing it if that is possible."""
    found = sorted(Path("/").glob(_LIBRARY))
    if not found and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "-y", "-q", "faketime"], check=False, capture_output=True)
        found = sorted(Path("/").glob(_LIBRARY))
    return found[0] if found else None


def clock_variables(library: Path, file: Path) -> dict[str, str]:
    """Returns the environment in which a process's clock differs from the host's by what the file says."""
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def sleeping_modules(directory: Path) -> Path:
    """Makes a directory for PYTHONPATH, with which Python can sleep while its clock is moved."""
    directory.mkdir(parents=True)
    (directory / "sitecustomize.py").write_text(_SLEEP)
    return directory


def moving_modules(directory: Path, file: Path) -> Path:
    """Makes a directory for PYTHONPATH, with which Python's own clock differs from the host's by what the file says."""
    directory.mkdir(parents=True)
    (directory / "sitecustomize.py").write_text(_PYTHON_CLOCK.format(file=str(file)))
    return directory


def set_clock(file: Path, seconds: int) -> None:
    """Moves the clock to so many seconds after the host's, within a second."""
    writing = file.with_suffix(".writing")
    writing.write_text(f"{seconds:+d}\n")
    writing.rename(file)
