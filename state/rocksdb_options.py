"""RocksDB's options from our settings, and what all stores of a process share."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
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


@dataclass(slots=True)
class _Memory:
    """Block cache and write buffers of one process; write buffers are charged to the cache, so one budget holds for both."""

    process: int
    sizes: tuple[int, int]  # of all, of write buffers
    cache: Cache
    write_buffers: WriteBufferManager


_memory: _Memory | None = None


def shared_memory(settings: RocksDbSettings) -> _Memory:
    """The process's shared memory, made at first use and again after a fork: a child must not touch its parent's.

    Settings with another budget resize it: a process never has two.
    """
    global _memory  # noqa: PLW0603 (one budget a process is the point)
    budget_bytes = settings.memory_budget_bytes
    sizes = (budget_bytes, int(budget_bytes * settings.write_buffer_fraction))
    if _memory is None or _memory.process != os.getpid():
        # Not the LRU cache, whose many shards are smaller than the filter of one large file: such a filter was read again for
        # every few keys. This one's shards have 32 MiB, and are read without a lock.
        cache = Cache.new_hyper_clock_cache(budget_bytes, 0)
        buffers = WriteBufferManager.new_write_buffer_manager_with_cache(sizes[1], False, cache)
        _memory = _Memory(os.getpid(), sizes, cache, buffers)
    elif _memory.sizes != sizes:
        _memory.cache.set_capacity(sizes[0])
        _memory.write_buffers.set_buffer_size(sizes[1])
        _memory.sizes = sizes
    return _memory


def database_options(settings: RocksDbSettings) -> Options:
    """Options of a store and of every column family in it."""
    memory = shared_memory(settings)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_write_buffer_manager(memory.write_buffers)
    options.set_write_buffer_size(min(settings.write_buffer_bytes, settings.memory_budget_bytes))
    options.set_max_write_buffer_number(settings.write_buffer_count)
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
    env = Env()
    env.set_background_threads(settings.background_threads)
    env.set_bottom_priority_background_threads(1)  # a merge of a whole store takes long, and is in no other one's way
    options.set_env(env)
    options.set_block_based_table_factory(_table(settings, memory.cache))
    options.set_keep_log_file_num(2)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def _table(settings: RocksDbSettings, cache: Cache) -> BlockBasedOptions:
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(settings.block_bytes)
    table.set_block_restart_interval(_RESTART_KEYS)
    table.set_format_version(5)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    if settings.bloom_bits > 0:
        table.set_bloom_filter(settings.bloom_bits, False)
    if settings.partitioned_index:
        table.set_index_type(BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_pin_top_level_index_and_filter(True)
    return table


def _style(style: CompactionStyle) -> DBCompactionStyle:
    return DBCompactionStyle.universal() if style is CompactionStyle.UNIVERSAL else DBCompactionStyle.level()


def _compression(compression: Compression) -> DBCompressionType:
    return {
        Compression.NONE: DBCompressionType.none,
        Compression.LZ4: DBCompressionType.lz4,
        Compression.ZSTD: DBCompressionType.zstd,
    }[compression]()
