"""Migration from a value state of maps to a map state, on both engines: by single keys and in batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from keyscale.state.engine.heap import HeapEngine
from keyscale.state.engine.rocksdb import RocksDbEngine
from keyscale.state.errors import StateSchemaMismatchError
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.descriptors import MapStateDescriptor, ValueStateDescriptor
from keyscale.state.keyed.ttl import Ttl

KEY = pa.schema([("key", pa.string())])
WHOLE = pa.map_(pa.string(), pa.int64())
OLD, NEW = ValueStateDescriptor("old", WHOLE), MapStateDescriptor("new", pa.string(), pa.int64())
PEOPLE = {"ann": {"x": 1, "y": None}, "bob": {"z": 3}, "cleo": {}}


class Store:
    def __init__(self, engine):
        self.engine = engine
        self.clock = BatchClock()
        self.backend = KeyedStateBackend(engine, KEY, self.clock)

    def commit(self):
        self.engine.write_runs(self.backend.drain())

    def fill(self, ttl=None):
        old = self.backend.state(ValueStateDescriptor("old", WHOLE, ttl))
        for name, content in PEOPLE.items():
            self.backend.set_current_key(1, (name,))
            old.update(content)
        self.commit()
        self.backend = KeyedStateBackend(self.engine, KEY, self.clock, schema=self.backend.schema)

    def names(self, family):
        return {key.key[0] for key, _ in self.backend.dump(family)}


@pytest.fixture(params=["heap", "rocksdb"])
def store(request, tmp_path):
    engine = HeapEngine() if request.param == "heap" else RocksDbEngine(tmp_path / "store")
    yield Store(engine)
    engine.close()


def test_a_key_is_moved_when_it_is_first_used_and_others_are_not(store):
    store.fill()
    people = store.backend.migrating_map_state(OLD, NEW)
    store.backend.set_current_key(1, ("ann",))
    assert people.get("x") == 1
    assert people.contains("y")
    people.put("w", 0)
    people.remove("x")
    store.commit()
    assert list(people.items()) == [("w", 0), ("y", None)]
    assert (store.names("old"), store.names("new")) == ({"bob", "cleo"}, {"ann"})
    store.backend.set_current_key(1, ("cleo",))
    assert people.is_empty()
    store.backend.set_current_key(1, ("bob",))
    people.clear()
    store.commit()
    assert (store.names("old"), store.names("new")) == (set(), {"ann"})


def test_a_map_is_moved_when_its_namespace_is_first_used(store):
    old, new = replace(OLD, namespace_type=pa.int64()), replace(NEW, namespace_type=pa.int64())
    windows = store.backend.state(old)
    store.backend.set_current_key(1, ("ann",))
    for window in (60, 120):
        windows.set_current_namespace(window)
        windows.update({"x": window})
    store.commit()
    people = store.backend.migrating_map_state(old, new)
    people.set_current_namespace(60)
    assert list(people.items()) == [("x", 60)]
    store.commit()
    assert [(key.namespace, value) for key, value in store.backend.dump("old")] == [(120, {"x": 120})]
    assert [(key.namespace, value) for key, value in store.backend.dump("new")] == [(60, 60)]


def test_a_batch_moves_its_keys(store):
    store.fill()
    people = store.backend.migrating_map_state(OLD, NEW)
    rows = (np.array([1, 1, 1]), pa.array(["ann", "bob", "bob"]), pa.array(["x", "x", "z"]))
    assert people.get_many(*rows).to_pylist() == [1, None, 3]
    assert people.insert_if_absent_many(*rows, 9).tolist() == [False, True, False]
    store.commit()
    assert store.names("old") == {"cleo"}
    assert people.get_many(*rows).to_pylist() == [1, 9, 3]


def test_a_discarded_move_is_done_again(store):
    store.fill()
    people = store.backend.migrating_map_state(OLD, NEW)
    store.backend.set_current_key(1, ("ann",))
    people.put("w", 0)
    store.backend.discard()
    assert list(people.items()) == [("x", 1), ("y", None)]


def test_moved_entries_expire_when_the_old_value_would_have(store):
    ttl = Ttl(100)
    store.fill(ttl)
    store.clock.advance(processing_time_ms=60)
    old, new = ValueStateDescriptor("old", WHOLE, ttl), MapStateDescriptor("new", pa.string(), pa.int64(), ttl)
    people = store.backend.migrating_map_state(old, new)
    store.backend.set_current_key(1, ("ann",))
    assert people.get("x") == 1
    store.commit()
    store.clock.advance(processing_time_ms=100)
    assert people.is_empty()
    store.backend.set_current_key(1, ("bob",))
    assert people.is_empty()
    store.commit()
    assert store.names("old") == set()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (ValueStateDescriptor("old", pa.int64()), NEW),
        (OLD, MapStateDescriptor("new", pa.int64(), pa.int64())),
        (OLD, MapStateDescriptor("new", pa.string(), pa.int64(), Ttl(5))),
        (OLD, MapStateDescriptor("new", pa.string(), pa.int64(), namespace_type=pa.int64())),
        (OLD, MapStateDescriptor("old", pa.string(), pa.int64())),
    ],
)
def test_states_of_different_types_are_refused(store, old, new):
    with pytest.raises(StateSchemaMismatchError):
        store.backend.migrating_map_state(old, new)
