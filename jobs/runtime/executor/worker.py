"""Objects that a Python worker keeps between tasks.

They are open stores, clients and users' objects, all created after the fork.
"""

from __future__ import annotations

import os
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from keyscale.state.doors.objects import open_store
from keyscale.state.doors.subtasks import IDLE_SECONDS_MAX, OpenStoreCache

from ...spark_internals.socket_exchange import socket_exchange

if TYPE_CHECKING:
    from keyscale.identifiers import OperatorUid, SubtaskIndex
    from keyscale.state.doors.objects import ObjectStore

WARM_IDLE_VARIABLE = "KEYSCALE_WARM_STATE_IDLE_MS"


def open_stores() -> OpenStoreCache:
    """Returns the stores that this process keeps open between batches."""
    return _open_stores_of(os.getpid())


def open_stores_for(subtask: SubtaskIndex) -> OpenStoreCache:
    """Returns the open stores for a task of a subtask.

    The subtask's later tasks shall run in this process.
    """
    socket_exchange().claim(subtask)
    return open_stores()


def open_stores_ahead(subtask: SubtaskIndex) -> OpenStoreCache:
    """Returns the open stores for a subtask of the next attempt.

    The home of the running attempt's subtask of the same index stays where it is.
    """
    socket_exchange().claim_free(subtask)
    return open_stores()


def object_store(url: str) -> ObjectStore:
    """Returns this process's client of an object store.

    Creating a client takes longer than a small batch.
    """
    return _object_store_of(os.getpid(), url)


def worker_resources(uid: OperatorUid) -> dict[str, Any]:
    """Returns the objects that an operator's functions keep in this process.

    Every call returns the same dict.
    """
    return _resources_of(os.getpid(), uid)


@cache
def _resources_of(process: int, uid: OperatorUid) -> dict[str, Any]:  # noqa: ARG001 - as below
    return {}


@cache  # stores are never dropped: a fork would close its parent's stores
def _open_stores_of(process: int) -> OpenStoreCache:  # noqa: ARG001 - a fork must not use its parent's
    idle_ms = os.environ.get(WARM_IDLE_VARIABLE)
    return OpenStoreCache(IDLE_SECONDS_MAX if idle_ms is None else float(idle_ms) / 1000)


@lru_cache(maxsize=4)
def _object_store_of(process: int, url: str) -> ObjectStore:  # noqa: ARG001 - as above
    return open_store(url)
