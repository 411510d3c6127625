"""The schema of keyed state in manifests, and its allowed changes.

A stored value begins with the number of its format, an index into its state's `formats`. A format never changes. A
different declaration adds a format, if it can read the values of all earlier formats. So readers never guess from a
value's bytes, and values are migrated when they are next written.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from ..errors import StateSchemaMismatchError
from ..serializers.evolution import can_read
from ..serializers.type_names import TypeJson, type_from_json, type_text, type_to_json

if TYPE_CHECKING:
    from collections.abc import Iterable


MAX_FORMATS = 64
SCHEMA_VERSION = 1


class StateKind(StrEnum):
    """The kinds of keyed state."""

    VALUE = "value"
    MAP = "map"
    LIST = "list"
    REDUCING = "reducing"
    AGGREGATING = "aggregating"

    @property
    def is_indexed(self) -> bool:
        """Whether stored keys end with the number of an entry."""
        return self is StateKind.LIST


class ValueFormat(msgspec.Struct, frozen=True):
    """How values of a state are written.

    Attributes:
        type: The type of the values, as written by `type_to_json`.
        stamps: The time domain of the values' stamps for the TTL; None: values have no stamps.
    """

    type: TypeJson
    stamps: str | None = None


class StateSchema(msgspec.Struct, frozen=True):
    """One state: its kind, its types, and its values' formats."""

    name: str
    kind: StateKind
    formats: tuple[ValueFormat, ...]
    map_key: TypeJson | None = None
    namespace: TypeJson | None = None


class TimersSchema(msgspec.Struct, frozen=True):
    """Timers of one name, and their namespace type (None: void)."""

    name: str
    namespace: TypeJson | None = None


class KeyedSchema(msgspec.Struct, frozen=True):
    """All keyed state of an operator, in manifests and the commit log.

    msgspec writes it as JSON.

    Attributes:
        key: Names and types of the key's columns.
        states: The states, by name.
        version: The version of the schema's own format.
        timers: The timers, by name. Omitted if none are known; there may still be some, because earlier versions did
            not list them.
    """

    key: tuple[tuple[str, TypeJson], ...]
    states: tuple[StateSchema, ...] = ()
    version: int = SCHEMA_VERSION
    timers: tuple[TimersSchema, ...] | msgspec.UnsetType = msgspec.UNSET

    def timers_of(self, name: str) -> TimersSchema | None:
        """Returns the schema of the timers of a name, or None."""
        return next((timers for timers in self.timers or () if timers.name == name), None)

    def with_timers(self, declared: TimersSchema) -> KeyedSchema:
        """Returns the schema with timers added.

        Raises:
            StateSchemaMismatchError: The timers are stored with another namespace, or a state has the name.
        """
        known = self.timers_of(declared.name)
        if self.state(declared.name) is not None:
            raise StateSchemaMismatchError(f"{declared.name!r} is the name of a state, and cannot name timers")
        if known is not None:
            if known != declared:
                stored, wanted = text_of_timers(known), text_of_timers(declared)
                raise StateSchemaMismatchError(f"timers {declared.name!r} are stored as {stored}, declared as {wanted}")
            return self
        timers = sorted([*(self.timers or ()), declared], key=lambda each: each.name)
        return msgspec.structs.replace(self, timers=tuple(timers))

    def state(self, name: str) -> StateSchema | None:
        """Returns the schema of a state, or None."""
        return next((state for state in self.states if state.name == name), None)

    def key_schema(self) -> pa.Schema:
        """Returns the key's columns as an Arrow schema."""
        return pa.schema([pa.field(name, type_from_json(each)) for name, each in self.key])

    def with_state(self, state: StateSchema) -> KeyedSchema:
        """Returns the schema with a state added or replaced.

        Raises:
            StateSchemaMismatchError: Timers have the name.
        """
        if self.timers_of(state.name) is not None:
            raise StateSchemaMismatchError(f"{state.name!r} is the name of timers, and cannot name a state")
        others = [each for each in self.states if each.name != state.name]
        return msgspec.structs.replace(self, states=tuple(sorted([*others, state], key=lambda each: each.name)))


def schema_of_key(key: pa.Schema) -> KeyedSchema:
    """Returns the schema of an operator without state."""
    return KeyedSchema(tuple((field.name, type_to_json(field.type)) for field in key))


def check_same_key(stored: KeyedSchema, declared: pa.Schema) -> None:
    """Checks that keys have the stored keys' types; names may differ.

    Raises:
        StateSchemaMismatchError: The types differ.
    """
    stored_types = [each for _, each in stored.key]
    declared_types = [type_to_json(field.type) for field in declared]
    if stored_types != declared_types:
        before, now = (", ".join(map(type_text, types)) for types in (stored_types, declared_types))
        raise StateSchemaMismatchError(f"stored keys have the types {before}, the job's keys {now}")


def evolved(stored: StateSchema | None, declared: StateSchema) -> tuple[StateSchema, int]:
    """Returns the result of `register` for a declared schema; pure.

    The declared schema has one format. All subtasks with the same stored schema get the same result, and so does a
    plan.

    Raises:
        StateSchemaMismatchError: As in `register`.
    """
    if stored is None:
        return declared, 0
    if (stored.kind, stored.map_key, stored.namespace) != (declared.kind, declared.map_key, declared.namespace):
        raise _mismatch(stored, declared)
    wanted = declared.formats[0]
    for each in stored.formats:
        if not can_read(type_from_json(each.type), type_from_json(wanted.type)):
            raise _mismatch(stored, declared, each)
    if wanted in stored.formats:
        return stored, stored.formats.index(wanted)
    if len(stored.formats) >= MAX_FORMATS:
        raise StateSchemaMismatchError(f"state {stored.name!r} has {MAX_FORMATS} formats already, which is the maximum")
    return msgspec.structs.replace(stored, formats=(*stored.formats, wanted)), len(stored.formats)


def text_of(state: StateSchema, written: ValueFormat | None = None) -> str:
    """Returns a state's kind and types as text.

    The types belong to the given format, or else the newest.
    """
    shown = written or state.formats[-1]
    value = type_text(shown.type)
    keyed = value if state.map_key is None else f"{type_text(state.map_key)} to {value}"
    scope = "" if state.namespace is None else f" in namespaces of {type_text(state.namespace)}"
    ttl = "" if shown.stamps is None else f", with a TTL of {shown.stamps} time"
    return f"{state.kind} of {keyed}{scope}{ttl}"


def text_of_timers(timers: TimersSchema) -> str:
    """Returns the namespace of timers as text."""
    return "timers" if timers.namespace is None else f"timers in namespaces of {type_text(timers.namespace)}"


def _mismatch(
    stored: StateSchema, declared: StateSchema, written: ValueFormat | None = None
) -> StateSchemaMismatchError:
    return StateSchemaMismatchError(
        f"state {stored.name!r} is stored as {text_of(stored, written)} and declared as {text_of(declared)}"
    )


def merge_schemas(schemas: Iterable[KeyedSchema | None]) -> KeyedSchema | None:
    """Merges several subtasks' schemas into one for all values; pure.

    None without schemas. A state's formats are numbered, and stored values contain the number. So of two subtasks'
    lists of formats one must be the beginning of the other: then every number means the same in both.

    Raises:
        StateSchemaMismatchError: Two of the schemas contradict each other.
    """
    merged: KeyedSchema | None = None
    for schema in schemas:
        if schema is None:
            continue
        if merged is None:
            merged = schema
            continue
        if [each for _, each in merged.key] != [each for _, each in schema.key]:
            raise StateSchemaMismatchError("the subtasks of an operator have stored keys of different types")
        for state in schema.states:
            known = merged.state(state.name)
            merged = merged.with_state(state if known is None else _merge_states(known, state))
        for timers in schema.timers or ():
            merged = merged.with_timers(timers)
    return merged


def _merge_states(one: StateSchema, other: StateSchema) -> StateSchema:
    shorter, longer = sorted((one, other), key=lambda state: len(state.formats))
    if msgspec.structs.replace(longer, formats=longer.formats[: len(shorter.formats)]) != shorter:
        raise StateSchemaMismatchError(f"subtasks have stored state {one.name!r} in ways that contradict each other")
    return longer
