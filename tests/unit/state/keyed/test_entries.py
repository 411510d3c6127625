"""Entries over a store: what a batch has changed is seen before what is stored, and its bytes are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from keyscale.state.engine.engine import Mutation
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.errors import KeyTooLargeError, SerializationError
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.batch_memory import LARGE_BYTES
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keyed.entries import ABSENT, Entries
from keyscale.state.keyed.formats import formats_of
from keyscale.state.keyed.pending import Pending
from keyscale.state.keyed.ttl import Cleanup, Ttl, UpdateType, Visibility
from keyscale.state.keys.stored_key import KEY_BYTES_MAX, KeyBatch
from keyscale.state.serializers.key_columns import EncodedColumn

if TYPE_CHECKING:
    import numpy.typing as npt

BELOW = b"k"
LARGE = "x" * 10_000
NO_SWEEPER = Cleanup(incremental=None)


class CountingEngine(HeapEngine):
    """Counts the reads of single keys."""

    reads = 0

    def get(self, family: str, key: bytes) -> bytes | None:
        self.reads += 1
        return super().get(family, key)


class State:
    """The entries of a state of texts; `stored` is written before the batch."""

    def __init__(self, stored: dict[bytes, str] | None = None, ttl: Ttl | None = None, at_ms: int = 0) -> None:
        descriptor = ValueStateDescriptor("s", pa.string(), ttl=ttl)
        self.formats = formats_of(pa.string(), descriptor.stored(), 0)
        self.engine, self.clock = CountingEngine(), BatchClock(at_ms)
        self.engine.write(
            [Mutation("s", key, self.formats.pack(value, at_ms)) for key, value in (stored or {}).items()]
        )
        self.pending = Pending("s")
        self.entries = Entries(self.engine, self.pending, self.formats, ttl, self.clock)

    @property
    def large_bytes(self) -> int:
        return self.pending.memory.large_bytes

    def packed(self, value: str) -> bytes:
        return self.formats.pack(value, self.entries.now_ms)

    def scan(self) -> dict[bytes, str]:
        return dict(self.entries.scan(BELOW))


def rows(*keys: str) -> KeyBatch:
    return KeyBatch(EncodedColumn.of([key.encode() for key in keys]))


def test_a_key_is_read_from_the_store_once_and_changes_are_seen_first() -> None:
    state = State({b"ka": "stored"})
    for read in (state.entries.get, state.entries.peek):
        assert read(b"ka") in ("stored", state.packed("stored"))
        assert read(b"kb") in (ABSENT, None)
    assert state.engine.reads == 2
    state.entries.put(b"ka", "changed")
    state.entries.put(b"kb", None)
    assert (state.entries.get(b"ka"), state.entries.peek(b"ka")) == ("changed", state.packed("changed"))
    assert (state.entries.get(b"kb"), state.entries.peek(b"kb")) == (None, state.formats.pack(None, 0))
    state.entries.remove(b"ka")
    assert (state.entries.get(b"ka"), state.entries.peek(b"ka")) == (ABSENT, None)
    assert state.engine.reads == 2


@pytest.mark.parametrize("read", ["get", "peek", "peek_many", "raw_many", "scan", "last"])
def test_a_columnar_change_is_seen_by_every_kind_of_read(read: str) -> None:
    state = State({b"ka": "stored", b"kz": "stored"})
    state.entries.put_rows(rows("ka", "kb"), pa.array(["new", "new"]), null_removes=True)
    state.pending.touch(BELOW, [b"ka", b"kb"])
    raw, stored = state.packed("new"), state.packed("stored")
    entries = state.entries
    found, expected = {
        "get": lambda: (entries.get(b"kb"), "new"),
        "peek": lambda: (entries.peek(b"ka"), raw),
        "peek_many": lambda: (entries.peek_many([b"ka", b"kb", b"kc"]), [raw, raw, None]),
        "raw_many": lambda: (entries.raw_many([b"ka", b"kz"]), [raw, stored]),
        "scan": lambda: (state.scan(), {b"ka": "new", b"kb": "new", b"kz": "stored"}),
        "last": lambda: (entries.last_key_below(BELOW), b"kz"),
    }[read]()
    assert found == expected


def test_single_changes_after_a_columnar_one_win_and_before_it_lose() -> None:
    state = State()
    state.entries.put(b"ka", "first")
    state.entries.put_rows(rows("ka", "kb", "kc"), pa.array(["2", "2", "2"]), null_removes=True)
    state.entries.put(b"kb", "third")
    state.entries.remove(b"kc")
    assert [state.entries.get(key) for key in (b"ka", b"kb", b"kc")] == ["2", "third", ABSENT]


@pytest.mark.parametrize("size", [LARGE_BYTES, LARGE_BYTES + 1, 5000])
def test_large_values_are_counted_however_they_are_read_or_written(size: int) -> None:
    value = "x" * (size - 1)  # and a byte for the header
    over = size if size > LARGE_BYTES else 0
    for read in (Entries.get, Entries.peek):
        state = State({b"ka": value})
        for _ in range(2):
            read(state.entries, b"ka")
        assert state.large_bytes == over
    state = State()
    state.entries.put(b"ka", value)
    assert state.large_bytes == (over + 2 if over else 0)


def test_large_keys_are_counted_and_too_large_ones_refused() -> None:
    key = BELOW + b"x" * LARGE_BYTES
    state = State()
    state.entries.put(key, "v")
    assert state.large_bytes == len(key) + len(state.packed("v"))
    state.entries.remove(key)
    assert state.large_bytes == 2 * len(key) + len(state.packed("v"))
    state.entries.remove(BELOW + b"x" * (LARGE_BYTES - 1))
    assert state.large_bytes == 2 * len(key) + len(state.packed("v"))
    longest = b"x" * KEY_BYTES_MAX
    state.entries.put(longest, "v")
    for refused in (
        lambda: state.entries.put(longest + b"x", "v"),
        lambda: state.entries.put_all_below(b"x", [(longest + b"x", "v")]),
        lambda: state.entries.put_raw_below(b"x", {longest + b"x": b""}),
    ):
        with pytest.raises(KeyTooLargeError):
            refused()
    assert list(state.pending.entries) == [key, BELOW + b"x" * (LARGE_BYTES - 1), longest]


def test_what_several_entries_have_over_small_ones_is_counted() -> None:
    raw_bytes = len(LARGE) + 1
    state = State({b"ka": LARGE, b"kb": LARGE})
    state.entries.read_ahead([b"ka", b"kb", b"kc"])
    assert state.large_bytes == 2 * raw_bytes - 3 * LARGE_BYTES
    state.entries.read_ahead([b"ka", b"kb", b"kc"])
    assert (state.large_bytes, state.engine.reads) == (2 * raw_bytes - 3 * LARGE_BYTES, 0)
    assert [state.entries.get(key) for key in (b"ka", b"kc")] == [LARGE, ABSENT]
    assert state.engine.reads == 0
    state = State()
    state.entries.put_all_below(BELOW, [(b"ka", LARGE), (b"kb", LARGE)])
    assert state.large_bytes == 2 * (raw_bytes + 2) - 2 * LARGE_BYTES
    state = State()
    state.entries.put_raw_below(BELOW, {b"ka": b"x" * 5000, b"kb": b"x" * 5000})
    assert state.large_bytes == 2 * 5002 - 2 * LARGE_BYTES
    assert state.entries.keys_below(BELOW) == [b"ka", b"kb"]


def test_columns_are_counted_when_they_are_read_and_written() -> None:
    keys, column = rows("ka", "kb"), pa.array([LARGE, LARGE])
    state = State()
    state.entries.put_rows(keys, column, null_removes=True)
    assert state.pending.memory.column_bytes >= column.nbytes
    assert state.large_bytes == state.pending.memory.column_bytes - 2 * LARGE_BYTES
    state.pending.memory.column_bytes = 0
    assert state.entries.get_rows(keys) == column
    assert state.pending.memory.column_bytes >= 2 * len(LARGE)
    state.pending.memory.column_bytes = 0
    state.entries.update_rows(keys, lambda current, _: current)
    assert state.pending.memory.column_bytes >= 4 * len(LARGE)


@pytest.mark.parametrize(("read", "most"), [((), False), ((b"ka",), False), ((b"ka", b"kb"), True)])
def test_most_of_some_keys_are_more_than_half(read: tuple[bytes, ...], most: bool) -> None:
    state = State()
    for key in (*read, b"kx", b"ky"):
        state.entries.get(key)
    assert state.entries.has_read_most({b"ka", b"kb"}) is most


def test_rows_of_one_key_are_updated_together_and_null_removes() -> None:
    state = State({b"ka": "a", b"kb": "b"})
    seen: list[tuple[list[str | None], list[int]]] = []

    def update(current: pa.Array, groups: npt.NDArray[np.intp]) -> pa.Array:
        seen.append((current.to_pylist(), groups.tolist()))
        return pa.array([None, "new", "c"])

    updated = state.entries.update_rows(rows("kc", "ka", "kc", "kb"), update)
    assert seen == [(["a", "b", None], [2, 0, 2, 1])]
    assert updated.to_pylist() == [None, "new", "c"]
    assert [state.entries.get(key) for key in (b"ka", b"kb", b"kc")] == [ABSENT, "new", "c"]


def test_the_last_of_several_rows_counts_and_null_is_stored_or_removes() -> None:
    state = State({b"ka": "a", b"kb": "b"})
    keys = rows("ka", "kb", "ka")
    state.entries.put_rows(keys, pa.array(["1", None, "3"]), null_removes=False)
    assert [state.entries.get(key) for key in (b"ka", b"kb")] == ["3", None]
    state.entries.put_rows(keys, pa.array(["1", None, "4"]), null_removes=True)
    assert [state.entries.get(key) for key in (b"ka", b"kb")] == ["4", ABSENT]
    assert state.entries.contains_rows(keys).tolist() == [True, False, True]
    with pytest.raises(SerializationError, match="3 keys and 2 values"):
        state.entries.put_rows(keys, pa.array(["1", "2"]), null_removes=True)
    with pytest.raises(SerializationError, match="2 distinct keys and 3 values"):
        state.entries.update_rows(keys, lambda *_: pa.array(["1", "2", "3"]))


def test_missing_entries_are_inserted_and_their_first_rows_named() -> None:
    state = State({b"kb": "there"})
    inserted = state.entries.insert_rows(rows("ka", "kb", "ka", "kc"), "new")
    assert (inserted.dtype, inserted.tolist()) == (np.bool_, [True, False, False, True])
    assert [state.entries.get(key) for key in (b"ka", b"kb", b"kc")] == ["new", "there", "new"]
    assert not state.entries.insert_rows(rows("ka", "kb"), "again").any()


def test_the_last_key_below_a_prefix_ignores_removed_ones_and_sees_new_ones() -> None:
    state = State({b"ka": "a", b"kb": "b", b"l": "of another key"})
    entries = state.entries
    assert entries.last_key_below(BELOW) == b"kb"
    entries.put(b"kc", "c", prefix=BELOW)
    assert entries.last_key_below(BELOW) == b"kc"
    entries.remove(b"kc", prefix=BELOW)
    assert entries.last_key_below(BELOW) == b"kb"
    entries.remove(b"kb", prefix=BELOW)
    assert entries.last_key_below(BELOW) == b"ka"
    entries.remove(b"ka", prefix=BELOW)
    assert entries.last_key_below(BELOW) is None
    entries.put_all_below(BELOW, [(b"k0", "0")])
    assert entries.last_key_below(BELOW) == b"k0"
    assert State().entries.last_key_below(BELOW) is None


def test_stored_and_changed_entries_are_merged_by_key() -> None:
    state = State({b"kb": "b", b"kd": "d", b"kf": "f", b"l": "of another key"})
    for key, value in ((b"ka", "1"), (b"kd", "2"), (b"ke", "3"), (b"kg", "4")):
        state.entries.put(key, value, prefix=BELOW)
    state.entries.remove(b"kf", prefix=BELOW)
    state.entries.remove(b"kc", prefix=BELOW)
    expected = {b"ka": "1", b"kb": "b", b"kd": "2", b"ke": "3", b"kg": "4"}
    found = state.entries.scan(BELOW)
    state.entries.put(b"kz", "later", prefix=BELOW)
    assert list(found) == list(expected.items()), "a scan sees its moment"
    expected[b"kz"] = "later"
    assert state.entries.keys_below(BELOW) == list(expected)
    assert state.entries.raws_below(BELOW) == [state.packed(value) for value in expected.values()]


def stamp_of(state: State, key: bytes) -> int | None:
    raw = state.entries.peek(key)
    return None if raw is None else state.formats.stamp(raw)


@pytest.mark.parametrize("read", ["get", "scan", "raw_many", "raws_below"])
@pytest.mark.parametrize("returns_expired", [False, True])
@pytest.mark.parametrize("touches", [False, True])
@pytest.mark.parametrize(("age_ms", "lives"), [(0, True), (1, True), (99, True), (100, False), (101, False)])
def test_an_entry_is_expired_after_its_time_to_live_whichever_way_it_is_read(
    read: str,
    returns_expired: bool,
    touches: bool,
    age_ms: int,
    lives: bool,
) -> None:
    visibility = Visibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP if returns_expired else Visibility.NEVER_RETURN_EXPIRED
    update = UpdateType.ON_READ_AND_WRITE if touches else UpdateType.ON_CREATE_AND_WRITE
    state = State({b"ka": "a"}, Ttl(100, update, visibility, cleanup=NO_SWEEPER), at_ms=1000)
    state.clock.advance(processing_time_ms=1000 + age_ms)
    found = {
        "get": lambda: state.entries.get(b"ka", BELOW) == "a",
        "scan": lambda: state.scan() == {b"ka": "a"},
        "raw_many": lambda: state.entries.raw_many([b"ka"]) != [None],
        "raws_below": lambda: len(state.entries.raws_below(BELOW)) == 1,
    }[read]()
    assert found is (lives or returns_expired)
    assert stamp_of(state, b"ka") == ((1000 + age_ms if touches else 1000) if lives else None)
    if age_ms == 0 or (lives and not touches):
        assert not state.pending.entries, "nothing has changed"
    assert state.entries.expired_now()(state.formats.pack("a", 1000)) is not lives


def test_a_value_without_a_stamp_gets_one_when_it_is_read() -> None:
    before = State({b"ka": "a", b"kb": LARGE})
    ttl = Ttl(100, cleanup=NO_SWEEPER)
    descriptor = ValueStateDescriptor("s", pa.string(), ttl=ttl)
    stored, declared = ValueStateDescriptor("s", pa.string()).stored(), descriptor.stored()
    both = stored.__class__(stored.name, stored.kind, (*stored.formats, *declared.formats))
    formats = formats_of(pa.string(), both, 1)
    for read in (Entries.get, lambda entries, key: entries.raw_many([key])):
        pending = Pending("s")
        entries = Entries(before.engine, pending, formats, ttl, BatchClock(1000))
        for key in (b"ka", b"kb"):
            read(entries, key)
            raw = pending.entries[key]
            assert raw is not None
            assert formats.unpack(raw) == ("a" if key == b"ka" else LARGE, 1000)
        assert pending.memory.large_bytes >= len(LARGE)


def test_without_a_ttl_nothing_expires_and_there_is_no_time() -> None:
    for ttl in (None, Ttl(1, UpdateType.DISABLED)):
        state = State({b"ka": "a"}, at_ms=0)
        entries = Entries(state.engine, state.pending, state.formats, ttl, BatchClock(10**9))
        assert (entries.ttl, entries.sweeper, entries.now_ms) == (None, None, 0)
        assert entries.get(b"ka") == "a"
        assert not entries.expired_now()(state.packed("a"))
