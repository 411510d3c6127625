"""The specification of a subtask's state: owner, key groups, columns, settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..engine.rocksdb_settings import RocksDbSettings
from ..keys.key_groups import KeyGroupRange, key_group_range
from ..layout import Layout
from .subtask_directory import subtask_root

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from keyscale.identifiers import Attempt, JobId, OperatorUid, SubtaskIndex

    from ..keyed.schema import KeyedSchema
    from ..keys.hashing import HashId
    from ..keys.key_group_ranges import KeyGroupRanges


@dataclass(frozen=True, slots=True)
class SubtaskSpec:
    """Identifies a subtask and describes its state; small and picklable.

    Attributes:
        job_id: The job.
        operator_uid: The operator.
        index: The subtask's index.
        parallelism: Number of subtasks of the operator.
        max_parallelism: Number of key groups of the job.
        hash_id: How keys are hashed to key groups.
        key_schema: The key's columns.
        attempt: The running attempt.
        schema: The schema of the operator's whole state, from `OperatorHistory.schema`; None for new state.
        settings: Settings of the subtask's RocksDB stores.
        ranges: The key groups of all subtasks; None: an even number for each subtask.
    """

    job_id: JobId
    operator_uid: OperatorUid
    index: SubtaskIndex
    parallelism: int
    max_parallelism: int
    hash_id: HashId
    key_schema: pa.Schema
    attempt: Attempt
    schema: KeyedSchema | None = None
    settings: RocksDbSettings = field(default_factory=RocksDbSettings)
    ranges: KeyGroupRanges | None = None

    @property
    def key_group_range(self) -> KeyGroupRange:
        if self.ranges is None:
            return key_group_range(self.max_parallelism, self.parallelism, self.index)
        return self.ranges.range_of(self.index)

    @property
    def layout(self) -> Layout:
        return Layout(self.job_id)

    def local_directory(self, local_root: Path) -> Path:
        """Returns the directory of the subtask's local files on a host."""
        return subtask_root(local_root, self.job_id, self.attempt, self.operator_uid, self.index)
