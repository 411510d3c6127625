"""The commit log: the single truth of what a job has committed.

Numbered entries, each created conditionally, strictly one after another. A driver that opens an attempt appends at the
next position; from then on an older driver's next append finds its position taken, and it ends. So no older attempt can
ever commit, with nothing but conditional creates. What the entries mean is decided by `resolve`.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from state.errors import KeyscaleError
from state.log_entries import AttemptOpened, BatchCommitted, BatchPlanned, LogEntry
from state.objects import ObjectExistsError, ObjectNotFoundError, StoreUnavailableError
from state.resolution import (
    BaseDisownedError,
    HistoryError,
    OperatorHistory,
    ResumePoint,
    last_rewind,
    log_start,
    resolve,
)
from state.sealed import DocumentCorruptError, seal, unseal
from state.syncpoint import reach

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state.layout import Layout
    from state.manifest import Manifest
    from state.objects import ObjectStore

__all__ = [
    "AttemptOpened",
    "BaseDisownedError",
    "BatchCommitted",
    "BatchPlanned",
    "CommitLog",
    "FencedError",
    "HistoryError",
    "LogEntry",
    "LogGapError",
    "OperatorHistory",
    "ResumePoint",
    "log_start",
    "resolve",
]

KIND = "log-entry"
FORMAT_VERSION = 1
_APPEND_TRIES = 4
_READERS = 8


class FencedError(KeyscaleError):
    """Another attempt has taken over: this one may not commit anything any more."""

    code = "STATE_FENCED"
    advice = "Nothing to do: the job goes on in its newer attempt."


class LogGapError(KeyscaleError):
    """An entry of the commit log is missing."""

    code = "STATE_LOG_GAP"
    domain = "external"
    advice = "Restore from a newer checkpoint: the log before it was cleaned up or lost."


class _Record(msgspec.Struct, frozen=True):
    position: int
    nonce: str
    entry: LogEntry


class CommitLog:
    """Reads and appends one job's log. Entries are numbered from 1."""

    def __init__(self, store: ObjectStore, layout: Layout) -> None:
        self._store = store
        self._layout = layout
        self._nonce = uuid.uuid4().hex  # tells this driver's entries from those of any other one

    def read(self, after: int = 0) -> list[tuple[int, LogEntry]]:
        """All entries after a position, in order, with their positions.

        Raises:
            LogGapError: An entry between the position and the log's end is missing.
            DocumentCorruptError: One is damaged.
        """
        positions = list(self._positions(after))
        if positions != list(range(after + 1, after + 1 + len(positions))):
            raise self._gap(after)
        return self._read_all(positions)

    def history(self, manifest: Manifest | None) -> list[tuple[int, LogEntry]]:
        """What `resolve` needs to resume from a manifest: the entries after it, or from where the job was last rewound.

        Raises:
            LogGapError: Entries after the manifest were cleaned up, and the job was not rewound since.
            DocumentCorruptError: One is damaged.
        """
        after = log_start(manifest, self._layout.job_id)
        positions = list(self._positions(after))
        tail = positions[_complete_from(positions) :]
        entries = self._read_all(tail)
        if not tail or tail[0] == after + 1:
            return entries
        rewind = last_rewind(entries)
        if rewind is None:
            raise self._gap(after)
        return entries[rewind:]

    def last(self) -> tuple[int, LogEntry] | None:
        """The newest entry, which is of the highest attempt, with its position; None if there is none.

        A rewind needs no more than this: it opens at the next position, whatever came before.
        """
        positions = list(self._positions(0))
        return (positions[-1], self._entry(positions[-1])) if positions else None

    def read_each(self, positions: Sequence[int]) -> dict[int, LogEntry]:
        """The entries at these positions, with holes where they are gone meanwhile.

        Raises:
            DocumentCorruptError: One is damaged.
        """
        with ThreadPoolExecutor(_READERS, thread_name_prefix="log-reader") as readers:
            return {
                position: entry
                for position, entry in zip(positions, readers.map(self._entry_or_none, positions), strict=True)
                if entry is not None
            }

    def append(self, position: int, entry: LogEntry) -> int:
        """Append an entry at exactly this position; returns the next one.

        After a lost response the position is read back and compared, with a nonce: nothing is guessed.

        Raises:
            FencedError: Another entry holds the position, or the log goes on after it.
            StoreUnavailableError: The store is away; it is unknown whether the entry is there. The same entry may be
                appended again at the same position, through the same CommitLog.
        """
        data = seal(KIND, FORMAT_VERSION, _Record(position, self._nonce, entry))
        path = self._layout.log_entry(position)
        reach("log.appending")
        for left in reversed(range(_APPEND_TRIES)):
            try:
                self._store.create(path, data)
            except ObjectExistsError:
                if self._store.get(path) != data:
                    raise FencedError(f"position {position} of the commit log is taken by another attempt") from None
            except StoreUnavailableError:
                if not left:
                    raise
                continue
            break
        reach("log.appended")
        if isinstance(entry, AttemptOpened):
            self._check_end(position)
        return position + 1

    def _read_all(self, positions: Sequence[int]) -> list[tuple[int, LogEntry]]:
        with ThreadPoolExecutor(_READERS, thread_name_prefix="log-reader") as readers:
            return list(zip(positions, readers.map(self._entry, positions), strict=True))

    def _gap(self, after: int) -> LogGapError:
        return LogGapError(f"the commit log of {self._layout.job_id} has no complete history after position {after}")

    def _check_end(self, position: int) -> None:
        """A process that slept for days may have filled a hole that the clean-up of old entries left."""
        if any(True for _ in self._positions(position)):
            raise FencedError(f"the commit log goes on after position {position}: another attempt is at work")

    def _positions(self, after: int) -> Iterator[int]:
        for info in self._store.list(self._layout.log, start_after=self._layout.log_entry(after)):
            position = self._layout.log_position(info.path)
            if position is not None:
                yield position

    def _entry(self, position: int) -> LogEntry:
        return self._record(position).entry

    def _entry_or_none(self, position: int) -> LogEntry | None:
        try:
            return self._entry(position)
        except LogGapError:
            return None

    def _record(self, position: int) -> _Record:
        path = self._layout.log_entry(position)
        try:
            record = unseal(self._store.get(path), KIND, FORMAT_VERSION, _Record, path)
        except ObjectNotFoundError as error:
            raise LogGapError(f"{path} was listed and is gone") from error
        if record.position != position:
            raise DocumentCorruptError(f"{path} holds the entry of position {record.position}")
        return record


def _complete_from(positions: Sequence[int]) -> int:
    """Index from which on ascending positions follow each other without a gap to the end."""
    index = len(positions)
    while index > 0 and (index == len(positions) or positions[index - 1] + 1 == positions[index]):
        index -= 1
    return index
