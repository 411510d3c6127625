"""From a manifest to the first read at another parallelism, on the host that has the files."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.store.filled import SEEN, checkpoint, fill
from bench.store.keys import MAX_PARALLELISM, key_column
from bench.store.lone_subtask import INT64_KEY, local_root, object_store, spec_of
from state.log import OperatorHistory
from state.manifest import read_manifest
from state.restore import plan_operator
from state.subtask import open_subtask

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CHECKED_KEYS = 1000


class LostKeysError(AssertionError):
    """Keys were not found again after the rescale."""


def run(*, work: str, keys: int, parallelism: int = 2, target: int = 4) -> Mapping[str, Any]:
    """Fill, checkpoint, end; then restore at `target` and read.

    Returns:
        `first_read_seconds`: the slowest subtask's way from the manifest to its first value, one subtask after another;
        `all_seconds`: until all subtasks have answered; `rewritten_bytes` of files that are no links.
    """
    stores = fill(work, keys, parallelism)
    for subtask in stores:
        subtask.engine.flush()
    manifest, _, _ = checkpoint(work, stores, 1, {})
    for subtask in stores:
        subtask.close()
    store = object_store(work)
    column = key_column(np.arange(min(keys, CHECKED_KEYS), dtype=np.uint64))
    owners = column.key_groups * target // MAX_PARALLELISM
    started = time.perf_counter()
    read = read_manifest(store, manifest.path)
    operator = read.operators[0]
    plans = plan_operator(OperatorHistory(operator.subtasks, ()), MAX_PARALLELISM, target)
    planned = time.perf_counter()
    ready = []
    rewritten = 0
    for index, plan in enumerate(plans):
        begun = time.perf_counter()
        own = np.flatnonzero(owners == index)
        subtask = open_subtask(
            spec_of(INT64_KEY, index=index, parallelism=target, attempt=2), None, plan, local_root(work), store
        )
        state = subtask.keyed.value_state(SEEN)
        state.get_many(column.key_groups[own[:1]], [column.keys.take(own[:1])])
        ready.append(time.perf_counter() - begun)
        found = state.get_many(column.key_groups[own], [column.keys.take(own)])
        if found.null_count:
            message = f"{found.null_count} of {len(own)} keys are missing from subtask {index} of {target}"
            raise LostKeysError(message)
        rewritten += _bytes_that_are_no_links(subtask.spec.local_directory(local_root(work)))
        subtask.abandon()
    return {
        "first_read_seconds": planned - started + max(ready),
        "all_seconds": planned - started + sum(ready),
        "rewritten_bytes": rewritten,
        "state_bytes": read.state_size_bytes,
    }


def _bytes_that_are_no_links(folder: Path) -> int:
    files = (file.stat() for file in folder.rglob("*.sst"))
    return sum(stat.st_size for stat in files if stat.st_nlink == 1)
