"""Timers fire when they are due, whatever was registered, deleted or drained since the queue last looked."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from keyscale.state.engine.heap import HeapEngine
from keyscale.state.errors import CorruptValueError, NoCurrentKeyError, SerializationError
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.batch_clock import BatchClock, TimeDomain
from keyscale.state.keyed.timer_queue import parse_stored_timer
from keyscale.state.keyed.timer_service import EVENT_TIMERS, PROCESSING_TIMERS, NextTimers, TimerService
from keyscale.state.serializers.key_serializer import KeySerializer

KEY = pa.schema([("id", pa.int64())])


class Timers:
    """The timers of a subtask, whose batches end in the store or stay pending."""

    def __init__(self, *, is_drained: bool) -> None:
        self.engine = HeapEngine()
        self.keyed = KeyedStateBackend(self.engine, KEY)
        self.queue = self.keyed.timers("timers")
        self.is_drained = is_drained

    def at(self, key: int) -> None:
        self.keyed.set_current_key(key % 8, (key,))

    def register(self, key: int, *times_ms: int) -> None:
        self.at(key)
        for time_ms in times_ms:
            self.queue.register(time_ms)

    def delete(self, key: int, time_ms: int) -> None:
        self.at(key)
        self.queue.delete(time_ms)

    def due(self, until_ms: int) -> list[tuple[int, int]]:
        """The keys and times that are due, after the end of a batch."""
        if self.is_drained:
            self.engine.write_runs(self.keyed.drain())
        return [(timer.key[0], timer.timestamp_ms) for timer in self.queue.due(until_ms)]


@pytest.fixture(params=[False, True], ids=["pending", "drained"])
def timers(request: pytest.FixtureRequest) -> Timers:
    return Timers(is_drained=request.param)


def test_a_timer_before_the_earliest_of_its_key_group_fires_at_its_own_time(timers: Timers) -> None:
    timers.register(1, 100)
    assert timers.due(5) == []
    assert timers.queue.next_ms == 100
    timers.register(9, 70)  # of the same key group
    timers.register(2, 80)
    timers.register(1, 90)
    assert timers.queue.next_ms == 70
    assert timers.due(69) == []
    assert timers.due(85) == [(9, 70), (2, 80)]
    assert timers.queue.next_ms == 90
    assert timers.due(1_000) == [(1, 90), (1, 100)]
    assert timers.queue.next_ms is None
    assert timers.due(2_000) == []


def test_the_other_timers_of_a_key_group_fire_when_its_earliest_was_deleted(timers: Timers) -> None:
    timers.register(1, 10, 20, 30)
    timers.register(2, 15)
    assert timers.due(5) == []
    timers.delete(1, 10)
    timers.delete(2, 15)
    timers.delete(3, 1)  # which was never registered
    assert timers.due(25) == [(1, 20)]
    timers.delete(1, 30)
    assert timers.due(1_000) == []
    assert timers.queue.next_ms is None
    timers.register(1, 40)
    timers.delete(1, 40)
    timers.register(1, 40)
    assert timers.due(40) == [(1, 40)]


def test_timers_fire_by_key_group_and_time_once_and_from_the_earliest_time_there_is(timers: Timers) -> None:
    timers.register(3, 5, -(2**63))
    timers.register(2, 7, 7, 6)
    timers.register(11, 5)
    assert timers.due(6) == [(2, 6), (3, -(2**63)), (3, 5), (11, 5)]
    assert timers.due(6) == []
    assert timers.due(2**63 - 1) == [(2, 7)]


@pytest.mark.parametrize(("registered_meanwhile", "fired"), [(True, [10, 11, 12]), (False, [10])])
def test_a_timer_that_a_timer_registers_fires_in_the_same_batch_if_it_is_due(
    timers: Timers, *, registered_meanwhile: bool, fired: list[int]
) -> None:
    timers.register(1, 10)
    if timers.is_drained:
        timers.engine.write_runs(timers.keyed.drain())
    found = []
    for timer in timers.queue.due(12, registered_meanwhile=registered_meanwhile):
        assert timers.queue.is_firing
        timers.at(1)
        timers.queue.register(timer.timestamp_ms + 1)
        found.append(timer.timestamp_ms)
    assert (found, timers.queue.is_firing) == (fired, False)
    assert timers.queue.next_ms == fired[-1] + 1
    assert timers.due(fired[-1] + 1) == [(1, fired[-1] + 1)]


def test_timers_of_a_batch_that_is_dropped_are_as_before_it(timers: Timers) -> None:
    timers.register(1, 10, 20)
    timers.engine.write_runs(timers.keyed.drain())
    assert timers.due(10) == [(1, 10)]
    timers.register(1, 5)
    timers.delete(1, 20)
    if not timers.is_drained:
        timers.keyed.discard()
        assert timers.due(20) == [(1, 10), (1, 20)]
        return
    assert timers.due(4) == []
    timers.keyed.discard()
    assert timers.due(20) == [(1, 5)], "the changes were drained before"


@pytest.mark.parametrize("time_ms", [None, 1.5, 2**63, -(2**63) - 1, "1"])
def test_what_is_no_time_is_refused(timers: Timers, time_ms: Any) -> None:
    timers.at(1)
    for use in (timers.queue.register, timers.queue.delete):
        with pytest.raises(SerializationError):
            use(time_ms)
    timers.keyed.clear_current_key()
    with pytest.raises(NoCurrentKeyError):
        timers.queue.register(1)
    assert timers.due(2**63 - 1) == []


def test_the_service_fires_each_timer_by_its_own_clock_and_names_the_next_of_both() -> None:
    clock = BatchClock(processing_time_ms=100, event_time_ms=10)
    keyed = KeyedStateBackend(HeapEngine(), KEY, clock)
    service = TimerService(keyed)
    keyed.set_current_key(1, (1,))
    for register in (service.register_event_time_timer, service.register_processing_time_timer):
        for time_ms in (9, 10, 11, 100, 101):
            register(time_ms)
    service.delete_event_time_timer(9)
    service.delete_processing_time_timer(11)
    assert (service.current_watermark(), service.current_processing_time()) == (10, 100)
    assert service.next_times() == NextTimers(9, 9), "a deleted timer may still wake the subtask up"
    fired = [(domain, timer.timestamp_ms) for domain, timer in service.due()]
    assert fired == [(TimeDomain.EVENT, 10), *((TimeDomain.PROCESSING, time_ms) for time_ms in (9, 10, 100))]
    assert service.next_times() == NextTimers(11, 101)
    assert [queue.pending.family for queue in service.queues] == [EVENT_TIMERS, PROCESSING_TIMERS]
    clock.is_at_end = True
    ended = []
    for domain, timer in service.due():
        ended.append((domain, timer.timestamp_ms))
        assert len(ended) < 9, "a timer that sets itself again would never end"
        keyed.set_current_key(1, (1,))
        service.register_event_time_timer(timer.timestamp_ms + 1_000)
    assert ended == [(TimeDomain.EVENT, time_ms) for time_ms in (11, 100, 101)], "none that is registered meanwhile"


def test_bytes_after_a_stored_timer_are_damage() -> None:
    raw = b"\0\1" + bytes(8) + KeySerializer(KEY).encode((1,))
    assert parse_stored_timer(raw, KeySerializer(KEY), None).key == (1,)
    with pytest.raises(CorruptValueError, match="bytes after its last part"):
        parse_stored_timer(raw + b"x", KeySerializer(KEY), None)
