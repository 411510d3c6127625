"""The settings of RocksDB, with predefined profiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from ..errors import SettingsError

MEBIBYTE = 1 << 20
LEVELS = 7
_WRITE_BATCH_BYTES_MAX = 4095 * MEBIBYTE  # RocksDB counts the bytes of one write in 32 bits


class Profile(StrEnum):
    """Predefined settings per kind of disk, after Flink's `PredefinedOptions`."""

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
    """Options of every RocksDB store of a process.

    Start from `RocksDbSettings.of(Profile...)`.

    Attributes:
        memory_budget_bytes: The memory for the block cache, write buffers, indexes and filters of all stores of a
            process, and for the entries that its batch has read or changed. It is the most important setting. Raise it
            if reads go to disk although memory is free.
        write_buffer_fraction: Share of the budget that write buffers may fill before stores flush. Raise it for jobs
            that mostly write, lower it for jobs that mostly read.
        key_filter_fraction: Share of the budget for key filters, taken from the block cache; 0 for none. A key filter
            spares lookups of absent keys. A state gets a filter if it has large lookups of mostly absent keys; the
            filter takes 1.5 to 4 bytes per key. Raise the share if such states have more keys than fit.
        batch_fraction: Share of the budget for the entries that a running batch has read or changed, taken from the
            block cache; a small batch takes none. When they take more, read entries are dropped, and changes are
            spilled to files. Raise it for jobs that change much state in one batch.
        write_buffer_bytes: Size at which one store's write buffer is flushed to a file. A larger size means fewer,
            larger files.
        write_buffer_count: Write buffers that a store may have at once, including buffers that are being flushed.
        compaction_style: UNIVERSAL merges files of similar size, so that an entry is rewritten, and uploaded again,
            only a few times however large the state is. LEVEL keeps sorted levels. Use LEVEL if the disk has no room
            for a second copy of the state during a merge, or if reads of existing keys outweigh all writes.
        level_zero_compaction_trigger: Number of new files (in level 0; with UNIVERSAL, of all files that a read may
            have to search) that starts a compaction. A higher number makes writes faster and reads slower. With
            UNIVERSAL, less than 8 merges the same keys many times.
        target_file_bytes: Size of the files below level 0. Smaller files make incremental checkpoints finer.
        level_base_bytes: Total size of level 1, with LEVEL.
        block_bytes: Size of a data block before compression. Larger blocks compress better; smaller blocks make reads
            of single keys faster.
        bloom_bits: Bits per key of each file's Bloom filter; 0 for no filter. The lowest levels have a Ribbon filter of
            the same quality, which is 30 % smaller. With 12 bits, 0.4 % of the lookups of absent keys read a file; with
            10 bits, 1 %.
        partitioned_index: Split indexes and filters into blocks that are cached as needed, instead of keeping all of
            them in memory, where they take about 1.5 bytes per key. Turn it on if that is more than half of the budget.
            Large lookups then take a fifth longer.
        compression: Compression of the upper levels, which are rewritten often, and of the files of large batches,
            which are also their changelogs. Use NONE if the processor is the bottleneck.
        compression_per_level: Compression of each level from 0 on, instead of `compression`, which still applies to the
            remaining levels. Set it to leave only the most often rewritten levels uncompressed.
        bottommost_compression: Compression of the lowest level, which holds most of the data. ZSTD makes the state
            smallest; LZ4 makes reads faster.
        background_threads: Threads for flushes and compactions, shared by the stores of a process. Compaction threads
            have a lower priority than batches. Raise it if writes stall while processors are idle.
        lookup_threads: Threads that share a lookup of a few thousand keys or more; 1 uses only the calling thread.
            Raise it for large states on disks that serve many reads at once.
        max_open_files: Files that a store keeps open; -1 for all. Limit it if the process runs out of file descriptors.
        direct_io: Bypass the operating system's page cache in flushes and compactions. For hosts with little memory.
        local_directories: Absolute paths of directories for local state, one per disk, the same on every host. Each
            subtask's files go to the least used directory. Set them to spread state over several disks; if empty, only
            the job's local root is used.
        batch_entries_max: Changed entries of one subtask's state that may be in memory at once, whatever their size.
            Lower it to spill changes earlier.
        batch_bytes_max: Bytes of keys and values that one batch may change in one subtask's state, at most 4095 MiB;
            large runs count with the size of their files. Raise it if batches need to be larger.
        background_consolidation: After a rescale, rewrite each subtask's shards as a single shard beside the batches,
            in a process of low priority, one at a time per host. Turn it off if about 150 MB of memory, or the disk
            space, cannot be spared.
    """

    memory_budget_bytes: int = 512 * MEBIBYTE
    write_buffer_fraction: float = 0.5
    key_filter_fraction: float = 0.25
    batch_fraction: float = 0.5
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
            raise SettingsError("the memory budget must be at least 8 MiB")
        if not 0 < self.write_buffer_fraction < 1:
            raise SettingsError("the write buffers' share of the memory budget must be between 0 and 1")
        if not 0 <= self.key_filter_fraction <= 0.5:
            raise SettingsError("the key filters' share of the memory budget must be between 0 and 0.5")
        if not 0 < self.batch_fraction < 1:
            raise SettingsError("a batch's share of the memory budget must be between 0 and 1")
        if self.background_threads < 1:
            raise SettingsError("there must be at least one background thread")
        if self.lookup_threads < 1:
            raise SettingsError("there must be at least one lookup thread")
        if len(self.compression_per_level) > LEVELS:
            raise SettingsError(
                f"there are {LEVELS} levels, but compression is set for {len(self.compression_per_level)}"
            )
        if self.batch_entries_max < 1 or not 0 < self.batch_bytes_max <= _WRITE_BATCH_BYTES_MAX:
            raise SettingsError("batch_entries_max must be at least 1, and batch_bytes_max between 1 byte and 4095 MiB")
        if not all(directory.startswith("/") for directory in self.local_directories):
            raise SettingsError("local directories must be absolute paths")

    @classmethod
    def of(cls, profile: Profile) -> RocksDbSettings:
        """Returns the settings of a predefined profile."""
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
