"""Reads the state of jobs as data: Arrow, SQL, Spark DataFrames.

Neither a control plane nor the job's program is needed, only its object store.
"""

from __future__ import annotations

from .state_partition import StatePartition, partitions_of
from .state_reader import KeyedStateTable, OperatorStateTable, StateReader, StateTable

__all__ = [
    "KeyedStateTable",
    "OperatorStateTable",
    "StatePartition",
    "StateReader",
    "StateTable",
    "partitions_of",
]
