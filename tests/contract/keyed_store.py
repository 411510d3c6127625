"""A keyed state backend with its engine, and the states for the tests of the contract."""

from __future__ import annotations

from contextlib import contextmanager

import pyarrow as pa

from keyscale.state.engine.heap import HeapEngine
from keyscale.state.engine.rocksdb import RocksDbEngine
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)

KEY = pa.schema([("key", pa.string())])


class Mean:
    """The aggregate function of an average, with its sum and count as the accumulator."""

    def create_accumulator(self):
        return {"sum": 0, "count": 0}

    def add(self, value, accumulator):
        return {"sum": accumulator["sum"] + value, "count": accumulator["count"] + 1}

    def get_result(self, accumulator):
        return accumulator["sum"] / accumulator["count"]

    def merge(self, left, right):
        return {name: left[name] + right[name] for name in left}


ACCUMULATOR = pa.struct([("sum", pa.int64()), ("count", pa.int64())])
VALUE = ValueStateDescriptor("value", pa.int64())
MAP = MapStateDescriptor("map", pa.string(), pa.int64())
LIST = ListStateDescriptor("list", pa.string())
REDUCING = ReducingStateDescriptor("max", pa.int64(), max)
AGGREGATING = AggregatingStateDescriptor("average", ACCUMULATOR, Mean())


class Store:
    """A backend with an engine; `commit` ends a batch."""

    def __init__(self, engine):
        self.engine = engine
        self.backend = KeyedStateBackend(engine, KEY)

    def commit(self):
        runs = self.backend.drain()
        assert all(run.keys == sorted(set(run.keys)) for run in runs)
        self.engine.write_runs(runs)


@contextmanager
def open_store(kind, directory):
    engine = HeapEngine() if kind == "heap" else RocksDbEngine(directory)
    try:
        yield Store(engine)
    finally:
        engine.close()
