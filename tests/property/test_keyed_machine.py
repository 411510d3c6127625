"""Random histories of keyed state on shards of both engines, with failed batches, compared with plain dicts."""

from __future__ import annotations

import copy
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from keyscale.state.engine.engine import Mutation
from keyscale.state.engine.filtered import FilteredEngine
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.engine.sharded import ShardedEngine
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.cleanup import Occasion, expired_entries, purge_all
from keyscale.state.keyed.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from keyscale.state.keyed.ttl import Ttl, UpdateType
from keyscale.state.keys.key_groups import KeyGroupRange, key_group_range
from tests.property.histories import EXAMPLES, SCRATCH
from tests.support.state.eager_filters import eager_filters

MAX_PARALLELISM = 8
TTL_MS = 100
KEY = pa.schema([("key", pa.string())])
KEYS = st.sampled_from(["", "a", "b", "\0", "ab", "123e4567-e89b-12d3-a456-426614174000"])
MAP_KEYS = st.sampled_from(["x", "y", "z", "\1"])
NUMBERS = st.integers(-5, 5)
KINDS = ["heap", "rocksdb"]


def group_of(key):
    return len(key) % MAX_PARALLELISM


class Model:
    """The expected state: entries with the time of their last access, by key."""

    def __init__(self):
        self.value, self.map, self.list, self.sum = {}, {}, {}, {}


class KeyedMachine(RuleBasedStateMachine):
    """Value (TTL on write), map (TTL on read and write), list (no TTL) and reducing (TTL) state of a few keys."""

    @initialize()
    def start(self):
        self.filters = eager_filters()
        self.filters.__enter__()
        self.directory = Path(tempfile.mkdtemp(dir=SCRATCH))
        self.number = 0
        self.clock = BatchClock(processing_time_ms=1000)
        self.model, self.committed = Model(), Model()
        self.engines = {kind: self.open(kind, [KeyGroupRange(0, MAX_PARALLELISM - 1)]) for kind in KINDS}
        self.declare({})

    def open(self, kind, ranges):
        shards = []
        for each in ranges:
            self.number += 1
            made = HeapEngine() if kind == "heap" else FilteredEngine(self.directory / str(self.number))
            shards.append((each, made))
        return ShardedEngine(shards)

    def declare(self, schemas):
        ttl = Ttl(TTL_MS)
        touched = Ttl(TTL_MS, UpdateType.ON_READ_AND_WRITE)
        self.backends, self.states = {}, {}
        for kind, engine in self.engines.items():
            backend = KeyedStateBackend(engine, KEY, self.clock, schema=schemas.get(kind))
            self.backends[kind] = backend
            self.states[kind] = (
                backend.state(ValueStateDescriptor("value", pa.int64(), ttl)),
                backend.state(MapStateDescriptor("map", pa.string(), pa.int64(), touched)),
                backend.state(ListStateDescriptor("list", pa.int64())),
                backend.state(ReducingStateDescriptor("sum", pa.int64(), lambda a, b: a + b, ttl)),
            )

    def at(self, key):
        for kind in KINDS:
            self.backends[kind].set_current_key(group_of(key), (key,))
            yield self.states[kind]

    def alive(self, entry):
        return entry is not None and entry[1] + TTL_MS > self.clock.processing_time_ms

    def now(self):
        return self.clock.processing_time_ms

    @rule(key=KEYS, number=st.none() | NUMBERS)
    def update(self, key, number):
        for value, *_ in self.at(key):
            value.update(number)
        if number is None:
            self.model.value.pop(key, None)
        else:
            self.model.value[key] = (number, self.now())

    @rule(keys=st.lists(KEYS, max_size=6), number=NUMBERS)
    def insert_many(self, keys, number):
        groups, column = np.array([group_of(key) for key in keys], np.int32), pa.array(keys, pa.string())
        expected = []
        for key in keys:
            fresh = not self.alive(self.model.value.get(key))
            expected.append(fresh)
            if fresh:
                self.model.value[key] = (number, self.now())
        for kind in KINDS:
            assert self.states[kind][0].insert_if_absent_many(groups, column, number).tolist() == expected

    @rule(key=KEYS)
    def read_value(self, key):
        entry = self.model.value.get(key)
        for value, *_ in self.at(key):
            assert value.value() == (entry[0] if self.alive(entry) else None)

    @rule(key=KEYS, map_key=MAP_KEYS, number=st.none() | NUMBERS)
    def put(self, key, map_key, number):
        for _, entries, *_ in self.at(key):
            entries.put(map_key, number)
        self.model.map.setdefault(key, {})[map_key] = (number, self.now())

    @rule(key=KEYS, map_key=MAP_KEYS)
    def read_entry(self, key, map_key):
        found = self.model.map.get(key, {}).get(map_key)
        for _, entries, *_ in self.at(key):
            assert entries.contains(map_key) == self.alive(found)
        if self.alive(found):
            self.model.map[key][map_key] = (found[0], self.now())

    @rule(key=KEYS)
    def read_map(self, key):
        there = self.model.map.get(key, {})
        expected = {name: entry for name, entry in there.items() if self.alive(entry)}
        for _, entries, *_ in self.at(key):
            assert list(entries.items()) == sorted((name, entry[0]) for name, entry in expected.items())
        self.model.map[key] = {name: (entry[0], self.now()) for name, entry in expected.items()}

    @rule(key=KEYS, map_key=MAP_KEYS)
    def remove_entry(self, key, map_key):
        for _, entries, *_ in self.at(key):
            entries.remove(map_key)
        self.model.map.get(key, {}).pop(map_key, None)

    @rule(rows=st.lists(st.tuples(KEYS, MAP_KEYS, NUMBERS), max_size=5))
    def put_many(self, rows):
        keys, map_keys, numbers = ([row[i] for row in rows] for i in range(3))
        groups = np.array([group_of(key) for key in keys], np.int32)
        for kind in KINDS:
            columns = (pa.array(keys, pa.string()), pa.array(map_keys, pa.string()), pa.array(numbers, pa.int64()))
            self.states[kind][1].put_many(groups, *columns)
        for key, map_key, number in rows:
            self.model.map.setdefault(key, {})[map_key] = (number, self.now())

    @rule(key=KEYS)
    def clear_map(self, key):
        for _, entries, *_ in self.at(key):
            entries.clear()
        self.model.map.pop(key, None)

    @rule(key=KEYS, numbers=st.lists(NUMBERS, max_size=3), replace=st.booleans())
    def change_list(self, key, numbers, replace):
        for _, _, elements, _ in self.at(key):
            (elements.update if replace else elements.add_all)(numbers)
        self.model.list[key] = numbers if replace else [*self.model.list.get(key, []), *numbers]

    @rule(key=KEYS)
    def read_list(self, key):
        for _, _, elements, _ in self.at(key):
            assert elements.get() == self.model.list.get(key, [])

    @rule(key=KEYS, number=NUMBERS)
    def add(self, key, number):
        before = self.model.sum.get(key)
        for *_, total in self.at(key):
            total.add(number)
        self.model.sum[key] = ((before[0] if self.alive(before) else 0) + number, self.now())

    @rule(key=KEYS)
    def read_sum(self, key):
        entry = self.model.sum.get(key)
        for *_, total in self.at(key):
            assert total.get() == (entry[0] if self.alive(entry) else None)

    @rule(duration_ms=st.sampled_from([0, 1, 40, 99, 100]))
    def commit(self, duration_ms):
        for kind in KINDS:
            self.engines[kind].write_runs(self.backends[kind].drain())
        self.committed = copy.deepcopy(self.model)
        self.clock.advance(processing_time_ms=self.now() + duration_ms)

    @rule()
    def fail(self):
        for kind in KINDS:
            self.backends[kind].discard()
        self.model = copy.deepcopy(self.committed)

    @rule(duration_ms=st.sampled_from([0, 60]))
    def purge_and_compact(self, duration_ms):
        self.commit(duration_ms)
        for kind in KINDS:
            backend = self.backends[kind]
            expired = expired_entries(backend.schema, backend.ttls, self.clock, Occasion.COMPACTION)
            purge_all(self.engines[kind], expired)
            self.engines[kind].compact()

    @rule(parallelism=st.integers(1, MAX_PARALLELISM))
    def redistribute(self, parallelism):
        """Moves the state to other shards, under new backends that know its schema."""
        self.commit(0)
        ranges = [key_group_range(MAX_PARALLELISM, parallelism, index) for index in range(parallelism)]
        schemas = {}
        for kind in KINDS:
            schemas[kind] = self.backends[kind].schema
            old = self.engines[kind]
            fresh = self.open(kind, ranges)
            for owned, shard in fresh._shards:
                for family in old.families():
                    self.copy_range(old, shard, family, owned)
            old.close()
            self.engines[kind] = fresh
        self.declare(schemas)

    def copy_range(self, old, shard, family, owned):
        shard.write(Mutation(family, key, raw) for key, raw in old.scan(family, owned.start_key, owned.end_key))

    @invariant()
    def engines_agree_on_what_is_pending(self):
        counts = {self.backends[kind].pending_count for kind in KINDS}
        assert len(counts) == 1

    def teardown(self):
        for engine in getattr(self, "engines", {}).values():
            engine.close()
        if hasattr(self, "directory"):
            shutil.rmtree(self.directory)
            self.filters.__exit__(None, None, None)


KeyedMachine.TestCase.settings = settings(
    deadline=None,
    max_examples=EXAMPLES,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)
TestKeyedMachine = KeyedMachine.TestCase
