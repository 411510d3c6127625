"""An engine with the files of RocksDB and without its cost: tables that never change, and a list of them that does.

It keeps entries in memory as the heap engine does, writes what has changed to a new table when it is flushed, links its
tables for a checkpoint, and merges them when there are many. So checkpoints share files, compactions replace them, and
what was not flushed is gone with its process.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from keyscale.state.engine.heap import HeapEngine
from keyscale.state.engine.key_group_sizes import FileFacts
from keyscale.state.errors import DiskFullError, StoreCorruptError, StoreLockedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from keyscale.state.engine.engine import Mutation, SortedRun
    from tests.simulation.world import Process, World

TABLES_MAX = 4
LIST_NAME = "CURRENT"

Table = dict[str, list[tuple[bytes, bytes | None]]]
_DECODER = msgspec.msgpack.Decoder(dict[str, list[tuple[bytes, bytes | None]]])
_LIST_DECODER = msgspec.msgpack.Decoder(tuple[int, list[str]])


class LocalEngine(HeapEngine):
    """An `Engine` in a directory of the running process's host.

    Attributes:
        world: The world that all engines are in at present.
        holders: The process that has each directory open.
    """

    world: ClassVar[World]
    holders: ClassVar[dict[Path, Process]] = {}

    def __init__(  # as RocksDbEngine
        self,
        directory: Path,
        settings: Any = None,  # noqa: ARG002
        *,
        compacts: bool = True,
    ) -> None:
        super().__init__()
        self.directory = directory
        self._compacts = compacts
        process = self.world.process
        holder = self.holders.get(directory)
        if holder is not None and holder.is_alive:
            raise StoreLockedError(f"{directory} is open in {holder.name}")
        self._require_room()
        directory.mkdir(parents=True, exist_ok=True)
        self._delta: dict[str, dict[bytes, bytes | None]] = {}
        self._facts: dict[str, list[FileFacts]] = {}
        self._number, self._tables = 0, list[str]()
        try:
            self._number, self._tables = _LIST_DECODER.decode((directory / LIST_NAME).read_bytes())
            for name in self._tables:
                self._load(name)
        except FileNotFoundError as error:
            if self._tables:
                raise StoreCorruptError(f"{directory}: {error}") from error
        except msgspec.MsgspecError as error:
            raise StoreCorruptError(f"{directory}: {error}") from error
        self.holders[directory] = process

    def write(self, mutations: Iterable[Mutation]) -> None:
        listed = list(mutations)
        super().write(listed)
        for family, key, value in listed:
            self._delta.setdefault(family, {})[key] = value

    def write_runs(self, runs: Sequence[SortedRun]) -> None:
        super().write_runs(runs)
        for run in runs:
            self._delta.setdefault(run.family, {}).update(zip(run.keys, run.values, strict=True))

    def delete_range(self, start: bytes, end: bytes | None, family: str | None = None) -> None:
        for name in self.families() if family is None else [family]:
            doomed = self._family(name).between(start, end)
            self._delta.setdefault(name, {}).update(dict.fromkeys(doomed))
        super().delete_range(start, end, family)

    def flush(self) -> None:
        self._check_open()
        if self._delta:
            self._write_table({name: sorted(changes.items()) for name, changes in sorted(self._delta.items())})
            self._delta = {}
            if self._compacts and len(self._tables) > TABLES_MAX:
                self.compact()

    def begin_flush(self) -> None:
        self.flush()

    def start_compactions(self) -> None:
        self._compacts = True

    def checkpoint(self, directory: Path) -> None:
        self.flush()
        directory.mkdir(parents=True)
        for name in self._tables:
            os.link(self.directory / name, directory / name)
        (directory / LIST_NAME).write_bytes(msgspec.msgpack.encode((self._number, self._tables)))

    def compact(self, family: str | None = None) -> None:  # noqa: ARG002 - all at once
        self._check_open()
        before, self._tables, self._delta = self._tables, [], {}
        whole = {name: sorted(found.entries.items()) for name, found in sorted(self._families.items())}
        self._write_table({name: list(entries) for name, entries in whole.items()})
        for name in before:
            (self.directory / name).unlink()
            self._facts.pop(name, None)

    def file_bytes(self, family: str) -> int:  # noqa: ARG002 - all families have their entries in the same files
        return sum((self.directory / name).stat().st_size for name in self._tables)

    def files(self) -> list[FileFacts]:
        self._check_open()
        return [facts for name in self._tables for facts in self._facts[name]]

    def close(self) -> None:
        if not self._closed and self.holders.get(self.directory) is self.world.process:
            del self.holders[self.directory]
        super().close()

    def _load(self, name: str) -> None:
        table = _DECODER.decode((self.directory / name).read_bytes())
        for family, entries in table.items():
            found = self._family(family)
            for key, value in entries:
                found.put(key, value)
        self._facts[name] = _facts_of(table)

    def _write_table(self, table: Table) -> None:
        self._require_room()
        self._number += 1
        name = f"{self._number:06}.sst"
        (self.directory / name).write_bytes(msgspec.msgpack.encode(table))
        self._tables.append(name)
        self._facts[name] = _facts_of(table)
        (self.directory / LIST_NAME).write_bytes(msgspec.msgpack.encode((self._number, self._tables)))

    def _require_room(self) -> None:
        if self.world.process.host.is_full:
            raise DiskFullError(f"{self.directory}: No space left on device")


def _facts_of(table: Table) -> list[FileFacts]:
    return [
        FileFacts(
            first=entries[0][0],
            last=entries[-1][0],
            entries=sum(value is not None for _, value in entries),
            size_bytes=sum(len(key) + len(value or b"") for key, value in entries),
        )
        for entries in table.values()
        if entries
    ]


def remove_directory(path: Path) -> None:
    """Removes a host's disk."""
    shutil.rmtree(path, ignore_errors=True)
