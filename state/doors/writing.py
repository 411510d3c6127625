"""New savepoints: rows as stored entries, and the files of subtasks.

Like the doors of subtasks and of reading, it leads to RocksDB.
"""

from __future__ import annotations

from ..keyed.schema import KeyedSchema, StateKind, StateSchema, TimersSchema, schema_of_key
from ..keyed.stamp import STAMP_MAX_MS
from ..serializers.type_names import type_from_json, type_to_json
from ..writing.changed_subtask import store_changed
from ..writing.new_savepoint import NewSavepoint, operator_snapshot
from ..writing.operator_rows import operator_states_of
from ..writing.row_encoder import KeyHashing, RowEncoder, RowsInvalidError, StoredEntries, encoder_of, rehashed
from ..writing.subtask_writer import NewSubtask, SubtaskWriter

__all__ = [
    "STAMP_MAX_MS",
    "KeyHashing",
    "KeyedSchema",
    "NewSavepoint",
    "NewSubtask",
    "RowEncoder",
    "RowsInvalidError",
    "StateKind",
    "StateSchema",
    "StoredEntries",
    "SubtaskWriter",
    "TimersSchema",
    "encoder_of",
    "operator_snapshot",
    "operator_states_of",
    "rehashed",
    "schema_of_key",
    "store_changed",
    "type_from_json",
    "type_to_json",
]
