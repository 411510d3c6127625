"""What a Python worker keeps from task to task: open stores, and the object store's client. Nothing is made before the fork."""

from __future__ import annotations

import os
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from state.objects import open_store
from state.warm_stores import IDLE_SECONDS_MAX, WarmStores

if TYPE_CHECKING:
    from state.objects import ObjectStore

WARM_IDLE_VARIABLE = "KEYSCALE_WARM_STATE_IDLE_MS"


def warm_stores() -> WarmStores:
    """The stores that this process keeps open between batches."""
    return _warm_stores_of(os.getpid())


def object_store(url: str) -> ObjectStore:
    """One client a process and store: making one costs more than a small batch does."""
    return _object_store_of(os.getpid(), url)


@cache  # nothing is dropped: a fork would close what is its parent's
def _warm_stores_of(process: int) -> WarmStores:  # noqa: ARG001 - a fork must not use its parent's
    told = os.environ.get(WARM_IDLE_VARIABLE)
    return WarmStores(IDLE_SECONDS_MAX if told is None else float(told) / 1000)


@lru_cache(maxsize=4)
def _object_store_of(process: int, url: str) -> ObjectStore:  # noqa: ARG001 - as above
    return open_store(url)
