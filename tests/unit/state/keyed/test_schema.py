"""The schema of keyed state: what changes it, what contradicts it, and in which words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from keyscale.state.errors import StateSchemaMismatchError
from keyscale.state.keyed.schema import (
    MAX_FORMATS,
    KeyedSchema,
    StateKind,
    StateSchema,
    TimersSchema,
    ValueFormat,
    check_same_key,
    evolved,
    merge_schemas,
    schema_of_key,
    text_of,
    text_of_timers,
)

if TYPE_CHECKING:
    from keyscale.state.serializers.type_names import TypeJson

INT, LONG, STAMPED = ValueFormat("int32"), ValueFormat("int64"), ValueFormat("int64", "processing")
KEY = (("id", "int64"),)


def value(name: str, *formats: ValueFormat, namespace: TypeJson | None = None) -> StateSchema:
    return StateSchema(name, StateKind.VALUE, formats, namespace=namespace)


A, B = value("a", INT), value("b", LONG)
LATER = value("a", INT, LONG)


def schema(*states: StateSchema, timers: tuple[TimersSchema, ...] = (), key: object = KEY) -> KeyedSchema:
    made = KeyedSchema(key)  # type: ignore[arg-type]  # of the right form
    for state in states:
        made = made.with_state(state)
    for declared in timers:
        made = made.with_timers(declared)
    return made


def test_states_and_timers_are_in_the_order_of_their_names_and_known_by_them() -> None:
    late, early = TimersSchema("late", "string"), TimersSchema("early")
    made = schema(B, A, timers=(late, early))
    assert made == KeyedSchema(KEY, (A, B), timers=(early, late))
    assert (made.state("b"), made.state("c"), made.timers_of("late"), made.timers_of("a")) == (B, None, late, None)
    assert made.with_state(LATER).states == (LATER, B), "a state is replaced"
    assert made.with_timers(late) == made
    assert schema_of_key(pa.schema([("id", pa.int64()), ("name", pa.large_string())])) == KeyedSchema(
        (("id", "int64"), ("name", "string"))
    )
    assert made.key_schema() == pa.schema([("id", pa.int64())])


@pytest.mark.parametrize(
    ("stored", "declared", "result"),
    [
        (None, A, (A, 0)),
        (A, A, (A, 0)),
        (A, value("a", LONG), (LATER, 1)),
        (LATER, value("a", INT, namespace=None), None),
        (LATER, value("a", LONG), (LATER, 1)),
        (value("a", LONG), value("a", STAMPED), (value("a", LONG, STAMPED), 1)),
        (value("a", LONG, STAMPED), value("a", LONG), (value("a", LONG, STAMPED), 0)),
    ],
)
def test_another_declaration_adds_a_format_that_can_read_all_earlier_ones(
    stored: StateSchema | None, declared: StateSchema, result: tuple[StateSchema, int] | None
) -> None:
    if result is not None:
        assert evolved(stored, declared) == result
        return
    with pytest.raises(StateSchemaMismatchError, match="is stored as value of int64 and declared as value of int32"):
        evolved(stored, declared)


@pytest.mark.parametrize(
    "declared",
    [
        StateSchema("a", StateKind.REDUCING, (INT,)),
        value("a", INT, namespace="string"),
        StateSchema("a", StateKind.VALUE, (INT,), map_key="string"),
        value("a", ValueFormat("string")),
    ],
)
def test_another_kind_namespace_or_type_is_refused(declared: StateSchema) -> None:
    with pytest.raises(StateSchemaMismatchError, match="state 'a' is stored as value of int32 and declared as"):
        evolved(A, declared)


def test_a_state_has_at_most_so_many_formats() -> None:
    most, index = evolved(value("a", *[INT] * (MAX_FORMATS - 1)), value("a", LONG))
    assert (len(most.formats), index) == (MAX_FORMATS, MAX_FORMATS - 1)
    assert evolved(most, value("a", LONG)) == (most, MAX_FORMATS - 1)
    with pytest.raises(StateSchemaMismatchError, match="64 formats already"):
        evolved(most, value("a", STAMPED))


def test_schemas_of_subtasks_are_merged_into_one_for_all_values() -> None:
    timers = (TimersSchema("t"),)
    parts = [None, schema(A), schema(LATER, B), schema(A, timers=timers), None]
    assert merge_schemas(parts) == schema(LATER, B, timers=timers)
    assert merge_schemas(reversed(parts)) == schema(LATER, B, timers=timers)
    assert merge_schemas([None, None]) is None


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (schema(), schema(key=(("id", "int32"),)), "stored keys of different types"),
        (schema(LATER), schema(value("a", LONG)), "'a' in ways that contradict each other"),
        (schema(A), schema(value("a", INT, namespace="string")), "'a' in ways that contradict each other"),
        (schema(A), schema(timers=(TimersSchema("a"),)), "'a' is the name of a state, and cannot name timers"),
        (schema(timers=(TimersSchema("a"),)), schema(A), "'a' is the name of timers, and cannot name a state"),
        (
            schema(timers=(TimersSchema("t"),)),
            schema(timers=(TimersSchema("t", "int64"),)),
            "timers 't' are stored as timers, declared as timers in namespaces of int64",
        ),
    ],
)
def test_schemas_that_contradict_each_other_are_refused(one: KeyedSchema, other: KeyedSchema, words: str) -> None:
    with pytest.raises(StateSchemaMismatchError, match=words):
        merge_schemas([one, other])


def test_keys_may_be_renamed_and_not_changed_or_put_in_another_order() -> None:
    stored = schema(key=(("id", "int64"), ("name", "string")))
    check_same_key(stored, pa.schema([("number", pa.int64()), ("text", pa.large_string())]))
    for declared in (
        [("name", pa.string()), ("id", pa.int64())],
        [("id", pa.int64())],
        [("id", pa.int64()), ("name", pa.binary())],
    ):
        with pytest.raises(StateSchemaMismatchError, match="stored keys have the types int64, string, the job's keys"):
            check_same_key(stored, pa.schema(declared))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (A, "value of int32"),
        (LATER, "value of int64"),
        (
            value("a", STAMPED, namespace="string"),
            "value of int64 in namespaces of string, with a TTL of processing time",
        ),
        (StateSchema("m", StateKind.MAP, (LONG,), map_key="string"), "map of string to int64"),
        (StateSchema("l", StateKind.LIST, (ValueFormat("int64", "event"),)), "list of int64, with a TTL of event time"),
    ],
)
def test_a_state_is_shown_with_its_kind_types_namespace_and_ttl(state: StateSchema, text: str) -> None:
    assert text_of(state) == text
    assert text_of(LATER, INT) == "value of int32"
    assert text_of_timers(TimersSchema("t", "string")) == "timers in namespaces of string"
