"""The fate of stored keyed state under another declaration; pure.

`schema.evolved` decides the same when the state is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.vocabulary import Fate

from ..errors import StateSchemaMismatchError
from ..serializers.evolution import Rule, differences
from ..serializers.type_names import type_from_json
from .schema import KeyedSchema, evolved, text_of, text_of_timers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..serializers.evolution import Difference
    from ..serializers.type_names import TypeJson
    from .schema import StateSchema, TimersSchema, ValueFormat


@dataclass(frozen=True, slots=True)
class StateChange:
    """The fate of one state, or of the timers of one name.

    Attributes:
        name: The state's name.
        kind: The kind of state, or `timers`.
        fate: The state's fate.
        rules: The rules for reading old values of a migrated state.
        stored: The stored form, as text; None for a new state.
        declared: The declared form, as text; None if undeclared.
        reason: Why it is incompatible.
    """

    name: str
    kind: str
    fate: Fate
    rules: tuple[str, ...] = ()
    stored: str | None = None
    declared: str | None = None
    reason: str | None = None


def changes_of(stored: KeyedSchema | None, declared: KeyedSchema) -> list[StateChange]:
    """Returns the fate of each stored and declared state, by name.

    Timers come last.
    """
    before = KeyedSchema(declared.key) if stored is None else stored
    states = [_state_change(before, state) for state in declared.states]
    states += [
        StateChange(state.name, state.kind, Fate.NOT_DECLARED, stored=text_of(state))
        for state in before.states
        if declared.state(state.name) is None and declared.timers_of(state.name) is None
    ]
    timers = [_timers_change(before, each) for each in declared.timers or ()]
    timers += [
        StateChange(each.name, "timers", Fate.NOT_DECLARED, stored=text_of_timers(each))
        for each in before.timers or ()
        if declared.timers_of(each.name) is None and declared.state(each.name) is None
    ]
    return [*sorted(states, key=lambda each: each.name), *sorted(timers, key=lambda each: each.name)]


def dropped(stored: KeyedSchema | None) -> list[StateChange]:
    """Returns the changes of an operator that is dropped with its state."""
    if stored is None:
        return []
    states = [StateChange(each.name, each.kind, Fate.DROPPED, stored=text_of(each)) for each in stored.states]
    timers = [
        StateChange(each.name, "timers", Fate.DROPPED, stored=text_of_timers(each)) for each in stored.timers or ()
    ]
    return states + timers


def value_rules(written: TypeJson, wanted: TypeJson) -> tuple[str, ...]:
    """Returns the rules for reading one type as another, as text."""
    return tuple(_rule_text(each) for each in differences(type_from_json(written), type_from_json(wanted)))


def _state_change(stored: KeyedSchema, declared: StateSchema) -> StateChange:
    known = stored.state(declared.name)
    before = None if known is None else text_of(known)
    if known is None and (timers := stored.timers_of(declared.name)) is not None:
        before = text_of_timers(timers)
    change = StateChange(declared.name, declared.kind, Fate.NEW, stored=before, declared=text_of(declared))
    try:
        schema, number = evolved(known, declared)
        stored.with_state(schema)
    except StateSchemaMismatchError as error:
        return StateChange(
            change.name,
            change.kind,
            Fate.INCOMPATIBLE,
            stored=change.stored,
            declared=change.declared,
            reason=str(error),
        )
    if known is None:
        return change
    rules = tuple(_format_rules(known.formats[-1], schema.formats[number]))
    fate = Fate.MIGRATED if rules else Fate.KEPT
    return StateChange(change.name, change.kind, fate, rules, change.stored, change.declared)


def _timers_change(stored: KeyedSchema, declared: TimersSchema) -> StateChange:
    known, state = stored.timers_of(declared.name), stored.state(declared.name)
    before = text_of(state) if state is not None else None if known is None else text_of_timers(known)
    text = text_of_timers(declared)
    try:
        stored.with_timers(declared)
    except StateSchemaMismatchError as error:
        return StateChange(declared.name, "timers", Fate.INCOMPATIBLE, stored=before, declared=text, reason=str(error))
    return StateChange(declared.name, "timers", Fate.NEW if known is None else Fate.KEPT, (), before, text)


def _format_rules(written: ValueFormat, wanted: ValueFormat) -> Iterator[str]:
    yield from value_rules(written.type, wanted.type)
    if written.stamps == wanted.stamps:
        return
    if wanted.stamps is None:
        yield "TTL off: stored values no longer expire"
    elif written.stamps is None:
        yield f"TTL on, of {wanted.stamps} time: stored values live from their first read or write"
    else:
        yield f"TTL of {wanted.stamps} time instead of {written.stamps} time: stored values live from their first use"


def _rule_text(difference: Difference) -> str:
    part = f" {difference.path}" if difference.path else ""
    match difference.rule:
        case Rule.ADDED_FIELD:
            return f"added field{part} ({difference.wanted}): null in stored values"
        case Rule.DROPPED_FIELD:
            return f"dropped field{part} ({difference.written}): its values are lost as they are next written"
        case Rule.MOVED_FIELDS:
            return f"moved fields{part}: they are found by their names"
        case _:
            return f"{difference.rule}{part}: {difference.written} to {difference.wanted}"
