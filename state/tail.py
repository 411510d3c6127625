"""The tail of a consolidation: changelogs of the batches since it began, kept on this host so that the result can catch up.

    <tail>/objects/<path in the object store>         a copy of a changelog's object, or a hard link to it
    <tail>/<batch>-<lineage before>-<lineage after>   the changelog's handle; made last

The changelogs in the object store are no help there: they are gone once a newer checkpoint is complete. A tail has no
duties: one that cannot be written is given up, and with it the consolidation, but never the batch.

A task that is tried again leaves a changelog that no commit names. Which ones count is told by lineages: a state that a
later changelog, or a committed version, builds upon was committed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from state.changelog import ChangelogCorruptError, ChangelogHandle
from state.consolidation_directory import begin_consolidation, consolidations
from state.decoding import json_decoder
from state.errors import KeyscaleError
from state.identifiers import BatchId
from state.local_files import link_or_copy
from state.objects import LocalObjectStore
from state.settings import MEBIBYTE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from state.consolidation import ConsolidationPolicy
    from state.consolidation_directory import ConsolidationDirectory
    from state.key_group_sizes import FileFacts
    from state.objects import ObjectStore
    from state.snapshot import LocalSnapshot
    from state.version import StateVersion

logger = logging.getLogger(__name__)
TAIL_BYTES_MAX = 1024 * MEBIBYTE
_OBJECTS_NAME = "objects"
_LINEAGE_DIGITS = 64


@dataclass(frozen=True, slots=True, order=True)
class TailEntry:
    """A changelog, and between which versions of the content it lies."""

    batch_id: BatchId
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.batch_id:020}-{self.before}-{self.after}"


class Tail:
    """A consolidation's tail, which exists as long as anybody wants the result. Written by the subtask's store."""

    def __init__(self, consolidation: ConsolidationDirectory) -> None:
        self._consolidation = consolidation
        self._directory = consolidation.tail
        self._objects = self._directory / _OBJECTS_NAME
        self._bytes: int | None = None

    @property
    def consolidation(self) -> ConsolidationDirectory:
        """Whose tail it is."""
        return self._consolidation

    @property
    def objects(self) -> ObjectStore:
        """The changelogs' objects, by the paths that they have in the object store."""
        return LocalObjectStore(self._objects)

    def put(self, path: str, data: bytes) -> None:
        """Keep an object that has been put into the object store."""
        self._keep(path, len(data), lambda target: target.write_bytes(data))

    def upload(self, source: Path, path: str) -> None:
        """Keep a file that has been uploaded and will never change."""
        self._keep(path, source.stat().st_size, lambda target: link_or_copy(source, target))

    def add(self, before: StateVersion, after: StateVersion, handle: ChangelogHandle) -> None:
        """Note that a changelog, whose objects have been kept, leads from one version to the next."""
        if not self._directory.is_dir():
            return
        name = TailEntry(after.batch_id, before.lineage, after.lineage).name
        temporary = self._directory / f"{name}.new"
        try:
            temporary.write_bytes(msgspec.json.encode(handle))
            temporary.rename(self._directory / name)
        except OSError:
            self.give_up()

    def entries(self) -> list[TailEntry]:
        """All changelogs, by batch."""
        try:
            names = [path.name for path in self._directory.iterdir()]
        except FileNotFoundError:
            return []
        parts = (name.split("-") for name in names)
        return sorted(
            TailEntry(BatchId(int(part[0])), part[1], part[2])
            for part in parts
            if len(part) == 3 and len(part[2]) == _LINEAGE_DIGITS
        )

    def handles(self, entries: Sequence[TailEntry]) -> list[ChangelogHandle]:
        """The entries' changelogs.

        Raises:
            FileNotFoundError: The tail has been given up meanwhile.
            ChangelogCorruptError: A file is damaged.
        """
        files = [self._directory / entry.name for entry in entries]
        try:
            return [json_decoder(ChangelogHandle).decode(file.read_bytes()) for file in files]
        except msgspec.MsgspecError as error:
            raise ChangelogCorruptError("a changelog in a consolidation's tail is damaged") from error

    def forget(self, entries: Sequence[TailEntry]) -> None:
        """Remove changelogs that have been caught up with."""
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
            if self._bytes > TAIL_BYTES_MAX:
                self.give_up()
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            write(target)
        except (OSError, KeyscaleError):
            self.give_up()

    def give_up(self) -> None:
        """Keep nothing any more: what is missing now would be missing from the result."""
        logger.warning("the changelogs since a consolidation began are kept no longer, so its result is lost")
        self._consolidation.give_up()


def find_tail(subtask_root: Path) -> Tail | None:
    """Where changelogs are to be kept: of the consolidation that has been begun for a subtask, if one has."""
    return next((Tail(each) for each in consolidations(subtask_root) if each.is_wanted), None)


def begin_tail(
    snapshot: LocalSnapshot,
    subtask_root: Path,
    files: Sequence[Sequence[FileFacts]],
    policy: ConsolidationPolicy,
    expired_bytes: int = 0,
) -> Tail | None:
    """As `begin_consolidation`; unless the subtask's settings say that none is to begin."""
    wanted = snapshot.settings.background_consolidation
    begun = begin_consolidation(snapshot, subtask_root, files, policy, expired_bytes) if wanted else None
    return None if begun is None else Tail(begun)


def leading(entries: Iterable[TailEntry], start: str, end: str) -> list[TailEntry] | None:
    """The changelogs that lead from one lineage to another, in order; None if they are not all there. Pure."""
    by_after = {entry.after: entry for entry in entries}
    path: list[TailEntry] = []
    at = end
    while at != start:
        entry = by_after.pop(at, None)
        if entry is None:
            return None
        path.append(entry)
        at = entry.before
    return path[::-1]


def certain(entries: Iterable[TailEntry], start: str) -> list[TailEntry]:
    """The changelogs after a lineage of which a later one says that they were committed, in order. Pure."""
    known = list(entries)
    built_upon = {entry.before for entry in known}
    next_of = {entry.before: entry for entry in known if entry.after in built_upon}
    path: list[TailEntry] = []
    while (entry := next_of.pop(start, None)) is not None:
        path.append(entry)
        start = entry.after
    return path
