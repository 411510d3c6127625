"""Spark's state variables over ours. They work on the key that is being processed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming import stateful_processor as spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobs.transform_with_state.row_codec import RowCodec
    from state.list import ListState
    from state.map import MapState
    from state.value import ValueState

# ruff: noqa: N802, N803 - Spark's names


class ProcessorValueState(spark.ValueState):
    """One value a key."""

    def __init__(self, state: ValueState, codec: RowCodec) -> None:
        self._state = state
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


class ProcessorListState(spark.ListState):
    """A list a key. Unlike Spark's it may be set to no elements, which clears it."""

    def __init__(self, state: ListState, codec: RowCodec) -> None:
        self._state = state
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


class ProcessorMapState(spark.MapState):
    """A map a key, each entry of which is stored by itself; iterated in the order of its keys."""

    def __init__(self, state: MapState, key_codec: RowCodec, value_codec: RowCodec) -> None:
        self._state = state
        self._keys = key_codec
        self._values = value_codec

    def exists(self) -> bool:
        return not self._state.is_empty()

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        stored = self._state.get(self._keys.stored(key))
        return None if stored is None else self._values.value(stored)

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
