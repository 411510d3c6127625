"""Operator state: scoped to a subtask, not to a key; and how it is redistributed when the parallelism changes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from state.errors import DescriptorError, SerializationError, StateSchemaMismatchError
from state.object_formats import decoder_of, encoder_of
from state.serializers import key_codec_for
from state.serializers.evolution import can_read
from state.serializers.type_names import TypeJson, type_from_json, type_to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state.descriptors import ListStateDescriptor, MapStateDescriptor


class Distribution(StrEnum):
    """Who gets what of a state after a change of parallelism."""

    SPLIT = "split"  # each element goes to one subtask, round robin
    UNION = "union"  # every subtask gets all elements of all
    BROADCAST = "broadcast"  # every subtask has the same map


class StoredOperatorState(msgspec.Struct, frozen=True):
    """One state of one subtask, as it is stored.

    Attributes:
        distribution: Who gets what of it.
        value_type: Type of its elements, or of a broadcast map's values.
        items: Stored elements; of a broadcast map pairs of stored key and value.
        key_type: Type of a broadcast map's keys.
    """

    distribution: Distribution
    value_type: TypeJson
    items: tuple[Any, ...]
    key_type: TypeJson | None = None


class OperatorStateSnapshot(msgspec.Struct, frozen=True):
    """All operator state of one subtask; JSON-able and MessagePack-able with msgspec."""

    states: dict[str, StoredOperatorState] = {}
    version: int = 1

    def to_bytes(self) -> bytes:
        """The snapshot's file."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, raw: bytes) -> OperatorStateSnapshot:
        """The snapshot of a file.

        Raises:
            SerializationError: It is no such file.
        """
        try:
            return msgspec.msgpack.decode(raw, type=cls)
        except msgspec.MsgspecError as error:
            message = "the bytes are no snapshot of operator state"
            raise SerializationError(message) from error


def redistribute(
    snapshots: Sequence[OperatorStateSnapshot], parallelism: int, *, claimed: bool = True
) -> list[OperatorStateSnapshot]:
    """What each of `parallelism` subtasks starts with, from the snapshots of all subtasks before, in their order. Pure.

    Split elements are dealt round robin, in the order of subtasks and of their lists. A broadcast map is taken from the
    subtask of the same index, counted round, as all have the same.

    Args:
        snapshots: Of all subtasks before, in their order.
        parallelism: How many there are now.
        claimed: Whether a function takes its state over. As long as none does, the elements of a union list are kept once, by
            one subtask each: else every restart would multiply them.

    Raises:
        StateSchemaMismatchError: Subtasks disagree on what a state is.
    """
    fresh: list[dict[str, StoredOperatorState]] = [{} for _ in range(parallelism)]
    for name in sorted({name for snapshot in snapshots for name in snapshot.states}):
        parts = [snapshot.states[name] for snapshot in snapshots if name in snapshot.states]
        first = parts[0]
        kind = (first.distribution, first.value_type, first.key_type)
        if any((part.distribution, part.value_type, part.key_type) != kind for part in parts):
            message = f"subtasks disagree on what operator state {name!r} is"
            raise StateSchemaMismatchError(message)
        together = tuple(item for part in parts for item in part.items)
        for index in range(parallelism):
            items = parts[index % len(parts)].items
            if first.distribution is not Distribution.BROADCAST:
                to_all = first.distribution is Distribution.UNION and claimed
                items = together if to_all else together[index::parallelism]
            fresh[index][name] = msgspec.structs.replace(first, items=items)
    return [OperatorStateSnapshot(states) for states in fresh]


@dataclass(slots=True)
class Changes:
    """Whether operator state was changed since it was last stored."""

    any: bool = False


class OperatorListState:
    """A list of a subtask."""

    def __init__(self, elements: list[Any], changes: Changes | None = None) -> None:
        self._elements = elements
        self._changes = changes or Changes()

    def get(self) -> list[Any]:
        return list(self._elements)

    def add(self, value: Any) -> None:
        """Append an element.

        Raises:
            SerializationError: It is null.
        """
        self.add_all((value,))

    def add_all(self, values: Iterable[Any]) -> None:
        """Append elements."""
        added = list(values)
        if any(value is None for value in added):
            message = "a list of operator state takes no null elements"
            raise SerializationError(message)
        self._elements += added
        self._changes.any = True

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list."""
        before, self._elements = self._elements, []
        try:
            self.add_all(values)
        except SerializationError:
            self._elements = before
            raise

    def clear(self) -> None:
        self._elements = []
        self._changes.any = True


class ReadOnlyBroadcastState:
    """A map that all subtasks have alike, as those see it who may not change it."""

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
    """A map that all subtasks have alike; keeping it so is the operator's part."""

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
        """The same map, without the methods that change it."""
        return ReadOnlyBroadcastState(self._entries)


class OperatorStateBackend:
    """The operator state of one subtask: small, in memory, and stored as a whole in every snapshot."""

    def __init__(
        self, restored: OperatorStateSnapshot | None = None, unclaimed: OperatorStateSnapshot | None = None
    ) -> None:
        """Operator state as a subtask starts with it.

        Args:
            restored: What `redistribute` gave the subtask; None: nothing.
            unclaimed: What is kept of it as long as it is not declared; None: all.
        """
        self._restored = {} if restored is None else dict(restored.states)
        self._unclaimed = self._restored if unclaimed is None else dict(unclaimed.states)
        self._dealt = unclaimed is not None
        self._changes = Changes(self._dealt)
        self._lists: dict[str, tuple[Distribution, ListStateDescriptor, OperatorListState]] = {}
        self._maps: dict[str, tuple[MapStateDescriptor, BroadcastState]] = {}

    def list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """A list whose elements are dealt out again, each to one subtask, when the parallelism changes.

        Raises:
            DescriptorError: It has a TTL or a namespace, which are for keyed state.
            StateSchemaMismatchError: The name is another state's, or stored elements cannot be read as declared.
        """
        return self._list(descriptor, Distribution.SPLIT)

    def union_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """A list of which every subtask gets all elements of all subtasks when it starts; see `list_state`."""
        return self._list(descriptor, Distribution.UNION)

    def broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState:
        """A map that is copied to every subtask; see `list_state`."""
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
            entries = {decode_key(key, 0)[0]: None if raw is None else decode(raw) for key, raw in stored.items}
        state = BroadcastState(entries, self._changes)
        self._maps[descriptor.name] = (descriptor, state)
        return state

    def snapshot(self) -> OperatorStateSnapshot:
        """All state as it is now, with what was restored and not yet declared again as it was.

        Raises:
            SerializationError: A value is not of its declared type.
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
        """A snapshot if anything was changed since the last call of this; None otherwise. Raises as `snapshot` does."""
        if not self._changes.any:
            return None
        taken = self.snapshot()
        self._changes.any, self._dealt = False, False
        return taken

    @property
    def is_restored(self) -> bool:
        """Whether it is what an earlier attempt left, and no batch has taken it over yet."""
        return self._dealt and self._changes.any

    def broadcast_digest(self) -> str:
        """What the broadcast maps hold, in short: the same in all subtasks, or they are not alike any more."""
        states = self.snapshot().states
        maps = [(name, state) for name, state in sorted(states.items()) if state.distribution is Distribution.BROADCAST]
        return hashlib.sha256(msgspec.msgpack.encode(maps)).hexdigest()

    @property
    def is_empty(self) -> bool:
        """Whether there is no state at all."""
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
            message = f"operator state {descriptor.name!r} can have neither a TTL nor a namespace"
            raise DescriptorError(message)
        if descriptor.name in self._lists or descriptor.name in self._maps:
            raise _declared_twice(descriptor.name)
        stored = self._restored.get(descriptor.name)
        if stored is None:
            return None
        declared_key = None if key_type is None else type_to_json(key_type)
        readable = can_read(type_from_json(stored.value_type), type_from_json(type_to_json(value_type)))
        if stored.distribution is not distribution or stored.key_type != declared_key or not readable:
            message = (
                f"operator state {descriptor.name!r} is stored as {stored.distribution} of {stored.key_type} "
                f"{stored.value_type} and declared as {distribution} of {declared_key} {type_to_json(value_type)}"
            )
            raise StateSchemaMismatchError(message)
        return stored


def _reader(stored: StoredOperatorState, wanted: Any) -> Any:
    return decoder_of(type_from_json(stored.value_type), wanted)


def _declared_twice(name: str) -> StateSchemaMismatchError:
    return StateSchemaMismatchError(f"operator state {name!r} is declared twice, and differently")
