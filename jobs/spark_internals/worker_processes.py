"""The processes around a Python worker.

They are the daemon that forked it, and the executor that started the daemon.

It relies on this family tree, and on the daemon's habit of collecting garbage after every task (both since Spark 1.2,
undocumented). Another tree gives executors other names; without the collection, `settle` saves nothing.
"""

from __future__ import annotations

import gc
import os
import platform
import sys
from functools import cache
from pathlib import Path


def settle() -> None:
    """Hides all imported modules from the garbage collector.

    It does so once per process, and again after further imports.

    Spark collects garbage after every task of a worker, which otherwise walks through every imported module: 0.1 s per
    batch.
    """
    _settled(os.getpid(), len(sys.modules))


def executor_name() -> str:
    """Returns the name of this worker's executor.

    The name is its host and the common ancestor process of its workers.
    """
    return _executor_name_of(os.getppid())


def parent_of_workers() -> int:
    """Returns the process that forked this worker.

    It lives as long as the executor; workers may end earlier.
    """
    return os.getppid()


@cache
def _settled(process: int, modules: int) -> None:  # noqa: ARG001 - a process freezes for a number of modules once
    gc.collect()
    gc.freeze()


@cache
def _executor_name_of(parent: int) -> str:
    return f"{platform.node()}/{_parent_of(parent) or parent}"


def _parent_of(process: int) -> int | None:
    """Returns the parent of a process, if the system reports it."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return int(fields[1])
    except (OSError, ValueError, IndexError):
        return None
