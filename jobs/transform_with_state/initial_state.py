"""Initial state: records that a processor is given once, before any other, to begin its keys with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa

from jobs.errors import InvalidTopologyError
from jobs.runtime.body import KEY_GROUP_COLUMN
from state.descriptors import ValueStateDescriptor
from state.hashing import hash_codes
from state.key_groups import assign_to_key_groups, key_group_range

if TYPE_CHECKING:
    import numpy.typing as npt

    from jobs.runtime.body import SubtaskFacts
    from state.keyed import KeyedStateBackend

BYTES_MAX: Final = 16 << 20
_APPLIED: Final = ValueStateDescriptor("_initial_state", pa.bool_())


@dataclass(frozen=True, slots=True)
class InitialState:
    """The records, as they go with the operator into its tasks.

    Attributes:
        stream: All of them in Arrow's stream format.
        key_columns: Those that are the key, with the stream's names and types.
    """

    stream: bytes
    key_columns: tuple[str, ...]

    @classmethod
    def of(cls, table: pa.Table, key: pa.Schema) -> Self:
        """The records of a table that has the key's columns.

        Raises:
            InvalidTopologyError: It has not, or is larger than goes with an operator.
        """
        missing = [name for name in key.names if name not in table.schema.names]
        if missing:
            message = f"the initial state lacks the key's columns [{', '.join(missing)}]"
            raise InvalidTopologyError(message)
        if table.nbytes > BYTES_MAX:
            message = (
                f"the initial state has {table.nbytes} bytes; {BYTES_MAX} are allowed, so send it through the stream"
            )
            raise InvalidTopologyError(message)
        for field in key:
            at = table.schema.get_field_index(field.name)
            try:
                table = table.set_column(at, pa.field(field.name, field.type), table.column(at).cast(field.type))
            except pa.ArrowException:
                message = f"key column {field.name!r} of the initial state is {table.schema.field(at).type} and not {field.type}"
                raise InvalidTopologyError(message) from None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return cls(sink.getvalue().to_pybytes(), tuple(key.names))

    def take(self, state: KeyedStateBackend, facts: SubtaskFacts) -> list[pa.RecordBatch]:
        """The records of the subtask's key groups that have not been given yet; they count as given from now on."""
        owned = key_group_range(facts.max_parallelism, facts.parallelism, facts.subtask)
        groups = np.arange(owned.start, owned.end + 1, dtype=np.int32)
        # No key of its own: it is about a whole key group, and no record may be without a place.
        keys = [pa.nulls(len(groups), field.type) for field in state.schema.key_schema()]
        new = state.value_state(_APPLIED).insert_if_absent_many(groups, keys, True)
        if not new.any():
            return []
        return self._of_groups(groups[new], facts)

    def _of_groups(self, wanted: npt.NDArray[np.int32], facts: SubtaskFacts) -> list[pa.RecordBatch]:
        with pa.ipc.open_stream(self.stream) as reader:
            table: Any = reader.read_all().combine_chunks()
        if not table.num_rows:
            return []
        columns = [table.column(name) for name in self.key_columns]
        groups = assign_to_key_groups(hash_codes(columns, facts.hash_id), facts.max_parallelism)
        routed = table.append_column(KEY_GROUP_COLUMN, pa.array(groups, pa.int32()))
        found = routed.filter(pa.array(np.isin(groups, wanted)))
        return [batch for batch in found.to_batches() if batch.num_rows]
