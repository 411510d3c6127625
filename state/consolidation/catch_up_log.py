"""The catch-up log: changelogs of the batches since a consolidation began.

    <log>/objects/<path in the object store>         a copy of a changelog's object, or a hard link to it
    <log>/<batch>-<lineage before>-<lineage after>   the changelog's handle; made last

With it the consolidation's result catches up with the batches. It is kept on this host, because a newer checkpoint
deletes the changelogs in the object store. If the log cannot be written, the log and the consolidation are given up,
but never the batch.

A retried task leaves a changelog that is not committed. Lineages show the committed changelogs: a later changelog, or a
committed version, builds on their result.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from keyscale.errors import KeyscaleError
from keyscale.identifiers import BatchId

from ..decoding import json_decoder
from ..documents.changelog import ChangelogCorruptError, ChangelogHandle
from ..engine.rocksdb_settings import MEBIBYTE
from ..local.file_index import link_or_copy
from ..objects.local_store import LocalObjectStore
from .consolidation_directory import begin_consolidation, consolidations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from ..documents.state_version import StateVersion
    from ..engine.key_group_sizes import FileFacts
    from ..objects.object_store import ObjectStore
    from ..snapshot.snapshot import LocalSnapshot
    from .consolidation_directory import ConsolidationDirectory
    from .policy import ConsolidationPolicy

logger = logging.getLogger(__name__)
CATCH_UP_BYTES_MAX = 1024 * MEBIBYTE
_OBJECTS_NAME = "objects"
_LINEAGE_DIGITS = 64


@dataclass(frozen=True, slots=True, order=True)
class CatchUpEntry:
    """A changelog, and the lineages before and after it."""

    batch_id: BatchId
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.batch_id:020}-{self.before}-{self.after}"


class CatchUpLog:
    """A consolidation's catch-up log, which exists while the result is wanted.

    The subtask's store writes it.
    """

    def __init__(self, consolidation: ConsolidationDirectory) -> None:
        self._consolidation = consolidation
        self._directory = consolidation.catch_up_log
        self._objects = self._directory / _OBJECTS_NAME
        self._bytes: int | None = None

    @property
    def consolidation(self) -> ConsolidationDirectory:
        """The consolidation of this log."""
        return self._consolidation

    @property
    def objects(self) -> ObjectStore:
        """The changelogs' objects, by their paths in the object store."""
        return LocalObjectStore(self._objects)

    def put(self, path: str, data: bytes) -> None:
        """Keeps a copy of an object that was put into the store."""
        self._keep(path, len(data), lambda target: target.write_bytes(data))

    def upload(self, source: Path, path: str) -> None:
        """Keeps a copy of an immutable uploaded file."""
        self._keep(path, source.stat().st_size, lambda target: link_or_copy(source, target))

    def add(self, before: StateVersion, after: StateVersion, handle: ChangelogHandle) -> None:
        """Records that a changelog leads from one version to the next.

        The changelog's objects have been kept.
        """
        if not self._directory.is_dir():
            return
        name = CatchUpEntry(after.batch_id, before.lineage, after.lineage).name
        temporary = self._directory / f"{name}.new"
        try:
            temporary.write_bytes(msgspec.json.encode(handle))
            temporary.rename(self._directory / name)
        except OSError:
            self.give_up()

    def entries(self) -> list[CatchUpEntry]:
        """Returns all entries, by batch."""
        try:
            names = [path.name for path in self._directory.iterdir()]
        except FileNotFoundError:
            return []
        parts = (name.split("-") for name in names)
        return sorted(
            CatchUpEntry(BatchId(int(part[0])), part[1], part[2])
            for part in parts
            if len(part) == 3 and len(part[2]) == _LINEAGE_DIGITS
        )

    def handles(self, entries: Sequence[CatchUpEntry]) -> list[ChangelogHandle]:
        """Returns the entries' changelog handles.

        Raises:
            FileNotFoundError: The log has been given up.
            ChangelogCorruptError: A file is damaged.
        """
        files = [self._directory / entry.name for entry in entries]
        try:
            return [json_decoder(ChangelogHandle).decode(file.read_bytes()) for file in files]
        except msgspec.MsgspecError as error:
            raise ChangelogCorruptError("a changelog in a consolidation's catch-up log is damaged") from error

    def forget(self, entries: Sequence[CatchUpEntry]) -> None:
        """Removes changelogs that the new shard contains."""
        for entry, handle in zip(entries, self.handles(entries), strict=True):
            (self._directory / entry.name).unlink()
            for path in handle.paths():
                (self._objects / path).unlink(missing_ok=True)

    def _keep(self, path: str, size_bytes: int, write: Callable[[Path], object]) -> None:
        target = self._objects / path
        if not self._directory.is_dir():
            return
        try:
            if self._bytes is None:
                self._bytes = sum(info.size_bytes for info in self.objects.list(""))
            self._bytes += size_bytes
            if self._bytes > CATCH_UP_BYTES_MAX:
                self.give_up()
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            write(target)
        except (OSError, KeyscaleError):
            self.give_up()

    def give_up(self) -> None:
        """Gives up the consolidation: its result would miss a changelog."""
        logger.warning("the changelogs since a consolidation began are no longer kept, so its result is lost")
        self._consolidation.give_up()


def find_catch_up_log(subtask_root: Path) -> CatchUpLog | None:
    """Returns the catch-up log of a subtask's current consolidation, or None."""
    return next((CatchUpLog(each) for each in consolidations(subtask_root) if each.is_wanted), None)


def begin_catch_up_log(
    snapshot: LocalSnapshot,
    subtask_root: Path,
    files: Sequence[Sequence[FileFacts]],
    policy: ConsolidationPolicy,
    expired_bytes: int = 0,
) -> CatchUpLog | None:
    """Begins a consolidation as `begin_consolidation` does, if the settings allow it."""
    wanted = snapshot.settings.background_consolidation
    begun = begin_consolidation(snapshot, subtask_root, files, policy, expired_bytes) if wanted else None
    return None if begun is None else CatchUpLog(begun)


def changelogs_between(entries: Iterable[CatchUpEntry], start: str, end: str) -> list[CatchUpEntry] | None:
    """Returns the entries that lead from one lineage to another; pure.

    They are in order; None if some are missing.
    """
    by_after = {entry.after: entry for entry in entries}
    path: list[CatchUpEntry] = []
    at = end
    while at != start:
        entry = by_after.pop(at, None)
        if entry is None:
            return None
        path.append(entry)
        at = entry.before
    return path[::-1]


def committed_after(entries: Iterable[CatchUpEntry], start: str) -> list[CatchUpEntry]:
    """Returns the committed entries after a lineage; pure.

    An entry is known to be committed if a later entry builds on it.
    """
    known = list(entries)
    built_upon = {entry.before for entry in known}
    next_of = {entry.before: entry for entry in known if entry.after in built_upon}
    path: list[CatchUpEntry] = []
    while (entry := next_of.pop(start, None)) is not None:
        path.append(entry)
        start = entry.after
    return path
