"""A batch with hardly any memory reads and writes the same state as one with plenty, whatever it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from hypothesis import event, given, settings
from hypothesis import strategies as st

from keyscale.state.engine.heap import HeapEngine
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from keyscale.state.keyed.ttl import Ttl, UpdateType
from tests.property.histories import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = pa.schema([("user", pa.string())])
KEYS = ["", "a", "b\0", "ü", "k" * 300]
TEXTS = st.sampled_from(["", "x", "y" * 300, "z" * 3000])
VALUE = ValueStateDescriptor("value", pa.string(), ttl=Ttl(5, UpdateType.ON_READ_AND_WRITE))
MAP = MapStateDescriptor("map", pa.string(), pa.string())
LIST = ListStateDescriptor("list", pa.string())
LONGEST = ReducingStateDescriptor("longest", pa.string(), max)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["read", "update", "clear", "put", "get", "remove", "items", "add", "all", "longest"])
        | st.sampled_from(["columns", "fail", "register", "delete", "fire", "finish"]),
        st.sampled_from(KEYS),
        TEXTS,
        st.integers(0, 3),
    ),
    min_size=20,
    max_size=120,
)


@dataclass
class Job:
    """A backend over an engine, and how often it spilled."""

    memory_bytes: int | None
    spills: int = 0
    time_ms: int = 0

    def __post_init__(self) -> None:
        self.engine = HeapEngine()
        self.clock = BatchClock(processing_time_ms=1)
        self.backend = KeyedStateBackend(self.engine, KEY, self.clock, memory_bytes=self.memory_bytes)
        self.backend.spill = self._spill if self.memory_bytes is not None else None
        self.value, self.map = self.backend.state(VALUE), self.backend.state(MAP)
        self.list, self.longest = self.backend.state(LIST), self.backend.state(LONGEST)
        self.timers = self.backend.timers("_timers")

    def _spill(self) -> None:
        self.engine.write_runs(self.backend.drain_for_spill())
        self.spills += 1

    def run(self, what: str, key: str, text: str, number: int) -> Any:
        """Carries out one step, as a record of its own; returns what a user sees."""
        self.backend.set_current_key(group_of(key), (key,))
        self.backend.mark()
        steps: dict[str, Callable[[], Any]] = {
            "read": self.value.value,
            "update": lambda: self.value.update(text),
            "clear": self.value.clear,
            "put": lambda: self.map.put(text[:number], text),
            "get": lambda: self.map.get(text[:number]),
            "remove": lambda: self.map.remove(text[:number]),
            "items": lambda: list(self.map.items()),
            "add": lambda: self.list.add_all([text] * number),
            "all": self.list.get,
            "longest": lambda: (self.longest.add(text), self.longest.get()),
            "columns": lambda: self._columns(text),
            "fail": lambda: self._fail(text),
            "register": lambda: self.timers.register(number),
            "delete": lambda: self.timers.delete(number),
            "fire": lambda: self._fire(number),
            "finish": self._finish,
        }
        return steps[what]()

    def _columns(self, text: str) -> Any:
        keys, groups = pa.array(KEYS), np.array([group_of(key) for key in KEYS])
        before = self.value.get_many(groups, [keys]).to_pylist()
        self.value.put_many(groups, [keys], pa.array([text] * (len(KEYS) - 1) + [None]))
        self.backend.make_room(len(KEYS))
        return before, self.value.get_many(groups, [keys]).to_pylist()

    def _fail(self, text: str) -> None:
        self.value.update(text)
        self.map.put("failed", text)
        self.backend.undo()

    def _fire(self, until_ms: int) -> list[Any]:
        fired = []
        for timer in self.timers.due(until_ms):
            self.backend.set_current_key(timer.key_group, timer.key)
            fired.append((timer, self.value.value(), self.list.get()))
            self.value.update("fired" * 50)
            self.backend.make_room()
            if timer.timestamp_ms == 0:
                self.timers.register(1)
                self.timers.delete(2)
        return fired

    def _finish(self) -> None:
        self.engine.write_runs(self.backend.drain())
        self.time_ms += 2
        self.clock.advance(processing_time_ms=self.time_ms)

    def content(self) -> list[Any]:
        self._finish()
        return [list(self.engine.scan(family, b"", None)) for family in self.engine.families()]


def group_of(key: str) -> int:
    return len(key.encode()) * 7


@settings(max_examples=10 * EXAMPLES, deadline=None)
@given(STEPS, st.sampled_from([1, 1000, 10_000]))
def test_memory_changes_nothing_but_when_changes_reach_the_store(
    steps: list[tuple[str, str, str, int]], memory_bytes: int
) -> None:
    small, large = Job(memory_bytes), Job(None)
    for step in steps:
        assert small.run(*step) == large.run(*step)
    assert small.content() == large.content()
    event("it spilled" if small.spills else "it did not spill")
