"""The only key that a replay is limited to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale.jobs.operators.two_inputs import PORT_COLUMN, struct_column
from keyscale.state.doors.reading import assign_to_key_group
from keyscale.state_io.key_text import key_of_text

from .errors import ReplayKeyError

if TYPE_CHECKING:
    from keyscale.identifiers import OperatorUid
    from keyscale.jobs.graph.nodes import OperatorNode
    from keyscale.jobs.graph.topology import Topology
    from keyscale.state.doors.reading import RecordedBatch


@dataclass(frozen=True, slots=True)
class ReplayedKey:
    """The only key of an operator that is replayed.

    Attributes:
        uid: The operator.
        key: The key, a value per column.
        key_group: Its key group.
    """

    uid: OperatorUid
    key: tuple[Any, ...]
    key_group: int

    @classmethod
    def of_text(cls, topology: Topology, batch: RecordedBatch, text: str, uid: str | None) -> ReplayedKey:
        """Reads a key as users write it.

        Args:
            topology: The job.
            batch: The batch.
            text: The key, as `key_of_text` reads it.
            uid: The operator; None: the only operator.

        Raises:
            ReplayKeyError: The operator is unknown, or it is not named and there are several.
            KeyTextError: The text does not fit the operator's key.
        """
        nodes = [node for node in topology.operators if uid in {None, node.uid}]
        if len(nodes) != 1:
            known = ", ".join(node.uid for node in topology.operators) or "none"
            asked = f"the job has no operator {uid!r}" if uid is not None else "the job has several operators"
            raise ReplayKeyError(f"{asked}; its operators are: {known}")
        (node,) = nodes
        key = key_of_text(text, node.key_schema)
        types = tuple(field.type for field in node.key_schema)
        point = batch.before
        group = assign_to_key_group(key, point.max_parallelism, hash_id=point.hash_id, types=types)
        return cls(node.uid, key, group)

    def rows(self, node: OperatorNode, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the records of the key."""
        if node.second is None:
            columns = [batch.column(name).to_pylist() for name in node.key_columns]
            return batch.filter(pa.array([row == self.key for row in zip(*columns, strict=True)], pa.bool_()))
        ports = batch.column(PORT_COLUMN).to_pylist()
        records = [batch.column(struct_column(port)).to_pylist() for port in (0, 1)]
        names = (node.key_columns, node.second.key_columns)
        keys = [tuple(records[port][at][name] for name in names[port]) for at, port in enumerate(ports)]
        return batch.filter(pa.array([key == self.key for key in keys], pa.bool_()))
