"""Migration from a value state of maps to a map state.

It takes place while a job runs, for each key when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import StateSchemaMismatchError
from .map import MapState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..keys.stored_key import KeyBatch
    from ..serializers.key_codecs import KeyCodec
    from .descriptors import MapStateDescriptor, ValueStateDescriptor
    from .entries import Entries
    from .keyed_state import CurrentKey, KeyColumns, KeyGroups


class MigratingMapState(MapState):
    """A map state that takes over maps from a value state.

    The first use of a key moves its map: the old value is read once, its entries are written one by one, and the old
    value is removed, all in one batch, so that a key is always in exactly one of the two states. A key without an old
    value has been moved. Entries keep the time of the old value's last access.
    """

    __slots__ = ("_old",)

    def __init__(
        self, entries: Entries, context: CurrentKey, namespace: KeyCodec | None, map_keys: KeyCodec, old: Entries
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
        """Yields the map entries of an unexpired old stored value."""
        if self._old.expired_now()(raw):
            return
        value, stamp = self._old.formats.unpack(raw)
        stamp = self._entries.now_ms if stamp is None else stamp
        for key, item in (value or {}).items():
            yield prefix + self._map_keys.encode(key), self._entries.formats.pack(item, stamp)


def check_migration(old: ValueStateDescriptor, new: MapStateDescriptor) -> None:
    """Checks that a map state can take over a value state's entries.

    Raises:
        StateSchemaMismatchError: The value's type is not a map of the map state's types, the TTLs or the namespaces
            differ, or both states have the same name.
    """
    problems: list[Any] = []
    if not pa.types.is_map(old.type) or (old.type.key_type, old.type.item_type) != (new.key_type, new.value_type):
        problems.append(f"values of type {old.type} are not maps of {new.key_type} to {new.value_type}")
    if old.ttl != new.ttl:
        problems.append("the TTLs differ")
    if old.namespace_type != new.namespace_type:
        problems.append("the namespaces differ")
    if old.name == new.name:
        problems.append("both have the same name")
    if problems:
        raise StateSchemaMismatchError(
            f"value state {old.name!r} cannot be moved to map state {new.name!r}: {'; '.join(problems)}"
        )
