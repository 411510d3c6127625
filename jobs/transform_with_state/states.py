"""Spark's state variables over Keyscale's states. They refer to the current key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming import stateful_processor as spark

from ..errors import ProcessorCallError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.state.doors.keyed import ListState, MapState, ValueState

    from .row_codec import RowCodec

# ruff: noqa: N802, N803 - Spark's names


class _Deleted:
    """A placeholder for a state that was declared and then deleted."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, _: str) -> Any:
        raise ProcessorCallError(f"state {self._name!r} was deleted in init after it had been declared")


class ProcessorState:
    """A state of a processor, of any kind."""

    _state: Any

    def delete(self, name: str) -> None:
        """Makes every use of the state an error, as in Spark."""
        self._state = _Deleted(name)


class ProcessorValueState(ProcessorState, spark.ValueState):
    """One value per key."""

    def __init__(self, state: ValueState, codec: RowCodec) -> None:
        self._state: ValueState = state
        self._codec = codec

    def exists(self) -> bool:
        return self._state.value() is not None

    def get(self) -> tuple[Any, ...] | None:
        stored = self._state.value()
        return None if stored is None else self._codec.value(stored)

    def update(self, newValue: tuple[Any, ...]) -> None:
        self._state.update(self._codec.stored(newValue))

    def clear(self) -> None:
        self._state.clear()


class ProcessorListState(ProcessorState, spark.ListState):
    """A list per key.

    Unlike Spark's list, it can be set to an empty list, which clears it.
    """

    def __init__(self, state: ListState, codec: RowCodec) -> None:
        self._state: ListState = state
        self._codec = codec

    def exists(self) -> bool:
        return bool(self._state.get())

    def get(self) -> Iterator[tuple[Any, ...]]:
        return map(self._codec.value, self._state.get())

    def put(self, newState: list[tuple[Any, ...]]) -> None:
        self._state.update(list(map(self._codec.stored, newState)))

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        self._state.add(self._codec.stored(newState))

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        self._state.add_all(list(map(self._codec.stored, newState)))

    def clear(self) -> None:
        self._state.clear()


class ProcessorMapState(ProcessorState, spark.MapState):
    """A map per key.

    Each entry is stored separately; iteration is in the order of the map's keys.
    """

    def __init__(self, state: MapState, key_codec: RowCodec, value_codec: RowCodec) -> None:
        self._state: MapState = state
        self._keys = key_codec
        self._values = value_codec

    def exists(self) -> bool:
        return not self._state.is_empty()

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        stored = self._state.get(self._keys.stored(key))
        return None if stored is None else self._values.row(stored)  # a Row, unlike other values, as in Spark

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        return self._state.contains(self._keys.stored(key))

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        self._state.put(self._keys.stored(key), self._values.stored(value))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return ((self._keys.value(key), self._values.value(value)) for key, value in self._state.items())

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return map(self._keys.value, self._state.keys())

    def values(self) -> Iterator[tuple[Any, ...]]:
        return map(self._values.value, self._state.values())

    def removeKey(self, key: tuple[Any, ...]) -> None:
        self._state.remove(self._keys.stored(key))

    def clear(self) -> None:
        self._state.clear()
