"""The replay of a rehearsed job's batch, without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.replay.replayed_key import ReplayedKey
from keyscale.replay.replayed_operators import ReplayedOperators
from keyscale.state.inspection.recorded_batch import RecordedBatch
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.rehearsal.rehearsal import JOB, Rehearsal, sink_inputs

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from keyscale.jobs.graph.topology import Topology
    from keyscale.state.keys.hashing import HashId
    from keyscale.state.keys.key_group_ranges import KeyGroupRanges


@dataclass
class _Info:
    ranges: KeyGroupRanges
    hash_id: HashId


@dataclass(frozen=True)
class RehearsedReplay:
    """A replayed batch, and what it has given to the sinks."""

    batch: RecordedBatch
    operators: ReplayedOperators
    outputs: dict[str, list[dict[str, Any]]]


def replay(
    job: Rehearsal,
    directory: Path,
    batch_id: int | None = None,
    *,
    topology: Topology | None = None,
    key: str | None = None,
    operator: str | None = None,
) -> RehearsedReplay:
    """Replays a batch of a rehearsed job, perhaps with another program or for one key."""
    batch = RecordedBatch.of_job(LocalObjectStore(job.directory / "store"), JOB, batch_id)
    program = topology or job.topology
    only = None if key is None else ReplayedKey.of_text(program, batch, key, operator)
    directory.mkdir(exist_ok=True)
    operators = ReplayedOperators(program, JOB, batch, directory, only)
    resume = batch.before.resume
    records = None if resume.planned is None else job.batches[batch.batch_id - resume.time.time_batches]
    info = _Info(batch.ranges, batch.before.hash_id)
    inputs = sink_inputs(program, records, info, job.transform, operators.run)
    return RehearsedReplay(batch, operators, {str(uid): table.to_pylist() for uid, table in inputs.items()})
