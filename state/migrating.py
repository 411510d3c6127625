"""From a value state that holds a map to a map state, key by key as keys are touched, so that no job has to be rebuilt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from state.engine import Mutation
from state.errors import StateSchemaMismatchError
from state.map import MapState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state.descriptors import MapStateDescriptor, ValueStateDescriptor
    from state.engine import Engine
    from state.entries import Entries
    from state.handle import KeyColumns, KeyContext, KeyGroups
    from state.serializers import KeyCodec
    from state.stored_key import KeyBatch

_MIGRATED_AT_A_TIME = 1000


class MigratingMapState(MapState):
    """A map state whose keys may still be in a value state that holds their maps as wholes.

    Whatever touches a key first moves it: its old value is read once, its entries are written one by one, and the old value is
    removed, all in one batch, so that a key is always in one of the two. That the old value is gone is the mark of a key that
    has been moved. Entries keep the time of the old value's last access.
    """

    __slots__ = ("_old",)

    def __init__(
        self, entries: Entries, context: KeyContext, namespace: KeyCodec | None, map_keys: KeyCodec, old: Entries
    ) -> None:
        super().__init__(entries, context, namespace, map_keys)
        self._old = old

    def _prefix(self) -> bytes:
        prefix = super()._prefix()
        self._move(prefix, self._old.peek(prefix))
        return prefix

    def _batch(self, key_groups: KeyGroups, keys: KeyColumns) -> KeyBatch:
        batch = super()._batch(key_groups, keys)
        for prefix, raw in zip(batch.distinct, self._old.peek_many(batch.distinct), strict=True):
            self._move(prefix, raw)
        return batch

    def _move(self, prefix: bytes, raw: bytes | None) -> None:
        if raw is not None:
            self._entries.put_raw_below(prefix, dict(self.moved(prefix, raw)))
            self._old.remove(prefix)

    def moved(self, prefix: bytes, raw: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The map entries, as stored, of an old stored value; none if it is expired."""
        if self._old.expired_now()(raw):
            return
        value, stamp = self._old.formats.unpack(raw)
        stamp = self._entries.now_ms if stamp is None else stamp
        for key, item in (value or {}).items():
            yield prefix + self._map_keys.encode(key), self._entries.formats.pack(item, stamp)

    def move_all(self, engine: Engine) -> int:
        """Move every key of a store at once: the offline form, over the opened shards of a savepoint.

        Nothing may be pending. A store in which this was broken off can be moved again.

        Returns:
            How many keys were moved.
        """
        moved = 0
        old, family = self._old.family, self._entries.family
        while chunk := list(engine.scan(old, b"", None, _MIGRATED_AT_A_TIME)):
            changes = []
            for prefix, raw in chunk:
                changes += [Mutation(family, key, packed) for key, packed in self.moved(prefix, raw)]
                changes.append(Mutation(old, prefix, None))
            engine.write(changes)
            moved += len(chunk)
        return moved


def check_migration(old: ValueStateDescriptor, new: MapStateDescriptor) -> None:
    """Refuse to move a value state to a map state that does not hold the same.

    Raises:
        StateSchemaMismatchError: The value's type is not the map of the map state's types, the TTLs or namespaces differ, or
            both have one name.
    """
    problems: list[Any] = []
    if not pa.types.is_map(old.type) or (old.type.key_type, old.type.item_type) != (new.key_type, new.value_type):
        problems.append(f"values of type {old.type} are no map of {new.key_type} to {new.value_type}")
    if old.ttl != new.ttl:
        problems.append("the TTLs differ")
    if old.namespace_type != new.namespace_type:
        problems.append("the namespaces differ")
    if old.name == new.name:
        problems.append("the map state needs a name of its own")
    if problems:
        message = f"value state {old.name!r} cannot be moved to map state {new.name!r}: {'; '.join(problems)}"
        raise StateSchemaMismatchError(message)
