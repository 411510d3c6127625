"""The time from a manifest to the first read at another parallelism.

The host already has the files.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench.store.filled import SEEN, checkpoint, fill
from bench.store.keys import MAX_PARALLELISM, key_column
from bench.store.lone_subtask import INT64_KEY, local_root, object_store, settle, spec_of
from keyscale.state.documents.manifest import read_manifest
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.log.resolution import OperatorHistory
from keyscale.state.restore.plan import plan_operator
from keyscale.state.subtask.store import open_subtask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.store.keys import KeyColumn

CHECKED_KEYS = 1000


class LostKeysError(AssertionError):
    """Some keys were missing after the rescale."""


def run(*, work: str, keys: Sequence[int], times: int, parallelism: int = 2, target: int = 4) -> Mapping[str, Any]:
    """Restores checkpointed states at `target` in turn, and reads them.

    It fills and checkpoints a state of each size, and restores each `times` times. Each restore is a separate attempt.

    Returns:
        For each size, as `..._<keys>`: medians of `first_read_seconds` (the slowest subtask's time from the manifest to
        its first value, one subtask after another) and of `all_seconds` (until all subtasks have answered);
        `rewritten_bytes` of files that are not links; `state_bytes`. And `growth`: the median, over turns, of the ratio
        of the last size's first read to the first size's.
    """
    states = [_State(str(Path(work, str(size))), size, parallelism) for size in keys]
    turns = [[state.restored(target, attempt) for state in states] for attempt in range(2, 2 + times)]
    answer: dict[str, Any] = {"growth": float(np.median([turn[-1].first_read / turn[0].first_read for turn in turns]))}
    for place, state in enumerate(states):
        answer[f"first_read_seconds_{state.keys}"] = float(np.median([turn[place].first_read for turn in turns]))
        answer[f"all_seconds_{state.keys}"] = float(np.median([turn[place].all_subtasks for turn in turns]))
        answer[f"rewritten_bytes_{state.keys}"] = max(turn[place].rewritten_bytes for turn in turns)
        answer[f"state_bytes_{state.keys}"] = state.size_bytes
    return answer


class _Restored(NamedTuple):
    """The duration of a restore in seconds.

    It is measured to the slowest subtask's first read, and until all subtasks had answered.
    """

    first_read: float
    all_subtasks: float
    rewritten_bytes: int


class _State:
    """A state of this many keys, checkpointed."""

    def __init__(self, work: str, keys: int, parallelism: int) -> None:
        self.keys = keys
        self._work = work
        stores = fill(work, keys, parallelism)
        for subtask in stores:
            settle(subtask)
        manifest, _, _ = checkpoint(work, stores, 1, {})
        for subtask in stores:
            subtask.close()
        self._manifest_path = manifest.path
        self.size_bytes = manifest.state_size_bytes
        self._column = key_column(np.arange(min(keys, CHECKED_KEYS), dtype=np.uint64))

    def restored(self, target: int, attempt: int) -> _Restored:
        return _restore(self._work, self._manifest_path, self._column, target, attempt)


def _restore(work: str, manifest_path: str, column: KeyColumn, target: int, attempt: int) -> _Restored:
    store = object_store(work)
    owners = column.key_groups * target // MAX_PARALLELISM
    started = time.perf_counter()
    operator = read_manifest(store, manifest_path).operators[0]
    plans = plan_operator(OperatorHistory(operator.subtasks, ()), KeyGroupRanges.of_count(MAX_PARALLELISM, target))
    planned = time.perf_counter()
    ready = []
    rewritten = 0
    for index, plan in enumerate(plans):
        begun = time.perf_counter()
        own = np.flatnonzero(owners == index)
        spec = spec_of(INT64_KEY, index=index, parallelism=target, attempt=attempt)
        subtask = open_subtask(spec, None, plan, local_root(work), store)
        state = subtask.keyed.state(SEEN)
        state.get_many(column.key_groups[own[:1]], [column.keys.take(own[:1])])
        ready.append(time.perf_counter() - begun)
        found = state.get_many(column.key_groups[own], [column.keys.take(own)])
        if found.null_count:
            message = f"{found.null_count} of {len(own)} keys are missing from subtask {index} of {target}"
            raise LostKeysError(message)
        rewritten += _bytes_that_are_no_links(subtask.spec.local_directory(local_root(work)))
        subtask.abandon()
    return _Restored(planned - started + max(ready), planned - started + sum(ready), rewritten)


def _bytes_that_are_no_links(folder: Path) -> int:
    files = (file.stat() for file in folder.rglob("*.sst"))
    return sum(stat.st_size for stat in files if stat.st_nlink == 1)
