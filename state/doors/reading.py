"""Stored state as data: points in a job's history, and tables.

Like the door of subtasks, it leads to RocksDB.
"""

from __future__ import annotations

from ..engine.engine import Engine, Mutation, SortedRun
from ..inspection.changelog_mutations import changelog_mutations
from ..inspection.checkpoint_reader import CheckpointReader, SubtaskState
from ..inspection.key_changes import key_changes
from ..inspection.recorded_batch import RecordedBatch
from ..inspection.shard_reader import ShardReader
from ..inspection.source_ends import source_ends
from ..inspection.state_point import BatchNotStoredError, StatePoint, UnknownStateError
from ..inspection.state_table import KeyedTable, OperatorTable, RawEntry, keyed_tables
from ..inspection.stored_keys import stored_keys
from ..inspection.summary import summarize
from ..keys.key_groups import assign_to_key_group
from ..operator_state.backend import StoredOperatorState
from ..operator_state.operator_files import read_operator_state

__all__ = [
    "BatchNotStoredError",
    "CheckpointReader",
    "Engine",
    "KeyedTable",
    "Mutation",
    "OperatorTable",
    "RawEntry",
    "RecordedBatch",
    "ShardReader",
    "SortedRun",
    "StatePoint",
    "StoredOperatorState",
    "SubtaskState",
    "UnknownStateError",
    "assign_to_key_group",
    "changelog_mutations",
    "key_changes",
    "keyed_tables",
    "read_operator_state",
    "source_ends",
    "stored_keys",
    "summarize",
]
