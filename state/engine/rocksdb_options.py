"""RocksDB's options, and the memory and threads shared within a process."""

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

from .rocksdb_settings import LEVELS, CompactionStyle, Compression, RocksDbSettings

# Multiples of the number of files that starts a compaction: RocksDB slows writes down, and stops them, at so many
# files. They are high, because a large merge takes seconds while each batch adds a file, and a snapshot's flush would
# wait for the compaction, too.
_SLOWDOWN_TRIGGERS = 8
_STOP_TRIGGERS = 12
# One in this many keys of a block is written in full. RocksDB's default of 16 takes 0.8 bytes more for a random 64-bit
# key, which is a tenth of the key; with 32, a lookup compares about 8 keys more.
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
# From this level on, files live long enough for Ribbon filters, which are slower to write and to query than Bloom
# filters.
_RIBBON_LEVEL = 5
_RAW = '{"raw_mode": true, "prefix_extractors": {}, "prefix_comparators": {}}'
# Added to the process's niceness for compaction threads. If a batch needs all processors, each of these threads gets a
# quarter of a processor: merging a large store takes longer, and batches at the same time take a fifth less time. With
# a higher niceness, files would pile up on hosts without an idle processor.
_NICENESS = 5
_NICENESS_MAX = 19
# Share of a write buffer for its Bloom filter. Most looked-up keys are absent from write buffers, and searching the
# write buffer takes longer than the rest of such a lookup.
_WRITE_BUFFER_FILTER = 0.02


@dataclass(slots=True)
class _Memory:
    """The memory budget of a process: block cache and write buffers.

    The write buffers are charged to the cache. The cache is smaller by `filters_bytes`, the memory of key filters, and
    by `charged_bytes`, the memory of the indexes and filters of open files and of the entries of large batches.
    """

    process: int
    sizes: tuple[int, int]  # of the whole budget, and of write buffers
    cache: Cache
    write_buffers: WriteBufferManager
    filters_bytes: int = 0
    charged_bytes: int = 0
    options: dict[tuple[RocksDbSettings, str, bool], Options] = field(default_factory=dict)

    def share_out(self) -> None:
        """Gives the cache the rest of the budget, at least 0."""
        self.cache.set_capacity(max(0, self.sizes[0] - self.filters_bytes - self.charged_bytes))


_memory: _Memory | None = None
_shares_lock = threading.Lock()  # one thread may close a store while another uses one


def shared_memory(settings: RocksDbSettings) -> _Memory:
    """Returns the process's memory, created at first use and after forks.

    A child must not use its parent's memory. Settings with another budget resize the memory, because a process has only
    one.
    """
    global _memory  # noqa: PLW0603 (a process has one budget)
    budget_bytes = settings.memory_budget_bytes
    sizes = (budget_bytes, int(budget_bytes * settings.write_buffer_fraction))
    if _memory is None or _memory.process != os.getpid():
        # Unlike the LRU cache, this cache is read without a lock.
        cache = Cache.new_hyper_clock_cache(budget_bytes, 0)
        buffers = WriteBufferManager.new_write_buffer_manager_with_cache(sizes[1], False, cache)
        _memory = _Memory(os.getpid(), sizes, cache, buffers)
    elif _memory.sizes != sizes:
        _memory.write_buffers.set_buffer_size(sizes[1])
        _memory.sizes = sizes
        _memory.share_out()
    return _memory


def reserve_filter_memory(settings: RocksDbSettings, size_bytes: int) -> bool:
    """Takes memory for key filters from the block cache, if possible.

    It returns False, and takes nothing, beyond the share of key filters.
    """
    memory = shared_memory(settings)
    with _shares_lock:
        if memory.filters_bytes + size_bytes > settings.memory_budget_bytes * settings.key_filter_fraction:
            return False
        memory.filters_bytes += size_bytes
        memory.share_out()
    return True


def release_filter_memory(size_bytes: int) -> None:
    """Gives reserved memory back to the block cache."""
    assert _memory is not None  # noqa: S101 (the memory was reserved there)
    with _shares_lock:
        _memory.filters_bytes -= size_bytes
        _memory.share_out()


def charge_cache(more_bytes: int) -> None:
    """Takes memory from the block cache, or returns it (negative).

    It serves the indexes and filters of a store's files, and the entries of a large batch.
    """
    assert _memory is not None  # noqa: S101 (the store's options come from there)
    with _shares_lock:
        _memory.charged_bytes += more_bytes
        _memory.share_out()


def database_options(settings: RocksDbSettings, *, compacts: bool = True) -> Options:
    """Returns the options of a store and its column families.

    A process always gets the same object. `compacts` says whether the store compacts its files by itself.
    """
    return _known_options(settings, f"ribbonfilter:{settings.bloom_bits}:{_RIBBON_LEVEL}", compacts=compacts)


def batch_file_options(settings: RocksDbSettings) -> Options:
    """Returns the options of a batch's files, which are soon merged.

    RocksDB's file writer uses the lowest level's compression for every file, so these options set it to the upper
    levels' compression.
    """
    upper = replace(settings, bottommost_compression=settings.compression)
    return _known_options(upper, f"bloomfilter:{settings.bloom_bits}:false")


def _known_options(settings: RocksDbSettings, filter_policy: str, *, compacts: bool = True) -> Options:
    memory = shared_memory(settings)
    known = (settings, filter_policy, compacts)
    if known not in memory.options:
        options = memory.options[known] = _options(settings, filter_policy, memory)
        options.set_disable_auto_compactions(not compacts)
    return memory.options[known]


def _options(settings: RocksDbSettings, filter_policy: str, memory: _Memory) -> Options:
    options = _with_table(settings, filter_policy, memory.cache)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_write_buffer_manager(memory.write_buffers)
    # At least two fit into their share: writes continue in one while another is flushed.
    options.set_write_buffer_size(min(settings.write_buffer_bytes, memory.sizes[1] // 2))
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
    """Starts the compaction threads, which inherit a thread's niceness."""
    env = Env()

    def start() -> None:
        niceness = min(os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS, _NICENESS_MAX)
        with suppress(OSError):  # only on Linux do threads have their own niceness
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        env.set_background_threads(threads)
        env.set_bottom_priority_background_threads(1)  # so that the long merge of a whole store delays no other merge

    starter = threading.Thread(target=start, name="start-rocksdb")
    starter.start()
    starter.join()
    return env


def _with_table(settings: RocksDbSettings, filter_policy: str, cache: Cache) -> Options:
    """Returns options with only the table format set.

    They are loaded from a file, because rocksdict has no setter for Ribbon filters. Ribbon filters are as good as Bloom
    filters that are 30 % larger, but take somewhat longer to write.
    """
    # Unless they are partitioned, indexes and filters are not blocks of the cache. Each file's filter is one block, and
    # during a large merge level 0 has files of hundreds of megabytes: a filter as large as a shard of the cache was
    # read again for every few keys.
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
