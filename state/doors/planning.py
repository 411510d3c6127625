"""The fate of a job's state under another program or parallelism."""

from __future__ import annotations

from ..documents.manifest import size_bytes_of
from ..inspection.stored_state import UNNAMED_SOURCE, StoredState, read_stored_state
from ..restore.movement import movements, skew
from ..restore.program_change import DeclaredOperator, OperatorChange, operator_changes
from ..restore.range_choice import chosen_ranges, ranges_by_size, weights_of

__all__ = [
    "UNNAMED_SOURCE",
    "DeclaredOperator",
    "OperatorChange",
    "StoredState",
    "chosen_ranges",
    "movements",
    "operator_changes",
    "ranges_by_size",
    "read_stored_state",
    "size_bytes_of",
    "skew",
    "weights_of",
]
