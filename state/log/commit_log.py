"""The commit log: the only record of what a job has committed.

Entries are numbered and created conditionally, strictly one after another. A driver that opens an attempt appends at
the next position; an older driver then finds its next position taken, and ends. Conditional creates alone thus keep
older attempts from committing. `keyscale.state.log.resolution` decides what the entries mean.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from keyscale.errors import KeyscaleError
from keyscale.failpoints import failpoint

from ..documents.checked_document import (
    DocumentCorruptError,
    FormatTooNewError,
    decode_document,
    document_bytes,
    encode_document,
)
from ..documents.job_counters import NOTHING_COUNTED, JobCounters
from ..documents.log_entries import AttemptOpened, BatchCommitted, BatchPlanned, LogEntry
from ..objects.errors import ObjectExistsError, ObjectNotFoundError, StoreUnavailableError
from .resolution import (
    last_rewind,
    log_start,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from keyscale.identifiers import Attempt

    from ..documents.manifest import Manifest
    from ..layout import Layout
    from ..objects.object_store import ObjectStore

KIND = "log-entry"
FORMAT_VERSION = 1
CLOSED = b"the job was deleted"
"""In the place of an entry: no attempt of a deleted job can append there."""
_APPEND_TRIES = 4
_COUNTERS_WITHIN = 3  # an opening or a commit, a plan, and an unreadable entry
_READERS = 8


class FencedError(KeyscaleError):
    """Another attempt has taken over, so this attempt may no longer commit."""

    code = "STATE_FENCED"
    advice = "Nothing to do: the job continues in its newer attempt."


class LogGapError(KeyscaleError):
    """An entry of the commit log is missing."""

    code = "STATE_LOG_GAP"
    domain = "external"
    advice = "Restore from a newer checkpoint: earlier entries of the log were cleaned up or lost."


class _Record(msgspec.Struct, frozen=True):
    position: int
    nonce: str
    entry: LogEntry


class CommitLog:
    """Reads and appends one job's log; positions start at 1.

    Attributes:
        job_id: The job.
        opened_at_ms: The time of the opening that this object has appended, by the store's clock; None before.
    """

    def __init__(self, store: ObjectStore, layout: Layout) -> None:
        self._store = store
        self._layout = layout
        self.job_id = layout.job_id
        self._known: dict[int, AttemptOpened | Attempt | None] = {}  # the attempt of any other entry; None: deleted
        self.opened_at_ms: int | None = None
        self._nonce = uuid.uuid4().hex  # distinguishes this driver's entries

    def read(self, after: int = 0) -> list[tuple[int, LogEntry]]:
        """Returns all entries after a position, in order, with their positions.

        Raises:
            LogGapError: An entry between the position and the log's end is missing.
            DocumentCorruptError: An entry is damaged.
        """
        positions = list(self._positions(after))
        if positions != list(range(after + 1, after + 1 + len(positions))):
            raise self._gap(after)
        return self._read_all(positions)

    def between(self, after: int, until: int) -> list[LogEntry]:
        """Returns entries between two positions, the last inclusive, without listing the log.

        Raises:
            LogGapError: An entry is missing.
            DocumentCorruptError: An entry is damaged.
        """
        return [entry for _, entry in self._read_all(range(after + 1, until + 1))]

    def history(self, manifest: Manifest | None) -> list[tuple[int, LogEntry]]:
        """Returns the entries that `resolve` needs to resume from a manifest.

        These are the entries after the manifest, or from the last rewind on.

        Raises:
            LogGapError: Entries after the manifest were cleaned up, and the job has not been rewound since.
            DocumentCorruptError: An entry is damaged.
        """
        after = log_start(manifest, self._layout.job_id)
        positions = list(self._positions(after))
        complete = positions[_complete_from(positions) :]
        entries = self._read_all(complete)
        if not complete or complete[0] == after + 1:
            return entries
        rewind = last_rewind(entries)
        if rewind is None:
            raise self._gap(after)
        return entries[rewind:]

    def stored(self) -> list[tuple[int, LogEntry]]:
        """Returns all entries after the last gap that the clean-up left.

        Raises:
            LogGapError: An entry was deleted meanwhile.
            DocumentCorruptError: An entry is damaged.
        """
        positions = list(self._positions(0))
        return self._read_all(positions[_complete_from(positions) :])

    def first_commit(self, manifest: Manifest, *, newer_than: Attempt) -> BatchCommitted | None:
        """Returns newer attempts' first commit after a manifest, or None.

        Raises:
            LogGapError: Entries after the manifest were cleaned up.
            DocumentCorruptError: An entry is damaged.
        """
        entries = self.read(log_start(manifest, self._layout.job_id))
        commits = (entry for _, entry in entries if isinstance(entry, BatchCommitted))
        return next((entry for entry in commits if entry.attempt > newer_than), None)

    def is_continued_by_another(self, after: int) -> bool:
        """Returns whether another driver appended an entry after a position."""
        return any(self._nonce_at(position) != self._nonce for position in self._positions(after))

    def last(self) -> tuple[int, LogEntry] | None:
        """Returns the newest entry with its position; None for an empty log.

        The entry belongs to the highest attempt. A rewind needs only this entry: it opens at the next position,
        whatever the earlier entries say.
        """
        positions = list(self._positions(0))
        return (positions[-1], self._entry(positions[-1])) if positions else None

    def newest_counters(self) -> JobCounters:
        """Returns the job's counters in the newest readable entry that has them.

        Each opening and each commit has counters, so the search ends after a few entries. Disowned entries count, too.
        """
        for position in reversed(list(self._positions(0))[-_COUNTERS_WITHIN:]):
            with suppress(LogGapError, DocumentCorruptError):
                entry = self._entry(position)
                if not isinstance(entry, BatchPlanned) and isinstance(entry.counters, JobCounters):
                    return entry.counters
        return NOTHING_COUNTED

    def newest_rewind(self) -> AttemptOpened | None:
        """Returns the opening that last rewound the job, or None.

        Reads few entries.
        """
        openings = self.openings(list(self._positions(0)))
        return next((entry for _, entry in sorted(openings.items(), reverse=True) if entry.rewinds), None)

    def has_commit_since_rewind(self) -> bool:
        """Returns whether a batch was committed after the last rewind.

        In a log without a rewind, any batch counts. Reads few entries: only a log without a commit is read to its end.
        """
        positions = list(self._positions(0))
        for earlier, position in reversed(list(pairwise([0, *positions]))):
            entry = self._entry(position)
            if isinstance(entry, AttemptOpened) and entry.rewinds:
                return False
            if isinstance(entry, BatchCommitted) or earlier != position - 1:  # the clean-up deletes covered commits
                return True
        return False

    def openings(self, positions: Sequence[int]) -> dict[int, AttemptOpened]:
        """Returns the entries that open an attempt, by position.

        `positions` are the positions of the log's entries. Attempts ascend, and the first entry of each opens it, so
        the search skips entries between two entries of one attempt. Each entry is read once in this object's life. An
        entry that was deleted in the meantime is omitted.

        Raises:
            DocumentCorruptError: An entry is damaged.
        """
        ordered = sorted(positions)
        self._know([*ordered[:1], *ordered[-1:]])
        unsearched = list(pairwise(index for index, position in enumerate(ordered) if position in self._known))
        while unsearched:
            halves = []
            for first, last in unsearched:
                if last - first > 1 and self._attempt_at(ordered, first) != self._attempt_at(ordered, last):
                    middle = (first + last) // 2
                    halves += [(first, middle), (middle, last)]
            self._know([ordered[middle] for _, middle in halves])
            unsearched = halves
        known = ((position, self._known.get(position)) for position in ordered)
        return {position: entry for position, entry in known if isinstance(entry, AttemptOpened)}

    def append(self, position: int, entry: LogEntry) -> int:
        """Appends an entry at exactly this position and returns the next position.

        After a lost response the position is read back and compared; a nonce makes the comparison certain.

        Raises:
            FencedError: Another entry has the position, or the log continues after it.
            StoreUnavailableError: The store is unavailable or returns damaged bytes, and it is unknown whether the
                entry is there. The same entry may be appended again at the same position, through the same CommitLog.
        """
        data = encode_document(KIND, FORMAT_VERSION, _Record(position, self._nonce, entry))
        path = self._layout.log_entry(position)
        failpoint("log.appending")
        for left in reversed(range(_APPEND_TRIES)):
            try:
                if not self._is_created(path, data):
                    raise FencedError(f"position {position} of the commit log is taken by another attempt")
            except StoreUnavailableError:
                if not left:
                    raise
                continue
            break
        failpoint("log.appended")
        if isinstance(entry, AttemptOpened):
            self._check_end(position)
        return position + 1

    def _is_created(self, path: str, data: bytes) -> bool:
        """Creates an entry's object; returns whether the object is this entry.

        An object that is neither an entry nor the end of a deleted job's log was damaged on its way.
        """
        try:
            self._store.create(path, data)
        except ObjectExistsError:
            found = self._store.get(path)
            if found in {data, CLOSED}:
                return found == data
            try:
                decode_document(found, KIND, FORMAT_VERSION, _Record, path)
            except FormatTooNewError:
                return False
            except DocumentCorruptError as error:
                raise StoreUnavailableError(f"an append cannot be confirmed: {error}") from None
            return False
        return True

    def _read_all(self, positions: Sequence[int]) -> list[tuple[int, LogEntry]]:
        with ThreadPoolExecutor(_READERS, thread_name_prefix="log-reader") as readers:
            return list(zip(positions, readers.map(self._entry, positions), strict=True))

    def _gap(self, after: int) -> LogGapError:
        return LogGapError(f"the commit log of {self._layout.job_id} has no complete history after position {after}")

    def _check_end(self, position: int) -> None:
        """Refuses a position in a gap that the clean-up left.

        A process that slept for days could fill it.
        """
        for found, modified_ms in self._modified(position - 1):
            if found > position:
                raise FencedError(f"the commit log continues after position {position}: another attempt is running")
            self.opened_at_ms = modified_ms

    def _positions(self, after: int) -> Iterator[int]:
        return (position for position, _ in self._modified(after))

    def _modified(self, after: int) -> Iterator[tuple[int, int]]:
        """Yields later positions with the store's times of their entries."""
        for info in self._store.list(self._layout.log, start_after=self._layout.log_entry(after)):
            position = self._layout.log_position(info.path)
            if position is not None:
                yield position, info.modified_ms

    def _entry(self, position: int) -> LogEntry:
        return self._record(position).entry

    def _know(self, positions: Iterable[int]) -> None:
        unknown = sorted({position for position in positions if position not in self._known})
        with ThreadPoolExecutor(_READERS, thread_name_prefix="log-reader") as readers:
            self._known.update(zip(unknown, readers.map(self._opening_or_attempt, unknown), strict=True))

    def _opening_or_attempt(self, position: int) -> AttemptOpened | Attempt | None:
        try:
            entry = self._entry(position)
        except LogGapError:
            return None
        return entry if isinstance(entry, AttemptOpened) else entry.attempt

    def _attempt_at(self, positions: Sequence[int], index: int) -> Attempt | None:
        known = self._known[positions[index]]
        return known.attempt if isinstance(known, AttemptOpened) else known

    def _nonce_at(self, position: int) -> str | None:
        try:
            return self._record(position).nonce
        except LogGapError:  # a newer attempt has deleted it
            return None

    def _record(self, position: int) -> _Record:
        path = self._layout.log_entry(position)
        try:
            record = decode_document(document_bytes(self._store, path, KIND), KIND, FORMAT_VERSION, _Record, path)
        except ObjectNotFoundError as error:
            raise LogGapError(f"{path} is gone") from error
        if record.position != position:
            raise DocumentCorruptError(f"{path} holds the entry of position {record.position}")
        return record


def _complete_from(positions: Sequence[int]) -> int:
    """Returns the first index after the last gap in ascending positions."""
    index = len(positions)
    while index > 0 and (index == len(positions) or positions[index - 1] + 1 == positions[index]):
        index -= 1
    return index
