"""The keyed state backend: all keyed state of one subtask, for the key of the record at hand or for whole batches of keys."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from state.cleanup import Occasion, expired_entries, purge_all
from state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    ValueStateDescriptor,
)
from state.entries import Entries
from state.errors import BatchTooLargeError, NoCurrentKeyError, StateSchemaMismatchError
from state.handle import KeyContext
from state.handles import handle_of
from state.key_groups import KEY_GROUP_BYTES
from state.key_walk import walk_keys
from state.migrating import MigratingMapState, check_migration
from state.object_formats import formats_of
from state.pending import Pending
from state.schema import KeyedSchema, TimersSchema, check_same_key, register, schema_of_key, value_type
from state.serializers import KeySerializer, key_codec_for
from state.serializers.type_names import type_from_json, type_to_json
from state.stored_key import StoredKey, parse_stored_key
from state.timers import TimerQueue
from state.ttl import BatchClock, Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from state.aggregating import AggregatingState, ReducingState
    from state.descriptors import AggregateFunction
    from state.engine import Engine, SortedRun
    from state.handle import KeyColumns, KeyGroups
    from state.handles import AnyState
    from state.key_groups import KeyGroupRange
    from state.list import ListState
    from state.map import MapState
    from state.serializers import KeyCodec
    from state.serializers.type_names import TypeJson
    from state.sweep import Sweeper
    from state.ttl import Ttl
    from state.value import ValueState

_RECORDS_BETWEEN_CHECKS = 1024


class KeyedStateBackend:
    """Keyed state over an engine, one column family a state.

    Changes are kept pending, where the batch's own reads see them, until `drain` hands them over. The backend never writes to
    its engine: whoever drains it makes the changes durable and applies them, before the backend is read again. `discard`
    forgets them.
    """

    def __init__(
        self,
        engine: Engine,
        key_schema: pa.Schema,
        clock: Clock | Callable[[], int] | None = None,
        *,
        schema: KeyedSchema | None = None,
        key_group_range: KeyGroupRange | None = None,
        batch_entries_max: int | None = None,
    ) -> None:
        """For keys of `key_schema`.

        Args:
            engine: The store.
            key_schema: The key's columns.
            clock: The times that TTLs go by. A function of no arguments gives processing time in ms since the epoch; it is
                asked once a batch, so that time stands still within it. None: time stands at zero.
            schema: What the store holds, from the manifest; None: nothing.
            key_group_range: The key groups that may be used; None: all.
            batch_entries_max: How many entries may change between two drains; None: any number.

        Raises:
            StateSchemaMismatchError: Stored keys are of other types.
            UnsupportedTypeError: A column's type cannot be a key.
        """
        if schema is not None:
            check_same_key(schema, key_schema)
        self._engine = engine
        self._read_clock = clock if callable(clock) else None
        self.clock: Clock = BatchClock() if clock is None or callable(clock) else clock
        self._advance()
        self._schema = schema_of_key(key_schema) if schema is None else schema
        self._serializer = KeySerializer(key_schema)
        self._context = KeyContext(self._serializer, key_group_range)
        self._states: dict[str, tuple[StateDescriptor, Entries, AnyState]] = {}
        self._timers: dict[str, TimerQueue] = {}
        self._removals: dict[str, Pending] = {}
        self._sweepers: list[Sweeper] = []
        self._batch_entries_max = batch_entries_max
        self._records = 0

    @property
    def ttls(self) -> dict[str, Ttl]:
        """The TTL of each state that has been declared and has one."""
        return {name: entries.ttl for name, (_, entries, _) in self._states.items() if entries.ttl is not None}

    @property
    def schema(self) -> KeyedSchema:
        """What the store holds, with all that was declared so far: the facts for the manifest."""
        return self._schema

    def set_current_key(self, key_group: int, key: tuple[Any, ...]) -> None:
        """Make a key the current one, which state handles then use.

        Raises:
            KeyGroupError: The key group is not this subtask's.
            SerializationError: The key is not of the key schema.
            KeyTooLargeError: The key is too long.
            BatchTooLargeError: The batch has changed more entries than are allowed, which is looked at now and then.
        """
        self._context.set(key_group, key)
        self._record()

    def each_key(
        self,
        key_groups: KeyGroups,
        columns: KeyColumns,
        keys: Iterable[tuple[Any, ...]],
        fields: Sequence[pa.Array] = (),
    ) -> Iterator[tuple[Any, ...]]:
        """Make the key of each row of a batch the current one, in turn, and give it; as `set_current_key`, at a fraction of its cost.

        Args:
            key_groups: Each row's key group.
            columns: Each row's key.
            keys: The same as Python values.
            fields: What else the rows hold: a map that is asked for what is in one of them is read for many rows at once.

        Raises:
            KeyGroupError, SerializationError, KeyTooLargeError, BatchTooLargeError: As `set_current_key`, for the whole batch.
        """
        batch = self._context.batch(key_groups, columns)
        for key in walk_keys(self._context, batch, keys, fields, lambda: (each[2] for each in self._states.values())):
            self._record()
            yield key

    def clear_current_key(self) -> None:
        """Have no current key."""
        self._context.clear()

    @property
    def current_key(self) -> tuple[Any, ...]:
        """The current key.

        Raises:
            NoCurrentKeyError: There is none.
        """
        if self._context.key is None:
            message = "there is no current key"
            raise NoCurrentKeyError(message)
        return self._context.key

    @property
    def current_key_group(self) -> int | None:
        """The current key's key group; None if there is no current key."""
        prefix = self._context.prefix
        return None if prefix is None else int.from_bytes(prefix[:KEY_GROUP_BYTES], "big")

    def value_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """The value state of a descriptor; the same handle when declared again.

        Raises:
            StateSchemaMismatchError: The name is another state's, or stored values cannot be read as declared.
        """
        if pa.types.is_map(descriptor.type):
            message = (
                f"value state {descriptor.name!r} holds a map, which is read and written as a whole at every access; "
                "MapState stores every entry apart"
            )
            warnings.warn(message, stacklevel=2)
        return cast("ValueState", self.state(descriptor))

    def map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """As `value_state`, of a map."""
        return cast("MapState", self.state(descriptor))

    def list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """As `value_state`, of a list."""
        return cast("ListState", self.state(descriptor))

    def migrating_map_state(self, old: ValueStateDescriptor, new: MapStateDescriptor) -> MigratingMapState:
        """A map state that takes over, key by key as keys are touched, from a value state that holds whole maps.

        Raises:
            StateSchemaMismatchError: The two do not hold the same, or are stored otherwise than declared.
        """
        check_migration(old, new)
        self.map_state(new)
        self.state(old)
        descriptor, entries, handle = self._states[new.name]
        if not isinstance(handle, MigratingMapState):
            namespace = None if new.namespace_type is None else key_codec_for(new.namespace_type)
            codec = key_codec_for(new.key_type)
            handle = MigratingMapState(entries, self._context, namespace, codec, self._states[old.name][1])
            self._states[new.name] = (descriptor, entries, handle)
        return handle

    def reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """As `value_state`, of a reduced value."""
        return cast("ReducingState", self.state(descriptor))

    def aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """As `value_state`, of an accumulator."""
        return cast("AggregatingState", self.state(descriptor))

    def state(self, descriptor: StateDescriptor) -> AnyState:
        """The state of any descriptor; see `value_state`."""
        known = self._states.get(descriptor.name)
        if descriptor.name in self._timers:
            message = f"the name {descriptor.name!r} is declared twice, once as timers"
            raise StateSchemaMismatchError(message)
        if known is not None:
            if known[0] == descriptor:
                return known[2]
            if _stored(known[0]) != _stored(descriptor):
                message = f"state {descriptor.name!r} is declared twice: as {known[0]} and as {descriptor}"
                raise StateSchemaMismatchError(message)
            # Only its function is another: one that was unpickled anew for a further batch.
            handle = handle_of(descriptor, known[1], self._context)
            self._states[descriptor.name] = (descriptor, known[1], handle)
            return handle
        schema, write_format = register(self._schema.state(descriptor.name), descriptor)
        formats = formats_of(value_type(descriptor), schema, write_format)
        entries = Entries(self._engine, Pending(descriptor.name), formats, descriptor.ttl, self.clock)
        handle = handle_of(descriptor, entries, self._context)
        self._schema = self._schema.with_state(schema)
        self._states[descriptor.name] = (descriptor, entries, handle)
        if entries.sweeper is not None and entries.sweeper.every_record:
            self._sweepers.append(entries.sweeper)
        return handle

    def timers(self, name: str, namespace_type: pa.DataType | None = None) -> TimerQueue:
        """Timers, in a column family of their own; the same queue when asked for again.

        Args:
            name: Like a state's, and not a state's.
            namespace_type: The type of the scope under a key that each timer has; None: the void namespace.

        Raises:
            StateSchemaMismatchError: The name is a state's, or that of timers with another type of namespace.
        """
        queue = self._timers.get(name)
        known = None if queue is None or queue.namespace is None else queue.namespace.type
        if name in self._states or (queue is not None and known != namespace_type):
            message = f"the name {name!r} is declared twice, once as timers"
            raise StateSchemaMismatchError(message)
        if queue is None:
            declared = TimersSchema(name, None if namespace_type is None else type_to_json(namespace_type))
            self._schema = self._schema.with_timers(declared)
            namespace = None if namespace_type is None else key_codec_for(namespace_type)
            queue = self._timers[name] = TimerQueue(name, self._engine, self._context, namespace)
        return queue

    def remove_state(self, name: str, entries_max: int = 50_000) -> int:
        """Remove all entries of a state that the job no longer declares, or as many as one batch should; call it every batch.

        Its name and types stay in the schema: it may be declared again as it was.

        Returns:
            How many are removed with this batch.

        Raises:
            StateSchemaMismatchError: The state is declared.
        """
        if name in self._states or name in self._timers:
            message = f"state {name!r} is declared, and cannot be removed"
            raise StateSchemaMismatchError(message)
        if self._schema.state(name) is None:
            return 0
        pending = self._removals.setdefault(name, Pending(name))
        pending.entries.update((key, None) for key, _ in self._engine.scan(name, b"", None, entries_max))
        return len(pending)

    @property
    def pending_count(self) -> int:
        """How many entries have changed since the last drain."""
        return sum(len(pending) for pending in self._pendings().values())

    def drain(self) -> list[SortedRun]:
        """Hand over all changes since the last drain, one sorted run a state that has any, by name.

        They are no longer pending, so they must be written to the engine before any state is read.

        Raises:
            BatchTooLargeError: There are more than are allowed; they stay pending.
        """
        self._check_batch()
        runs = [pending.drain() for _, pending in sorted(self._pendings().items())]
        self._context.forget_batch()
        self._advance()
        return [run for run in runs if run is not None]

    def mark(self) -> None:
        """Begin what `undo` can undo, such as the changes that one record makes; the mark before is forgotten."""
        for pending in self._pendings().values():
            pending.mark()

    def undo(self) -> None:
        """Forget all changes since the mark. States that were declared since then lose all that is pending in them."""
        for pending in self._pendings().values():
            pending.undo()

    def discard(self) -> None:
        """Forget all changes since the last drain."""
        for pending in self._pendings().values():
            pending.discard()
        self._context.forget_batch()

    def purge_expired(self, engine: Engine | None = None, *, for_snapshot: bool = False) -> int:
        """Remove entries that are expired from a store, at once and without a changelog: nobody reads them any more.

        Call it between batches.

        Args:
            engine: The store: a copy that a full snapshot is made of, or, by default, the backend's own before compaction.
            for_snapshot: Whether it is for a full snapshot, not for compaction; a TTL's cleanup says which it wants.

        Returns:
            How many were removed.
        """
        occasion = Occasion.FULL_SNAPSHOT if for_snapshot else Occasion.COMPACTION
        expired = expired_entries(self._schema, self.ttls, self.clock, occasion)
        purged = purge_all(self._engine if engine is None else engine, expired)
        return sum(each.removed for each in purged.values())

    def dump(self, name: str) -> Iterator[tuple[StoredKey, Any]]:
        """All stored entries of a state, by stored key, without what is pending; expired ones are left out.

        Raises:
            StateSchemaMismatchError: No state of the name was declared to this backend.
        """
        known = self._states.get(name)
        if known is None:
            message = f"there is no state {name!r}"
            raise StateSchemaMismatchError(message)
        _, entries, _ = known
        schema = self._schema.state(name)
        assert schema is not None  # noqa: S101 (every declared state is in the schema)
        namespace, map_key = _codec(schema.namespace), _codec(schema.map_key)
        indexed = schema.kind is StateKind.LIST
        expired = entries.expired_now()
        for raw_key, raw in self._engine.scan(name, b"", None):
            if not expired(raw):
                key = parse_stored_key(raw_key, self._serializer, namespace, map_key, indexed=indexed)
                yield key, entries.formats.unpack(raw)[0]

    def _check_batch(self) -> None:
        self._records = 0
        if self._batch_entries_max is not None and self.pending_count > self._batch_entries_max:
            message = f"a batch has changed {self.pending_count} entries of state; {self._batch_entries_max} are allowed a subtask"
            raise BatchTooLargeError(message)

    def _record(self) -> None:
        """A record begins."""
        self._records += 1
        if self._records >= _RECORDS_BETWEEN_CHECKS:
            self._check_batch()
        if self._sweepers:
            for sweeper in self._sweepers:
                sweeper.record()

    def _pendings(self) -> dict[str, Pending]:
        """What has changed, by column family."""
        pendings = {name: entries.pending for name, (_, entries, _) in self._states.items()}
        return pendings | {name: queue.pending for name, queue in self._timers.items()} | self._removals

    def _advance(self) -> None:
        if self._read_clock is not None and isinstance(self.clock, BatchClock):
            self.clock.advance(processing_time_ms=self._read_clock())


def _stored(descriptor: StateDescriptor) -> StateDescriptor:
    """A descriptor as far as it says what is stored: without its function, which is code."""
    match descriptor:
        case ReducingStateDescriptor():
            return replace(descriptor, reduce=max)
        case AggregatingStateDescriptor():
            return replace(descriptor, aggregate=cast("AggregateFunction", None))
        case _:
            return descriptor


def _codec(of_type: TypeJson | None) -> KeyCodec | None:
    return None if of_type is None else key_codec_for(type_from_json(of_type))
