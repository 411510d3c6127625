"""ReducingState and AggregatingState: one value per key, combined on each addition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from .entries import ABSENT, Entries
from .keyed_state import CurrentKey, KeyColumns, KeyedState, KeyGroups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from ..serializers.key_codecs import KeyCodec


@runtime_checkable
class ReduceFunction(Protocol):
    """Combines two values into one of the same type; associative."""

    def __call__(self, left: Any, right: Any, /) -> Any: ...


class AggregateFunction(Protocol):
    """Folds inputs into an accumulator with a result, as in Flink."""

    def create_accumulator(self) -> Any:
        """Returns the accumulator of a key without input."""
        ...

    def add(self, value: Any, accumulator: Any, /) -> Any:
        """Returns the accumulator with `value` added.

        It may be the same object, changed.
        """
        ...

    def get_result(self, accumulator: Any, /) -> Any:
        """Returns the result of an accumulator."""
        ...

    def merge(self, left: Any, right: Any, /) -> Any:
        """Returns one accumulator for the inputs of two.

        For example when two session windows merge.
        """
        ...


class _Folding(KeyedState):
    """One stored value per key and namespace, updated by functions."""

    __slots__ = ("_fold", "_merge", "_start")

    one_entry = True

    def __init__(
        self,
        entries: Entries,
        context: CurrentKey,
        namespace: KeyCodec | None,
        *,
        start: Callable[[Any], Any],
        fold: Callable[[Any, Any], Any],
        merge: Callable[[Any, Any], Any],
    ) -> None:
        """Creates the state of values that functions update.

        Args:
            entries: The state's entries.
            context: The current key.
            namespace: The codec of namespaces.
            start: Returns a stored value for the first input.
            fold: Returns a stored value for a stored value and an input.
            merge: Returns one stored value for two.
        """
        super().__init__(entries, context, namespace)
        self._start = start
        self._fold = fold
        self._merge = merge

    def add(self, value: Any) -> None:
        """Adds a value; adding None does nothing."""
        if value is None:
            return
        key = self._prefix()
        stored = self._entries.get(key)
        self._entries.put(key, self._start(value) if stored is ABSENT else self._fold(stored, value))

    def clear(self) -> None:
        """Removes the current key's value."""
        self._entries.remove(self._prefix())

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Merges source namespaces' values into the target's, and clears the sources."""
        goal = self._prefix_in(target)
        merged = self._entries.get(goal)
        changed = False
        for source in sources:
            key = self._prefix_in(source)
            stored = ABSENT if key == goal else self._entries.get(key)
            if stored is not ABSENT:
                merged = stored if merged is ABSENT else self._merge(merged, stored)
                self._entries.remove(key)
                changed = True
        if changed:
            self._entries.put(goal, merged)

    def add_many(self, key_groups: KeyGroups, keys: KeyColumns, values: pa.Array) -> None:
        """Adds each row's value to its key's, in row order.

        Each key is read and written once.
        """
        batch = self._batch(key_groups, keys)
        formats = self._entries.formats
        raws = self._entries.raw_many(batch.distinct)
        stored: list[Any] = [ABSENT if raw is None else formats.unpack(raw)[0] for raw in raws]
        changed = set()
        for group, value in zip(batch.groups.tolist(), values.to_pylist(), strict=True):
            if value is not None:
                before = stored[group]
                stored[group] = self._start(value) if before is ABSENT else self._fold(before, value)
                changed.add(group)
        now = self._entries.now_ms
        order = sorted(changed)
        packed: list[bytes | None] = [formats.pack(stored[group], now) for group in order]
        size_bytes = sum(map(len, filter(None, packed)))
        self._entries.pending.memory.column_bytes += size_bytes
        self._entries.pending.add_run([batch.distinct[group] for group in order], packed, size_bytes)

    def _stored(self) -> Any:
        value = self._entries.get(self._prefix())
        return None if value is ABSENT else value


class ReducingState(_Folding):
    """One value per key, combined with every added value."""

    __slots__ = ()

    def __init__(
        self, entries: Entries, context: CurrentKey, namespace: KeyCodec | None, reduce: ReduceFunction
    ) -> None:
        super().__init__(entries, context, namespace, start=lambda value: value, fold=reduce, merge=reduce)

    def get(self) -> Any:
        """Returns the combined value; None if nothing was added."""
        return self._stored()

    def get_many(self, key_groups: KeyGroups, keys: KeyColumns) -> pa.Array:
        """Returns each row's combined value, null where nothing was added."""
        return self._entries.get_rows(self._batch(key_groups, keys))


class AggregatingState(_Folding):
    """One accumulator per key, updated with every added value."""

    __slots__ = ("_function",)

    def __init__(
        self, entries: Entries, context: CurrentKey, namespace: KeyCodec | None, function: AggregateFunction
    ) -> None:
        def start(value: Any) -> Any:
            return function.add(value, function.create_accumulator())

        def fold(accumulator: Any, value: Any) -> Any:
            return function.add(value, accumulator)

        def merge(left: Any, right: Any) -> Any:
            return function.merge(left, right)  # only namespaces need it: a function may lack it

        super().__init__(entries, context, namespace, start=start, fold=fold, merge=merge)
        self._function = function

    def get(self) -> Any:
        """Returns the accumulator's result; None if nothing was added."""
        accumulator = self._stored()
        return None if accumulator is None else self._function.get_result(accumulator)

    def get_many(self, key_groups: KeyGroups, keys: KeyColumns) -> list[Any]:
        """Returns each row's result, None where nothing was added."""
        batch = self._batch(key_groups, keys)
        formats, result = self._entries.formats, self._function.get_result
        raws = self._entries.raw_many(batch.distinct)
        results = [None if raw is None else result(formats.unpack(raw)[0]) for raw in raws]
        return [results[group] for group in batch.groups.tolist()]
