"""The heap engine, which keeps entries in dicts.

It is for small state, and the model in tests of the RocksDB engine.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import msgspec

from ..errors import StoreClosedError, StoreCorruptError
from .engine import Mutation, SortedRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

CHECKPOINT_FILE = "heap.msgpack"


class _Checkpoint(msgspec.Struct, frozen=True):
    """A heap engine's checkpoint file."""

    families: dict[str, list[tuple[bytes, bytes]]]
    format: int = 1


class _SortedFile(msgspec.Struct, frozen=True):
    """A heap engine's sorted file: one run."""

    keys: list[bytes]
    values: list[bytes | None]
    format: int = 1


class _Family:
    """One family's entries, and their order once a scan has needed it."""

    __slots__ = ("_ordered", "entries")

    def __init__(self, entries: dict[bytes, bytes]) -> None:
        self.entries = entries
        self._ordered: list[bytes] | None = None

    def put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            if self.entries.pop(key, None) is not None:
                self._ordered = None
        else:
            if key not in self.entries:
                self._ordered = None
            self.entries[key] = value

    def put_run(self, run: SortedRun) -> None:
        if None in run.values:
            for key, value in zip(run.keys, run.values, strict=True):
                self.put(key, value)
            return
        before = len(self.entries)
        self.entries.update(zip(run.keys, run.values, strict=True))  # type: ignore[arg-type]  # no value is None
        if len(self.entries) != before:
            self._ordered = None

    def between(self, start: bytes, end: bytes | None) -> list[bytes]:
        if self._ordered is None:
            self._ordered = sorted(self.entries)
        first = bisect_left(self._ordered, start)
        last = len(self._ordered) if end is None else bisect_left(self._ordered, end)
        return self._ordered[first:last]


class HeapEngine:
    """An `Engine` in memory; `HeapEngine.restore` reads its checkpoint file."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._closed = False

    @classmethod
    def restore(cls, directory: Path) -> HeapEngine:
        """Returns an engine with the content of a checkpoint directory.

        Raises:
            StoreCorruptError: The directory has no readable checkpoint.
        """
        engine = cls()
        try:
            checkpoint = msgspec.msgpack.decode((directory / CHECKPOINT_FILE).read_bytes(), type=_Checkpoint)
        except (OSError, msgspec.MsgspecError) as error:
            raise StoreCorruptError(f"{directory} has no readable heap checkpoint: {error}") from error
        engine._families = {name: _Family(dict(entries)) for name, entries in checkpoint.families.items()}
        return engine

    def get(self, family: str, key: bytes) -> bytes | None:
        if self._closed:
            self._check_open()
        found = self._families.get(family)
        return None if found is None else found.entries.get(key)

    def get_many(self, family: str, keys: list[bytes]) -> list[bytes | None]:
        self._check_open()
        found = self._families.get(family)
        return [None] * len(keys) if found is None else [found.entries.get(key) for key in keys]

    def scan(
        self, family: str, start: bytes, end: bytes | None, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        self._check_open()
        found = self._families.get(family)
        if found is None:
            return iter(())
        entries = found.entries
        return ((key, entries[key]) for key in found.between(start, end)[:limit])

    def scan_keys(self, family: str, start: bytes, end: bytes | None) -> Iterator[bytes]:
        return (key for key, _ in self.scan(family, start, end))

    def last_key(self, family: str, start: bytes, end: bytes) -> bytes | None:
        self._check_open()
        found = self._families.get(family)
        keys = [] if found is None else found.between(start, end)
        return keys[-1] if keys else None

    def write(self, mutations: Iterable[Mutation]) -> None:
        self._check_open()
        for family, key, value in mutations:
            self._family(family).put(key, value)

    def write_runs(self, runs: Sequence[SortedRun]) -> None:
        self._check_open()
        for run in runs:
            self._family(run.family).put_run(run)

    def split(self, run: SortedRun) -> list[SortedRun]:
        return [run] if len(run) else []

    def write_sorted_file(self, run: SortedRun, file: Path) -> None:
        file.write_bytes(msgspec.msgpack.encode(_SortedFile(run.keys, run.values)))

    def ingest(self, family: str, files: Sequence[Path]) -> None:
        for file in files:
            try:
                content = msgspec.msgpack.decode(file.read_bytes(), type=_SortedFile)
            except msgspec.MsgspecError as error:
                raise StoreCorruptError(f"{file.name} is not a sorted file of the heap engine") from error
            self.write_runs([SortedRun(family, content.keys, content.values)])

    def delete_range(self, start: bytes, end: bytes | None, family: str | None = None) -> None:
        self._check_open()
        chosen = self._families.values() if family is None else [self._family(family)]
        for each in chosen:
            for key in each.between(start, end):
                each.put(key, None)

    def families(self) -> list[str]:
        return sorted(self._families)

    def flush(self) -> None:
        self._check_open()

    def begin_flush(self) -> None:
        self._check_open()

    def checkpoint(self, directory: Path) -> None:
        self._check_open()
        directory.mkdir(parents=True)
        families = {name: sorted(family.entries.items()) for name, family in sorted(self._families.items())}
        (directory / CHECKPOINT_FILE).write_bytes(msgspec.msgpack.encode(_Checkpoint(families)))

    def compact(self, family: str | None = None) -> None:  # noqa: ARG002 (a heap cannot be compacted)
        self._check_open()

    def is_busy(self) -> bool:
        return False

    @property
    def found_damage(self) -> bool:
        return False  # it reads no files

    def size_bytes(self) -> int:
        return sum(len(k) + len(v) for family in self._families.values() for k, v in family.entries.items())

    def close(self) -> None:
        self._closed = True

    def _family(self, name: str) -> _Family:
        return self._families.setdefault(name, _Family({}))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the heap engine is closed")
