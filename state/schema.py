"""What a keyed state store holds: the schema facts that a manifest names, and which changes of them can be read.

A stored value begins with the number of the format that wrote it, an index into its state's `formats`. A format is never
changed; a declaration that differs adds one, if values of all earlier ones can be read as the new one. So nothing about a value
is guessed from its bytes, and values are migrated when they are next written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    StateKind,
)
from state.errors import StateSchemaMismatchError
from state.serializers.evolution import can_read
from state.serializers.type_names import TypeJson, type_from_json, type_to_json

if TYPE_CHECKING:
    from state.ttl import TimeDomain

MAX_FORMATS = 64
SCHEMA_VERSION = 1


class ValueFormat(msgspec.Struct, frozen=True):
    """How values of a state were written.

    Attributes:
        type: Their type, as `type_to_json` writes it.
        stamps: Whose time the stamp is that each value carries for its TTL; None: there is no stamp.
    """

    type: TypeJson
    stamps: str | None = None


class StateSchema(msgspec.Struct, frozen=True):
    """One state: its kind, the types that make its stored keys, and every format its values may be in."""

    name: str
    kind: StateKind
    formats: tuple[ValueFormat, ...]
    map_key: TypeJson | None = None
    namespace: TypeJson | None = None


class TimersSchema(msgspec.Struct, frozen=True):
    """Timers of one name: the type of the scope under a key that each has; None: the void namespace."""

    name: str
    namespace: TypeJson | None = None


class KeyedSchema(msgspec.Struct, frozen=True):
    """All keyed state of an operator: JSON-able with msgspec, and part of manifests and of the commit log.

    Attributes:
        key: Names and types of the key's columns.
        states: By name.
        version: Of the schema's own form.
        timers: By name; left out where none are known, which there may be nevertheless: earlier versions did not say.
    """

    key: tuple[tuple[str, TypeJson], ...]
    states: tuple[StateSchema, ...] = ()
    version: int = SCHEMA_VERSION
    timers: tuple[TimersSchema, ...] | msgspec.UnsetType = msgspec.UNSET

    def timers_of(self, name: str) -> TimersSchema | None:
        """The schema of timers; None if none of the name are known."""
        return next((timers for timers in self.timers or () if timers.name == name), None)

    def with_timers(self, declared: TimersSchema) -> KeyedSchema:
        """The schema with timers added.

        Raises:
            StateSchemaMismatchError: They are stored with another namespace, or the name is a state's.
        """
        known = self.timers_of(declared.name)
        if self.state(declared.name) is not None:
            message = f"{declared.name!r} is the name of a state, and cannot be that of timers"
            raise StateSchemaMismatchError(message)
        if known is not None:
            if known != declared:
                message = f"timers {declared.name!r} are stored as {_text(known)} and declared as {_text(declared)}"
                raise StateSchemaMismatchError(message)
            return self
        timers = sorted([*(self.timers or ()), declared], key=lambda each: each.name)
        return msgspec.structs.replace(self, timers=tuple(timers))

    def state(self, name: str) -> StateSchema | None:
        """The schema of a state; None if there is no such state."""
        return next((state for state in self.states if state.name == name), None)

    def key_schema(self) -> pa.Schema:
        """The key's columns as an Arrow schema."""
        return pa.schema([pa.field(name, type_from_json(each)) for name, each in self.key])

    def with_state(self, state: StateSchema) -> KeyedSchema:
        """The schema with a state added or replaced.

        Raises:
            StateSchemaMismatchError: The name is that of timers.
        """
        if self.timers_of(state.name) is not None:
            message = f"{state.name!r} is the name of timers, and cannot be that of a state"
            raise StateSchemaMismatchError(message)
        others = [each for each in self.states if each.name != state.name]
        return msgspec.structs.replace(self, states=tuple(sorted([*others, state], key=lambda each: each.name)))


def schema_of_key(key: pa.Schema) -> KeyedSchema:
    """The schema of an operator that has no state yet."""
    return KeyedSchema(tuple((field.name, type_to_json(field.type)) for field in key))


def check_same_key(stored: KeyedSchema, declared: pa.Schema) -> None:
    """Refuse keys of other types than the stored ones; names may differ.

    Raises:
        StateSchemaMismatchError: The types differ.
    """
    stored_types = [each for _, each in stored.key]
    declared_types = [type_to_json(field.type) for field in declared]
    if stored_types != declared_types:
        message = f"stored keys have the types {_text(stored_types)}, the job's keys {_text(declared_types)}"
        raise StateSchemaMismatchError(message)


def register(stored: StateSchema | None, descriptor: StateDescriptor) -> tuple[StateSchema, int]:
    """The schema of a state once `descriptor` is declared, and the number of the format it writes.

    Pure, so that every subtask that starts from the same stored schema comes to the same one.

    Raises:
        StateSchemaMismatchError: The kind, or a type in the stored key, is another, or stored values cannot be read as the
            declared type.
        UnsupportedTypeError: A type cannot be stored.
    """
    declared = declare(descriptor)
    if stored is None:
        return declared, 0
    if (stored.kind, stored.map_key, stored.namespace) != (declared.kind, declared.map_key, declared.namespace):
        raise _mismatch(stored, declared)
    wanted = declared.formats[0]
    for each in stored.formats:
        if not can_read(type_from_json(each.type), type_from_json(wanted.type)):
            raise _mismatch(stored, declared)
    if wanted in stored.formats:
        return stored, stored.formats.index(wanted)
    if len(stored.formats) >= MAX_FORMATS:
        message = f"state {stored.name!r} has been changed {MAX_FORMATS} times, which is the most that is allowed"
        raise StateSchemaMismatchError(message)
    return msgspec.structs.replace(stored, formats=(*stored.formats, wanted)), len(stored.formats)


def declare(descriptor: StateDescriptor) -> StateSchema:
    """The schema of a state that is declared for the first time."""
    ttl = descriptor.ttl
    domain: TimeDomain | None = ttl.time_domain if ttl is not None and ttl.enabled else None
    return StateSchema(
        name=descriptor.name,
        kind=descriptor.kind,
        formats=(ValueFormat(type_to_json(value_type(descriptor)), None if domain is None else str(domain)),),
        map_key=type_to_json(descriptor.key_type) if isinstance(descriptor, MapStateDescriptor) else None,
        namespace=None if descriptor.namespace_type is None else type_to_json(descriptor.namespace_type),
    )


def value_type(descriptor: StateDescriptor) -> pa.DataType:
    """The type of what one entry of the state holds."""
    if isinstance(descriptor, MapStateDescriptor):
        return descriptor.value_type
    if isinstance(descriptor, ListStateDescriptor):
        return descriptor.element_type
    if isinstance(descriptor, AggregatingStateDescriptor):
        return descriptor.accumulator_type
    return descriptor.type


def _mismatch(stored: StateSchema, declared: StateSchema) -> StateSchemaMismatchError:
    return StateSchemaMismatchError(
        f"state {stored.name!r} is stored as {_text(stored)} and declared as {_text(declared)}"
    )


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
