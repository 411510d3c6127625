"""The plan for each state of an operator. That it is what happens: see test_program_changes.py."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from keyscale.state.keyed.batch_clock import TimeDomain
from keyscale.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from keyscale.state.keyed.schema import TimersSchema, evolved, schema_of_key
from keyscale.state.keyed.schema_change import changes_of, dropped
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.serializers.pickled import Pickled
from keyscale.vocabulary import Fate

KEY = schema_of_key(pa.schema([("user", pa.string())]))


def schema_with(*descriptors, timers=()):
    schema = KEY
    for descriptor in descriptors:
        schema = schema.with_state(evolved(schema.state(descriptor.name), descriptor.stored())[0])
    for each in timers:
        schema = schema.with_timers(each)
    return schema


def only(stored, declared):
    (change,) = changes_of(schema_with(stored), schema_with(declared))
    return change


def test_an_unchanged_state_is_kept_and_others_are_new_or_not_declared():
    total, names = ValueStateDescriptor("total", pa.int64()), ListStateDescriptor("names", pa.string())
    tags = MapStateDescriptor("tags", pa.string(), pa.bool_())
    changes = changes_of(schema_with(total, names), schema_with(total, tags))
    assert [(each.name, each.kind, each.fate) for each in changes] == [
        ("names", "list", Fate.NOT_DECLARED),
        ("tags", "map", Fate.NEW),
        ("total", "value", Fate.KEPT),
    ]
    assert [each.declared for each in changes] == [None, "map of string to bool", "value of int64"]


def test_without_stored_state_everything_is_new():
    assert [each.fate for each in changes_of(None, schema_with(ValueStateDescriptor("total", pa.int64())))] == [
        Fate.NEW
    ]


def test_a_migration_names_its_rules_and_the_part_of_the_value():
    items = {of_type: pa.list_(pa.struct([("price", of_type)])) for of_type in (pa.int32(), pa.int64())}
    before = pa.struct([("id", pa.string()), ("item", items[pa.int32()]), ("old", pa.bool_())])
    after = pa.struct([("item", items[pa.int64()]), ("id", pa.string()), ("new", pa.bool_())])
    change = only(ValueStateDescriptor("order", before), ValueStateDescriptor("order", after))
    assert change.fate is Fate.MIGRATED
    assert change.rules == (
        "widened item[].price: int32 to int64",
        "added field new (bool): null in stored values",
        "dropped field old (bool): its values are lost as they are next written",
        "moved fields: they are found by their names",
    )


def test_a_ttl_that_is_turned_on_or_off_or_changes_its_clock_is_a_migration():
    ttls = (None, Ttl(1), Ttl(1, time_domain=TimeDomain.EVENT))
    none, processing, event = [ValueStateDescriptor("total", pa.int64(), ttl) for ttl in ttls]
    on = "TTL on, of processing time: stored values live from their first read or write"
    assert only(none, processing).rules == (on,)
    assert only(processing, none).rules == ("TTL off: stored values no longer expire",)
    assert only(processing, event).rules[0].startswith("TTL of event time instead of processing time")
    assert only(processing, ValueStateDescriptor("total", pa.int64(), Ttl(2))).fate is Fate.KEPT


def test_a_state_that_cannot_be_read_shows_both_schemas_and_why():
    change = only(ValueStateDescriptor("total", pa.int64()), ValueStateDescriptor("total", pa.int32()))
    assert (change.fate, change.stored, change.declared) == (Fate.INCOMPATIBLE, "value of int64", "value of int32")
    assert change.reason == "state 'total' is stored as value of int64 and declared as value of int32"


def test_types_are_shown_in_words():
    point = pa.struct([("at", pa.uuid()), ("places", pa.list_(pa.string()))])
    for value_type, text in ((point, "struct<at: uuid, places: list<item: string>>"), (Pickled(), "pickled object")):
        descriptor = ValueStateDescriptor("total", value_type)
        assert only(descriptor, descriptor).stored == f"value of {text}"


def test_a_state_must_also_fit_the_formats_before_the_newest_one():
    widened = schema_with(ValueStateDescriptor("total", pa.int32()), ValueStateDescriptor("total", pa.float64()))
    (change,) = changes_of(widened, schema_with(ValueStateDescriptor("total", pa.float32())))
    assert change.fate is Fate.INCOMPATIBLE


def test_a_state_that_has_changed_before_is_compared_with_its_newest_format():
    types = [pa.struct([(name, pa.string()) for name in names]) for names in ("a", "ab", "abc")]
    one, two, three = (ValueStateDescriptor("order", of_type) for of_type in types)
    stored = schema_with(one, two)
    rules = {
        one: (Fate.MIGRATED, ("dropped field b (string): its values are lost as they are next written",)),
        two: (Fate.KEPT, ()),
        three: (Fate.MIGRATED, ("added field c (string): null in stored values",)),
    }
    for declared, expected in rules.items():
        (change,) = changes_of(stored, schema_with(declared))
        assert (change.fate, change.rules) == expected


def test_timers_are_kept_new_not_declared_or_incompatible():
    stored = schema_with(timers=[TimersSchema("due"), TimersSchema("gone"), TimersSchema("scoped")])
    declared = schema_with(timers=[TimersSchema("due"), TimersSchema("fresh"), TimersSchema("scoped", "int64")])
    assert {each.name: each.fate for each in changes_of(stored, declared)} == {
        "due": Fate.KEPT,
        "fresh": Fate.NEW,
        "gone": Fate.NOT_DECLARED,
        "scoped": Fate.INCOMPATIBLE,
    }


def test_a_name_cannot_go_from_timers_to_a_state_or_back():
    state, timers = schema_with(ValueStateDescriptor("due", pa.int64())), schema_with(timers=[TimersSchema("due")])
    for stored, declared in ((state, timers), (timers, state)):
        (change,) = changes_of(stored, declared)
        assert change.fate is Fate.INCOMPATIBLE
        assert change.stored is not None


def test_a_dropped_operator_names_all_its_states_and_timers():
    stored = schema_with(ValueStateDescriptor("total", pa.int64()), timers=[TimersSchema("due")])
    assert [(each.name, each.fate) for each in dropped(stored)] == [("total", Fate.DROPPED), ("due", Fate.DROPPED)]
    assert dropped(None) == []


def test_a_schema_of_before_timers_were_listed_can_be_compared():
    stored = msgspec.json.decode(b'{"key": [["user", "string"]]}', type=type(KEY))
    assert [each.fate for each in changes_of(stored, schema_with(timers=[TimersSchema("due")]))] == [Fate.NEW]
