"""What a Python worker keeps from task to task: open stores, and the object store's client. Nothing is made before the fork."""

from __future__ import annotations

import gc
import os
import platform
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.runtime.switchboard import switchboard
from state.objects import open_store
from state.warm_stores import IDLE_SECONDS_MAX, WarmStores

if TYPE_CHECKING:
    from state.identifiers import SubtaskIndex
    from state.objects import ObjectStore

WARM_IDLE_VARIABLE = "KEYSCALE_WARM_STATE_IDLE_MS"


def settle() -> None:
    """Once a process, when all is imported: take what is there out of the garbage collector's sight.

    Spark collects garbage after every task of a worker, which otherwise walks through every imported module: 0.1 s a batch.
    """
    _settled(os.getpid())


def warm_stores() -> WarmStores:
    """The stores that this process keeps open between batches."""
    return _warm_stores_of(os.getpid())


def warm_stores_for(subtask: SubtaskIndex) -> WarmStores:
    """The same, for a task that is about to open the subtask's: its later ones are to run in this process, too."""
    switchboard().claim(subtask)
    return warm_stores()


def object_store(url: str) -> ObjectStore:
    """One client a process and store: making one costs more than a small batch does."""
    return _object_store_of(os.getpid(), url)


def executor_name() -> str:
    """The executor that this worker belongs to: its host, and the process that all its workers descend from."""
    return _executor_name_of(os.getppid())


@cache
def _settled(process: int) -> None:  # noqa: ARG001 - a fork inherits what was frozen, and has imported more since
    gc.collect()
    gc.freeze()


@cache
def _executor_name_of(parent: int) -> str:
    return f"{platform.node()}/{_parent_of(parent) or parent}"


def _parent_of(process: int) -> int | None:
    """The executor itself, where workers are forked by a process between; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return int(fields[1])
    except (OSError, ValueError, IndexError):
        return None


@cache  # nothing is dropped: a fork would close what is its parent's
def _warm_stores_of(process: int) -> WarmStores:  # noqa: ARG001 - a fork must not use its parent's
    told = os.environ.get(WARM_IDLE_VARIABLE)
    return WarmStores(IDLE_SECONDS_MAX if told is None else float(told) / 1000)


@lru_cache(maxsize=4)
def _object_store_of(process: int, url: str) -> ObjectStore:  # noqa: ARG001 - as above
    return open_store(url)
