"""How RocksDB is set up: one settings class, predefined profiles, one memory budget a process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from state.errors import SettingsError

MEBIBYTE = 1 << 20
LEVELS = 7
_WRITE_BATCH_BYTES_MAX = 4095 * MEBIBYTE  # RocksDB counts the bytes of one write in 32 bits


class Profile(StrEnum):
    """Predefined settings for kinds of disks, after Flink's `PredefinedOptions`."""

    DEFAULT = "default"
    SPINNING_DISK = "spinning_disk"
    SPINNING_DISK_HIGH_MEMORY = "spinning_disk_high_memory"
    FLASH_SSD = "flash_ssd"


class Compression(StrEnum):
    """Compression of files on disk."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class CompactionStyle(StrEnum):
    """How RocksDB merges files."""

    UNIVERSAL = "universal"
    LEVEL = "level"


@dataclass(frozen=True, slots=True)
class RocksDbSettings:
    """Options of every RocksDB store of a process. Start from `RocksDbSettings.of(Profile...)`.

    Attributes:
        memory_budget_bytes: For block cache, write buffers, and the indexes and filters of all stores of a process together. Raise it when
            reads go to disk although memory is free; it is the main knob.
        write_buffer_fraction: Share of the budget that write buffers may fill before stores flush. Raise it for jobs that
            mostly write, lower it for jobs that mostly read.
        key_filter_fraction: Share of the budget that key filters may take, at the block cache's cost; 0 for none. A state that is
            asked for many keys at once, which are mostly not there, has one of 1.5 to 4 bytes a key that spares it their lookups. Raise it
            when such states have more keys than fit.
        write_buffer_bytes: Size at which one store's write buffer is flushed to a file. Larger means fewer, larger files.
        write_buffer_count: Write buffers a store may have at once, those being flushed included.
        compaction_style: UNIVERSAL merges files of like size, so that an entry is rewritten, and uploaded again, only a few times
            however large the state is. LEVEL keeps sorted levels: use it where the disk has no room for the state's size once
            more during a merge, or where reads of keys that are there outweigh all writes.
        level_zero_compaction_trigger: New files (level 0; with UNIVERSAL all that a read may have to look into) that start a
            compaction. Higher writes faster and reads slower; with UNIVERSAL less than 8 merges the same keys many times over.
        target_file_bytes: Size of the files below level 0. Smaller files make incremental checkpoints finer.
        level_base_bytes: Size of level 1 as a whole, with LEVEL.
        block_bytes: Size of a data block before compression. Larger compresses better; smaller reads single keys faster.
        bloom_bits: Bits a key of the Bloom filters that a file's filter is as good as, 0 for none. In the lowest levels it is a Ribbon
            filter, which takes 30 % fewer. 12 lets 0.4 % of the lookups of absent keys through to each file, 10 lets 1 %.
        partitioned_index: Split index and filters into blocks that are cached as needed, instead of keeping all in memory: some 1.5 bytes a
            key. Turn it on when that is more than half of the budget; large lookups cost a fifth more.
        compression: Of the upper levels, which are rewritten often, and of the files that large batches are written to, which are
            their changelogs as well. Use NONE where the processor is the bottleneck.
        compression_per_level: Of each level from 0 on, instead of `compression`; levels beyond the last one named are as it.
            Name it to leave only the levels that are rewritten most often uncompressed.
        bottommost_compression: Of the lowest level, which holds most of the data. ZSTD makes state smallest; LZ4 reads faster.
        background_threads: Threads for flush and compaction, shared by the stores of a process; those for compaction give way to
            batches where both want a processor. Raise it when writes stall while processors are idle.
        lookup_threads: Threads that share the lookups of a few thousand keys or more. Raise it where large states are on disks that serve
            many reads at once; 1 for none but the caller's.
        max_open_files: Files that a store keeps open, -1 for all. Limit it when the process runs out of file descriptors.
        direct_io: Bypass the operating system's page cache for flush and compaction. For hosts short of memory.
        local_directories: Absolute paths of directories for local state, one a disk, the same on every host. Each subtask's files
            go to the least used one. Name them to spread state over several disks; none: the job's local root alone.
        batch_entries_max: Entries that one batch may change in one subtask's state; they are in memory until it ends. Raise it
            when batches are meant to be so large and workers have the memory, about 200 bytes an entry.
        batch_bytes_max: Bytes of keys and values that one batch may change in one subtask's state, at most 4095 MiB; large
            runs count as the files that are written of them. Raise it for the same reason.
        background_consolidation: After a rescale, make each subtask's shards anew as one beside the batches, by a process of
            low priority, one at a time on a host. Turn it off where no memory (about 150 MB) or disk can be spared for it.
    """

    memory_budget_bytes: int = 512 * MEBIBYTE
    write_buffer_fraction: float = 0.5
    key_filter_fraction: float = 0.25
    write_buffer_bytes: int = 64 * MEBIBYTE
    write_buffer_count: int = 4
    compaction_style: CompactionStyle = CompactionStyle.UNIVERSAL
    level_zero_compaction_trigger: int = 8
    target_file_bytes: int = 64 * MEBIBYTE
    level_base_bytes: int = 256 * MEBIBYTE
    block_bytes: int = 4096
    bloom_bits: int = 12
    partitioned_index: bool = False
    compression: Compression = Compression.LZ4
    compression_per_level: tuple[Compression, ...] = ()
    bottommost_compression: Compression = Compression.ZSTD
    background_threads: int = 4
    lookup_threads: int = 2
    max_open_files: int = -1
    direct_io: bool = False
    local_directories: tuple[str, ...] = ()
    batch_entries_max: int = 50_000_000
    batch_bytes_max: int = 2048 * MEBIBYTE
    background_consolidation: bool = True

    def __post_init__(self) -> None:
        if self.memory_budget_bytes < 8 * MEBIBYTE:
            message = "the memory budget must be at least 8 MiB"
            raise SettingsError(message)
        if not 0 < self.write_buffer_fraction < 1:
            message = "the write buffers' share of the memory budget must be between 0 and 1"
            raise SettingsError(message)
        if not 0 <= self.key_filter_fraction <= 0.5:
            message = "the key filters' share of the memory budget must be between 0 and a half"
            raise SettingsError(message)
        if self.background_threads < 1:
            message = "there must be at least one background thread"
            raise SettingsError(message)
        if self.lookup_threads < 1:
            message = "there must be at least one thread for lookups"
            raise SettingsError(message)
        if len(self.compression_per_level) > LEVELS:
            message = f"there are {LEVELS} levels; compression is named for {len(self.compression_per_level)}"
            raise SettingsError(message)
        if self.batch_entries_max < 1 or not 0 < self.batch_bytes_max <= _WRITE_BATCH_BYTES_MAX:
            message = "a batch must be allowed at least one entry, and between 1 byte and 4095 MiB"
            raise SettingsError(message)
        if not all(directory.startswith("/") for directory in self.local_directories):
            message = "local directories must be absolute paths"
            raise SettingsError(message)

    @classmethod
    def of(cls, profile: Profile) -> RocksDbSettings:
        """The settings of a predefined profile."""
        base = cls()
        if profile is Profile.SPINNING_DISK:
            return replace(
                base, block_bytes=32 * 1024, target_file_bytes=256 * MEBIBYTE, level_base_bytes=1024 * MEBIBYTE
            )
        if profile is Profile.SPINNING_DISK_HIGH_MEMORY:
            return replace(
                base,
                memory_budget_bytes=1024 * MEBIBYTE,
                block_bytes=128 * 1024,
                target_file_bytes=256 * MEBIBYTE,
                level_base_bytes=1024 * MEBIBYTE,
            )
        if profile is Profile.FLASH_SSD:
            return replace(base, background_threads=8, partitioned_index=True)
        return base
