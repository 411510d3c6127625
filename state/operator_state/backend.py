"""Operator state: scoped to a subtask, redistributed by a rescale."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from ..errors import DescriptorError, SerializationError, StateSchemaMismatchError
from ..serializers.evolution import can_read
from ..serializers.key_codecs import key_codec_for
from ..serializers.type_names import TypeJson, type_from_json, type_text, type_to_json
from ..serializers.value_serializer import decoder_of, encoder_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ..keyed.descriptors import ListStateDescriptor, MapStateDescriptor


class Distribution(StrEnum):
    """How a rescale distributes a state over the subtasks."""

    SPLIT = "split"  # each element goes to one subtask
    UNION = "union"  # every subtask gets all elements of all subtasks
    BROADCAST = "broadcast"  # every subtask has the same map


class StoredOperatorState(msgspec.Struct, frozen=True):
    """One stored state of one subtask.

    Attributes:
        distribution: How it is distributed.
        value_type: Type of its elements, or of a broadcast map's values.
        items: Stored elements; for a broadcast map, pairs of stored key and value.
        key_type: Type of a broadcast map's keys.
    """

    distribution: Distribution
    value_type: TypeJson
    items: tuple[Any, ...]
    key_type: TypeJson | None = None


class OperatorStateSnapshot(msgspec.Struct, frozen=True):
    """All operator state of one subtask, encoded as JSON or MessagePack."""

    states: dict[str, StoredOperatorState] = {}
    version: int = 1

    def to_bytes(self) -> bytes:
        """Returns the content of the snapshot's file."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, raw: bytes) -> OperatorStateSnapshot:
        """Returns the snapshot in a file's content.

        Raises:
            SerializationError: The file is not a snapshot of operator state.
        """
        try:
            return msgspec.msgpack.decode(raw, type=cls)
        except msgspec.MsgspecError as error:
            raise SerializationError("the bytes are not a snapshot of operator state") from error


def redistribute(
    snapshots: Sequence[OperatorStateSnapshot], parallelism: int, *, claimed: bool = True
) -> list[OperatorStateSnapshot]:
    """Returns the initial state of each of `parallelism` subtasks; pure.

    As in Flink, a split list stays where it is while the parallelism is the same. Otherwise all elements, in the order
    of subtasks and of their lists, are cut into contiguous runs of almost the same length. All broadcast maps are the
    same, so subtask i gets the map of subtask i modulo the number of snapshots.

    Args:
        snapshots: Snapshots of all earlier subtasks, in their order.
        parallelism: The new number of subtasks.
        claimed: Whether a function takes the state over. Otherwise one subtask keeps each element of a union list,
            because every restart would multiply the elements.

    Raises:
        StateSchemaMismatchError: Subtasks disagree on what a state is.
    """
    fresh: list[dict[str, StoredOperatorState]] = [{} for _ in range(parallelism)]
    for name in sorted({name for snapshot in snapshots for name in snapshot.states}):
        parts = [snapshot.states[name] for snapshot in snapshots if name in snapshot.states]
        first = parts[0]
        kind = (first.distribution, first.value_type, first.key_type)
        if any((part.distribution, part.value_type, part.key_type) != kind for part in parts):
            raise StateSchemaMismatchError(f"subtasks disagree on what operator state {name!r} is")
        if first.distribution is Distribution.BROADCAST:
            shares = [parts[index % len(parts)].items for index in range(parallelism)]
        else:
            lists = [snapshot.states[name].items if name in snapshot.states else () for snapshot in snapshots]
            to_all = first.distribution is Distribution.UNION and claimed
            shares = [tuple(chain.from_iterable(lists))] * parallelism if to_all else _split(lists, parallelism)
        for states, items in zip(fresh, shares, strict=True):
            states[name] = msgspec.structs.replace(first, items=items)
    return [OperatorStateSnapshot(states) for states in fresh]


def _split(lists: list[tuple[Any, ...]], parallelism: int) -> list[tuple[Any, ...]]:
    """Distributes the lists of all earlier subtasks over `parallelism` lists."""
    if len(lists) == parallelism:
        return lists
    together = chain.from_iterable(lists)
    share, longer = divmod(sum(map(len, lists)), parallelism)
    return [tuple(islice(together, share + (index < longer))) for index in range(parallelism)]


@dataclass(slots=True)
class Changes:
    """Whether operator state has changed since it was last stored."""

    any: bool = False


class OperatorListState:
    """A list of a subtask."""

    def __init__(self, elements: list[Any], changes: Changes | None = None) -> None:
        self._elements = elements
        self._changes = changes or Changes()

    def get(self) -> list[Any]:
        return list(self._elements)

    def add(self, value: Any) -> None:
        """Appends an element.

        Raises:
            SerializationError: The element is null.
        """
        self.add_all((value,))

    def add_all(self, values: Iterable[Any]) -> None:
        """Appends elements.

        Raises:
            SerializationError: An element is null.
        """
        self._elements += _checked(values)
        self._changes.any = True

    def update(self, values: Iterable[Any]) -> None:
        """Replaces the list.

        Raises:
            SerializationError: An element is null.
        """
        self._elements = _checked(values)
        self._changes.any = True

    def clear(self) -> None:
        self._elements = []
        self._changes.any = True


class ReadOnlyBroadcastState:
    """A map that is the same in all subtasks, read only."""

    def __init__(self, entries: dict[Any, Any]) -> None:
        self._entries = entries

    def get(self, key: Any) -> Any:
        return self._entries.get(key)

    def contains(self, key: Any) -> bool:
        return key in self._entries

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(list(self._entries.items()))

    def keys(self) -> Iterator[Any]:
        return iter(list(self._entries))

    def values(self) -> Iterator[Any]:
        return iter(list(self._entries.values()))

    def is_empty(self) -> bool:
        return not self._entries


class BroadcastState(ReadOnlyBroadcastState):
    """A map that is the same in all subtasks.

    The operator must change it in the same way in each subtask.
    """

    def __init__(self, entries: dict[Any, Any], changes: Changes | None = None) -> None:
        super().__init__(entries)
        self._changes = changes or Changes()

    def put(self, key: Any, value: Any) -> None:
        self._entries[key] = value
        self._changes.any = True

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        self._entries.update(entries)
        self._changes.any = True

    def remove(self, key: Any) -> None:
        self._entries.pop(key, None)
        self._changes.any = True

    def clear(self) -> None:
        self._entries.clear()
        self._changes.any = True

    def read_only(self) -> ReadOnlyBroadcastState:
        """Returns the same map without the methods that change it."""
        return ReadOnlyBroadcastState(self._entries)


class OperatorStateBackend:
    """The operator state of one subtask, in memory and small.

    Every snapshot contains it as a whole.
    """

    def __init__(
        self, restored: OperatorStateSnapshot | None = None, unclaimed: OperatorStateSnapshot | None = None
    ) -> None:
        """Creates the operator state that a subtask starts with.

        Args:
            restored: The subtask's share from `redistribute`; None: nothing.
            unclaimed: The part that is kept while undeclared; None: all.
        """
        self._restored = {} if restored is None else dict(restored.states)
        self._unclaimed = self._restored if unclaimed is None else dict(unclaimed.states)
        self._redistributed = unclaimed is not None
        self._changes = Changes(self._redistributed)
        self._lists: dict[str, tuple[Distribution, ListStateDescriptor, OperatorListState]] = {}
        self._maps: dict[str, tuple[MapStateDescriptor, BroadcastState]] = {}

    def list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """Returns a list; a rescale distributes its elements over the subtasks.

        Raises:
            DescriptorError: It has a TTL or a namespace, which only keyed state can have.
            StateSchemaMismatchError: Another state has the name, or stored elements cannot be read as declared.
        """
        return self._list(descriptor, Distribution.SPLIT)

    def union_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """Returns a list that starts with all elements of all subtasks.

        See `list_state`.
        """
        return self._list(descriptor, Distribution.UNION)

    def broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState:
        """Returns a map that is copied to every subtask; see `list_state`.

        Keys of a list type are tuples.

        Raises:
            DescriptorError: As `list_state`, or its keys have structs, which a dictionary cannot hold.
            StateSchemaMismatchError: As `list_state`.
        """
        if _has_struct(descriptor.key_type):
            raise DescriptorError(f"the keys of broadcast map {descriptor.name!r} cannot be or contain structs")
        known = self._maps.get(descriptor.name)
        if known is not None:
            if known[0] != descriptor:
                raise _declared_twice(descriptor.name)
            return known[1]
        stored = self._stored(descriptor, Distribution.BROADCAST, descriptor.value_type, descriptor.key_type)
        entries: dict[Any, Any] = {}
        if stored is not None:
            decode_key = key_codec_for(descriptor.key_type).decode
            decode = _reader(stored, descriptor.value_type)
            entries = {
                _hashable(decode_key(key, 0)[0]): None if raw is None else decode(raw) for key, raw in stored.items
            }
        state = BroadcastState(entries, self._changes)
        self._maps[descriptor.name] = (descriptor, state)
        return state

    def snapshot(self) -> OperatorStateSnapshot:
        """Returns all state as it is now.

        Restored state that has not been declared again is included unchanged.

        Raises:
            SerializationError: A value does not have its declared type.
        """
        states = dict(self._unclaimed)
        for name, (distribution, listed, elements) in self._lists.items():
            encode = encoder_of(listed.element_type)
            items = tuple(encode(value) for value in elements.get())
            states[name] = StoredOperatorState(distribution, type_to_json(listed.element_type), items)
        for name, (mapped, entries) in self._maps.items():
            encode_key, encode = key_codec_for(mapped.key_type).encode, encoder_of(mapped.value_type)
            pairs = tuple((encode_key(k), None if v is None else encode(v)) for k, v in entries.items())
            key_type = type_to_json(mapped.key_type)
            states[name] = StoredOperatorState(Distribution.BROADCAST, type_to_json(mapped.value_type), pairs, key_type)
        return OperatorStateSnapshot(states)

    def changed(self) -> OperatorStateSnapshot | None:
        """Returns a snapshot if anything changed since the last call, or None.

        Raises:
            SerializationError: A value does not have its declared type.
        """
        if not self._changes.any:
            return None
        taken = self.snapshot()
        self._changes.any, self._redistributed = False, False
        return taken

    @property
    def is_restored(self) -> bool:
        """Whether the state is an earlier attempt's, and not yet stored."""
        return self._redistributed and self._changes.any

    def broadcast_digest(self) -> str:
        """Returns a digest of the broadcast maps, equal in all consistent subtasks.

        The order of insertion does not count: it may differ, for example when it follows a set.
        """
        maps = [
            (name, msgspec.structs.replace(state, items=tuple(sorted(state.items))))
            for name, state in sorted(self.snapshot().states.items())
            if state.distribution is Distribution.BROADCAST
        ]
        return hashlib.sha256(msgspec.msgpack.encode(maps)).hexdigest()

    @property
    def is_empty(self) -> bool:
        """Whether the backend holds no state."""
        return not (self._unclaimed or self._lists or self._maps)

    def _list(self, descriptor: ListStateDescriptor, distribution: Distribution) -> OperatorListState:
        known = self._lists.get(descriptor.name)
        if known is not None:
            if known[:2] != (distribution, descriptor):
                raise _declared_twice(descriptor.name)
            return known[2]
        stored = self._stored(descriptor, distribution, descriptor.element_type, None)
        decode = None if stored is None else _reader(stored, descriptor.element_type)
        elements = [] if stored is None or decode is None else [decode(raw) for raw in stored.items]
        state = OperatorListState(elements, self._changes)
        self._lists[descriptor.name] = (distribution, descriptor, state)
        return state

    def _stored(
        self, descriptor: Any, distribution: Distribution, value_type: Any, key_type: Any
    ) -> StoredOperatorState | None:
        if descriptor.ttl is not None or descriptor.namespace_type is not None:
            raise DescriptorError(f"operator state {descriptor.name!r} can have neither a TTL nor a namespace")
        if descriptor.name in self._lists or descriptor.name in self._maps:
            raise _declared_twice(descriptor.name)
        stored = self._restored.get(descriptor.name)
        if stored is None:
            return None
        declared_key = None if key_type is None else type_to_json(key_type)
        check_readable(
            descriptor.name, stored, StoredOperatorState(distribution, type_to_json(value_type), (), declared_key)
        )
        return stored


def check_readable(name: str, stored: StoredOperatorState, declared: StoredOperatorState) -> None:
    """Checks that stored operator state can be read as declared; pure.

    The items do not count.

    Raises:
        StateSchemaMismatchError: It cannot be read.
    """
    readable = can_read(type_from_json(stored.value_type), type_from_json(declared.value_type))
    if stored.distribution is not declared.distribution or stored.key_type != declared.key_type or not readable:
        raise StateSchemaMismatchError(
            f"operator state {name!r} is stored as {text_of(stored)} and declared as {text_of(declared)}"
        )


def text_of(state: StoredOperatorState) -> str:
    """Describes an operator state's distribution and types."""
    value = type_text(state.value_type)
    keyed = value if state.key_type is None else f"{type_text(state.key_type)} to {value}"
    return f"{state.distribution} of {keyed}"


def _has_struct(of_type: pa.DataType) -> bool:
    if pa.types.is_list(of_type) or pa.types.is_large_list(of_type):
        return _has_struct(of_type.value_type)
    return bool(pa.types.is_struct(of_type))


def _hashable(key: Any) -> Any:
    """Returns a decoded key with tuples in place of lists."""
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


def _checked(values: Iterable[Any]) -> list[Any]:
    elements = list(values)
    if any(value is None for value in elements):
        raise SerializationError("a list of operator state cannot have null elements")
    return elements


def _reader(stored: StoredOperatorState, wanted: Any) -> Any:
    return decoder_of(type_from_json(stored.value_type), wanted)


def _declared_twice(name: str) -> StateSchemaMismatchError:
    return StateSchemaMismatchError(f"operator state {name!r} is declared twice, in different ways")
