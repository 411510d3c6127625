"""One subtask through many small committed batches.

Between batches its store is left open, or closed.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bench.store.filled import SEEN
from bench.store.keys import MAX_PARALLELISM
from bench.store.lone_subtask import INT64_KEY, local_root, object_store, spec_of
from keyscale.identifiers import BatchId
from keyscale.state.documents.state_version import NO_BATCH
from keyscale.state.restore.plan import RestorePlan, version_of
from keyscale.state.subtask.open_store_cache import IDLE_SECONDS_MAX, OpenStoreCache

if TYPE_CHECKING:
    from collections.abc import Mapping

WARM_UP_BATCHES = 5


def run(*, work: str, batches: int, records: int, stays_open: bool) -> Mapping[str, Any]:
    """Runs small batches, taking and giving back the store for each.

    Returns:
        `batch_ms` and `batch_cpu_ms`: medians of a batch's wall time and of its processor time.
    """
    Path(work).mkdir(parents=True, exist_ok=True)
    warm = OpenStoreCache(IDLE_SECONDS_MAX if stays_open else 0)
    spec, objects, plan = spec_of(INT64_KEY), object_store(work), RestorePlan()
    keys = np.arange(records)
    groups = (keys % MAX_PARALLELISM).astype(np.int32)
    times, processor_times = [], []
    for number in range(WARM_UP_BATCHES + batches):
        version = version_of(plan, spec.key_group_range, BatchId(NO_BATCH + number))
        began, cpu_began = time.perf_counter(), time.process_time()
        store = warm.take(spec, version, plan, local_root(work), objects)
        store.keyed.state(SEEN).put_many(groups, [pa.array(keys)], pa.array(keys + number))
        changelog = store.finish_batch(BatchId(number), uuid.uuid4().hex)
        warm.give_back(store)
        times.append(time.perf_counter() - began)
        processor_times.append(time.process_time() - cpu_began)
        plan = plan.followed_by(changelog)
    warm.close()
    return {
        "batch_ms": 1000 * float(np.median(times[WARM_UP_BATCHES:])),
        "batch_cpu_ms": 1000 * float(np.median(processor_times[WARM_UP_BATCHES:])),
    }
