"""What a processor is initialized with: its states, and timers of the key that is being processed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.streaming import stateful_processor as spark

from jobs.errors import ProcessorCallError
from jobs.transform_with_state.row_codec import RowCodec, StateColumns
from jobs.transform_with_state.states import ProcessorListState, ProcessorMapState, ProcessorValueState
from jobs.transform_with_state.time_mode import TimeMode
from state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from state.ttl import Ttl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobs.transform_with_state.time_mode import ProcessorTime
    from state.keyed import KeyedStateBackend
    from state.timers import Timer

# ruff: noqa: N802, N803 - Spark's names


class ProcessorHandle(spark.StatefulProcessorHandle):
    """Spark's handle over the state of one subtask.

    A key's timers are in the subtask's queue and, for `listTimers`, in a map of the key's own.
    """

    def __init__(self, state: KeyedStateBackend, time: ProcessorTime) -> None:
        self._state = state
        self._time = time
        self._is_open = True
        self._removed: set[str] = set()
        self._timers = None if time.mode is TimeMode.NONE else state.timers(time.mode.timers)
        if self._timers is not None:
            # By mode: a processor whose mode has been changed has no timers of the other one.
            registered = MapStateDescriptor(f"_registered{time.mode.timers}", pa.int64(), pa.bool_())
            self._registered = state.map_state(registered)

    def getValueState(
        self, stateName: str, schema: StateColumns, ttlDurationMs: int | None = None
    ) -> ProcessorValueState:
        codec = RowCodec(schema)
        descriptor = ValueStateDescriptor(stateName, codec.type, ttl=self._ttl(stateName, ttlDurationMs))
        return ProcessorValueState(self._state.value_state(descriptor), codec)

    def getListState(
        self, stateName: str, schema: StateColumns, ttlDurationMs: int | None = None
    ) -> ProcessorListState:
        codec = RowCodec(schema)
        descriptor = ListStateDescriptor(stateName, codec.type, ttl=self._ttl(stateName, ttlDurationMs))
        return ProcessorListState(self._state.list_state(descriptor), codec)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StateColumns,
        valueSchema: StateColumns,
        ttlDurationMs: int | None = None,
    ) -> ProcessorMapState:
        keys, values = RowCodec(userKeySchema), RowCodec(valueSchema)
        descriptor = MapStateDescriptor(stateName, keys.type, values.type, ttl=self._ttl(stateName, ttlDurationMs))
        return ProcessorMapState(self._state.map_state(descriptor), keys, values)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        timers = self._queue()
        if self._time.mode is TimeMode.EVENT_TIME and expiryTimestampMs <= self._time.watermark_ms:
            message = f"a timer for {expiryTimestampMs} was registered at the watermark {self._time.watermark_ms}, which is not before it"
            raise ProcessorCallError(message)
        timers.register(self._time.stored_ms(int(expiryTimestampMs)))
        self._registered.put(int(expiryTimestampMs), True)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._queue().delete(self._time.stored_ms(int(expiryTimestampMs)))
        self._registered.remove(int(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        self._queue()
        return iter(list(self._registered.keys()))

    def deleteIfExists(self, stateName: str) -> None:
        self._check_open(stateName)
        self._removed.add(stateName)
        self._state.remove_state(stateName)

    def close_declarations(self) -> None:
        """States are declared in `init` alone; called when it has ended."""
        self._is_open = False

    def due(self) -> list[Timer]:
        """Takes all timers that are due, before any is fired: those that are registered meanwhile wait for the next batch."""
        return [] if self._timers is None else list(self._timers.due(self._time.due_ms))

    @property
    def next_timer_ms(self) -> int | None:
        """The stored time of the earliest timer."""
        return None if self._timers is None else self._timers.next_ms

    def _queue(self) -> Any:
        if self._timers is None:
            message = "timers are not there in the time mode None; choose ProcessingTime or EventTime"
            raise ProcessorCallError(message)
        return self._timers

    def _ttl(self, state: str, duration_ms: int | None) -> Ttl | None:
        self._check_open(state)
        if state in self._removed:
            message = f"state {state!r} is deleted and declared in one init"
            raise ProcessorCallError(message)
        if duration_ms is None:
            return None
        if self._time.mode is not TimeMode.PROCESSING_TIME:
            message = f"state {state!r} has a TTL, which is only there in the time mode ProcessingTime"
            raise ProcessorCallError(message)
        return Ttl(int(duration_ms))

    def _check_open(self, state: str) -> None:
        if not self._is_open:
            message = f"state {state!r} is declared outside init"
            raise ProcessorCallError(message)
