"""A checkpoint after 1 % of the keys changed: uploads and stops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bench.store.filled import SEEN, checkpoint, fill, put
from bench.store.keys import BATCH_KEYS
from bench.store.lone_subtask import JOB
from keyscale.state.documents.manifest import known_files

if TYPE_CHECKING:
    from collections.abc import Mapping

CHANGED_SHARE = 0.01


def run(*, work: str, keys: int, batch_keys: int, checkpoints: int) -> Mapping[str, Any]:
    """Takes a full checkpoint, then checkpoints after random changes.

    Args:
        work: A fresh folder.
        keys: The number of keys in state.
        batch_keys: The number of keys changed per batch, 0 for all in one. Up to 10,000 go through write buffers, like
            changes made record by record; more are written as sorted files.
        checkpoints: The number of checkpoints.

    Returns:
        `uploaded_share` of the state's bytes, as median, and `stop_seconds_median` and `stop_seconds_max`.
    """
    stores = fill(work, keys, 1)
    states = [store.keyed.state(SEEN) for store in stores]
    manifest, _, _ = checkpoint(work, stores, 1, {})
    random = np.random.default_rng(4)
    shares: list[float] = []
    stops: list[float] = []
    batch = keys // BATCH_KEYS + 1
    for number in range(2, 2 + checkpoints):
        changed = random.choice(keys, int(keys * CHANGED_SHARE), replace=False).astype(np.uint64)
        for first in range(0, len(changed), batch_keys or len(changed)):
            put(stores, states, batch, changed[first : first + (batch_keys or len(changed))], number)
            batch += 1
            for subtask in stores:
                subtask.flush_if_large()  # as a worker with open stores does
        manifest, stopped, uploaded = checkpoint(work, stores, number, known_files([manifest], JOB))
        shares.append(uploaded / manifest.state_size_bytes)
        stops += stopped
    return {
        "uploaded_share": float(np.median(shares)),
        "stop_seconds_median": float(np.median(stops)),
        "stop_seconds_max": max(stops),
        "state_bytes": manifest.state_size_bytes,
    }
