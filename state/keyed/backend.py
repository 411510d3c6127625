"""The keyed state backend: all keyed state of one subtask.

It works on the current key, or on whole batches of keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from keyscale.vocabulary import KEY_GROUPS_MAX

from ..errors import BatchTooLargeError, NoCurrentKeyError, StateSchemaMismatchError
from ..keys.key_groups import KEY_GROUP_BYTES, KeyGroupRange
from ..keys.large_keys import large_keys
from ..keys.stored_key import StoredKey, parse_stored_key
from ..serializers.key_codecs import key_codec_for
from ..serializers.key_serializer import KeySerializer
from ..serializers.type_names import type_from_json, type_to_json
from .batch_clock import BatchClock, Clock
from .batch_memory import BatchMemory
from .entries import Entries
from .formats import formats_of
from .keyed_state import CurrentKey, walk_keys
from .migrating_map import MigratingMapState, check_migration
from .pending import Pending
from .schema import KeyedSchema, TimersSchema, check_same_key, evolved, schema_of_key
from .timer_queue import TimerQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from ..engine.engine import Engine, SortedRun
    from ..errors import KeyTooLargeError
    from ..serializers.key_codecs import KeyCodec
    from ..serializers.type_names import TypeJson
    from .cleanup import Sweeper
    from .descriptors import MapStateDescriptor, State, StateDescriptor, ValueStateDescriptor
    from .keyed_state import KeyColumns, KeyedState, KeyGroups
    from .schema import StateSchema
    from .ttl import Ttl

_RECORDS_BETWEEN_CHECKS = 1024
_REMOVED_AT_ONCE = 50_000


class KeyedStateBackend:
    """Keyed state over an engine, with one column family per state.

    Changes are pending, and visible to reads of the same batch, until `drain` returns them. The backend never writes to
    its engine: the caller of `drain` makes the changes durable and writes them to the engine before the backend is read
    again. `discard` drops them.

    Attributes:
        spill: Called between two records when the changes take too much memory: it writes the changes that
            `drain_for_spill` returns to the engine, and makes them durable. None: a batch's changes stay in memory
            until its end.
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
        memory_bytes: int | None = None,
        charge: Callable[[int], None] | None = None,
    ) -> None:
        """Creates the backend for keys of `key_schema`.

        Args:
            engine: The store.
            key_schema: The key's columns.
            clock: The times for TTLs. A function without arguments returns processing time in ms since the epoch; it is
                called once per batch, so that time stands still within a batch. None: time is always 0.
            schema: The schema of the store's content, from the manifest; None: the store is empty.
            key_group_range: The key groups that may be used; None: all.
            batch_entries_max: The number of entries that may change between two drains; None: any number.
            memory_bytes: The memory that read and changed entries may take before they are dropped or spilled; None:
                any.
            charge: Takes this many more bytes of that memory from the process's caches, or gives them back (negative).

        Raises:
            StateSchemaMismatchError: Stored keys have other types.
            UnsupportedTypeError: A key column cannot have this type.
        """
        if schema is not None:
            check_same_key(schema, key_schema)
        self._engine = engine
        self._read_clock = clock if callable(clock) else None
        self.clock: Clock = BatchClock() if clock is None or callable(clock) else clock
        self._advance()
        self._schema = schema_of_key(key_schema) if schema is None else schema
        self._serializer = KeySerializer(key_schema)
        self.key_group_range = key_group_range or KeyGroupRange(0, KEY_GROUPS_MAX - 1)
        self._context = CurrentKey(self._serializer, self.key_group_range)
        self._states: dict[str, tuple[StateDescriptor[Any], Entries, KeyedState]] = {}
        self._timers: dict[str, TimerQueue] = {}
        self._removals: dict[str, Pending] = {}
        self._sweepers: list[Sweeper] = []
        self._batch_entries_max = batch_entries_max
        self._memory = BatchMemory(memory_bytes, on_full=self._check_next, charge=charge)
        self._used_bytes = 0
        self._records = 0  # since the last check
        self._check_at: float = _RECORDS_BETWEEN_CHECKS
        self.spill: Callable[[], None] | None = None

    @property
    def ttls(self) -> dict[str, Ttl]:
        """The TTL of each declared state with a TTL."""
        return {name: entries.ttl for name, (_, entries, _) in self._states.items() if entries.ttl is not None}

    @property
    def schema(self) -> KeyedSchema:
        """The schema of the store's content and all declarations, for the manifest."""
        return self._schema

    def set_current_key(self, key_group: int, key: tuple[Any, ...]) -> None:
        """Makes a key the current key of all keyed state.

        Raises:
            KeyGroupError: This subtask does not own the key group.
            SerializationError: The key does not match the key schema.
            KeyTooLargeError: The key is too long.
            BatchTooLargeError: The batch has changed more entries than allowed; this is checked from time to time.
            StateError, StoreUnavailableError: Changes could not be spilled.
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
        """Makes each row's key the current key, in turn, and yields it.

        This costs a fraction of a `set_current_key` call per row.

        Args:
            key_groups: Each row's key group.
            columns: Each row's key.
            keys: The same keys as Python values.
            fields: The rows' other fields. A map that is read at the value of one of them is read for many rows at
                once.

        Raises:
            KeyGroupError, SerializationError, KeyTooLargeError, BatchTooLargeError: As in `set_current_key`, but for
            any row of the batch.
        """
        batch = self._context.batch(key_groups, columns)
        states = lambda: [each[2] for each in self._states.values()]  # noqa: E731 (some may be declared meanwhile)
        for key in walk_keys(self._context, batch, keys, fields, states, memory=self._memory):
            self._record()
            yield key

    def large_keys(self, columns: Sequence[pa.Array]) -> list[tuple[int, KeyTooLargeError]]:
        """Returns the rows whose keys are too large to store, with errors."""
        return large_keys(columns, self._schema.key_schema(), self._context.sizes)

    def clear_current_key(self) -> None:
        """Unsets the current key."""
        self._context.clear()

    @property
    def current_key(self) -> tuple[Any, ...]:
        """The current key.

        Raises:
            NoCurrentKeyError: No key is current.
        """
        if self._context.key is None:
            raise NoCurrentKeyError("no key is current")
        return self._context.key

    @property
    def current_key_group(self) -> int | None:
        """The key group of the current key; None without a current key."""
        prefix = self._context.prefix
        return None if prefix is None else int.from_bytes(prefix[:KEY_GROUP_BYTES], "big")

    def migrating_map_state(self, old: ValueStateDescriptor, new: MapStateDescriptor) -> MigratingMapState:
        """Returns a map state that takes over a value state of maps.

        The entries of each key move when the key is first used.

        Raises:
            StateSchemaMismatchError: The two states have different types, or are not stored as declared.
        """
        check_migration(old, new)
        self.state(new)
        self.state(old)
        descriptor, entries, state = self._states[new.name]
        if not isinstance(state, MigratingMapState):
            namespace = None if new.namespace_type is None else key_codec_for(new.namespace_type)
            codec = key_codec_for(new.key_type)
            state = MigratingMapState(entries, self._context, namespace, codec, self._states[old.name][1])
            self._states[new.name] = (descriptor, entries, state)
        return state

    def state(self, descriptor: StateDescriptor[State]) -> State:
        """Returns the state of a descriptor.

        A repeated declaration returns the same object.

        Raises:
            StateSchemaMismatchError: Another state has the name, or stored values cannot be read as declared.
        """
        known = self._states.get(descriptor.name)
        if descriptor.name in self._timers:
            raise StateSchemaMismatchError(f"the name {descriptor.name!r} is declared twice, once as timers")
        if known is not None:
            if known[0] == descriptor:
                return cast("State", known[2])
            if known[0].without_function() != descriptor.without_function():
                raise StateSchemaMismatchError(
                    f"state {descriptor.name!r} is declared twice: as {known[0]} and as {descriptor}"
                )
            # Only its function differs, because it was unpickled again for another batch.
            state = self._created(descriptor, known[1])
            self._states[descriptor.name] = (descriptor, known[1], state)
            return state
        schema, write_format = evolved(self._schema.state(descriptor.name), descriptor.stored())
        formats = formats_of(descriptor.entry_type, schema, write_format)
        removed = self._removals.pop(descriptor.name, None)
        pending = Pending(descriptor.name, self._memory) if removed is None else removed
        entries = Entries(self._engine, pending, formats, descriptor.ttl, self.clock)
        state = self._created(descriptor, entries)
        self._schema = self._schema.with_state(schema)
        self._states[descriptor.name] = (descriptor, entries, state)
        if entries.sweeper is not None and entries.sweeper.every_record:
            self._sweepers.append(entries.sweeper)
        return state

    def _created(self, descriptor: StateDescriptor[State], entries: Entries) -> State:
        namespace = None if descriptor.namespace_type is None else key_codec_for(descriptor.namespace_type)
        return descriptor.create(entries, self._context, namespace)

    def timers(self, name: str, namespace_type: pa.DataType | None = None) -> TimerQueue:
        """Returns the timers of a name, with their own column family.

        Each call for a name returns the same queue.

        Args:
            name: A name that is not a state's.
            namespace_type: The type of each timer's namespace; None: the void namespace.

        Raises:
            StateSchemaMismatchError: A state has the name, or the timers have another type of namespace.
        """
        queue = self._timers.get(name)
        known = None if queue is None or queue.namespace is None else queue.namespace.type
        if name in self._states or (queue is not None and known != namespace_type):
            raise StateSchemaMismatchError(f"the name {name!r} is declared twice, once as timers")
        if queue is None:
            declared = TimersSchema(name, None if namespace_type is None else type_to_json(namespace_type))
            self._schema = self._schema.with_timers(declared)
            namespace = None if namespace_type is None else key_codec_for(namespace_type)
            queue = self._timers[name] = TimerQueue(name, self._engine, self._context, namespace, self._memory)
        return queue

    def remove_state(self, name: str, entries_max: int | None = 50_000) -> int:
        """Removes up to `entries_max` entries of a state (None: all).

        Call it before the batch uses the state. Calls in several batches remove a state that the job no longer
        declares. The state's name and types stay in the schema, so it can be declared again with the same types.

        Returns:
            The number of entries removed.

        Raises:
            StateSchemaMismatchError: Timers have the name.
            BatchTooLargeError, StateError, StoreUnavailableError: As in `make_room`.
        """
        if name in self._timers:
            raise StateSchemaMismatchError(f"{name!r} is the name of timers, and cannot be removed")
        schema = self._schema.state(name)
        if schema is None:
            return 0
        known = self._states.get(name)
        pending = self._removals.setdefault(name, Pending(name, self._memory)) if known is None else known[1].pending
        pending.settle()
        prefix_of = self._prefix_parser(schema)
        removed, start = 0, b""
        while entries_max is None or removed < entries_max:
            chunk = _REMOVED_AT_ONCE if entries_max is None else min(entries_max - removed, _REMOVED_AT_ONCE)
            keys = [key for key, _ in self._engine.scan(name, start, None, chunk)]
            pending.entries.update(dict.fromkeys(keys))
            pending.memory.add_many(len(keys), sum(map(len, keys)))
            if prefix_of is not None:
                pending.noted.extend(each for key in keys for each in (prefix_of(key), key))
            removed += len(keys)
            if len(keys) < chunk:
                break
            start = keys[-1] + b"\0"
            self.make_room()
        return removed

    @property
    def pending_count(self) -> int:
        """The number of entries that have changed since the last drain."""
        return sum(len(pending) for pending in self._pendings().values())

    def drain(self) -> list[SortedRun]:
        """Returns all changes since the last drain, one sorted run per state.

        The runs are sorted by state name. They are no longer pending, so write them to the engine before any state is
        read.

        Raises:
            BatchTooLargeError: More entries have changed than allowed; the changes stay pending.
        """
        self._check_entries()
        runs = [pending.drain() for _, pending in sorted(self._pendings().items())]
        self._forget_memory()
        self._context.release_batch()
        self._advance()
        return [run for run in runs if run is not None]

    def drain_for_spill(self) -> list[SortedRun]:
        """Returns the changes to spill in the midst of a batch.

        Unlike in `drain`, time stands still, and timers that are just firing stay pending.
        """
        runs = [pending.drain() for pending in self._spillable()]
        self._memory.release()
        return [run for run in runs if run is not None]

    @property
    def rows_at_once(self) -> int:
        """The number of rows with state columns that should fit in memory."""
        return self._memory.rows_at_once

    def make_room(self, rows: int = 0) -> None:
        """Keeps the batch's entries within its memory; call it between records.

        Read values are dropped first, since they can be read again. Then changes are spilled, if they still take half
        of the memory. Do not call it while iterating over state.

        Args:
            rows: The number of rows of a part of the batch that ends here; 0 in the midst of a part.

        Raises:
            BatchTooLargeError: More entries have changed than allowed, and they cannot be spilled.
            StateError, StoreUnavailableError: Changes could not be spilled.
        """
        memory, pendings = self._memory, self._spillable()
        memory.saw_rows(rows)
        used = memory.used_bytes(sum(pending.small_bytes() for pending in pendings))
        grown, is_full = used - self._used_bytes, memory.is_full_with(used)
        if is_full:
            for pending in pendings:
                pending.forget_reads()
            memory.recount(sum(pending.large_bytes() for pending in pendings))
            used = memory.used_bytes(sum(pending.small_bytes() for pending in pendings))
        if self.spill is not None and (self._has_too_many or (is_full and memory.is_half_full_with(used))):
            self.spill()
            used = 0
        self._check_entries()
        if is_full:
            memory.expect(used)
        self._check_at = min(_RECORDS_BETWEEN_CHECKS, memory.records_until_full(used, grown, self._records))
        self._used_bytes, self._records = used, 0

    def mark(self) -> None:
        """Sets the mark to which `undo` returns, replacing an earlier mark.

        For example before a record.
        """
        for pending in self._pendings().values():
            pending.mark()

    def undo(self) -> None:
        """Drops all changes since the mark.

        States declared after the mark lose all of their pending changes.
        """
        for pending in self._pendings().values():
            pending.undo()

    def discard(self) -> None:
        """Drops all changes since the last drain."""
        for queue in self._timers.values():
            queue.discard()
        for pending in self._pendings().values():
            pending.discard()
        self._forget_memory()
        self._context.release_batch()

    def dump(self, name: str) -> Iterator[tuple[StoredKey, Any]]:
        """Yields all stored entries of a state, by stored key.

        Pending changes and expired entries are omitted.

        Raises:
            StateSchemaMismatchError: The state has not been declared.
        """
        known = self._states.get(name)
        if known is None:
            raise StateSchemaMismatchError(f"state {name!r} does not exist")
        _, entries, _ = known
        schema = self._schema.state(name)
        assert schema is not None  # noqa: S101 (every declared state is in the schema)
        namespace, map_key = _codec(schema.namespace), _codec(schema.map_key)
        indexed = schema.kind.is_indexed
        expired = entries.expired_now()
        for raw_key, raw in self._engine.scan(name, b"", None):
            if not expired(raw):
                key = parse_stored_key(raw_key, self._serializer, namespace, map_key, indexed=indexed)
                yield key, entries.formats.unpack(raw)[0]

    @property
    def _has_too_many(self) -> bool:
        return self._batch_entries_max is not None and self.pending_count > self._batch_entries_max

    def _check_entries(self) -> None:
        if self._has_too_many:
            raise BatchTooLargeError(
                f"a batch has changed {self.pending_count} entries of a subtask's state; "
                f"at most {self._batch_entries_max} are allowed"
            )

    def _check_next(self) -> None:
        """Schedules the check before the next record."""
        self._check_at = 0

    def _prefix_parser(self, schema: StateSchema) -> Callable[[bytes], bytes] | None:
        """Returns a function that cuts a stored key after its namespace.

        None if stored keys end there.
        """
        if schema.map_key is None and not schema.kind.is_indexed:
            return None
        namespace = _codec(schema.namespace)

        def prefix_of(raw: bytes) -> bytes:
            _, at = self._serializer.decode(raw, KEY_GROUP_BYTES)
            return raw[:at] if namespace is None else raw[: namespace.decode(raw, at)[1]]

        return prefix_of

    def _forget_memory(self) -> None:
        """Restarts the count after all changes have been taken or dropped."""
        self._memory.release()
        self._used_bytes = self._records = 0
        self._check_at = _RECORDS_BETWEEN_CHECKS

    def _record(self) -> None:
        """Counts a record, and runs the checks that are due."""
        self._records += 1
        if self._records >= self._check_at:
            self.make_room()
        if self._sweepers:
            for sweeper in self._sweepers:
                sweeper.record()

    def _pendings(self) -> dict[str, Pending]:
        """Returns the pending changes by column family."""
        pendings = {name: entries.pending for name, (_, entries, _) in self._states.items()}
        return pendings | {name: queue.pending for name, queue in self._timers.items()} | self._removals

    def _spillable(self) -> list[Pending]:
        """Returns the pending changes that may be drained now, by name.

        Timers that are just firing keep their changes.
        """
        firing = {name for name, queue in self._timers.items() if queue.is_firing}
        return [pending for name, pending in sorted(self._pendings().items()) if name not in firing]

    def _advance(self) -> None:
        if self._read_clock is not None and isinstance(self.clock, BatchClock):
            self.clock.advance(processing_time_ms=self._read_clock())


def _codec(of_type: TypeJson | None) -> KeyCodec | None:
    return None if of_type is None else key_codec_for(type_from_json(of_type))
