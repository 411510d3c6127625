"""RocksDB's options from our settings, and what all stores of a process share."""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from rocksdict import (
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    Env,
    Options,
    WriteBufferManager,
)

from state.settings import LEVELS, CompactionStyle, Compression, RocksDbSettings

# Of the files that start a compaction, how many times as many slow writes down, and stop them. Snapshots flush, and so wait for
# the compactions that writes would wait for: a large merge takes seconds, while each batch adds a file.
_SLOWDOWN_TRIGGERS = 8
_STOP_TRIGGERS = 12
# Every so many keys of a block one is written in full. RocksDB's own 16 takes 0.8 bytes more for a random 64-bit key, a tenth of
# it; a lookup compares some 8 keys more.
_RESTART_KEYS = 32
_OPTIONS_FILE = """\
[Version]
  rocksdb_version=9.8.4
  options_file_version=1.1
[DBOptions]
[CFOptions "default"]
  table_factory=BlockBasedTable
[TableOptions/BlockBasedTable "default"]
"""
# From this level on files last long enough for Ribbon filters, which take more time to write and to ask than Bloom filters.
_RIBBON_LEVEL = 5
_RAW = '{"raw_mode": true, "prefix_extractors": {}, "prefix_comparators": {}}'
# Of threads for compaction, above the process's own. Where a batch wants all processors they get a quarter of one each: a merge of a large
# store takes longer, and batches beside it a fifth less time. More would let files pile up on hosts without an idle processor.
_NICENESS = 5
_NICENESS_MAX = 19
# Share of a write buffer that its Bloom filter takes. Most reads are of keys that no write buffer has, and looking for one in it
# takes longer than all else that such a read does.
_WRITE_BUFFER_FILTER = 0.02


@dataclass(slots=True)
class _Memory:
    """Block cache and write buffers of one process; write buffers are charged to the cache, so one budget holds for both.

    What key filters take, `filters_bytes`, and the indexes and filters of open files, `tables_bytes`, the cache goes without.
    """

    process: int
    sizes: tuple[int, int]  # of all, of write buffers
    cache: Cache
    write_buffers: WriteBufferManager
    filters_bytes: int = 0
    tables_bytes: int = 0
    options: dict[tuple[RocksDbSettings, str], Options] = field(default_factory=dict)

    def share_out(self) -> None:
        """Gives the cache what the others leave: nothing, if that is less than nothing."""
        self.cache.set_capacity(max(0, self.sizes[0] - self.filters_bytes - self.tables_bytes))


_memory: _Memory | None = None
_shares_lock = threading.Lock()  # stores are closed by other threads than those that use them


def shared_memory(settings: RocksDbSettings) -> _Memory:
    """The process's shared memory, made at first use and again after a fork: a child must not touch its parent's.

    Settings with another budget resize it: a process never has two.
    """
    global _memory  # noqa: PLW0603 (one budget a process is the point)
    budget_bytes = settings.memory_budget_bytes
    sizes = (budget_bytes, int(budget_bytes * settings.write_buffer_fraction))
    if _memory is None or _memory.process != os.getpid():
        # Not the LRU cache: this one is read without a lock.
        cache = Cache.new_hyper_clock_cache(budget_bytes, 0)
        buffers = WriteBufferManager.new_write_buffer_manager_with_cache(sizes[1], False, cache)
        _memory = _Memory(os.getpid(), sizes, cache, buffers)
    elif _memory.sizes != sizes:
        _memory.write_buffers.set_buffer_size(sizes[1])
        _memory.sizes = sizes
        _memory.share_out()
    return _memory


def reserve_filter_memory(settings: RocksDbSettings, size_bytes: int) -> bool:
    """Take memory for key filters from the block cache; False, and nothing, if filters would have more than their share."""
    memory = shared_memory(settings)
    with _shares_lock:
        if memory.filters_bytes + size_bytes > settings.memory_budget_bytes * settings.key_filter_fraction:
            return False
        memory.filters_bytes += size_bytes
        memory.share_out()
    return True


def release_filter_memory(size_bytes: int) -> None:
    """Give back what was reserved."""
    assert _memory is not None  # noqa: S101 - it was reserved of it
    with _shares_lock:
        _memory.filters_bytes -= size_bytes
        _memory.share_out()


def charge_tables(more_bytes: int) -> None:
    """Take memory for indexes and filters of a store's files from the block cache, or give it back if it is less than 0."""
    assert _memory is not None  # noqa: S101 - a store has options of it
    with _shares_lock:
        _memory.tables_bytes += more_bytes
        _memory.share_out()


def database_options(settings: RocksDbSettings) -> Options:
    """Options of a store and of every column family in it; the same ones each time in one process."""
    return _known_options(settings, f"ribbonfilter:{settings.bloom_bits}:{_RIBBON_LEVEL}")


def batch_file_options(settings: RocksDbSettings) -> Options:
    """Options of the files that a batch's changes are written to, which are soon merged.

    RocksDB's writer of such files goes by the lowest level's compression, whatever level they come to; they are given the upper ones'.
    """
    upper = replace(settings, bottommost_compression=settings.compression)
    return _known_options(upper, f"bloomfilter:{settings.bloom_bits}:false")


def _known_options(settings: RocksDbSettings, filter_policy: str) -> Options:
    memory = shared_memory(settings)
    known = (settings, filter_policy)
    if known not in memory.options:
        memory.options[known] = _options(settings, filter_policy, memory)
    return memory.options[known]


def _options(settings: RocksDbSettings, filter_policy: str, memory: _Memory) -> Options:
    options = _with_table(settings, filter_policy, memory.cache)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_write_buffer_manager(memory.write_buffers)
    options.set_write_buffer_size(min(settings.write_buffer_bytes, settings.memory_budget_bytes))
    options.set_max_write_buffer_number(settings.write_buffer_count)
    if settings.bloom_bits > 0:
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(_WRITE_BUFFER_FILTER)
    options.set_compaction_style(_style(settings.compaction_style))
    options.set_level_zero_file_num_compaction_trigger(settings.level_zero_compaction_trigger)
    options.set_level_zero_slowdown_writes_trigger(settings.level_zero_compaction_trigger * _SLOWDOWN_TRIGGERS)
    options.set_level_zero_stop_writes_trigger(settings.level_zero_compaction_trigger * _STOP_TRIGGERS)
    options.set_target_file_size_base(settings.target_file_bytes)
    options.set_max_bytes_for_level_base(settings.level_base_bytes)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_compression_type(_compression(settings.compression))
    if settings.compression_per_level:
        named = settings.compression_per_level
        levels = [*named, *[settings.compression] * (LEVELS - len(named))]
        options.set_compression_per_level([_compression(each) for each in levels])
    options.set_bottommost_compression_type(_compression(settings.bottommost_compression))
    options.set_max_open_files(settings.max_open_files)
    options.set_use_direct_io_for_flush_and_compaction(settings.direct_io)
    options.set_max_background_jobs(settings.background_threads)
    options.set_env(_environment(settings.background_threads))
    options.set_keep_log_file_num(2)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def _environment(threads: int) -> Env:
    """The process's threads for compaction, which RocksDB starts here. A thread's niceness is that of the one that starts it."""
    env = Env()

    def start() -> None:
        niceness = min(os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS, _NICENESS_MAX)
        with suppress(OSError):  # threads have none of their own outside of Linux
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        env.set_background_threads(threads)
        env.set_bottom_priority_background_threads(1)  # a merge of a whole store is long, and is in no other one's way

    starter = threading.Thread(target=start, name="start-rocksdb")
    starter.start()
    starter.join()
    return env


def _with_table(settings: RocksDbSettings, filter_policy: str, cache: Cache) -> Options:
    """Options with the format of tables only, from a file as RocksDB writes them: rocksdict has no setter for Ribbon filters.

    They are as good as Bloom filters that take 30 % more room, for some more time when a file is written.
    """
    # Indexes and filters are no blocks of the cache unless they are split. A file's filter is one block, and level 0 has files of hundreds
    # of megabytes while a large merge runs: a filter as large as a shard of the cache was read again for every few keys.
    table: dict[str, str | int] = {
        "block_size": settings.block_bytes,
        "block_restart_interval": _RESTART_KEYS,
        "format_version": 5,
    }
    if settings.bloom_bits > 0:
        table["filter_policy"] = filter_policy
    if settings.partitioned_index:
        table |= {
            "index_type": "kTwoLevelIndexSearch",
            "partition_filters": "true",
            "cache_index_and_filter_blocks": "true",
            "pin_l0_filter_and_index_blocks_in_cache": "true",
            "pin_top_level_index_and_filter": "true",
        }
    with tempfile.TemporaryDirectory() as directory:
        lines = [f"  {name}={value}\n" for name, value in table.items()]
        Path(directory, "OPTIONS-000001").write_text(_OPTIONS_FILE + "".join(lines))
        Path(directory, "rocksdict-config.json").write_text(_RAW)
        _, families = Options.load_latest(directory, Env(), False, cache)
    return families["default"]


def _style(style: CompactionStyle) -> DBCompactionStyle:
    return DBCompactionStyle.universal() if style is CompactionStyle.UNIVERSAL else DBCompactionStyle.level()


def _compression(compression: Compression) -> DBCompressionType:
    return {
        Compression.NONE: DBCompressionType.none,
        Compression.LZ4: DBCompressionType.lz4,
        Compression.ZSTD: DBCompressionType.zstd,
    }[compression]()
