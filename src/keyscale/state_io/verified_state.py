"""Verifies all of a snapshot: files, hashes, and every stored entry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keyscale.errors import KeyscaleError
from keyscale.state.doors.catalogue import verify
from keyscale.state.doors.values import assign_to_key_groups, hash_codes

from .state_reader import KeyedStateTable, StateReader

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa

_PROBLEMS_MAX = 20


@dataclass(slots=True)
class VerifiedState:
    """The findings of a verification.

    Attributes:
        files: How many files the snapshot has.
        bytes_read: How many bytes of them were read for their hashes.
        entries: How many entries were read.
        problems: The first problems, in words.
    """

    files: int = 0
    bytes_read: int = 0
    entries: int = 0
    problems: list[str] = field(default_factory=list)


def verify_state(location: str, *, scratch: Path | None = None) -> VerifiedState:
    """Reads every file and every entry of a checkpoint or savepoint.

    Each file must have its length and hash, each entry the types of its schema, and each key its key group. The
    entries are read only if all files are sound.

    Args:
        location: The URL of the manifest, or of the manifest's directory.
        scratch: A directory with room for a shard; None: the system's directory for temporary files.

    Raises:
        LocationError: The location does not lead to a manifest.
        ObjectNotFoundError, DocumentCorruptError, FormatTooNewError: The manifest cannot be read.
        StoreUnavailableError: The object store is unavailable.
    """
    with StateReader.open(location, scratch=scratch) as state:
        manifest = state.point.manifest
        assert manifest is not None  # noqa: S101 - a location is a snapshot's
        files = verify(state.point.store, manifest.path, hashes=True, goes_on=lambda _: True)
        found = VerifiedState(files.files or 0, files.bytes_read, problems=list(files.problems))
        if not found.problems:
            _read_entries(state, found)
        return found


def _read_entries(state: StateReader, found: VerifiedState) -> None:
    for uid in state.operators:
        try:
            tables = state.tables(uid)
            for shard in state.point.shard_ranges(uid):  # outside, so that each shard is fetched once
                for table in tables:
                    if isinstance(table, KeyedStateTable):
                        _read_batches(state, table, table.batches(key_groups=shard), found)
            for table in tables:
                if not isinstance(table, KeyedStateTable):
                    found.entries += sum(batch.num_rows for batch in table.batches())
        except KeyscaleError as error:
            _add(found, f"operator {uid!r}: {error.code}: {error}")


def _read_batches(
    state: StateReader, table: KeyedStateTable, batches: Iterable[pa.RecordBatch], found: VerifiedState
) -> None:
    for batch in batches:
        found.entries += batch.num_rows
        if misplaced := _misplaced(state, table, batch):
            _add(found, f'"{table.operator}"."{table.name}": {misplaced} entries are in the wrong key group')


def _misplaced(state: StateReader, table: KeyedStateTable, batch: pa.RecordBatch) -> int:
    """Counts the rows outside the key group of their key.

    The count is 0 for keys that the table shows as text.
    """
    columns = batch.column("key").flatten()
    if [column.type for column in columns] != [field.type for field in table.stored.key_schema]:
        return 0
    expected = assign_to_key_groups(hash_codes(columns, state.point.hash_id), state.point.max_parallelism)
    return int((expected != batch.column("key_group").to_numpy()).sum())


def _add(found: VerifiedState, problem: str) -> None:
    if len(found.problems) < _PROBLEMS_MAX:
        found.problems.append(problem)
