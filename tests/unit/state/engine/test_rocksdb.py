"""Failures that only RocksDB has: locks, damaged and missing files, full and read-only disks, forks, memory."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from keyscale.state import errors
from keyscale.state.engine.engine import Mutation, SortedRun
from keyscale.state.engine.rocksdb import RocksDbEngine
from keyscale.state.engine.rocksdb_options import charge_cache, shared_memory
from keyscale.state.engine.rocksdb_settings import CompactionStyle, Compression, Profile, RocksDbSettings
from keyscale.state.errors import DiskFullError, DiskReadOnlyError, StoreCorruptError, StoreIOError, StoreLockedError
from tests.support.repository import ROOT
from tests.support.waiting import wait_until


def fill(engine, count=20_000):
    engine.write([Mutation("s", b"\0\1" + n.to_bytes(4, "big"), os.urandom(20)) for n in range(count)])
    engine.flush()


def sorted_files(directory):
    return sorted(directory.glob("*.sst"), key=lambda file: file.stat().st_size)


def test_a_store_that_is_open_is_locked(tmp_path):
    engine = RocksDbEngine(tmp_path)
    with pytest.raises(StoreLockedError):
        RocksDbEngine(tmp_path)
    engine.close()
    RocksDbEngine(tmp_path).close()


def test_a_stopped_process_keeps_the_lock_and_a_killed_one_does_not(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from keyscale.state.engine.rocksdb import RocksDbEngine; "
        "engine = RocksDbEngine(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    with holder:
        assert holder.stdout.readline() == b"open\n"
        os.kill(holder.pid, signal.SIGSTOP)
        with pytest.raises(StoreLockedError):
            RocksDbEngine(tmp_path)
        holder.kill()
        holder.wait()
    RocksDbEngine(tmp_path).close()


def test_a_flipped_byte_is_found_by_every_way_of_reading(tmp_path):
    engine = RocksDbEngine(tmp_path)
    fill(engine)
    engine.close()
    file = sorted_files(tmp_path)[-1]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    engine = RocksDbEngine(tmp_path)
    keys = [b"\0\1" + n.to_bytes(4, "big") for n in range(20_000)]
    with pytest.raises(StoreCorruptError):
        engine.get_many("s", keys)
    with pytest.raises(StoreCorruptError):
        [engine.get("s", key) for key in keys]
    with pytest.raises(StoreCorruptError):
        list(engine.scan("s", b"", None))
    engine.close()


@pytest.mark.parametrize("lost", ["*.sst", "MANIFEST-*"])
def test_a_missing_file_is_found_at_opening(tmp_path, lost):
    engine = RocksDbEngine(tmp_path)
    fill(engine)
    engine.close()
    for file in tmp_path.glob(lost):
        file.unlink()
    with pytest.raises(StoreCorruptError):
        RocksDbEngine(tmp_path)


def test_a_file_of_another_format_is_not_ingested(tmp_path):
    engine = RocksDbEngine(tmp_path / "store")
    (tmp_path / "bad.sst").write_bytes(b"no sorted file")
    with pytest.raises(StoreCorruptError):
        engine.ingest("s", [tmp_path / "bad.sst"])
    assert list(engine.scan("s", b"", None)) == []
    assert not list((tmp_path / "store").glob("*.ingest"))
    engine.close()


@pytest.fixture
def small_disk(tmp_path):
    """A disk of one MiB, if the tests may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False, capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_is_reported_and_flushed_entries_remain(small_disk):
    engine = RocksDbEngine(small_disk / "store")
    engine.write([Mutation("s", b"\0\1kept", b"x")])
    engine.flush()
    engine.write([Mutation("s", b"\0\1%d" % n, os.urandom(1000)) for n in range(3000)])
    with pytest.raises(DiskFullError):
        engine.flush()
    with pytest.raises(DiskFullError):
        engine.close()
    for log in (small_disk / "store").glob("LOG*"):
        log.unlink()
    for unfinished in sorted_files(small_disk / "store")[1:]:
        unfinished.unlink()
    engine = RocksDbEngine(small_disk / "store")
    assert engine.get("s", b"\0\1kept") == b"x"
    engine.close()


def test_a_read_only_disk_is_reported(small_disk):
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(DiskReadOnlyError):
        RocksDbEngine(small_disk / "store")


def test_an_unfinished_scan_does_not_keep_the_store_open(tmp_path):
    engine = RocksDbEngine(tmp_path)
    fill(engine, 500)
    scan = engine.scan("s", b"", None)
    next(scan)
    engine.close()
    RocksDbEngine(tmp_path).close()
    del scan


def test_a_scan_holds_few_large_values_at_a_time(tmp_path):
    engine = RocksDbEngine(tmp_path / "store")
    engine.write([Mutation("s", bytes((n,)), bytes(400_000)) for n in range(20)])
    assert [len(engine._chunk("s", b"", None, size)[0]) for size in (2, 64)] == [2, 3]
    assert len(engine._chunk("s", b"", None, 64, keys_only=True)[0]) == 20
    engine.close()


def test_a_scan_that_comes_from_small_to_large_values_holds_many_of_them_once(tmp_path, monkeypatch):
    engine = RocksDbEngine(tmp_path / "store")
    values = [bytes(10)] * 400 + [bytes(400_000)] * 60
    engine.write([Mutation("s", n.to_bytes(2, "big"), value) for n, value in enumerate(values)])
    read, sizes = engine._chunk, []

    def noted(*given, **options):
        chunk, ended = read(*given, **options)
        sizes.append(sum(len(value) for _, value in chunk))
        return chunk, ended

    monkeypatch.setattr(engine, "_chunk", noted)
    assert list(engine.scan("s", b"", None)) == [(n.to_bytes(2, "big"), value) for n, value in enumerate(values)]
    assert sum(size > 2_000_000 for size in sizes) == 1
    engine.close()


def test_all_stores_of_a_process_share_one_memory_budget_and_a_child_has_its_own():
    settings = RocksDbSettings()
    memory = shared_memory(settings)
    assert shared_memory(replace(settings, block_bytes=8192)) is memory
    context = multiprocessing.get_context("spawn" if sys.platform == "darwin" else "fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(shared_memory(settings) is memory))
    child.start()
    assert receiver.recv() is False
    child.join()


def test_stores_of_different_settings_fill_the_same_cache_and_write_buffers(tmp_path):
    settings = RocksDbSettings()
    memory = shared_memory(settings)
    before = memory.write_buffers.get_usage()
    engines = [RocksDbEngine(tmp_path / str(bits), replace(settings, bloom_bits=bits)) for bits in (0, 10)]
    used = []
    for engine in engines:
        engine.write([Mutation("s", b"\0\1%d" % n, os.urandom(1000)) for n in range(2000)])
        used.append(memory.write_buffers.get_usage())
    assert before + 1_000_000 < used[0] < used[1] - 1_000_000, "each store adds to the one count"
    assert memory.cache.get_usage() >= 4_000_000, "write buffers are charged to the cache"
    for engine in engines:
        engine.close()


def test_another_budget_resizes_the_one_memory_of_the_process():
    settings = RocksDbSettings()
    memory = shared_memory(settings)
    halved = replace(settings, memory_budget_bytes=settings.memory_budget_bytes // 2, write_buffer_fraction=0.25)
    assert shared_memory(halved) is memory
    assert memory.write_buffers.get_buffer_size() == halved.memory_budget_bytes // 4
    assert shared_memory(settings) is memory
    assert memory.write_buffers.get_buffer_size() == settings.memory_budget_bytes // 2


def test_indexes_and_filters_of_open_files_are_charged_to_the_memory_of_the_process(tmp_path):
    memory = shared_memory(RocksDbSettings())
    before = memory.charged_bytes
    engine = RocksDbEngine(tmp_path)
    fill(engine, 100_000)
    engine.flush()
    flushed = memory.charged_bytes - before
    assert flushed > 100_000, "a filter takes more than one byte per key"
    run = SortedRun("s", [b"\0\2%08d" % n for n in range(100_000)], [b"x"] * 100_000)
    engine.write_sorted_file(run, tmp_path.with_suffix(".sst"))
    engine.ingest("s", [tmp_path.with_suffix(".sst")])
    assert memory.charged_bytes - before > flushed + 100_000
    engine.close()
    assert memory.charged_bytes == before
    engine = RocksDbEngine(tmp_path)
    assert memory.charged_bytes - before > 200_000, "they are read when a store is opened"
    engine.close()
    split = RocksDbEngine(tmp_path.with_suffix(".split"), RocksDbSettings(partitioned_index=True))
    fill(split, 100_000)
    split.flush()
    assert memory.charged_bytes - before < 10_000, "split ones are the cache's"
    split.close()


def test_the_cache_shrinks_by_the_size_of_indexes_and_filters(monkeypatch):
    class Resized:
        capacity = None

        def set_capacity(self, capacity):
            self.capacity = capacity

    memory = shared_memory(RocksDbSettings())
    cache, taken = Resized(), memory.filters_bytes + memory.charged_bytes
    monkeypatch.setattr(memory, "cache", cache)
    charge_cache(1000)
    assert cache.capacity == memory.sizes[0] - taken - 1000
    charge_cache(memory.sizes[0])
    assert cache.capacity == 0
    charge_cache(-memory.sizes[0] - 1000)
    assert cache.capacity == memory.sizes[0] - taken


def test_compaction_threads_have_a_lower_priority_than_the_process(tmp_path):
    engine = RocksDbEngine(tmp_path)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    compactors = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # threads of other tests may end meanwhile
            if (task / "comm").read_text().startswith(("rocksdb:low", "rocksdb:bottom")):
                compactors.append(int(task.name))
    assert len(compactors) > RocksDbSettings().background_threads, "the one of lowest priority is beside them"
    assert {os.getpriority(os.PRIO_PROCESS, task) for task in compactors} == {min(own + 5, 19)}
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own
    engine.close()


@pytest.mark.parametrize("family", ["s", "new"])
def test_a_store_compacts_its_files_only_after_its_compactions_are_started(tmp_path, family):
    engine = RocksDbEngine(tmp_path, RocksDbSettings(level_zero_compaction_trigger=4), compacts=False)
    for _ in range(12):
        fill(engine, count=10)
    assert len(engine.files()) == 12
    engine.start_compactions()
    for number in range(12):
        engine.write([Mutation(family, b"\0\1" + bytes([number]), b"")])
        engine.flush()
    wait_until(lambda: len(engine.files()) < 12, timeout=60)
    engine.start_compactions()
    engine.close()


@pytest.mark.parametrize("named", [(), (Compression.NONE,)])
def test_each_level_has_its_own_compression(tmp_path, named):
    engine = RocksDbEngine(tmp_path, RocksDbSettings(compression_per_level=named))
    engine.write([Mutation("s", b"\0\1%d" % n, bytes(1000)) for n in range(1000)])
    engine.flush()
    assert (sorted_files(tmp_path)[-1].stat().st_size > 900_000) == bool(named)
    engine.close()


def test_both_styles_of_compaction_read_what_the_other_wrote(tmp_path):
    rows = {n: os.urandom(20) for n in range(20_000)}
    for style in (CompactionStyle.LEVEL, CompactionStyle.UNIVERSAL, CompactionStyle.LEVEL):
        engine = RocksDbEngine(tmp_path, RocksDbSettings(compaction_style=style, level_zero_compaction_trigger=2))
        for _ in range(4):  # each file has all rows; enough files for a merge
            rows = {n: os.urandom(20) for n in rows}
            engine.write([Mutation("s", n.to_bytes(4, "big"), value) for n, value in rows.items()])
            engine.flush()
        engine.close()
        options = max(tmp_path.glob("OPTIONS-*")).read_text()
        assert f"compaction_style=kCompactionStyle{style.value.title()}" in options
    engine = RocksDbEngine(tmp_path)
    assert engine.get_many("s", [n.to_bytes(4, "big") for n in rows]) == list(rows.values())
    engine.close()


def test_starting_a_flush_succeeds_if_flushes_are_already_running(tmp_path, monkeypatch):
    engine = RocksDbEngine(tmp_path)
    fill(engine, 10)

    class Stopped:
        message = "Operation failed. Try again.: Writes have been stopped, thus unable to perform manual flush."

        def flush(self, wait):  # noqa: ARG002 - as an Rdict's
            raise Exception(self.message)  # noqa: TRY002 - as rocksdict does

    monkeypatch.setitem(engine._tables, "s", Stopped())
    engine.begin_flush()
    with pytest.raises(StoreIOError):
        engine.flush()
    Stopped.message = "IO error: gone"
    with pytest.raises(StoreIOError):
        engine.begin_flush()
    monkeypatch.undo()
    engine.close()


def test_the_shared_memory_is_created_at_first_use_and_not_at_import():
    program = "from keyscale.state.engine import rocksdb, rocksdb_options; assert rocksdb_options._memory is None"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.parametrize("partitioned", [False, True])
def test_index_and_filters_are_partitioned_if_the_settings_say_so(tmp_path, partitioned):
    engine = RocksDbEngine(tmp_path, RocksDbSettings(partitioned_index=partitioned))
    fill(engine)
    facts = engine._table("s").property_value("rocksdb.aggregated-table-properties")
    assert ("# index partitions=" in facts) == partitioned
    keys = [b"\0\1" + n.to_bytes(4, "big") for n in (0, 19_999, 20_000)]
    assert [value is not None for value in engine.get_many("s", keys)] == [True, True, False]
    engine.close()


def filter_bits_a_key(engine):
    facts = dict(
        fact.strip().split("=", 1)
        for fact in engine._table("s").property_value("rocksdb.aggregated-table-properties").split(";")
        if "=" in fact
    )
    return 8 * int(facts["filter block size"]) / int(facts["# entries"])


def test_files_of_a_batch_use_fast_compression_and_the_lowest_level_strong_compression(tmp_path):
    engine = RocksDbEngine(tmp_path / "store")
    keys = [b"\0\1" + n.to_bytes(4, "big") for n in range(10_000)]
    engine.write_sorted_file(SortedRun("s", keys, [b"v"] * len(keys)), tmp_path / "batch.sst")
    names = re.compile(rb"LZ4|ZSTD")  # in a file's properties
    assert set(names.findall((tmp_path / "batch.sst").read_bytes())) == {b"LZ4"}
    engine.ingest("s", [tmp_path / "batch.sst"])
    engine.compact()
    engine.close()
    assert {name for file in (tmp_path / "store").glob("*.sst") for name in names.findall(file.read_bytes())} == {
        b"ZSTD"
    }


def test_files_of_a_batch_have_fast_filters_and_the_lowest_level_has_small_ones(tmp_path):
    engine = RocksDbEngine(tmp_path / "store")
    keys = [b"\0\1" + n.to_bytes(4, "big") for n in range(100_000)]
    engine.write_sorted_file(SortedRun("s", keys, [b"v"] * len(keys)), tmp_path / "batch.sst")
    engine.ingest("s", [tmp_path / "batch.sst"])
    assert 11.5 < filter_bits_a_key(engine) < 12.5
    engine.compact()
    assert 7.5 < filter_bits_a_key(engine) < 9
    engine.close()


@pytest.mark.parametrize("profile", Profile)
def test_every_profile_opens_writes_reads_and_compacts(tmp_path, profile):
    settings = replace(RocksDbSettings.of(profile), bottommost_compression=Compression.ZSTD)
    engine = RocksDbEngine(tmp_path, settings)
    fill(engine, 2000)
    engine.compact()
    assert len(list(engine.scan("s", b"", None))) == 2000
    engine.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory_budget_bytes": 1},
        {"write_buffer_fraction": 1.0},
        {"background_threads": 0},
        {"batch_entries_max": 0},
        {"batch_bytes_max": 1 << 32},
        {"compression_per_level": (Compression.LZ4,) * 8},
    ],
)
def test_invalid_settings_are_refused(wrong):
    with pytest.raises(errors.SettingsError):
        replace(RocksDbSettings(), **wrong)


def every_error(kind=errors.KeyscaleError):
    return [kind, *(each for child in kind.__subclasses__() for each in every_error(child))]


@pytest.mark.parametrize("kind", [kind for kind in every_error() if kind.__module__ == "keyscale.state.errors"])
def test_every_error_survives_pickling_and_says_what_to_do(kind):
    error = pickle.loads(pickle.dumps(kind("what happened")))  # noqa: S301 (made here)
    assert (type(error), str(error)) == (kind, "what happened")
    assert kind.code.isupper()
    assert kind.domain in {"user", "external", "internal"}
    assert kind.advice.endswith(".")
