"""The RocksDB engine with key filters: in large lookups it reads only keys that it may have."""

import pytest

from keyscale.state.engine.engine import Mutation, SortedRun
from keyscale.state.engine.filtered import FilteredEngine
from keyscale.state.engine.key_filter_file import FILE_NAME
from keyscale.state.engine.rocksdb import RocksDbEngine
from keyscale.state.engine.rocksdb_options import shared_memory
from keyscale.state.engine.rocksdb_settings import MEBIBYTE, RocksDbSettings
from tests.support.state.eager_filters import eager_filters

FAMILY = "seen"


@pytest.fixture(autouse=True)
def _eager():
    with eager_filters(judged_lookups=4000):
        yield


@pytest.fixture
def looked_up(monkeypatch):
    """The keys that RocksDB was asked for, per call."""
    calls = []
    plain = RocksDbEngine.get_many

    def get_many(engine, family, keys):
        calls.append(list(keys))
        return plain(engine, family, keys)

    monkeypatch.setattr(RocksDbEngine, "get_many", get_many)
    return calls


def keys_of(first, end):
    return [number.to_bytes(8, "big") for number in range(first, end)]


def run_of(keys):
    return SortedRun(FAMILY, keys, [b"v"] * len(keys))


def insert(engine, keys, file=None):
    if file is None:
        engine.write_runs([run_of(keys)])
    else:
        engine.write_sorted_file(run_of(keys), file)
        engine.ingest(FAMILY, [file])


def reopened(engine):
    engine.flush()
    engine.close()
    return FilteredEngine(engine.directory)


def filtered(directory, count=1000):
    """Returns a store whose filter has all of its keys."""
    engine = FilteredEngine(directory)
    assert engine.get_many(FAMILY, keys_of(0, 10)) == [None] * 10
    insert(engine, keys_of(0, count))
    return engine


@pytest.mark.parametrize("written", ["as a run", "as a file", "one by one"])
def test_absent_keys_are_rarely_looked_up(tmp_path, looked_up, written):
    engine = FilteredEngine(tmp_path / "store")
    engine.get_many(FAMILY, keys_of(0, 10))
    for first in range(0, 3000, 1000):
        keys = keys_of(first, first + 1000)
        if written == "one by one":
            engine.write([Mutation(FAMILY, key, b"v") for key in keys])
        else:
            insert(engine, keys, tmp_path / f"{first}.sst" if written == "as a file" else None)
    looked_up.clear()
    assert engine.get_many(FAMILY, keys_of(2500, 4500)) == [b"v"] * 500 + [None] * 1500
    assert len(looked_up[0]) < 700
    engine.close()


def test_a_filter_is_kept_in_a_file_while_the_store_is_closed(tmp_path, looked_up):
    engine = filtered(tmp_path / "store")
    engine = reopened(engine)
    assert not (tmp_path / "store" / FILE_NAME).exists()
    looked_up.clear()
    assert engine.get_many(FAMILY, keys_of(900, 2000)) == [b"v"] * 100 + [None] * 1000
    assert len(looked_up[0]) < 300
    engine.close()


def test_a_filter_is_ignored_if_the_store_was_changed_without_it(tmp_path):
    engine = filtered(tmp_path / "store")
    engine.flush()
    engine.close()
    other = RocksDbEngine(tmp_path / "store")
    insert(other, keys_of(5000, 5100))
    other.flush()
    other.close()
    engine = FilteredEngine(tmp_path / "store")
    assert engine.get_many(FAMILY, keys_of(5000, 5200)) == [b"v"] * 100 + [None] * 100
    engine.close()


@pytest.mark.parametrize("harm", ["truncated", "flipped", "newer", "empty", "none of ours"])
def test_a_damaged_file_of_filters_is_ignored(tmp_path, harm, looked_up):
    engine = filtered(tmp_path / "store")
    engine.flush()
    engine.close()
    file = tmp_path / "store" / FILE_NAME
    content = bytearray(file.read_bytes())
    match harm:
        case "truncated":
            del content[-8:]
        case "flipped":
            content[-200:] = bytes(200)
        case "newer":
            content[4] += 1
        case "empty":
            content.clear()
        case _:
            content = bytearray(b"KSKF" + b"\1\0\0\0" + b"\2\0\0\0" + b"[]")
    file.write_bytes(content)
    engine = FilteredEngine(tmp_path / "store")
    assert not file.exists()
    looked_up.clear()
    assert engine.get_many(FAMILY, keys_of(900, 1100)) == [b"v"] * 100 + [None] * 100
    assert len(looked_up[0]) == 200
    engine.close()


def test_keys_of_an_ingested_file_of_another_store_are_found(tmp_path):
    engine = filtered(tmp_path / "store")
    with_other = RocksDbEngine(tmp_path / "other")
    with_other.write_sorted_file(run_of(keys_of(5000, 5100)), tmp_path / "foreign.sst")
    with_other.close()
    engine.ingest(FAMILY, [tmp_path / "foreign.sst"])
    assert engine.get_many(FAMILY, keys_of(5000, 5200)) == [b"v"] * 100 + [None] * 100
    engine.close()


def test_existing_keys_are_added_to_the_filter_a_few_at_a_time(tmp_path, looked_up):
    plain = RocksDbEngine(tmp_path / "store")
    insert(plain, keys_of(0, 1000))
    plain.flush()
    plain.close()
    engine = FilteredEngine(tmp_path / "store")
    asked = [key + b"x" for key in keys_of(0, 1000)]
    looked_up.clear()
    for _ in range(4):
        assert engine.get_many(FAMILY, asked) == [None] * 1000
        assert engine.get_many(FAMILY, keys_of(0, 1000)) == [b"v"] * 1000
        insert(engine, [b"\0" + bytes([len(looked_up)]), b"\xff" + bytes([len(looked_up)])])
    through = [len(keys) for keys in looked_up[::2]]
    assert through[0] == 1000
    assert through[1] < 600
    assert through[3] < 100
    assert engine.get_many(FAMILY, [b"\0\2", b"\xff\2", b"\0\3"]) == [b"v", b"v", None]
    engine.close()


def test_a_key_directly_after_the_last_added_one_is_found(tmp_path):
    there = [key + end for key in keys_of(0, 20) for end in (b"", b"\0")]
    plain = RocksDbEngine(tmp_path / "store")
    insert(plain, there)
    plain.flush()
    plain.close()
    engine = FilteredEngine(tmp_path / "store")
    for _ in range(len(there) + 2):
        engine.get_many(FAMILY, [b"none", b"neither"])  # adds one key to the filter
    assert engine.get_many(FAMILY, there) == [b"v"] * len(there)
    engine.close()


def test_keys_of_a_file_that_is_ingested_after_the_filter_has_grown_are_found(tmp_path):
    plain = RocksDbEngine(tmp_path / "store")
    insert(plain, keys_of(0, 1000))
    plain.flush()
    plain.close()
    engine = FilteredEngine(tmp_path / "store")
    engine.get_many(FAMILY, keys_of(0, 100))
    engine.write_sorted_file(run_of(keys_of(5000, 5100)), tmp_path / "late.sst")
    for _ in range(4):
        engine.get_many(FAMILY, [key + b"x" for key in keys_of(0, 1000)])
    engine.ingest(FAMILY, [tmp_path / "late.sst"])
    assert engine.get_many(FAMILY, keys_of(5000, 5200)) == [b"v"] * 100 + [None] * 100
    engine.close()


def test_keys_that_were_beyond_a_filter_when_their_file_was_written_are_found(tmp_path):
    plain = RocksDbEngine(tmp_path / "store")
    insert(plain, keys_of(0, 40))
    plain.flush()
    plain.close()
    engine = FilteredEngine(tmp_path / "store")
    absent = [key + b"x" for key in keys_of(0, 20)]
    for _ in range(2):
        assert engine.get_many(FAMILY, absent) == [None] * 20
    covered = engine._filters[FAMILY].covered
    assert covered is not None
    assert covered < keys_of(5000, 5001)[0], "the filter has only the first keys"
    engine.write_sorted_file(run_of(keys_of(5000, 5010)), tmp_path / "late.sst")
    for _ in range(6):
        engine.get_many(FAMILY, absent)
    assert engine._filters[FAMILY].covered is None
    engine.ingest(FAMILY, [tmp_path / "late.sst"])
    assert engine.get_many(FAMILY, keys_of(5000, 5020)) == [b"v"] * 10 + [None] * 10
    engine.close()


def test_a_filter_that_spares_little_is_dropped_until_most_keys_are_absent(tmp_path, looked_up):
    engine = filtered(tmp_path / "store")
    for _ in range(4):
        engine.get_many(FAMILY, keys_of(0, 1000))
    assert shared_memory(RocksDbSettings()).filters_bytes == 0
    with eager_filters(watched_lookups=2000):
        for _ in range(2):
            assert engine.get_many(FAMILY, keys_of(600, 1600)) == [b"v"] * 400 + [None] * 600
            assert shared_memory(RocksDbSettings()).filters_bytes == 0
        for _ in range(3):  # these lookups also add the keys to the filter
            engine.get_many(FAMILY, keys_of(600, 1600))
        looked_up.clear()
        engine.get_many(FAMILY, keys_of(600, 1600))
    assert 400 <= len(looked_up[0]) < 500
    engine.close()


def test_no_filter_is_created_if_half_of_the_keys_are_present(tmp_path, looked_up):
    plain = RocksDbEngine(tmp_path / "store")
    insert(plain, keys_of(0, 1000))
    plain.close()
    engine = FilteredEngine(tmp_path / "store")
    for _ in range(5):
        assert engine.get_many(FAMILY, keys_of(499, 1499)) == [b"v"] * 501 + [None] * 499
    assert shared_memory(RocksDbSettings()).filters_bytes == 0
    assert [len(keys) for keys in looked_up] == [1000] * 5
    engine.close()


def test_only_the_latest_lookups_decide_whether_a_filter_is_created(tmp_path):
    plain = RocksDbEngine(tmp_path / "store")
    insert(plain, keys_of(0, 1000))
    plain.close()
    engine = FilteredEngine(tmp_path / "store")
    with eager_filters(watched_lookups=1000):
        for first in (*[0] * 10, 1000, 1000):
            engine.get_many(FAMILY, keys_of(first, first + 1000))
    assert shared_memory(RocksDbSettings()).filters_bytes > 0
    engine.close()


def test_a_filter_whose_keys_have_mostly_been_removed_is_built_again(tmp_path):
    engine = filtered(tmp_path / "store", 60)
    largest = 0
    for round_number in range(1, 30):
        engine.delete_range(b"", None, FAMILY)
        engine.compact()
        keys = keys_of(round_number * 1000, round_number * 1000 + 60)
        assert engine.get_many(FAMILY, keys) == [None] * 60
        insert(engine, keys)
        assert engine.get_many(FAMILY, keys) == [b"v"] * 60
        largest = max(largest, shared_memory(RocksDbSettings()).filters_bytes)
    assert largest <= 1000
    engine.close()


def test_filters_take_their_share_of_the_budget_and_give_it_back(tmp_path):
    settings = RocksDbSettings(memory_budget_bytes=8 * MEBIBYTE, key_filter_fraction=0.001)
    memory = shared_memory(settings)
    engine = FilteredEngine(tmp_path / "store", settings)
    taken = []
    for first in range(0, 40_000, 1000):
        keys = keys_of(first, first + 1000)
        assert engine.get_many(FAMILY, keys) == [None] * 1000
        insert(engine, keys)
        assert engine.get_many(FAMILY, keys) == [b"v"] * 1000
        taken.append(memory.filters_bytes)
    assert 2000 < max(taken) <= 8389
    engine.close()
    assert memory.filters_bytes == 0


def test_a_budget_that_becomes_smaller_than_the_filters_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("keyscale.state.engine.filtered._KEYS_MIN", 8 * MEBIBYTE)  # keys, in a filter of 12 MiB
    engine = filtered(tmp_path / "store")
    small = RocksDbSettings(memory_budget_bytes=8 * MEBIBYTE)
    other = FilteredEngine(tmp_path / "other", small)
    assert shared_memory(small).filters_bytes > small.memory_budget_bytes
    for each, found in ((engine, b"v"), (other, None)):
        assert each.get_many(FAMILY, keys_of(999, 1001)) == [found, None]
        each.close()
    assert shared_memory(small).filters_bytes == 0


def test_without_a_share_of_the_budget_there_are_no_filters(tmp_path, looked_up):
    engine = FilteredEngine(tmp_path / "store", RocksDbSettings(key_filter_fraction=0))
    engine.get_many(FAMILY, keys_of(0, 10))
    insert(engine, keys_of(0, 10))
    looked_up.clear()
    assert engine.get_many(FAMILY, keys_of(0, 20)) == [b"v"] * 10 + [None] * 10
    assert len(looked_up[0]) == 20
    engine.close()
    assert not (tmp_path / "store" / FILE_NAME).exists()


def test_a_store_is_closed_even_if_its_filters_cannot_be_written(tmp_path):
    engine = filtered(tmp_path / "store")
    (tmp_path / "store" / FILE_NAME).mkdir()
    engine.flush()
    engine.close()
    (tmp_path / "store" / FILE_NAME).rmdir()
    engine = FilteredEngine(tmp_path / "store")
    assert engine.get_many(FAMILY, keys_of(900, 1100)) == [b"v"] * 100 + [None] * 100
    engine.close()
