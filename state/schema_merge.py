"""Putting together what several subtasks know of an operator's schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from state.errors import StateSchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state.schema import KeyedSchema, StateSchema


def merge_schemas(schemas: Iterable[KeyedSchema | None]) -> KeyedSchema | None:
    """One schema that reads what all of these have written; None if there is none. Pure.

    A state's formats are numbered, and stored values bear the number. So of two subtasks' lists of formats one must be the
    beginning of the other: then every number means the same in both.

    Raises:
        StateSchemaMismatchError: Two of them contradict each other.
    """
    merged: KeyedSchema | None = None
    for schema in schemas:
        if schema is None:
            continue
        if merged is None:
            merged = schema
            continue
        if [each for _, each in merged.key] != [each for _, each in schema.key]:
            raise StateSchemaMismatchError("subtasks of one operator have keys of different types")
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
