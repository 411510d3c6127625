"""Changes are spilled while timers fire: each timer still fires once, and what is registered meanwhile stays."""

from __future__ import annotations

import pyarrow as pa

from keyscale.state.engine.heap import HeapEngine
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.batch_clock import BatchClock


def test_a_spill_while_timers_fire_loses_and_repeats_no_timer() -> None:
    engine = HeapEngine()
    backend = KeyedStateBackend(engine, pa.schema([("user", pa.string())]), BatchClock(processing_time_ms=1))
    firing, resting = backend.timers("firing"), backend.timers("resting")
    for key_group in (3, 5):
        backend.set_current_key(key_group, ("ada",))
        resting.register(key_group)
        for time_ms in (1, 2, 9):
            firing.register(time_ms)
    fired = []
    for timer in firing.due(4):
        backend.set_current_key(timer.key_group, timer.key)
        fired.append((timer.key_group, timer.timestamp_ms))
        if timer.timestamp_ms == 2:
            firing.register(3)
        engine.write_runs(backend.drain_for_spill())
    assert fired == [(group, time_ms) for group in (3, 5) for time_ms in (1, 2, 3)]
    engine.write_runs(backend.drain())
    assert [(timer.key_group, timer.timestamp_ms) for timer in firing.due(9)] == [(3, 9), (5, 9)]
    assert [(timer.key_group, timer.timestamp_ms) for timer in resting.due(9)] == [(3, 3), (5, 5)]
