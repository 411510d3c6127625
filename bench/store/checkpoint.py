"""A checkpoint after 1 % of the keys changed: what is uploaded, and for how long writers stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bench.store.filled import SEEN, checkpoint, fill, put
from bench.store.keys import BATCH_KEYS
from bench.store.lone_subtask import JOB
from state.manifest import known_files

if TYPE_CHECKING:
    from collections.abc import Mapping

CHANGED_SHARE = 0.01
CHECKPOINTS = 5


def run(*, work: str, keys: int) -> Mapping[str, Any]:
    """Checkpoint all, then CHECKPOINTS times change keys at random and checkpoint again; medians over these.

    Returns:
        `uploaded_share` of the state's bytes, and `stop_seconds`, the longest stop of a subtask.
    """
    stores = fill(work, keys, 1)
    states = [store.keyed.value_state(SEEN) for store in stores]
    manifest, _, _ = checkpoint(work, stores, 1, {})
    random = np.random.default_rng(4)
    shares, stops = [], []
    batch = keys // BATCH_KEYS + 1
    for number in range(2, 2 + CHECKPOINTS):
        changed = np.sort(random.choice(keys, int(keys * CHANGED_SHARE), replace=False)).astype(np.uint64)
        put(stores, states, batch, changed, number)
        batch += 1
        manifest, stopped, uploaded = checkpoint(work, stores, number, known_files([manifest], JOB))
        shares.append(uploaded / manifest.state_size_bytes)
        stops.append(max(stopped))
    return {
        "uploaded_share": float(np.median(shares)),
        "stop_seconds": max(stops),
        "state_bytes": manifest.state_size_bytes,
    }
