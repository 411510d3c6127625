"""The handle that a processor gets: its states and timers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql.streaming import stateful_processor as spark

from keyscale.state.doors.keyed import ListStateDescriptor, MapStateDescriptor, Ttl, ValueStateDescriptor

from ..errors import ProcessorCallError
from ..functions.function_metrics import FunctionMetrics
from .row_codec import RowCodec, StateColumns
from .state_name import stored_name
from .states import (
    ProcessorListState,
    ProcessorMapState,
    ProcessorState,
    ProcessorValueState,
)
from .time_mode import TimeMode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.state.doors.keyed import KeyedStateBackend, Timer

    from .time_mode import ProcessorTime

# ruff: noqa: N802, N803 - Spark's names

_State = TypeVar("_State", bound=ProcessorState)


class ProcessorHandle(spark.StatefulProcessorHandle):
    """Spark's handle over the state of one subtask.

    The timers of a key are in the subtask's queue and also, for `listTimers`, in a map state.

    Attributes:
        metrics: The processor's own metrics, which Spark's handle does not have; declare them in `init`.
    """

    def __init__(self, state: KeyedStateBackend, time: ProcessorTime, metrics: FunctionMetrics | None = None) -> None:
        self.metrics = metrics or FunctionMetrics()
        self._state = state
        self._time = time
        self._is_open = True
        self._declared: dict[str, ProcessorState] = {}
        self._removed: set[str] = set()
        self._timers = None if time.mode is TimeMode.NONE else state.timers(time.mode.timers)
        if self._timers is not None:
            # One map per mode: a processor with a changed mode has no timers of the other mode.
            registered = MapStateDescriptor(f"_registered{time.mode.timers}", pa.int64(), pa.bool_())
            self._registered = state.state(registered)

    def getValueState(
        self, stateName: str, schema: StateColumns, ttlDurationMs: int | None = None
    ) -> ProcessorValueState:
        codec, ttl = RowCodec(schema), self._ttl(stateName, ttlDurationMs)
        state = self._state.state(ValueStateDescriptor(self._stored(stateName), codec.type, ttl=ttl))
        return self._known(stateName, ProcessorValueState(state, codec))

    def getListState(
        self, stateName: str, schema: StateColumns, ttlDurationMs: int | None = None
    ) -> ProcessorListState:
        codec, ttl = RowCodec(schema), self._ttl(stateName, ttlDurationMs)
        state = self._state.state(ListStateDescriptor(self._stored(stateName), codec.type, ttl=ttl))
        return self._known(stateName, ProcessorListState(state, codec))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StateColumns,
        valueSchema: StateColumns,
        ttlDurationMs: int | None = None,
    ) -> ProcessorMapState:
        keys, values, ttl = RowCodec(userKeySchema), RowCodec(valueSchema), self._ttl(stateName, ttlDurationMs)
        descriptor = MapStateDescriptor(self._stored(stateName), keys.type, values.type, ttl=ttl)
        return self._known(stateName, ProcessorMapState(self._state.state(descriptor), keys, values))

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._queue().register(self._time.stored_ms(int(expiryTimestampMs)))
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
        declared = self._declared.pop(stateName, None)
        if declared is not None:
            declared.delete(stateName)
        self._state.remove_state(stored_name(stateName))

    def close_declarations(self) -> None:
        """Ends the declaration of states.

        Called after `init`, the only place where states may be declared.
        """
        self._is_open = False

    def due(self) -> list[Timer]:
        """Takes all due timers before any timer fires.

        Timers that are registered meanwhile wait for the next batch.
        """
        return [] if self._timers is None else list(self._timers.due(self._time.due_ms))

    @property
    def next_timer_ms(self) -> int | None:
        """The stored time of the earliest timer, or None."""
        return None if self._timers is None else self._timers.next_ms

    def _queue(self) -> Any:
        if self._timers is None:
            raise ProcessorCallError("the time mode None has no timers; choose ProcessingTime or EventTime")
        return self._timers

    def _stored(self, state: str) -> str:
        """Returns the stored name of a state during its declaration.

        A state that was deleted is emptied, in every batch, as in Spark, where `init` deletes it in every batch.
        """
        self._check_open(state)
        stored = stored_name(state)
        if state in self._removed:
            self._removed.remove(state)
            self._state.remove_state(stored, None)
        return stored

    def _known(self, name: str, state: _State) -> _State:
        self._declared[name] = state
        return state

    def _ttl(self, state: str, duration_ms: int | None) -> Ttl | None:
        if duration_ms is None:
            return None
        if self._time.mode is not TimeMode.PROCESSING_TIME:
            raise ProcessorCallError(f"state {state!r} has a TTL, which needs the time mode ProcessingTime")
        return Ttl(int(duration_ms))

    def _check_open(self, state: str) -> None:
        if not self._is_open:
            raise ProcessorCallError(f"state {state!r} is declared outside init")
