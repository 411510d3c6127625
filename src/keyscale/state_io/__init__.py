"""Reads and writes state as data: Arrow, SQL, Spark DataFrames.

Neither a control plane nor the job's program is needed, only its object store.
"""

from __future__ import annotations

from keyscale.state.doors.keyed import EVENT_TIMERS, PROCESSING_TIMERS

from .key_change import ChangedKey, ChangedKeys, KeyChange, change_keys
from .key_function import KeyContext, KeyFunction, for_each_key
from .new_operator import NewOperator, NewOperatorState, NewState, NewTimers
from .savepoint_writer import write
from .state_partition import StatePartition, partitions_of
from .state_reader import KeyedStateTable, OperatorStateTable, StateReader, StateTable
from .transformation import ChangedOperator, transform

__all__ = [
    "EVENT_TIMERS",
    "PROCESSING_TIMERS",
    "ChangedKey",
    "ChangedKeys",
    "ChangedOperator",
    "KeyChange",
    "KeyContext",
    "KeyFunction",
    "KeyedStateTable",
    "NewOperator",
    "NewOperatorState",
    "NewState",
    "NewTimers",
    "OperatorStateTable",
    "StatePartition",
    "StateReader",
    "StateTable",
    "change_keys",
    "for_each_key",
    "partitions_of",
    "transform",
    "write",
]
