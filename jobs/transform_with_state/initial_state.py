"""Records that a processor gets before all other records.

They initialize its keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa

from keyscale.state.doors.keyed import ValueStateDescriptor
from keyscale.state.doors.values import assign_to_key_groups, hash_codes

from ..errors import InvalidTopologyError
from ..operators.operator_contract import KEY_GROUP_COLUMN

if TYPE_CHECKING:
    import numpy.typing as npt

    from keyscale.state.doors.keyed import KeyedStateBackend

    from ..functions.subtask_info import SubtaskInfo

BYTES_MAX: Final = 16 << 20
_APPLIED: Final = ValueStateDescriptor("_initial_state", pa.bool_())


@dataclass(frozen=True, slots=True)
class InitialState:
    """The records of an initial state, pickled into tasks with their operator.

    Attributes:
        stream: All records in Arrow's stream format.
        key_columns: The key's columns, with the names and types of the stream's key.
    """

    stream: bytes
    key_columns: tuple[str, ...]

    @classmethod
    def of(cls, table: pa.Table, key: pa.Schema) -> Self:
        """Returns the initial state with the records of a table.

        Raises:
            InvalidTopologyError: The table lacks a column of the key, or is too large.
        """
        missing = [name for name in key.names if name not in table.schema.names]
        if missing:
            raise InvalidTopologyError(f"the initial state lacks the key's columns [{', '.join(missing)}]")
        if table.nbytes > BYTES_MAX:
            raise InvalidTopologyError(
                f"the initial state has {table.nbytes} bytes; {BYTES_MAX} are allowed: send more through the stream"
            )
        for field in key:
            at = table.schema.get_field_index(field.name)
            try:
                table = table.set_column(at, pa.field(field.name, field.type), table.column(at).cast(field.type))
            except pa.ArrowException:
                raise InvalidTopologyError(
                    f"key column {field.name!r} of the initial state is {table.schema.field(at).type}, not {field.type}"
                ) from None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return cls(sink.getvalue().to_pybytes(), tuple(key.names))

    def take(self, state: KeyedStateBackend, info: SubtaskInfo) -> list[pa.RecordBatch]:
        """Takes the initial records of the subtask's key groups, once."""
        owned = state.key_group_range
        groups = np.arange(owned.start, min(owned.end + 1, info.max_parallelism), dtype=np.int32)
        # The mark has a null key: it concerns a whole key group.
        keys = [pa.nulls(len(groups), field.type) for field in state.schema.key_schema()]
        new = state.state(_APPLIED).insert_if_absent_many(groups, keys, True)
        if not new.any():
            return []
        return self._of_groups(groups[new], info)

    def _of_groups(self, wanted: npt.NDArray[np.int32], info: SubtaskInfo) -> list[pa.RecordBatch]:
        with pa.ipc.open_stream(self.stream) as reader:
            table: Any = reader.read_all().combine_chunks()
        if not table.num_rows:
            return []
        columns = [table.column(name) for name in self.key_columns]
        groups = assign_to_key_groups(hash_codes(columns, info.hash_id), info.max_parallelism)
        routed = table.append_column(KEY_GROUP_COLUMN, pa.array(groups, pa.int32()))
        found = routed.filter(pa.array(np.isin(groups, wanted)))
        return [batch for batch in found.to_batches() if batch.num_rows]
