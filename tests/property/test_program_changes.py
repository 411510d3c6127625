"""Random programs that follow each other on the same state: what the plan said happens, and no value is misread.

Each program runs on a snapshot of the store of the one before, while time goes on. Everything that is stored is read
back by every program that declares it.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from keyscale.state.engine.heap import HeapEngine
from keyscale.state.engine.rocksdb import RocksDbEngine
from keyscale.state.errors import StateSchemaMismatchError
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.batch_clock import BatchClock, TimeDomain
from keyscale.state.keyed.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from keyscale.state.keyed.schema_change import changes_of
from keyscale.state.keyed.ttl import Ttl, UpdateType
from keyscale.vocabulary import Fate
from tests.property.histories import EXAMPLES, SCRATCH

KEY = pa.schema([("key", pa.string())])
KEYS = [(0, ("one",)), (5, ("other",))]
NAMES = ["first", "second", "third"]
STEPS_MS = [0, 1, 999, 1000, 2500]
TTLS = [
    None,
    Ttl(1000),
    Ttl(2000),
    Ttl(1000, time_domain=TimeDomain.EVENT),
    Ttl(1000, UpdateType.DISABLED),
    Ttl(1000, UpdateType.ON_READ_AND_WRITE),
]


class Latest:
    """Keeps the last value that was added."""

    def create_accumulator(self):
        return None

    def add(self, value, _):
        return value

    def get_result(self, accumulator):
        return accumulator

    def merge(self, _, right):
        return right


LATEST = Latest()
NUMBERS = st.integers(-100, 100)
SIMPLE = {
    pa.int8(): NUMBERS,
    pa.int32(): NUMBERS,
    pa.int64(): NUMBERS,
    pa.uint16(): st.integers(0, 100),
    pa.uint32(): st.integers(0, 100),
    pa.float32(): NUMBERS.map(float),
    pa.float64(): NUMBERS.map(float),
    pa.string(): st.sampled_from(["", "a", "bc"]),
    pa.decimal128(6, 2): st.integers(-999, 999).map(lambda n: Decimal(n).scaleb(-2)),
    pa.decimal128(20, 4): st.integers(-999, 999).map(lambda n: Decimal(n).scaleb(-4)),
    pa.date32(): st.dates(),
}


@st.composite
def struct_types(draw):
    names = draw(st.lists(st.sampled_from("abc"), unique=True, min_size=1))
    return pa.struct([(name, draw(st.sampled_from([*SIMPLE]))) for name in names])


TYPES = st.recursive(
    st.sampled_from([*SIMPLE]) | struct_types(),
    lambda inner: inner.map(pa.list_) | inner.map(lambda each: pa.map_(pa.string(), each)),
    max_leaves=2,
)


def values(of_type):
    if of_type in SIMPLE:
        return SIMPLE[of_type]
    if pa.types.is_struct(of_type):
        return st.fixed_dictionaries({field.name: st.none() | values(field.type) for field in of_type})
    if pa.types.is_list(of_type):
        return st.lists(st.none() | values(of_type.value_type), max_size=3)
    return st.dictionaries(st.sampled_from("xyz"), st.none() | values(of_type.item_type), max_size=2)


@st.composite
def descriptors(draw, name):
    of_type, ttl = draw(TYPES), draw(st.sampled_from(TTLS))
    scope = draw(st.sampled_from([None, None, None, pa.int64(), pa.string()]))
    match draw(st.sampled_from("vvvmlra")):
        case "v":
            return ValueStateDescriptor(name, of_type, ttl, scope)
        case "m":
            return MapStateDescriptor(name, draw(st.sampled_from([pa.string(), pa.int64()])), of_type, ttl, scope)
        case "l":
            return ListStateDescriptor(name, of_type, ttl, scope)
        case "a":
            return AggregatingStateDescriptor(name, of_type, LATEST, ttl, scope)
        case _:
            return ReducingStateDescriptor(name, of_type, max, ttl, scope)


@st.composite
def programs(draw):
    """Draws a declaration of some states, and of timers that may have the name of one of them."""
    states = [draw(descriptors(name)) for name in NAMES if draw(st.booleans())]
    names = [name for name in [*NAMES, "timers"] if name not in {each.name for each in states}]
    timers = draw(st.none() | st.tuples(st.sampled_from(names), st.sampled_from([None, pa.int64()])))
    return states, timers


@st.composite
def histories(draw):
    """Draws programs of which each often differs from the one before in one type or TTL only."""
    history = [draw(programs())]
    for _ in range(draw(st.integers(1, 3))):
        states, timers = history[-1] if draw(st.booleans()) else draw(programs())
        if states and draw(st.booleans()):
            changed = draw(st.sampled_from(states))
            ttl = draw(st.sampled_from(TTLS))
            other = type(changed)(**{**_fields(changed), "ttl": ttl, **_value_field(changed, draw(_near(changed)))})
            states = [other if each is changed else each for each in states]
        history.append((states, timers))
    return history


def _near(descriptor):
    written = _value_type(descriptor)
    return st.just(_wider(written)) | st.just(written) | TYPES


def _wider(written):
    wider = {
        pa.int8(): pa.int32(), pa.int32(): pa.int64(), pa.uint16(): pa.uint32(), pa.float32(): pa.float64(),
        pa.decimal128(6, 2): pa.decimal128(20, 4),
    }  # fmt: skip
    if pa.types.is_struct(written):
        added = [("d", pa.string())] if written.get_field_index("d") < 0 else []
        return pa.struct([*added, *((field.name, _wider(field.type)) for field in written)])
    if pa.types.is_list(written):
        return pa.list_(_wider(written.value_type))
    if pa.types.is_map(written):
        return pa.map_(written.key_type, _wider(written.item_type))
    return wider.get(written, written)


def _fields(descriptor):
    return {name: getattr(descriptor, name) for name in descriptor.__dataclass_fields__ if name != "kind"}


def _value_name(descriptor):
    names = {"map": "value_type", "list": "element_type", "aggregating": "accumulator_type"}
    return names.get(descriptor.kind, "type")


def _value_field(descriptor, of_type):
    return {_value_name(descriptor): of_type}


def _value_type(descriptor):
    return getattr(descriptor, _value_name(descriptor))


def read_as(value, written, wanted):
    """Returns a value as the documentation of schema evolution says that it is read."""
    if value is None:
        return None
    if pa.types.is_struct(wanted):
        return {
            f.name: read_as(value[f.name], written.field(f.name).type, f.type)
            if written.get_field_index(f.name) >= 0
            else None
            for f in wanted
        }
    if pa.types.is_list(wanted):
        return [read_as(each, written.value_type, wanted.value_type) for each in value]
    if pa.types.is_map(wanted):
        return {key: read_as(each, written.item_type, wanted.item_type) for key, each in value.items()}
    return float(value) if pa.types.is_floating(wanted) else value


def declared_by(program):
    """Returns what a program declares, found as a plan finds it: on a store without content."""
    states, timers = program
    empty = KeyedStateBackend(HeapEngine(), KEY)
    for each in states:
        empty.state(each)
    if timers is not None:
        empty.timers(*timers)
    return empty.schema


def scoped(state, descriptor):
    if descriptor.namespace_type is not None:
        state.set_current_namespace("scope" if descriptor.namespace_type == pa.string() else 7)
    return state


def read(state, descriptor):
    match descriptor.kind:
        case "map":
            return dict(state.items())
        case "list":
            return list(state.get())
        case "reducing" | "aggregating":
            return state.get()
        case _:
            return state.value()


def is_absent(found):
    return found is None or found in ({}, [])


def write(state, descriptor, draw):
    """Writes something, and returns what is stored then."""
    of_type = _value_type(descriptor)
    value = draw(values(of_type))
    match descriptor.kind:
        case "map":
            state.clear()
            state.put("k" if descriptor.key_type == pa.string() else 3, value)
            return dict(state.items())
        case "list":
            state.update([value])
            return list(state.get())
        case "reducing" | "aggregating":
            state.clear()
            state.add(value)
            return state.get()
        case _:
            state.update(value)
            return state.value()


def expected_after(stored, before, descriptor):
    written, wanted = before, _value_type(descriptor)
    match descriptor.kind:
        case "map":
            return {key: read_as(each, written, wanted) for key, each in stored.items()}
        case "list":
            return [read_as(each, written, wanted) for each in stored]
        case _:
            return read_as(stored, written, wanted)


@dataclass
class Stored:
    """The values that may be stored for a key, with their types: a read may rewrite the value or not.

    Attributes:
        forms: The values, each with the type that it is stored as.
        uses: The times and TTLs with which programs have written and then read it.
    """

    forms: list = field(default_factory=list)
    uses: list = field(default_factory=list)

    def may_be_gone(self):
        """Whether any program may have found it expired; its stamp is at least as new as the write."""
        written_ms = self.uses[0][0]
        return any(ttl is not None and at_ms - written_ms >= ttl.duration_ms for at_ms, ttl in self.uses)

    def must_be_gone(self, now_ms):
        """Whether it is expired for certain: its stamp was always of one kind of time, and nobody has used it since."""
        *earlier, (_, ttl) = self.uses
        domains = {None if each is None else each.time_domain for _, each in self.uses}
        return ttl is not None and len(domains) == 1 and now_ms - earlier[-1][0] >= ttl.duration_ms


@pytest.mark.parametrize("kind", ["heap", "rocksdb"])
@given(history=histories(), data=st.data())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[*HealthCheck])
def test_what_the_plan_says_is_what_happens_and_nothing_is_misread(kind, history, data):
    directory = Path(tempfile.mkdtemp(dir=SCRATCH))
    engine = HeapEngine() if kind == "heap" else RocksDbEngine(directory / "0")
    schema, model, now_ms = None, {}, 10
    try:
        for number, program in enumerate(history, start=1):
            now_ms += data.draw(st.sampled_from(STEPS_MS))
            schema = run(engine, program, schema, model, now_ms, data.draw)
            if isinstance(engine, RocksDbEngine):  # the next program starts from a snapshot
                engine.checkpoint(directory / f"{number}")
                engine.close()
                engine = RocksDbEngine(directory / f"{number}")
    finally:
        engine.close()
        shutil.rmtree(directory)


def run(engine, program, schema, model, now_ms, draw):  # noqa: PLR0917 - all that a program finds
    """Runs a program on stored state; returns the schema of what is stored then."""
    states, timers = program
    planned = {(each.kind == "timers", each.name): each for each in changes_of(schema, declared_by(program))}
    backend = KeyedStateBackend(engine, KEY, BatchClock(now_ms, now_ms), schema=schema)
    opened = [opens_as_planned(backend, each, planned.pop((False, each.name)), schema) for each in states]
    if timers is not None:
        change, opening = planned.pop((True, timers[0])), partial(backend.timers, *timers)
        assert refusal(opening) == change.reason
        opened.append(change.reason is None)
    assert {each.fate for each in planned.values()} <= {Fate.NOT_DECLARED}
    if not all(opened):
        backend.discard()  # such a program does not run
        return schema
    for descriptor in states:
        for key_group, key in KEYS:
            backend.set_current_key(key_group, key)
            state, ttl = scoped(backend.state(descriptor), descriptor), enabled(descriptor.ttl)
            reads_what_is_stored(state, descriptor, model, (descriptor.name, key), now_ms)
            if draw(st.booleans()):
                form = (write(state, descriptor, draw), _value_type(descriptor))
                model[descriptor.name, key] = Stored([form], [(now_ms, ttl)])
    engine.write_runs(backend.drain())
    return backend.schema


def enabled(ttl):
    return ttl if ttl is not None and ttl.enabled else None


def reads_what_is_stored(state, descriptor, model, at, now_ms):
    """Checks that a value is what was stored, by the rules, or is gone if it may be; and is gone if it must be."""
    found, stored = read(state, descriptor), model.get(at)
    if stored is None:
        assert is_absent(found)
        return
    stored.uses.append((now_ms, enabled(descriptor.ttl)))
    forms = [expected_after(*each, descriptor) for each in stored.forms]
    if found in forms and not stored.must_be_gone(now_ms):
        stored.forms.append((found, _value_type(descriptor)))
        event("read")
        return
    assert is_absent(found), (found, forms)
    assert stored.may_be_gone() or any(map(is_absent, forms)), "a value that has not expired is lost"
    event("expired")
    del model[at]


def refusal(opening):
    """Returns why state cannot be opened; None if it can."""
    try:
        opening()
    except StateSchemaMismatchError as error:
        return str(error)
    return None


def opens_as_planned(backend, descriptor, change, schema):
    """Checks that a state opens as planned; returns whether it opens."""
    event(str(change.fate))
    known = None if schema is None else schema.state(descriptor.name)
    assert (change.fate is Fate.INCOMPATIBLE) == (change.reason is not None)
    assert refusal(partial(backend.state, descriptor)) == change.reason
    if change.fate is Fate.INCOMPATIBLE:
        return False
    assert (change.fate is Fate.NEW) == (known is None)
    if change.fate is Fate.KEPT:
        assert backend.schema.state(descriptor.name) == known
    return True


@pytest.mark.parametrize("kind", ["heap", "rocksdb"])
@given(data=st.data())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[*HealthCheck])
def test_maps_that_move_to_another_name_are_read_as_planned_whether_or_not_they_have_moved(kind, data):
    directory = Path(tempfile.mkdtemp(dir=SCRATCH))
    engine = HeapEngine() if kind == "heap" else RocksDbEngine(directory / "0")
    items, ttl = data.draw(TYPES), data.draw(st.sampled_from([None, Ttl(1000)]))
    backend = KeyedStateBackend(engine, KEY, BatchClock(10, 10))
    whole, stored = backend.state(moving(items, ttl)[0]), {}
    for key_group, key in KEYS:
        backend.set_current_key(key_group, key)
        stored[key] = ({}, items)
        if data.draw(st.booleans()):
            stored[key] = (data.draw(values(pa.map_(pa.string(), items))), items)
            whole.update(stored[key][0])
    engine.write_runs(backend.drain())
    schema = backend.schema
    try:
        for _ in range(data.draw(st.integers(1, 3))):
            items = data.draw(st.sampled_from([items, _wider(items)]) | TYPES)
            ttl = data.draw(st.sampled_from([None, Ttl(1000)]))
            schema = moves(engine, schema, moving(items, ttl), stored, data.draw)
    finally:
        engine.close()
        shutil.rmtree(directory)


def moving(items, ttl):
    whole = ValueStateDescriptor("whole", pa.map_(pa.string(), items), ttl)
    return whole, MapStateDescriptor("entries", pa.string(), items, ttl)


def moves(engine, schema, pair, stored, draw):
    """Runs a program that moves maps, for some keys; returns the schema of what is stored then."""
    declared = KeyedStateBackend(HeapEngine(), KEY)
    declared.migrating_map_state(*pair)
    planned = {each.name: each for each in changes_of(schema, declared.schema)}
    reasons = {each.reason for each in planned.values() if each.reason is not None}
    backend = KeyedStateBackend(engine, KEY, BatchClock(10, 10), schema=schema)
    refused = refusal(partial(backend.migrating_map_state, *pair))
    event(str(planned["whole"].fate))
    assert refused in reasons if reasons else refused is None
    if refused is not None:
        backend.discard()
        return schema
    state, items = backend.migrating_map_state(*pair), pair[1].value_type
    for key_group, key in KEYS:
        if draw(st.booleans()):  # the others stay where they are, in their old form
            backend.set_current_key(key_group, key)
            value, written = stored[key]
            expected = {name: read_as(each, written, items) for name, each in value.items()}
            assert dict(state.items()) == expected
            if draw(st.booleans()):
                state.put("new", added := draw(values(items)))
                expected["new"] = added
                assert dict(state.items()) == expected
            stored[key] = (expected, items)
    engine.write_runs(backend.drain())
    return backend.schema
