"""State of functions and operators, with timers and time.

It needs neither RocksDB nor an object store.
"""

from __future__ import annotations

from ..engine.rocksdb_settings import RocksDbSettings
from ..errors import DescriptorError, StateSchemaMismatchError
from ..keyed.aggregating import AggregateFunction
from ..keyed.backend import KeyedStateBackend
from ..keyed.batch_clock import END_OF_TIME_MS, BatchClock, Clock, TimeDomain
from ..keyed.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
    check_name,
    check_type,
)
from ..keyed.list import ListState
from ..keyed.map import MapState
from ..keyed.memory_state import MemorySnapshot, MemoryState, memory_snapshot
from ..keyed.stamp import STAMP_MIN_MS
from ..keyed.state_access import KeyedStateAccess, check_descriptor
from ..keyed.timer_queue import Timer
from ..keyed.timer_service import (
    EVENT_TIMERS,
    NO_WATERMARK_MS,
    PROCESSING_TIMERS,
    NextTimers,
    TimerService,
)
from ..keyed.ttl import Ttl, UpdateType, check_ttl
from ..keyed.value import ValueState
from ..keys.stored_key import StoredKey
from ..operator_state.backend import (
    BroadcastState,
    OperatorListState,
    OperatorStateBackend,
    OperatorStateSnapshot,
    ReadOnlyBroadcastState,
    redistribute,
)

__all__ = [
    "END_OF_TIME_MS",
    "EVENT_TIMERS",
    "NO_WATERMARK_MS",
    "PROCESSING_TIMERS",
    "STAMP_MIN_MS",
    "AggregateFunction",
    "AggregatingStateDescriptor",
    "BatchClock",
    "BroadcastState",
    "Clock",
    "DescriptorError",
    "KeyedStateAccess",
    "KeyedStateBackend",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "MemorySnapshot",
    "MemoryState",
    "NextTimers",
    "OperatorListState",
    "OperatorStateBackend",
    "OperatorStateSnapshot",
    "ReadOnlyBroadcastState",
    "RocksDbSettings",
    "StateDescriptor",
    "StateSchemaMismatchError",
    "StoredKey",
    "TimeDomain",
    "Timer",
    "TimerService",
    "Ttl",
    "UpdateType",
    "ValueState",
    "ValueStateDescriptor",
    "check_descriptor",
    "check_name",
    "check_ttl",
    "check_type",
    "memory_snapshot",
    "redistribute",
]
