"""Time to live, on both engines: when entries expire, whether they are visible then, and how they are removed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from keyscale.state.consolidation.expired_estimate import estimate_expired_share
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.engine.rocksdb import RocksDbEngine
from keyscale.state.errors import DescriptorError
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.batch_clock import BatchClock, TimeDomain
from keyscale.state.keyed.cleanup import Occasion, expired_entries, purge_all
from keyscale.state.keyed.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from keyscale.state.keyed.stamp import STAMP_MIN_MS
from keyscale.state.keyed.ttl import Cleanup, IncrementalCleanup, Ttl, UpdateType, Visibility
from keyscale.state.keys.key_groups import KeyGroupRange

KEY = pa.schema([("key", pa.int64())])
NO_CLEANUP = Cleanup(full_snapshot=False, incremental=None, compaction=False)


class Store:
    """A backend with an engine and a clock, which can be restarted with other declarations and the same content."""

    def __init__(self, engine):
        self.engine = engine
        self.clock = BatchClock(processing_time_ms=1_000_000, event_time_ms=0)
        self.backend = KeyedStateBackend(engine, KEY, self.clock)

    def restart(self):
        self.commit()
        self.backend = KeyedStateBackend(self.engine, KEY, self.clock, schema=self.backend.schema)

    def purge(self, occasion=Occasion.COMPACTION):
        expired = expired_entries(self.backend.schema, self.backend.ttls, self.clock, occasion)
        return sum(each.removed for each in purge_all(self.engine, expired).values())

    def commit(self):
        self.engine.write_runs(self.backend.drain())

    def wait(self, duration_ms):
        self.clock.advance(processing_time_ms=self.clock.processing_time_ms + duration_ms)

    def value(self, ttl, key=7):
        state = self.backend.state(ValueStateDescriptor("value", pa.int64(), ttl))
        self.backend.set_current_key(1, (key,))
        return state

    def stored(self):
        return len(list(self.engine.scan("value", b"", None)))


@pytest.fixture(params=["heap", "rocksdb"])
def store(request, tmp_path):
    engine = HeapEngine() if request.param == "heap" else RocksDbEngine(tmp_path / "store")
    yield Store(engine)
    engine.close()


def test_a_value_expires_exactly_when_its_time_is_over(store):
    value = store.value(Ttl(100))
    value.update(1)
    store.commit()
    store.wait(99)
    assert value.value() == 1
    store.wait(1)
    assert value.value() is None


@pytest.mark.parametrize("is_committed", [False, True], ids=["same batch", "next batch"])
def test_elements_of_merged_lists_expire_when_they_would_have_without_it(store, is_committed):
    descriptor = ListStateDescriptor("list", pa.string(), Ttl(100), namespace_type=pa.int64())
    elements = store.backend.state(descriptor)
    store.backend.set_current_key(1, (7,))
    for namespace, value, wait_ms in ((1, "old", 60), (2, "newer", 30), (1, "new", 0)):
        elements.set_current_namespace(namespace)
        elements.add(value)
        store.wait(wait_ms)
    if is_committed:
        store.commit()
    elements.merge_namespaces(2, [1, 2])

    def left():
        elements.set_current_namespace(2)
        return elements.get()

    assert left() == ["newer", "old", "new"]
    store.wait(9)
    assert left() == ["newer", "old", "new"]
    store.wait(1)
    assert left() == ["newer", "new"]
    store.wait(60)
    assert left() == ["new"]
    elements.merge_namespaces(3, [2])
    store.wait(30)
    elements.set_current_namespace(3)
    assert elements.get() == []


def test_a_batch_of_values_is_not_added_to_one_that_has_expired(store):
    total = store.backend.state(ReducingStateDescriptor("total", pa.int64(), int.__add__, Ttl(100)))
    groups, keys = np.array([1, 1], np.int32), pa.array([7, 7])
    total.add_many(groups, keys, pa.array([1, 2]))
    store.commit()
    store.wait(100)
    total.add_many(groups, keys, pa.array([10, 20]))
    assert total.get_many(groups, keys).to_pylist() == [30, 30]


def test_writing_restarts_the_time_and_reading_does_not(store):
    value = store.value(Ttl(100))
    value.update(1)
    store.wait(60)
    value.update(2)
    store.commit()
    store.wait(60)
    assert value.value() == 2
    store.wait(40)
    assert value.value() is None


def test_reading_restarts_the_time_if_the_ttl_says_so(store):
    value = store.value(Ttl(100, UpdateType.ON_READ_AND_WRITE))
    value.update(1)
    for _ in range(5):
        store.commit()
        store.wait(60)
        assert value.value() == 1
    store.commit()
    store.wait(100)
    assert value.value() is None


def test_a_disabled_ttl_keeps_entries_forever(store):
    value = store.value(Ttl(100, UpdateType.DISABLED))
    value.update(1)
    store.commit()
    store.wait(10**9)
    assert value.value() == 1


def test_an_expired_value_can_be_read_once_if_the_ttl_says_so(store):
    value = store.value(Ttl(100, visibility=Visibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP))
    value.update(1)
    store.commit()
    store.wait(100)
    assert value.value() == 1
    assert value.value() is None


@pytest.mark.parametrize("read", ["get", "items", "keys", "values", "contains"])
def test_an_expired_map_entry_that_was_read_once_is_gone_from_its_map(store, read):
    ttl = Ttl(100, visibility=Visibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP, cleanup=NO_CLEANUP)
    entries = store.backend.state(MapStateDescriptor("map", pa.string(), pa.int64(), ttl))
    store.backend.set_current_key(1, (7,))
    entries.put("old", 1)
    store.commit()
    store.wait(100)
    once = {"get": [1], "items": [("old", 1)], "keys": ["old"], "values": [1], "contains": [True]}[read]
    found = getattr(entries, read)("old") if read in {"get", "contains"} else list(getattr(entries, read)())
    assert once == (found if isinstance(found, list) else [found])
    assert (list(entries.items()), list(entries.keys()), list(entries.values())) == ([], [], [])
    assert (entries.get("old"), entries.contains("old"), entries.is_empty()) == (None, False, True)
    store.commit()
    assert list(store.engine.scan("map", b"", None)) == []


def test_reading_an_expired_value_removes_it(store):
    value = store.value(Ttl(100, cleanup=NO_CLEANUP))
    value.update(1)
    store.commit()
    store.wait(100)
    assert store.stored() == 1
    assert value.value() is None
    store.commit()
    assert store.stored() == 0


def test_event_time_expires_by_the_watermark_only(store):
    value = store.value(Ttl(100, time_domain=TimeDomain.EVENT))
    store.clock.event_time_ms = 5_000
    value.update(1)
    store.commit()
    store.wait(10**9)
    assert value.value() == 1
    store.clock.advance(event_time_ms=5_100)
    assert value.value() is None


def test_event_time_expires_nothing_before_the_first_watermark(store):
    store.clock.event_time_ms = BatchClock().event_time_ms
    value = store.value(Ttl(100, time_domain=TimeDomain.EVENT, cleanup=Cleanup(incremental=IncrementalCleanup(500))))
    for key in range(5):
        store.backend.set_current_key(1, (key,))
        value.update(1)
    store.commit()
    store.purge()
    assert value.value() == 1
    store.commit()
    assert store.stored() == 5


def test_a_clock_that_is_set_back_changes_nothing(store):
    store.wait(50)
    store.clock.advance(processing_time_ms=5)
    assert store.clock.processing_time_ms == 1_000_050


def test_map_entries_expire_one_by_one(store):
    entries = store.backend.state(MapStateDescriptor("map", pa.string(), pa.int64(), Ttl(100)))
    store.backend.set_current_key(1, (7,))
    entries.put("old", 1)
    store.commit()
    store.wait(60)
    entries.put("new", 2)
    store.commit()
    store.wait(40)
    assert list(entries.items()) == [("new", 2)]
    assert not entries.contains("old")
    store.wait(60)
    assert entries.is_empty()


def test_list_elements_expire_one_by_one_and_order_is_kept(store):
    elements = store.backend.state(ListStateDescriptor("list", pa.int64(), Ttl(100)))
    store.backend.set_current_key(1, (7,))
    for number in range(4):
        elements.add(number)
        store.commit()
        store.wait(30)
    assert elements.get() == [1, 2, 3]
    elements.add(4)
    assert elements.get() == [1, 2, 3, 4]


def test_a_reduced_value_begins_again_after_it_expired(store):
    total = store.backend.state(ReducingStateDescriptor("sum", pa.int64(), lambda a, b: a + b, Ttl(100)))
    store.backend.set_current_key(1, (7,))
    total.add(1)
    store.commit()
    store.wait(100)
    total.add(5)
    assert total.get() == 5


def test_inserting_if_absent_counts_expired_values_as_absent(store):
    value = store.value(Ttl(100))
    groups, keys = np.array([1, 1]), pa.array([1, 2])
    assert value.insert_if_absent_many(groups, keys, 1).tolist() == [True, True]
    store.commit()
    store.wait(60)
    assert value.insert_if_absent_many(groups, pa.array([1, 3]), 1).tolist() == [False, True]
    store.commit()
    store.wait(40)
    assert value.get_many(groups, keys).to_pylist() == [None, None]
    assert value.insert_if_absent_many(np.array([1] * 3), pa.array([1, 2, 3]), 1).tolist() == [True, True, False]


def read_alone(value):
    return value.value()


def read_in_a_batch(value):
    return value.get_many(np.array([1]), pa.array([7])).to_pylist()[0]


@pytest.fixture(params=[read_alone, read_in_a_batch])
def read(request):
    return request.param


def test_switching_ttl_on_starts_the_time_of_existing_values(store, read):
    value = store.value(None)
    value.update(1)
    store.restart()
    store.wait(10**9)
    value = store.value(Ttl(100))
    assert read(value) == 1
    store.commit()
    store.wait(99)
    assert read(value) == 1
    store.wait(1)
    assert read(value) is None


def test_switching_ttl_off_keeps_existing_values_and_reads_them_correctly(store):
    value = store.value(Ttl(100))
    value.update(1)
    store.restart()
    store.wait(10**9)
    value = store.value(None)
    assert value.value() == 1
    assert value.get_many(np.array([1]), pa.array([7])).to_pylist() == [1]
    value.update(2)
    store.restart()
    assert store.value(Ttl(100)).value() == 2


def test_another_time_domain_restarts_the_time(store, read):
    value = store.value(Ttl(100))
    value.update(1)
    store.restart()
    store.clock.advance(event_time_ms=10**12)
    value = store.value(Ttl(100, time_domain=TimeDomain.EVENT))
    assert read(value) == 1
    store.commit()
    store.clock.advance(event_time_ms=10**12 + 100)
    assert read(value) is None


def test_another_time_domain_before_any_watermark_starts_the_time_at_the_latest_event(store, read):
    value = store.value(Ttl(100))
    value.update(1)
    store.restart()
    store.clock.event_time_ms = STAMP_MIN_MS
    for event_ms in (5000, 4000):
        store.clock.saw(event_ms)
    value = store.value(Ttl(100, time_domain=TimeDomain.EVENT))
    assert read(value) == 1
    store.commit()
    store.clock.advance(event_time_ms=5099)
    assert read(value) == 1
    store.clock.advance(event_time_ms=5100)
    assert read(value) is None


def test_a_batch_that_is_repeated_sees_its_own_events_only():
    clock = BatchClock(processing_time_ms=7)
    clock.saw(5000)
    clock.become(BatchClock(processing_time_ms=6))
    assert (clock.processing_time_ms, clock.event_stamp_ms) == (6, STAMP_MIN_MS)
    clock.saw(3000)
    assert clock.event_stamp_ms == 3000


def test_another_duration_counts_from_the_last_access(store):
    value = store.value(Ttl(100))
    value.update(1)
    store.restart()
    store.wait(150)
    value = store.value(Ttl(200))
    assert value.value() == 1
    store.wait(50)
    assert value.value() is None


def fill(store, value, count):
    for key in range(count):
        store.backend.set_current_key(1, (key,))
        value.update(key)
    store.commit()


def test_the_incremental_sweep_removes_expired_values_that_are_not_read(store):
    value = store.value(Ttl(100, cleanup=Cleanup(incremental=IncrementalCleanup(10))))
    fill(store, value, 50)
    store.wait(100)
    for _ in range(20):
        store.backend.set_current_key(2, (-1,))
        value.value()
    store.commit()
    assert store.stored() == 0


def test_the_sweep_can_advance_at_every_record(store):
    cleanup = Cleanup(incremental=IncrementalCleanup(10, every_record=True))
    value = store.value(Ttl(100, cleanup=cleanup))
    fill(store, value, 50)
    store.wait(100)
    for _ in range(30):
        store.backend.set_current_key(2, (-1,))
    store.commit()
    assert store.stored() == 0


def test_the_sweep_never_removes_values_that_the_batch_has_written(store):
    value = store.value(Ttl(100, cleanup=Cleanup(incremental=IncrementalCleanup(1000))))
    fill(store, value, 50)
    store.wait(100)
    store.backend.set_current_key(1, (25,))
    value.update(-25)
    for _ in range(5):
        store.backend.set_current_key(2, (-1,))
        value.value()
    store.commit()
    assert [(key.key, number) for key, number in store.backend.dump("value")] == [((25,), -25)]
    assert store.stored() == 1


@pytest.mark.parametrize("occasion", list(Occasion))
def test_a_purge_removes_exactly_the_expired_entries(store, occasion):
    value = store.value(Ttl(100, cleanup=Cleanup(incremental=None)))
    fill(store, value, 30)
    store.wait(60)
    store.backend.set_current_key(1, (3,))
    value.update(-3)
    store.commit()
    store.wait(40)
    assert store.purge(occasion) == 29
    assert store.stored() == 1
    assert value.value() == -3


def test_a_purge_leaves_entries_whose_cleanup_excludes_it(store):
    value = store.value(Ttl(100, cleanup=Cleanup(full_snapshot=False, incremental=None)))
    fill(store, value, 3)
    store.wait(100)
    assert store.purge(Occasion.FULL_SNAPSHOT) == 0
    assert store.purge() == 3


@pytest.mark.parametrize(("expired", "alive"), [(0, 400), (400, 0), (300, 100), (100, 300)])
def test_the_expired_share_is_estimated_from_a_few_entries_whatever_their_order(store, expired, alive):
    value = store.value(Ttl(100, cleanup=Cleanup(incremental=None)))
    for count, first in ((expired, 0), (alive, expired)):  # the oldest keys are the smallest
        for key in range(first, first + count):
            store.backend.set_current_key(key % 8, (key,))
            value.update(key)
        store.commit()
        store.wait(60)
    checks = expired_entries(store.backend.schema, store.backend.ttls, store.clock, Occasion.COMPACTION)
    [(family, is_expired)] = checks.items()
    share = estimate_expired_share(store.engine, family, is_expired, KeyGroupRange(0, 7))
    assert share == pytest.approx(expired / 400, abs=0.2)


@pytest.mark.parametrize("duration_ms", [0, -1, 2**60])
def test_a_duration_out_of_bounds_is_refused(duration_ms):
    with pytest.raises(DescriptorError):
        Ttl(duration_ms)
