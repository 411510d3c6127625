"""Time to live, on both engines: what expires when, what is seen of it, and how it goes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from state.cleanup import Occasion, expired_entries
from state.descriptors import ListStateDescriptor, MapStateDescriptor, ReducingStateDescriptor, ValueStateDescriptor
from state.errors import DescriptorError
from state.expired_bytes import expired_share
from state.heap import HeapEngine
from state.key_groups import KeyGroupRange
from state.keyed import KeyedStateBackend
from state.rocksdb import RocksDbEngine
from state.ttl import BatchClock, Cleanup, IncrementalCleanup, TimeDomain, Ttl, UpdateType, Visibility

KEY = pa.schema([("key", pa.int64())])
NO_CLEANUP = Cleanup(full_snapshot=False, incremental=None, compaction=False)


class Store:
    """A backend with an engine and a clock; may be started anew with other declarations on the same content."""

    def __init__(self, engine):
        self.engine = engine
        self.clock = BatchClock(processing_time_ms=1_000_000, event_time_ms=0)
        self.backend = KeyedStateBackend(engine, KEY, self.clock)

    def restart(self):
        self.commit()
        self.backend = KeyedStateBackend(self.engine, KEY, self.clock, schema=self.backend.schema)

    def commit(self):
        self.engine.write_runs(self.backend.drain())

    def wait(self, duration_ms):
        self.clock.advance(processing_time_ms=self.clock.processing_time_ms + duration_ms)

    def value(self, ttl, key=7):
        state = self.backend.value_state(ValueStateDescriptor("value", pa.int64(), ttl))
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


def test_writing_starts_the_time_anew_and_reading_does_not(store):
    value = store.value(Ttl(100))
    value.update(1)
    store.wait(60)
    value.update(2)
    store.commit()
    store.wait(60)
    assert value.value() == 2
    store.wait(40)
    assert value.value() is None


def test_reading_starts_the_time_anew_if_it_is_to(store):
    value = store.value(Ttl(100, UpdateType.ON_READ_AND_WRITE))
    value.update(1)
    for _ in range(5):
        store.commit()
        store.wait(60)
        assert value.value() == 1
    store.commit()
    store.wait(100)
    assert value.value() is None


def test_a_disabled_ttl_keeps_for_ever(store):
    value = store.value(Ttl(100, UpdateType.DISABLED))
    value.update(1)
    store.commit()
    store.wait(10**9)
    assert value.value() == 1


def test_an_expired_value_may_be_seen_once_if_it_is_to(store):
    value = store.value(Ttl(100, visibility=Visibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP))
    value.update(1)
    store.commit()
    store.wait(100)
    assert value.value() == 1
    assert value.value() is None


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
    store.backend.purge_expired()
    assert value.value() == 1
    store.commit()
    assert store.stored() == 5


def test_a_clock_that_is_set_back_changes_nothing(store):
    store.wait(50)
    store.clock.advance(processing_time_ms=5)
    assert store.clock.processing_time_ms == 1_000_050


def test_map_entries_expire_one_by_one(store):
    entries = store.backend.map_state(MapStateDescriptor("map", pa.string(), pa.int64(), Ttl(100)))
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
    elements = store.backend.list_state(ListStateDescriptor("list", pa.int64(), Ttl(100)))
    store.backend.set_current_key(1, (7,))
    for number in range(4):
        elements.add(number)
        store.commit()
        store.wait(30)
    assert elements.get() == [1, 2, 3]
    elements.add(4)
    assert elements.get() == [1, 2, 3, 4]


def test_a_reduced_value_begins_anew_after_it_expired(store):
    total = store.backend.reducing_state(ReducingStateDescriptor("sum", pa.int64(), lambda a, b: a + b, Ttl(100)))
    store.backend.set_current_key(1, (7,))
    total.add(1)
    store.commit()
    store.wait(100)
    total.add(5)
    assert total.get() == 5


def test_inserting_if_absent_counts_what_is_expired_as_absent(store):
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


def test_switching_ttl_on_begins_the_time_of_what_is_there(store):
    value = store.value(None)
    value.update(1)
    store.restart()
    store.wait(10**9)
    value = store.value(Ttl(100))
    assert value.value() == 1
    store.commit()
    store.wait(99)
    assert value.value() == 1
    store.wait(1)
    assert value.value() is None


def test_switching_ttl_off_keeps_what_is_there_and_reads_it_right(store):
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


def test_another_time_domain_begins_the_time_anew(store):
    value = store.value(Ttl(100))
    value.update(1)
    store.restart()
    store.clock.advance(event_time_ms=10**12)
    value = store.value(Ttl(100, time_domain=TimeDomain.EVENT))
    assert value.value() == 1
    store.commit()
    store.clock.advance(event_time_ms=10**12 + 100)
    assert value.value() is None


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


def test_the_incremental_sweep_removes_what_nobody_reads(store):
    value = store.value(Ttl(100, cleanup=Cleanup(incremental=IncrementalCleanup(10))))
    fill(store, value, 50)
    store.wait(100)
    for _ in range(20):
        store.backend.set_current_key(2, (-1,))
        value.value()
    store.commit()
    assert store.stored() == 0


def test_the_sweep_may_go_by_records(store):
    cleanup = Cleanup(incremental=IncrementalCleanup(10, every_record=True))
    value = store.value(Ttl(100, cleanup=cleanup))
    fill(store, value, 50)
    store.wait(100)
    for _ in range(30):
        store.backend.set_current_key(2, (-1,))
    store.commit()
    assert store.stored() == 0


def test_the_sweep_never_removes_what_the_batch_has_written(store):
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


@pytest.mark.parametrize("for_snapshot", [True, False])
def test_a_purge_removes_exactly_what_is_expired(store, for_snapshot):
    value = store.value(Ttl(100, cleanup=Cleanup(incremental=None)))
    fill(store, value, 30)
    store.wait(60)
    store.backend.set_current_key(1, (3,))
    value.update(-3)
    store.commit()
    store.wait(40)
    assert store.backend.purge_expired(for_snapshot=for_snapshot) == 29
    assert store.stored() == 1
    assert value.value() == -3


def test_a_purge_leaves_what_its_cleanup_does_not_name(store):
    value = store.value(Ttl(100, cleanup=Cleanup(full_snapshot=False, incremental=None)))
    fill(store, value, 3)
    store.wait(100)
    assert store.backend.purge_expired(for_snapshot=True) == 0
    assert store.backend.purge_expired() == 3


@pytest.mark.parametrize(("expired", "alive"), [(0, 400), (400, 0), (300, 100), (100, 300)])
def test_the_share_that_is_expired_is_told_from_a_few_entries_whatever_their_order(store, expired, alive):
    value = store.value(Ttl(100, cleanup=Cleanup(incremental=None)))
    for count, first in ((expired, 0), (alive, expired)):  # the oldest keys are the smallest
        for key in range(first, first + count):
            store.backend.set_current_key(key % 8, (key,))
            value.update(key)
        store.commit()
        store.wait(60)
    checks = expired_entries(store.backend.schema, store.backend.ttls, store.clock, Occasion.COMPACTION)
    [(family, is_expired)] = checks.items()
    share = expired_share(store.engine, family, is_expired, KeyGroupRange(0, 7))
    assert share == pytest.approx(expired / 400, abs=0.2)


@pytest.mark.parametrize("duration_ms", [0, -1, 2**60])
def test_a_duration_out_of_bounds_is_refused(duration_ms):
    with pytest.raises(DescriptorError):
        Ttl(duration_ms)
