"""The directory of a replay, which its process removes at its end.

A process that is killed leaves its directory. The process of each replay holds a lock on its directory, so the next
replay finds the directories of dead processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

from keyscale.directory_tree import remove_tree

PREFIX = "keyscale-replay-"


def new_directory() -> Path:
    """Makes a directory that this process keeps.

    A program that takes the process over keeps the directory, too.
    """
    while True:
        directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = _locked(directory, fcntl.LOCK_EX)
        if lock is None:
            continue
        if directory.exists():
            os.set_inheritable(lock, True)  # so it outlives `exec`; Spark closes it in its processes
            return directory
        os.close(lock)  # another replay has removed it before it was locked


def remove_abandoned() -> None:
    """Removes the directories of this user's dead replays."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        lock = _locked(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock is None:
            continue
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                with contextlib.suppress(OSError):
                    remove_tree(directory)
        finally:
            os.close(lock)


def _locked(directory: Path, operation: int) -> int | None:
    """Locks a directory.

    Returns None if the directory is gone, closed to this user, or in use.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, operation)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
