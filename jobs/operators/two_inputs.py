"""The records of an operator's two keyed inputs in one schema.

A Spark task has only one input schema.

A record is in one of two struct columns; `__port` says in which. Its key group, its subtask, its split and the index of
its origin are in columns beside them. Records of an operator with a single input are not packed.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

PORT_COLUMN = "__port"
BESIDE = ("__key_group", "__origin", "__split", "__subtask")


def unpacked(batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
    """Returns the records of each non-empty input, with its port."""
    parts = []
    for port in (0, 1):
        rows = batch.filter(pc.equal(batch.column(PORT_COLUMN), port))
        if rows.num_rows:
            records = rows.column(struct_column(port))
            names = [field.name for field in records.type]
            beside = [name for name in rows.schema.names if name in BESIDE]
            arrays = [*records.flatten(), *(rows.column(name) for name in beside)]
            parts.append((port, pa.RecordBatch.from_arrays(arrays, names=[*names, *beside])))
    return parts


def packed_batch(batch: pa.RecordBatch, port: int) -> pa.RecordBatch:
    """Packs Arrow records of one input with their key groups.

    `packed` does the same for Spark's records.
    """
    names = [name for name in batch.schema.names if name not in BESIDE]
    fields = [batch.schema.field(name) for name in names]
    records = pa.StructArray.from_arrays([batch.column(name) for name in names], fields=fields)
    ports = pa.array([port] * batch.num_rows, pa.int32())
    beside = {name: batch.column(name) for name in batch.schema.names if name in BESIDE}
    return pa.record_batch({PORT_COLUMN: ports, struct_column(port): records, **beside})


def struct_column(port: int) -> str:
    """Returns the name of the column with the records of an input."""
    return f"__input_{port}"
