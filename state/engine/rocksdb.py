"""The RocksDB engine.

Only this module and `rocksdb_options` import rocksdict. The engine writes no write-ahead log: a batch's changes are
durable in its changelog in the object store, and a store whose process died is rebuilt, never recovered from local
files.
"""

from __future__ import annotations

import os
import shutil
from itertools import chain, islice
from typing import TYPE_CHECKING, cast
from uuid import uuid4

from rocksdict import (
    BottommostLevelCompaction,
    Checkpoint,
    CompactOptions,
    DbClosedError,
    IngestExternalFileOptions,
    Rdict,
    ReadOptions,
    SstFileWriter,
    WriteBatch,
    WriteOptions,
)

from ..errors import (
    DiskForbiddenError,
    DiskFullError,
    DiskReadOnlyError,
    StateError,
    StoreClosedError,
    StoreCorruptError,
    StoreIOError,
    StoreLockedError,
)
from .key_group_sizes import FileFacts
from .lookups import Lookups
from .rocksdb_options import batch_file_options, charge_cache, database_options
from .rocksdb_settings import RocksDbSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from rocksdict import ColumnFamily

    from .engine import Mutation, SortedRun

DEFAULT_FAMILY = "default"  # RocksDB always has this family; a state cannot have the name
_BUSY = (
    "rocksdb.mem-table-flush-pending",
    "rocksdb.num-running-flushes",
    "rocksdb.num-running-compactions",
)
_TABLES_BYTES = "rocksdb.estimate-table-readers-mem"
_TRY_AGAIN = "Try again"  # part of RocksDB's message, the only sign of this error
_FIRST_CHUNK = 64
_LAST_CHUNK = 4096
_CHUNK_BYTES = 1 << 20
_LISTED_AT_ONCE = 32


class RocksDbEngine:
    """An `Engine` in one RocksDB directory.

    Open it in the process that uses it, never before a fork.
    """

    def __init__(self, directory: Path, settings: RocksDbSettings | None = None, *, compacts: bool = True) -> None:
        """Opens the store in `directory`, or creates one.

        Args:
            directory: The store's directory.
            settings: The store's settings.
            compacts: Whether the store compacts its files from now on, or only after `start_compactions`.

        Raises:
            StoreLockedError: Another engine, in this or another process, has the store open.
            StoreCorruptError: Files are damaged or missing.
            DiskFullError, DiskReadOnlyError, StoreIOError: The directory cannot be used.
        """
        self.directory = directory
        settings = settings or RocksDbSettings()
        self._lookups = Lookups(settings.lookup_threads)
        self._write_options = WriteOptions()
        # rocksdict's types call this property a method.
        self._write_options.disable_wal = True  # type: ignore[method-assign,assignment]
        self._closed = False
        self._found_damage = False
        self._tables: dict[str, Rdict] = {}
        self._column_families: dict[str, ColumnFamily] = {}
        self._tables_bytes = 0
        try:
            self._options = database_options(settings, compacts=compacts)
            self._started_options = database_options(settings)
            self._batch_file_options = batch_file_options(settings)
            directory.mkdir(parents=True, exist_ok=True)
            exists = (directory / "CURRENT").exists()
            names = Rdict.list_cf(str(directory), self._options) if exists else [DEFAULT_FAMILY]
            self._database = Rdict(str(directory), self._options, dict.fromkeys(names, self._options))
            for name in names:
                if name != DEFAULT_FAMILY:
                    self._attach(name)
        except Exception as error:
            raise self._failure(error, directory) from error
        self._charge_tables()

    def get(self, family: str, key: bytes) -> bytes | None:
        table = self._tables.get(family)
        if table is None:
            self._check_open()
            return None
        try:
            return table.get(key)
        except Exception as error:
            raise self._failure(error, self.directory) from error

    def get_many(self, family: str, keys: list[bytes]) -> list[bytes | None]:
        table = self._tables.get(family)
        if table is None or not keys:
            self._check_open()
            return [None] * len(keys)
        try:
            # rocksdict's get also takes a list of keys, and then returns the list of their values.
            return self._lookups.get(table.get, keys)  # type: ignore[arg-type]
        except Exception as error:
            raise self._failure(error, self.directory) from error

    def scan(
        self, family: str, start: bytes, end: bytes | None, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        # In chunks, each with its own iterator: an unfinished scan must not keep the store open.
        size, left = _FIRST_CHUNK if limit is None else min(limit, _LAST_CHUNK), limit
        ended, small = left == 0, False
        while not ended:
            chunk, ended = self._chunk(family, start, end, size, small=small)
            yield from chunk
            small = len(chunk) == size
            if left is not None:
                left -= len(chunk)
                ended = ended or left == 0
            start = chunk[-1][0] + b"\0" if chunk else start
            size = min(size * 4, _LAST_CHUNK) if left is None else min(left, _LAST_CHUNK)

    def scan_keys(self, family: str, start: bytes, end: bytes | None) -> Iterator[bytes]:
        ended = False
        while not ended:
            chunk, ended = self._chunk(family, start, end, _LAST_CHUNK, keys_only=True)
            yield from (key for key, _ in chunk)
            start = chunk[-1][0] + b"\0" if chunk else start

    def last_key(self, family: str, start: bytes, end: bytes) -> bytes | None:
        table = self._tables.get(family)
        if table is None:
            self._check_open()
            return None
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        try:
            iterator = table.iter(options)
            iterator.seek_to_last()
            iterator.status()
            found = iterator.key() if iterator.valid() else None
        except Exception as error:
            raise self._failure(error, self.directory) from error
        return found if found is not None and found >= start else None

    def write(self, mutations: Iterable[Mutation]) -> None:
        batch = WriteBatch(raw_mode=True)
        for family, key, value in mutations:
            column_family = self._column_family(family)
            if value is None:
                batch.delete(key, column_family)
            else:
                batch.put(key, value, column_family)
        self._commit(batch)

    def write_runs(self, runs: Sequence[SortedRun]) -> None:
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for run in runs:
            column_family = self._column_family(run.family)
            for key, value in zip(run.keys, run.values, strict=True):
                if value is None:
                    delete(key, column_family)
                else:
                    put(key, value, column_family)
        self._commit(batch)

    def split(self, run: SortedRun) -> list[SortedRun]:
        return [run] if len(run) else []

    def write_sorted_file(self, run: SortedRun, file: Path) -> None:
        try:
            writer = SstFileWriter(options=self._batch_file_options)
            writer.open(str(file))
            _append(writer, run)
            writer.finish()
        except Exception as error:
            raise self._failure(error, file) from error

    def ingest(self, family: str, files: Sequence[Path]) -> None:
        self._column_family(family)
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        links: list[Path] = []
        try:
            for file in files:  # RocksDB removes the files it moves, so it gets links, or copies across file systems
                link = self.directory / f"{uuid4().hex}.ingest"
                links.append(link)
                try:
                    os.link(file, link)
                except OSError:
                    shutil.copyfile(file, link)
            self._tables[family].ingest_external_file([str(link) for link in links], options)
        except Exception as error:
            raise self._failure(error, self.directory) from error
        finally:
            for link in links:
                link.unlink(missing_ok=True)
        self._charge_tables()

    def delete_range(self, start: bytes, end: bytes | None, family: str | None = None) -> None:
        try:
            for name in self.families() if family is None else [family]:
                table = self._table(name)
                upper = end
                if upper is None:  # a range delete needs an exclusive end: the first key after the last
                    iterator = table.iter()
                    iterator.seek_to_last()
                    iterator.status()
                    if not iterator.valid() or iterator.key() < start:
                        continue
                    upper = iterator.key() + b"\0"
                if start < upper:
                    table.delete_range(start, upper, self._write_options)
        except Exception as error:
            raise self._failure(error, self.directory) from error

    def families(self) -> list[str]:
        self._check_open()
        return sorted(self._tables)

    def flush(self) -> None:
        self._flush(wait=True)

    def begin_flush(self) -> None:
        try:
            self._flush(wait=False)
        except StoreIOError as error:
            if _TRY_AGAIN not in str(error):  # flushes are already running, and writes wait for them
                raise

    def checkpoint(self, directory: Path) -> None:
        # Flushes all families at once; the checkpoint waits for these flushes, and would otherwise flush one after
        # another.
        self.begin_flush()
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            Checkpoint(self._database).create_checkpoint(str(directory))
        except Exception as error:
            raise self._failure(error, directory) from error

    def compact(self, family: str | None = None) -> None:
        self.flush()
        options = CompactOptions()
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
        try:
            for table in self._tables.values() if family is None else [self._table(family)]:
                table.compact_range(None, None, options)
        except Exception as error:
            raise self._failure(error, self.directory) from error

    def start_compactions(self) -> None:
        """Lets the store compact its files from now on."""
        if self._options is self._started_options:
            return
        try:
            for table in self._tables.values():
                table.set_options({"disable_auto_compactions": "false"})
        except Exception as error:
            raise self._failure(error, self.directory) from error
        self._options = self._started_options

    def is_busy(self) -> bool:
        self._check_open()
        return any(table.property_int_value(name) for table in self._tables.values() for name in _BUSY)

    def size_bytes(self) -> int:
        self._check_open()
        total = 0
        for table in self._tables.values():
            total += table.property_int_value("rocksdb.estimate-live-data-size") or 0
            total += table.property_int_value("rocksdb.cur-size-all-mem-tables") or 0
        return total

    def file_bytes(self, family: str) -> int:
        """Returns the bytes of a family's files; 0 without the family."""
        self._check_open()
        table = self._tables.get(family)
        return 0 if table is None else table.property_int_value("rocksdb.total-sst-files-size") or 0

    def files(self) -> list[FileFacts]:
        """Returns the facts of all flushed files."""
        self._check_open()
        return [
            FileFacts(
                first=file["start_key"],
                last=file["end_key"],
                entries=max(0, file["num_entries"] - 2 * file["num_deletions"]),
                size_bytes=file["size"],
            )
            for file in self._database.live_files()
            if file["start_key"] is not None and file["end_key"] is not None
        ]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._lookups.close()
        self._column_families.clear()
        charge_cache(-self._tables_bytes)
        tables = [*self._tables.values(), self._database]
        self._tables.clear()
        failure: Exception | None = None
        for table in tables:  # all must be closed, or the directory stays locked
            try:
                table.close()
            except Exception as error:  # noqa: BLE001 (raised below)
                failure = failure or error
        if failure is not None:
            raise self._failure(failure, self.directory) from failure

    def _flush(self, *, wait: bool) -> None:
        self._check_open()
        try:
            for table in self._tables.values():
                table.flush(wait)
        except Exception as error:
            raise self._failure(error, self.directory) from error
        self._charge_tables()

    def _charge_tables(self) -> None:
        """Charges all files' indexes and filters to the memory budget."""
        now = sum(table.property_int_value(_TABLES_BYTES) or 0 for table in self._tables.values())
        charge_cache(now - self._tables_bytes)
        self._tables_bytes = now

    def _attach(self, family: str) -> None:
        self._tables[family] = self._database.get_column_family(family)
        self._column_families[family] = self._database.get_column_family_handle(family)

    def _table(self, family: str) -> Rdict:
        self._column_family(family)
        return self._tables[family]

    def _column_family(self, family: str) -> ColumnFamily:
        column_family = self._column_families.get(family)
        if column_family is None:
            self._check_open()
            try:
                self._database.create_column_family(family, self._options)
                self._attach(family)
            except Exception as error:
                raise self._failure(error, self.directory) from error
            column_family = self._column_families[family]
        return column_family

    def _commit(self, batch: WriteBatch) -> None:
        try:
            self._database.write(batch, self._write_options)
        except Exception as error:
            raise self._failure(error, self.directory) from error

    def _chunk(
        self, family: str, start: bytes, end: bytes | None, size: int, *, keys_only: bool = False, small: bool = False
    ) -> tuple[list[tuple[bytes, bytes]], bool]:
        """Returns up to `size` entries, and whether they are the last.

        `small` says that the entries before were small, so that some can be read at once.
        """
        self._check_open()
        table = self._tables.get(family)
        if table is None or (end is not None and start >= end):
            return [], True
        options = ReadOptions()
        if end is not None:
            options.set_iterate_upper_bound(end)
        chunk: list[tuple[bytes, bytes]] = []
        room = _CHUNK_BYTES
        try:
            if small:
                chunk = _listed(table, start, options, size)
                if chunk:
                    return chunk, False
            iterator = table.iter(options)
            iterator.seek(start)
            valid, advance, append = iterator.valid, iterator.next, chunk.append
            key, value = iterator.key, bytes if keys_only else iterator.value
            while there := valid():
                entry = key(), value()
                append(entry)
                room -= len(entry[0]) + len(entry[1])
                if len(chunk) == size or room <= 0:
                    break
                advance()
            iterator.status()
        except Exception as error:
            raise self._failure(error, self.directory) from error
        return chunk, not there

    @property
    def found_damage(self) -> bool:
        return self._found_damage

    def _failure(self, error: Exception, where: Path) -> StateError:
        failure = _translated(error, where)
        self._found_damage = self._found_damage or isinstance(failure, StoreCorruptError)
        return failure

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"the store in {self.directory} is closed")


class SortedFiles:
    """Writes ascending runs of a family as files for a store.

    Unlike the files of a batch, the files have the compression and the filters of a store's lowest level.
    """

    def __init__(self, directory: Path, settings: RocksDbSettings | None = None) -> None:
        """Creates the writer of files in an existing directory."""
        settings = settings or RocksDbSettings()
        self.paths: list[Path] = []
        self._directory = directory
        self._options = database_options(settings)
        self._file_bytes_max = settings.target_file_bytes
        self._writer: SstFileWriter | None = None

    def append(self, run: SortedRun) -> None:
        """Appends a run with keys greater than all keys before.

        Raises:
            DiskFullError, DiskReadOnlyError, StoreIOError: The directory cannot be written.
        """
        if not len(run):
            return
        try:
            if self._writer is None:
                self.paths.append(self._directory / f"{uuid4().hex}.sst")
                self._writer = SstFileWriter(options=self._options)
                self._writer.open(str(self.paths[-1]))
            _append(self._writer, run)
            is_full = self._writer.file_size() >= self._file_bytes_max
        except Exception as error:
            raise _translated(error, self._directory) from error
        if is_full:
            self.finish()

    def finish(self) -> None:
        """Completes the last file; raises as `append`."""
        if self._writer is None:
            return
        try:
            self._writer.finish()
        except Exception as error:
            raise _translated(error, self._directory) from error
        self._writer = None


def _listed(table: Rdict, start: bytes, options: ReadOptions, size: int) -> list[tuple[bytes, bytes]]:
    """Returns up to `size` entries from a key on.

    Only an iterator with a status tells a damaged block from the end, so an empty list may be either.
    """
    # rocksdict's types do not know that the keys are bytes.
    entries = cast("Iterator[tuple[bytes, bytes]]", table.items(from_key=start, read_opt=options))
    chunk: list[tuple[bytes, bytes]] = []
    room = _CHUNK_BYTES
    while room > 0 and (some := list(islice(entries, min(_LISTED_AT_ONCE, size - len(chunk))))):
        chunk += some
        room -= sum(map(len, chain.from_iterable(some)))
    return chunk


def _append(writer: SstFileWriter, run: SortedRun) -> None:
    for key, value in zip(run.keys, run.values, strict=True):
        if value is None:
            del writer[key]
        else:
            writer[key] = value


def _translated(error: Exception, where: Path) -> StateError:
    """Translates RocksDB's error, of which rocksdict gives only the message."""
    if isinstance(error, StateError):
        return error
    if isinstance(error, DbClosedError):
        return StoreClosedError(f"the store in {where} is closed")
    words = str(error)
    kinds: tuple[tuple[type[StateError], tuple[str, ...]], ...] = (
        (StoreLockedError, ("lock hold by current process", "While lock file")),
        (DiskFullError, ("No space left on device", "Disk quota exceeded")),
        (DiskReadOnlyError, ("Read-only file system",)),
        (DiskForbiddenError, ("Permission denied",)),
        (StoreCorruptError, ("Corruption", "No such file or directory")),
    )
    for kind, marks in kinds:
        if any(mark in words for mark in marks):
            return kind(f"{where}: {words}")
    return StoreIOError(f"{where}: {words}")
