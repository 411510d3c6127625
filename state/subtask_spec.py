from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state.directory import subtask_root
from state.key_groups import KeyGroupRange, key_group_range
from state.layout import Layout
from state.settings import RocksDbSettings

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from state.hashing import HashId
    from state.identifiers import Attempt, JobId, OperatorUid, SubtaskIndex
    from state.schema import KeyedSchema


@dataclass(frozen=True, slots=True)
class SubtaskSpec:
    """Whose state it is. Small, and may be pickled.

    Attributes:
        job_id: The job.
        operator_uid: The operator.
        index: Of the subtask.
        parallelism: Subtasks of the operator.
        max_parallelism: Key groups of the job.
        hash_id: How keys are hashed to them.
        key_schema: The key's columns.
        attempt: The attempt that runs.
        schema: How the state's entries are to be read, as `OperatorHistory.schema` says for the operator as a whole.
        settings: Of the subtask's RocksDB stores.
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

    @property
    def key_group_range(self) -> KeyGroupRange:
        return key_group_range(self.max_parallelism, self.parallelism, self.index)

    @property
    def layout(self) -> Layout:
        return Layout(self.job_id)

    def local_directory(self, local_root: Path) -> Path:
        """Where the subtask's local files are on a host."""
        return subtask_root(local_root, self.job_id, self.attempt, self.operator_uid, self.index)
