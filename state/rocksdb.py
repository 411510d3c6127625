"""The RocksDB engine: with its options, the one importer of rocksdict.

Written without a write-ahead log: what a batch wrote is durable through its changelog in the object store, and a store
whose process died is rebuilt, never recovered from local files.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
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

from state.errors import (
    DiskFullError,
    DiskReadOnlyError,
    StateError,
    StoreClosedError,
    StoreCorruptError,
    StoreIOError,
    StoreLockedError,
)
from state.key_group_sizes import FileFacts
from state.lookups import Lookups
from state.rocksdb_options import batch_file_options, charge_tables, database_options
from state.settings import RocksDbSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from rocksdict import ColumnFamily

    from state.engine import Mutation, SortedRun

DEFAULT_FAMILY = "default"  # RocksDB insists on it; no state may be called so
_BUSY = (
    "rocksdb.mem-table-flush-pending",
    "rocksdb.num-running-flushes",
    "rocksdb.num-running-compactions",
)
_TABLES_BYTES = "rocksdb.estimate-table-readers-mem"
_TRY_AGAIN = "Try again"  # of RocksDB's message; it gives no other sign
_FIRST_CHUNK = 64
_LAST_CHUNK = 4096


class RocksDbEngine:
    """An `Engine` in one RocksDB directory. Open it after the fork of the process that uses it, never before."""

    def __init__(self, directory: Path, settings: RocksDbSettings | None = None) -> None:
        """Open the store in `directory`, or make one there.

        Raises:
            StoreLockedError: Another engine, of this or another process, has it open.
            StoreCorruptError: Files are damaged or missing.
            DiskFullError, DiskReadOnlyError, StoreIOError: The directory cannot be used.
        """
        self.directory = directory
        settings = settings or RocksDbSettings()
        self._lookups = Lookups(settings.lookup_threads)
        self._write_options = WriteOptions()
        self._write_options.disable_wal = True  # type: ignore[method-assign,assignment]  # typed as a method, is a property
        self._closed = False
        self._tables: dict[str, Rdict] = {}
        self._handles: dict[str, ColumnFamily] = {}
        self._tables_bytes = 0
        try:
            self._options = database_options(settings)
            self._batch_file_options = batch_file_options(settings)
            directory.mkdir(parents=True, exist_ok=True)
            exists = (directory / "CURRENT").exists()
            names = Rdict.list_cf(str(directory), self._options) if exists else [DEFAULT_FAMILY]
            self._database = Rdict(str(directory), self._options, dict.fromkeys(names, self._options))
            for name in names:
                if name != DEFAULT_FAMILY:
                    self._attach(name)
        except Exception as error:
            raise _translated(error, directory) from error
        self._charge_tables()

    def get(self, family: str, key: bytes) -> bytes | None:
        table = self._tables.get(family)
        if table is None:
            self._check_open()
            return None
        try:
            return table.get(key)
        except Exception as error:
            raise _translated(error, self.directory) from error

    def get_many(self, family: str, keys: list[bytes]) -> list[bytes | None]:
        table = self._tables.get(family)
        if table is None or not keys:
            self._check_open()
            return [None] * len(keys)
        try:
            # A list of keys gives the list of their values.
            return self._lookups.get(table.get, keys)  # type: ignore[arg-type]
        except Exception as error:
            raise _translated(error, self.directory) from error

    def scan(
        self, family: str, start: bytes, end: bytes | None, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        # In chunks, each with a RocksDB iterator of its own: a scan that is left half way must not keep the store open.
        size, left = _FIRST_CHUNK if limit is None else min(limit, _LAST_CHUNK), limit
        while True:
            chunk = self._chunk(family, start, end, size)
            yield from chunk
            if left is not None:
                left -= len(chunk)
            if len(chunk) < size or left == 0:
                return
            start = chunk[-1][0] + b"\0"
            size = min(size * 4, _LAST_CHUNK) if left is None else min(left, _LAST_CHUNK)

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
            raise _translated(error, self.directory) from error
        return found if found is not None and found >= start else None

    def write(self, mutations: Iterable[Mutation]) -> None:
        batch = WriteBatch(raw_mode=True)
        for family, key, value in mutations:
            handle = self._handle(family)
            if value is None:
                batch.delete(key, handle)
            else:
                batch.put(key, value, handle)
        self._commit(batch)

    def write_runs(self, runs: Sequence[SortedRun]) -> None:
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for run in runs:
            handle = self._handle(run.family)
            for key, value in zip(run.keys, run.values, strict=True):
                if value is None:
                    delete(key, handle)
                else:
                    put(key, value, handle)
        self._commit(batch)

    def write_sorted_file(self, run: SortedRun, file: Path) -> None:
        try:
            writer = SstFileWriter(options=self._batch_file_options)
            writer.open(str(file))
            for key, value in zip(run.keys, run.values, strict=True):
                if value is None:
                    del writer[key]
                else:
                    writer[key] = value
            writer.finish()
        except Exception as error:
            raise _translated(error, file) from error

    def ingest(self, family: str, files: Sequence[Path]) -> None:
        self._handle(family)
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        links: list[Path] = []
        try:
            for file in files:  # RocksDB removes what it is told to move, so it gets a link; copies across file systems
                link = self.directory / f"{uuid4().hex}.ingest"
                links.append(link)
                try:
                    os.link(file, link)
                except OSError:
                    link.write_bytes(file.read_bytes())
            self._tables[family].ingest_external_file([str(link) for link in links], options)
        except Exception as error:
            raise _translated(error, self.directory) from error
        finally:
            for link in links:
                link.unlink(missing_ok=True)
        self._charge_tables()

    def delete_range(self, start: bytes, end: bytes | None, family: str | None = None) -> None:
        try:
            for name in self.families() if family is None else [family]:
                table = self._table(name)
                upper = end
                if upper is None:  # a range delete has an exclusive end, so the last key gets a delete of its own
                    iterator = table.iter()
                    iterator.seek_to_last()
                    iterator.status()
                    if not iterator.valid() or iterator.key() < start:
                        continue
                    upper = iterator.key() + b"\0"
                if start < upper:
                    table.delete_range(start, upper, self._write_options)
        except Exception as error:
            raise _translated(error, self.directory) from error

    def families(self) -> list[str]:
        self._check_open()
        return sorted(self._tables)

    def flush(self) -> None:
        self._flush(wait=True)

    def begin_flush(self) -> None:
        try:
            self._flush(wait=False)
        except StoreIOError as error:
            if _TRY_AGAIN not in str(error):  # else flushes are under way already, and writes wait for them
                raise

    def checkpoint(self, directory: Path) -> None:
        self.begin_flush()  # of all families at once; the checkpoint waits for them, one after another if it had to begin them
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            Checkpoint(self._database).create_checkpoint(str(directory))
        except Exception as error:
            raise _translated(error, directory) from error

    def compact(self, family: str | None = None) -> None:
        self.flush()
        options = CompactOptions()
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
        try:
            for table in self._tables.values() if family is None else [self._table(family)]:
                table.compact_range(None, None, options)
        except Exception as error:
            raise _translated(error, self.directory) from error

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
        """Of a family's files; 0 if it does not exist."""
        self._check_open()
        table = self._tables.get(family)
        return 0 if table is None else table.property_int_value("rocksdb.total-sst-files-size") or 0

    def files(self) -> list[FileFacts]:
        """Of what has been flushed."""
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
        self._handles.clear()
        charge_tables(-self._tables_bytes)
        tables = [*self._tables.values(), self._database]
        self._tables.clear()
        failure: Exception | None = None
        for table in tables:  # every one must be let go, or the directory stays locked
            try:
                table.close()
            except Exception as error:  # noqa: BLE001 (raised below)
                failure = failure or error
        if failure is not None:
            raise _translated(failure, self.directory) from failure

    def _flush(self, *, wait: bool) -> None:
        self._check_open()
        try:
            for table in self._tables.values():
                table.flush(wait)
        except Exception as error:
            raise _translated(error, self.directory) from error
        self._charge_tables()

    def _charge_tables(self) -> None:
        """Charge what the indexes and filters of all files take now to the process's memory."""
        now = sum(table.property_int_value(_TABLES_BYTES) or 0 for table in self._tables.values())
        charge_tables(now - self._tables_bytes)
        self._tables_bytes = now

    def _attach(self, family: str) -> None:
        self._tables[family] = self._database.get_column_family(family)
        self._handles[family] = self._database.get_column_family_handle(family)

    def _table(self, family: str) -> Rdict:
        self._handle(family)
        return self._tables[family]

    def _handle(self, family: str) -> ColumnFamily:
        handle = self._handles.get(family)
        if handle is None:
            self._check_open()
            try:
                self._database.create_column_family(family, self._options)
                self._attach(family)
            except Exception as error:
                raise _translated(error, self.directory) from error
            handle = self._handles[family]
        return handle

    def _commit(self, batch: WriteBatch) -> None:
        try:
            self._database.write(batch, self._write_options)
        except Exception as error:
            raise _translated(error, self.directory) from error

    def _chunk(self, family: str, start: bytes, end: bytes | None, size: int) -> list[tuple[bytes, bytes]]:
        self._check_open()
        table = self._tables.get(family)
        if table is None or (end is not None and start >= end):
            return []
        options = ReadOptions()
        if end is not None:
            options.set_iterate_upper_bound(end)
        chunk: list[tuple[bytes, bytes]] = []
        try:
            # Not rocksdict's items(), though it is faster: one that meets a damaged block ends as if there were no more.
            iterator = table.iter(options)
            iterator.seek(start)
            valid, key, value, advance, append = (
                iterator.valid,
                iterator.key,
                iterator.value,
                iterator.next,
                chunk.append,
            )
            while size and valid():
                append((key(), value()))
                size -= 1
                if size:
                    advance()
            iterator.status()
        except Exception as error:
            raise _translated(error, self.directory) from error
        return chunk

    def _check_open(self) -> None:
        if self._closed:
            message = f"the store in {self.directory} is closed"
            raise StoreClosedError(message)


def _translated(error: Exception, where: Path) -> StateError:
    """RocksDB's error, which rocksdict gives as words only, as one of ours."""
    if isinstance(error, StateError):
        return error
    if isinstance(error, DbClosedError):
        return StoreClosedError(f"the store in {where} is closed")
    words = str(error)
    kinds: tuple[tuple[type[StateError], tuple[str, ...]], ...] = (
        (StoreLockedError, ("lock hold by current process", "While lock file")),
        (DiskFullError, ("No space left on device", "Disk quota exceeded")),
        (DiskReadOnlyError, ("Read-only file system", "Permission denied")),
        (StoreCorruptError, ("Corruption", "No such file or directory")),
    )
    for kind, marks in kinds:
        if any(mark in words for mark in marks):
            return kind(f"{where}: {words}")
    return StoreIOError(f"{where}: {words}")
