"""One contract for every engine: heap, RocksDB, and shards of both."""

from __future__ import annotations

import hashlib

import pytest

from keyscale.state.engine.engine import Mutation, SortedRun
from keyscale.state.engine.filtered import FilteredEngine
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.engine.rocksdb import RocksDbEngine
from keyscale.state.engine.sharded import ShardedEngine
from keyscale.state.errors import KeyGroupError, StoreClosedError
from keyscale.state.keys.key_groups import KeyGroupRange
from tests.support.state.eager_filters import eager_filters


def key(group, rest=b""):
    return group.to_bytes(2, "big") + rest


def sharded(make):
    ranges = [KeyGroupRange(0, 9), KeyGroupRange(10, 10), KeyGroupRange(11, 127)]
    return ShardedEngine([(each, make(number)) for number, each in enumerate(ranges)])


@pytest.fixture(params=["heap", "rocksdb", "filtered", "heap shards", "rocksdb shards", "filtered shards"])
def engine(request, tmp_path):
    with eager_filters():
        made = opened(request.param, tmp_path)
        yield made
        made.close()


def opened(kind, tmp_path):
    match kind:
        case "heap":
            made = HeapEngine()
        case "rocksdb":
            made = RocksDbEngine(tmp_path / "store")
        case "filtered":
            made = FilteredEngine(tmp_path / "store")
        case "heap shards":
            made = sharded(lambda _: HeapEngine())
        case "rocksdb shards":
            made = sharded(lambda number: RocksDbEngine(tmp_path / str(number)))
        case _:
            made = sharded(lambda number: FilteredEngine(tmp_path / str(number)))
    return made


def fill(engine, groups=range(0, 40, 3)):
    engine.write([Mutation("s", key(group, bytes((n,))), b"%d-%d" % (group, n)) for group in groups for n in range(5)])


def test_a_family_that_was_never_written_reads_as_empty(engine):
    assert engine.get("s", key(1)) is None
    assert engine.get_many("s", [key(1), key(20)]) == [None, None]
    assert list(engine.scan("s", b"", None)) == []
    assert engine.last_key("s", key(0), key(127)) is None
    assert engine.families() == []


def test_written_entries_are_read(engine):
    fill(engine)
    assert engine.get("s", key(3, b"\1")) == b"3-1"
    keys = [key(12, b"\1"), key(1), key(9, b"\4"), key(12, b"\1")]
    assert engine.get_many("s", keys) == [b"12-1", None, b"9-4", b"12-1"]
    assert engine.families() == ["s"]


def test_of_two_mutations_for_one_key_the_later_wins(engine):
    engine.write([Mutation("s", key(1), b"old"), Mutation("s", key(1), b"new"), Mutation("s", key(2), b"x")])
    engine.write([Mutation("s", key(2), None)])
    assert engine.get_many("s", [key(1), key(2)]) == [b"new", None]


def test_an_empty_value_is_a_value(engine):
    engine.write([Mutation("s", key(1), b"")])
    assert engine.get("s", key(1)) == b""


def test_families_do_not_see_each_other(engine):
    engine.write([Mutation("a", key(1), b"a"), Mutation("b", key(1), b"b")])
    assert (engine.get("a", key(1)), engine.get("b", key(1))) == (b"a", b"b")
    assert engine.families() == ["a", "b"]


@pytest.mark.parametrize(
    ("start", "end"),
    [(b"", None), (key(4), key(30)), (key(9, b"\2"), key(9, b"\4")), (key(5), key(5)), (key(30), None)],
)
@pytest.mark.parametrize("limit", [None, 1, 7, 1000])
def test_a_scan_returns_the_entries_within_its_bounds_in_order(engine, start, end, limit):
    fill(engine)
    everything = [(key(group, bytes((n,))), b"%d-%d" % (group, n)) for group in range(0, 40, 3) for n in range(5)]
    expected = [each for each in everything if start <= each[0] and (end is None or each[0] < end)]
    assert list(engine.scan("s", start, end, limit)) == expected[:limit]


def test_a_scan_after_a_write_has_what_was_written_and_lacks_what_was_removed(engine):
    fill(engine, [3, 12])
    before = [found for found, _ in engine.scan("s", b"", None)]
    engine.write([Mutation("s", key(5), b"new"), Mutation("s", before[0], None)])
    assert [found for found, _ in engine.scan("s", b"", None)] == sorted({*before[1:], key(5)})


def test_a_long_scan_returns_every_entry_once(engine):
    engine.write([Mutation("s", key(5, n.to_bytes(4, "big")), b"v") for n in range(9000)])
    assert [int.from_bytes(found[2:], "big") for found, _ in engine.scan("s", key(5), key(6))] == list(range(9000))


@pytest.mark.parametrize(("start", "end"), [(b"", None), (key(3), key(33)), (key(10, b"\2"), None), (key(5), key(5))])
def test_a_scan_of_keys_returns_the_keys_of_the_scan(engine, start, end):
    fill(engine)
    assert list(engine.scan_keys("s", start, end)) == [found for found, _ in engine.scan("s", start, end)]
    assert list(engine.scan_keys("never written", b"", None)) == []


def test_large_values_are_all_scanned(engine):
    value = bytes(300_000)
    engine.write([Mutation("s", key(group, bytes((n,))), value) for group in (1, 20) for n in range(9)])
    assert [len(found) for _, found in engine.scan("s", b"", None)] == [len(value)] * 18
    assert len(list(engine.scan("s", b"", None, 7))) == 7
    assert len(list(engine.scan_keys("s", b"", None))) == 18


def test_the_last_key_of_a_range_is_found_and_removed_ones_are_not(engine):
    fill(engine)
    assert engine.last_key("s", key(0), key(127)) == key(39, b"\4")
    assert engine.last_key("s", key(9), key(12)) == key(9, b"\4")
    engine.write([Mutation("s", key(9, b"\4"), None)])
    assert engine.last_key("s", key(9), key(10)) == key(9, b"\3")
    assert engine.last_key("s", key(10), key(12)) is None


def test_sorted_runs_are_written_like_their_mutations(engine):
    fill(engine)
    run = SortedRun("s", [key(3, b"\0"), key(10), key(30, b"\1")], [None, b"new", b"newer"])
    engine.write_runs([run, SortedRun("t", [key(2)], [b"t"])])
    assert engine.get_many("s", run.keys) == [None, b"new", b"newer"]
    assert engine.get("t", key(2)) == b"t"


def test_an_ingested_file_replaces_existing_entries_and_stays_unchanged(engine, tmp_path):
    fill(engine)
    engine.flush()
    file = tmp_path / "run.sst"
    engine.write_sorted_file(SortedRun("s", [key(3, b"\0"), key(10), key(30, b"\1")], [None, b"new", b"newer"]), file)
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    engine.ingest("s", [file])
    assert engine.get_many("s", [key(3, b"\0"), key(3, b"\1"), key(10), key(30, b"\1")]) == [
        None,
        b"3-1",
        b"new",
        b"newer",
    ]
    engine.compact()
    assert hashlib.sha256(file.read_bytes()).hexdigest() == before


def test_a_range_is_deleted_in_one_family_or_in_all(engine):
    fill(engine)
    engine.write([Mutation("t", key(12), b"t")])
    engine.delete_range(key(9), key(13), "s")
    assert engine.get("s", key(12, b"\1")) is None
    assert engine.get("s", key(15, b"\1")) == b"15-1"
    assert engine.get("t", key(12)) == b"t"
    engine.delete_range(key(12), None)
    assert list(engine.scan("t", b"", None)) == []
    assert [found[:2] for found, _ in engine.scan("s", b"", None)] == [key(g) for g in (0, 3, 6) for _ in range(5)]


def test_compaction_changes_no_entry(engine):
    fill(engine)
    engine.delete_range(key(9), key(13), "s")
    before = list(engine.scan("s", b"", None))
    engine.compact()
    assert list(engine.scan("s", b"", None)) == before
    assert engine.size_bytes() > 0


def test_a_closed_engine_says_so_and_may_be_closed_again(engine):
    fill(engine)
    engine.close()
    engine.close()
    with pytest.raises(StoreClosedError):
        engine.write([Mutation("s", key(1), b"x")])
    with pytest.raises(StoreClosedError):
        engine.get("s", key(3, b"\1"))
    with pytest.raises(StoreClosedError):
        engine.get_many("s", [key(3, b"\1")])
    with pytest.raises(StoreClosedError):
        list(engine.scan("s", b"", None))


@pytest.mark.parametrize("begun", [False, True])
def test_a_checkpoint_has_all_families_even_if_their_flush_has_only_started(tmp_path, begun):
    engine = RocksDbEngine(tmp_path / "store")
    keys = [b"%05d" % number for number in range(2000)]
    engine.write_runs([SortedRun(f"family {number}", keys, [b"old"] * len(keys)) for number in range(4)])
    if begun:
        engine.begin_flush()
    engine.write_runs([SortedRun(f"family {number}", keys[:1], [b"new"]) for number in range(4)])
    engine.checkpoint(tmp_path / "copy")
    engine.close()
    copy = RocksDbEngine(tmp_path / "copy")
    for number in range(4):
        assert copy.get_many(f"family {number}", keys) == [b"new", *[b"old"] * (len(keys) - 1)]
    copy.close()


def test_a_checkpoint_is_a_copy_that_later_writes_do_not_change(tmp_path):
    for name, made, reopen in (
        ("heap", HeapEngine(), HeapEngine.restore),
        ("rocksdb", RocksDbEngine(tmp_path / "live"), RocksDbEngine),
    ):
        fill(made)
        expected = list(made.scan("s", b"", None))
        made.checkpoint(tmp_path / f"{name}-copy")
        made.write([Mutation("s", key(3, b"\0"), b"later")])
        made.close()
        copy = reopen(tmp_path / f"{name}-copy")
        assert list(copy.scan("s", b"", None)) == expected
        copy.close()


def test_a_key_outside_all_shards_reads_as_absent_and_is_not_written():
    engine = ShardedEngine([(KeyGroupRange(2, 3), HeapEngine()), (KeyGroupRange(6, 7), HeapEngine())])
    engine.write([Mutation("s", key(2), b"2"), Mutation("s", key(7), b"7")])
    groups = [key(group) for group in range(9)]
    assert engine.get_many("s", groups) == [None, None, b"2", None, None, None, None, b"7", None]
    for group in (1, 4, 8):
        with pytest.raises(KeyGroupError):
            engine.write([Mutation("s", key(group), b"x")])
        with pytest.raises(KeyGroupError):
            engine.write_runs([SortedRun("s", [key(group)], [b"x"])])


def test_shards_that_overlap_are_refused():
    with pytest.raises(KeyGroupError):
        ShardedEngine([(KeyGroupRange(0, 5), HeapEngine()), (KeyGroupRange(5, 9), HeapEngine())])
