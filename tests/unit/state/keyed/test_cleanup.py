"""Which entries a clean-up may remove, by state, occasion and time, and how a sweep goes through a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from keyscale.state.consolidation.expired_estimate import estimate_expired_bytes
from keyscale.state.consolidation.policy import ConsolidationPolicy
from keyscale.state.engine.engine import Mutation
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.engine.key_group_sizes import FileFacts
from keyscale.state.engine.rocksdb_settings import RocksDbSettings
from keyscale.state.errors import DescriptorError
from keyscale.state.keyed import cleanup
from keyscale.state.keyed.batch_clock import END_OF_TIME_MS, BatchClock, TimeDomain
from keyscale.state.keyed.cleanup import Occasion, Purged, Sweeper, expired_entries, purge_all
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keyed.pending import Pending
from keyscale.state.keyed.schema import schema_of_key
from keyscale.state.keyed.stamp import STAMP_MIN_MS, encode_stamp
from keyscale.state.keyed.ttl import Cleanup, IncrementalCleanup, Ttl, UpdateType, check_ttl, is_expired
from keyscale.state.keys.key_groups import KeyGroupRange

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyscale.state.keyed.schema import KeyedSchema

EVENT = TimeDomain.EVENT
TTLS = {
    "processing": Ttl(100),
    "event": Ttl(100, time_domain=EVENT),
    "longer": Ttl(1_000),
    "snapshots alone": Ttl(100, cleanup=Cleanup(compaction=False)),
    "compactions alone": Ttl(100, cleanup=Cleanup(full_snapshot=False)),
    "disabled": Ttl(100, update_type=UpdateType.DISABLED),
    "not stored": Ttl(100),
    "another clock": Ttl(100, time_domain=EVENT),
}
CLOCK = BatchClock(processing_time_ms=5_000, event_time_ms=300)


def schema() -> KeyedSchema:
    """The states are stored as declared, but for one that is not stored and one that had stamps of another clock."""
    stored = {**TTLS, "another clock": Ttl(100)}
    made = schema_of_key(pa.schema([("id", pa.int64())]))
    for name, ttl in stored.items():
        if name != "not stored":
            state = ValueStateDescriptor(name.replace(" ", "_"), pa.int64(), ttl).stored()
            made = made.with_state(state)
    return made


def value(stamp_ms: int) -> bytes:
    return b"\0" + encode_stamp(stamp_ms) + b"payload"


@pytest.mark.parametrize(
    ("occasion", "expected"),
    [
        (
            Occasion.FULL_SNAPSHOT,
            {"processing": 4_900, "event": 200, "longer": 4_000, "snapshots_alone": 4_900, "another_clock": None},
        ),
        (
            Occasion.COMPACTION,
            {"processing": 4_900, "event": 200, "longer": 4_000, "compactions_alone": 4_900, "another_clock": None},
        ),
    ],
)
def test_an_entry_may_be_left_out_by_the_ttl_of_its_state_and_the_clock_of_the_ttl(
    occasion: Occasion, expected: dict[str, int | None]
) -> None:
    ttls = {name.replace(" ", "_"): ttl for name, ttl in TTLS.items()}
    checks = expired_entries(schema(), ttls, CLOCK, occasion)
    assert checks.keys() == expected.keys()
    for name, last_ms in expected.items():
        if last_ms is None:
            assert not checks[name](value(0)), "a stamp of another clock says nothing"
        else:
            assert [checks[name](value(at_ms)) for at_ms in (last_ms - 1, last_ms, last_ms + 1)] == [True, True, False]
    assert expired_entries(None, ttls, CLOCK, occasion) == {}


def test_nothing_has_expired_before_the_first_watermark() -> None:
    checks = expired_entries(schema(), {"event": TTLS["event"]}, BatchClock(5_000), Occasion.COMPACTION)
    assert not checks["event"](value(STAMP_MIN_MS))


def test_an_entry_is_expired_at_the_end_of_its_time_to_live() -> None:
    assert [is_expired(1_000, 100, at_ms) for at_ms in (1_099, 1_100, 1_101)] == [False, True, True]


def filled(family: str, keys: Iterable[int]) -> HeapEngine:
    """A store with an expired entry for each even number."""
    engine = HeapEngine()
    engine.write([Mutation(family, b"%04d" % key, b"old" if key % 2 == 0 else b"new") for key in keys])
    return engine


def is_old(raw: bytes) -> bool:
    return raw == b"old"


def test_a_purge_of_a_long_family_removes_the_expired_entries_of_all_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "_PURGE_STEP", 4)
    engine = filled("a", range(12))
    engine.write([Mutation("b", b"x", b"old")])
    assert purge_all(engine, {"a": is_old, "empty": is_old}) == {"a": Purged(12, 6), "empty": Purged(0, 0)}
    assert [int(key) for key, _ in engine.scan("a", b"", None)] == [1, 3, 5, 7, 9, 11]
    assert list(engine.scan("b", b"", None)) == [(b"x", b"old")]


def test_a_sweep_goes_on_where_it_was_and_begins_again_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "_STEP_MIN", 6)
    engine, pending = filled("a", range(10)), Pending("a")
    pending.entries[b"0002"] = b"changed in this batch"
    fresh = (b"new", b"nex")
    sweeper = Sweeper(IncrementalCleanup(2, every_record=True), engine, pending, lambda: is_old, lambda: fresh)
    assert sweeper.every_record
    removed: list[list[int]] = []

    def step(times: int) -> None:
        sweeper.accessed(times)
        removed.append(sorted(int(key) for key, raw in pending.entries.items() if raw is None))

    step(2)  # four entries are due, which is not worth a step
    sweeper.record()
    step(0)
    assert removed == [[], [0, 4]]
    step(3)
    assert removed[-1] == [0, 4, 6, 8]
    pending.entries.clear()
    step(3)
    assert removed[-1] == [0, 2, 4], "from the beginning"


@pytest.mark.parametrize(("given", "words"), [(5, "a TTL is declared as int"), (pa.int64(), "a TTL is declared as")])
def test_a_ttl_of_another_form_is_refused_with_an_example(given: object, words: str) -> None:
    with pytest.raises(DescriptorError, match=f"{words}.*use Ttl.hours"):
        check_ttl(given)
    check_ttl(None)
    check_ttl(Ttl(1))


def test_a_ttl_in_hours_or_days_is_one_in_milliseconds() -> None:
    assert (Ttl.hours(1.5).duration_ms, Ttl.days(0.5).duration_ms) == (5_400_000, 43_200_000)
    with pytest.raises(DescriptorError, match="whole number of milliseconds, not a float"):
        Ttl(1.5)  # type: ignore[arg-type]
    with pytest.raises(DescriptorError, match="at least one entry"):
        IncrementalCleanup(0)


def test_the_times_of_a_batch_never_go_back_unless_a_batch_is_repeated() -> None:
    clock = BatchClock(10, 5)
    clock.advance(processing_time_ms=8, event_time_ms=4)
    clock.saw(7)
    clock.saw(6)
    assert (clock.processing_time_ms, clock.event_time_ms, clock.latest_event_ms) == (10, 5, 7)
    assert (clock.timers_ms, clock.event_stamp_ms) == (5, 5)
    clock.advance(processing_time_ms=11)
    clock.advance(event_time_ms=6)
    assert (clock.processing_time_ms, clock.event_time_ms) == (11, 6)
    clock.is_at_end = True
    assert (clock.timers_ms, clock.event_stamp_ms) == (END_OF_TIME_MS, 6)
    first = BatchClock()
    first.saw(50)
    assert (first.timers_ms, first.event_stamp_ms) == (STAMP_MIN_MS, 50)
    clock.become(BatchClock(3, 2))
    assert (clock.processing_time_ms, clock.event_time_ms, clock.latest_event_ms) == (3, 2, STAMP_MIN_MS)


class Sampled(HeapEngine):
    """A store of one state with known files."""

    def __init__(self, files: list[FileFacts], old: int, new: int) -> None:
        super().__init__()
        self._known = files
        for number in range(old + new):
            stamp = 0 if number < old else 9_000
            self.write([Mutation("processing", bytes([0, number % 8, number % 251]), value(stamp))])

    def files(self) -> list[FileFacts]:
        return self._known

    def file_bytes(self, family: str) -> int:
        return {"processing": 1_000}[family]


class _Facts:
    """What an estimate reads of a snapshot."""

    def __init__(self, *, background_consolidation: bool = True) -> None:
        self.settings = RocksDbSettings(background_consolidation=background_consolidation)
        self.schema, self.ttls = schema(), {"processing": TTLS["processing"]}
        self.key_groups = KeyGroupRange(0, 7)


class _Shard:
    def __init__(self, engine: HeapEngine) -> None:
        self.engine = engine


OWN_FILE, HALF_FOREIGN = FileFacts(b"\0\0a", b"\0\7z", 9, 2_000), FileFacts(b"\0\0a", b"\0\x0fz", 9, 2_000)


@pytest.mark.parametrize(
    ("files", "old", "new", "expected"),
    [
        ([OWN_FILE], 80, 0, 1_000),
        ([OWN_FILE], 0, 80, 0),
        ([HALF_FOREIGN], 80, 0, 500),
        ([FileFacts(b"\0\0a", b"\0\7z", 9, 99)], 80, 0, 0),
    ],
)
def test_the_expired_bytes_are_estimated_from_the_subtasks_own_part_of_large_files(
    files: list[FileFacts], old: int, new: int, expected: int
) -> None:
    policy = ConsolidationPolicy(foreign_bytes_min=100)
    shards = [_Shard(Sampled(files, old, new))]

    def estimate(facts: _Facts, clock: BatchClock | None, count: int = 1) -> int:
        return estimate_expired_bytes(facts, shards * count, policy, clock)  # type: ignore[arg-type]  # all it reads

    assert estimate(_Facts(), CLOCK) == expected
    assert estimate(_Facts(), None) == 0
    assert estimate(_Facts(), CLOCK, count=2) == 0, "several shards are merged anyway"
    assert estimate(_Facts(background_consolidation=False), CLOCK) == 0
