"""A dump of a state's entries as Arrow tables, for any tool."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

from ..serializers.type_names import type_from_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..documents.manifest import OperatorSnapshot
    from ..keyed.schema import KeyedSchema, StateSchema
    from .checkpoint_reader import CheckpointReader, Entry

ROWS_A_BATCH = 65_536


def dump_schema(keys: KeyedSchema, state: StateSchema) -> pa.Schema:
    """Returns the columns of a dump.

    They are `subtask`, `key_group`, one `key.<column>` per key column, `namespace` and `user_key` (a map's key; a
    list's index) if the state has them, `stamp` (when an entry's TTL began) if it has a TTL, and `value`.
    """
    fields = [pa.field("subtask", pa.int32()), pa.field("key_group", pa.int32())]
    fields += [pa.field(f"key.{name}", type_from_json(each)) for name, each in keys.key]
    if state.namespace is not None:
        fields.append(pa.field("namespace", type_from_json(state.namespace)))
    if state.map_key is not None:
        fields.append(pa.field("user_key", type_from_json(state.map_key)))
    elif state.kind.is_indexed:
        fields.append(pa.field("user_key", pa.int64()))
    if state.formats[-1].stamps is not None:
        fields.append(pa.field("stamp", pa.timestamp("ms", "UTC")))
    return pa.schema([*fields, pa.field("value", type_from_json(state.formats[-1].type))])


def dump_batches(reader: CheckpointReader, operator: OperatorSnapshot, name: str) -> Iterator[pa.RecordBatch]:
    """Yields a state's entries in batches of a bounded size.

    They are sorted by subtask and stored key.

    Raises:
        UnknownStateError: The operator has no such state.
        ObjectNotFoundError, ObjectCorruptError, CorruptValueError: A stored object or value is missing or damaged.
    """
    state = reader.state(operator, name)
    keys = reader.schema(operator)
    assert keys is not None  # noqa: S101 - the state was found in it
    columns = dump_schema(keys, state)
    for subtask in reader.subtasks(operator):
        entries = subtask.entries(state)
        while rows := [_row(subtask.snapshot.subtask, entry, columns) for entry in islice(entries, ROWS_A_BATCH)]:
            arrays = [
                pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=columns)


def write_parquet(reader: CheckpointReader, operator: OperatorSnapshot, name: str, file: Path) -> int:
    """Writes a state's entries as one Parquet file.

    The file appears only when it is complete.

    Returns:
        The number of entries.

    Raises:
        UnknownStateError: The operator has no such state.
        OSError: The file cannot be written.
    """
    state = reader.state(operator, name)
    keys = reader.schema(operator)
    assert keys is not None  # noqa: S101 - the state was found in it
    entries = 0
    unfinished = file.with_name(f"{file.name}.unfinished")
    try:
        with parquet.ParquetWriter(unfinished, dump_schema(keys, state)) as writer:
            for batch in dump_batches(reader, operator, name):
                writer.write_batch(batch)
                entries += batch.num_rows
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
    return entries


def _row(subtask: int, entry: Entry, columns: pa.Schema) -> tuple[Any, ...]:
    named = {"namespace": entry.namespace, "user_key": entry.user_key, "stamp": entry.stamp_ms, "value": entry.value}
    return (subtask, entry.key_group, *entry.key, *(named[name] for name in columns.names if name in named))
