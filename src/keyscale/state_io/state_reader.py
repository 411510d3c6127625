"""Reads all state of a job at one point in its history."""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from keyscale.identifiers import BatchId, JobId
from keyscale.state.doors.objects import open_store
from keyscale.state.doors.reading import (
    OperatorTable,
    ShardReader,
    StatePoint,
    StoredOperatorState,
    UnknownStateError,
    assign_to_key_group,
    keyed_tables,
    read_operator_state,
)
from keyscale.state.doors.values import KeyGroupRange
from keyscale.units import counted

from .argument import ArgumentInvalidError, check_argument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.state.doors.reading import KeyedTable, RawEntry


class StateReader:
    """Reads the state in a snapshot, or after a committed batch.

    Files are fetched into a scratch directory, a shard at a time, and removed when the reader is closed. Use it in a
    `with` statement.
    """

    def __init__(
        self,
        point: StatePoint,
        *,
        location: str | None = None,
        scratch: Path | None = None,
        shards_open: int = 1,
        open_bytes_max: int | None = None,
    ) -> None:
        """Creates a reader; `open` and `of_job` are easier to use.

        Args:
            point: The state to read.
            location: The location of the snapshot; None: the state is not a snapshot's.
            scratch: A directory with room for the open shards; None: the system's directory for temporary files.
            shards_open: How many shards stay open after a read, for other reads of the same operators.
            open_bytes_max: How many bytes of files they may have together; None: any number.
        """
        check_argument("shards_open", shards_open, "a whole number", int)
        self.point = point
        self.location = location
        self.scratch = Path(tempfile.mkdtemp(prefix="keyscale-state-", dir=scratch))
        self.shards = ShardReader(point, self.scratch, open_max=shards_open, open_bytes_max=open_bytes_max)

    @classmethod
    def open(cls, location: str, *, scratch: Path | None = None, shards_open: int = 1) -> Self:
        """Opens the checkpoint or savepoint at a location.

        Args:
            location: The URL of its manifest or of the manifest's directory, on `file://` or `s3://`.
            scratch: As in the constructor.
            shards_open: As in the constructor.

        Raises:
            LocationError: The location does not lead to a manifest.
            ObjectNotFoundError: The manifest does not exist.
            DocumentCorruptError, FormatTooNewError: The manifest cannot be read.
            StoreUnavailableError: The object store is unavailable.
        """
        point = StatePoint.of_location(location)
        return cls(point, location=location, scratch=scratch, shards_open=shards_open)

    @classmethod
    def of_job(cls, store_url: str, job_id: str, batch_id: int | None = None, *, scratch: Path | None = None) -> Self:
        """Opens a job's state after a committed batch, by default the latest.

        Raises:
            BatchNotStoredError: The job has not committed the batch, or its state was cleaned up.
            KeyscaleError: The store does not answer, or its content cannot be read.
        """
        check_argument("store_url", store_url, "the URL of the job's object store", str)
        check_argument("job_id", job_id, "the job's id as text", str)
        check_argument("batch_id", batch_id, "the number of a batch or None", int, type(None))
        batch = None if batch_id is None else BatchId(batch_id)
        return cls(StatePoint.of_job(open_store(store_url), JobId(job_id), batch), scratch=scratch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes all scratch files; closing twice is harmless."""
        self.shards.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def advance(self, point: StatePoint) -> None:
        """Continues at a later point of the same attempt.

        Open shards stay open. No read may be in progress.
        """
        self.point = point
        self.shards.advance(point)

    @property
    def operators(self) -> list[str]:
        """The uids of the operators."""
        return list(self.point.resume.operators)

    def tables(self, operator: str | None = None, *, nested: bool = False) -> list[StateTable]:
        """Returns the tables of an operator, or of all operators.

        Args:
            operator: The operator's uid; None: all operators.
            nested: Whether a map or a list is one row.

        Raises:
            UnknownStateError: There is no such operator.
            ObjectNotFoundError, ObjectCorruptError: A file of operator state is missing or damaged.
        """
        tables: list[StateTable] = []
        for uid in self.operators if operator is None else [operator]:
            tables += [KeyedStateTable(self, uid, keyed) for keyed in self._keyed(uid, nested=nested)]
            tables += [
                OperatorStateTable(uid, name, states) for name, states in sorted(self._operator_states(uid).items())
            ]
        return tables

    def table(self, operator: str, state: str, *, nested: bool = False) -> StateTable:
        """Returns the table of one state of an operator; raises as `tables`."""
        tables = {table.name: table for table in self.tables(operator, nested=nested)}
        if state not in tables:
            known = ", ".join(tables) or "none"
            raise UnknownStateError(f"operator {operator!r} has no state {state!r}; it has: {known}")
        return tables[state]

    def _keyed(self, uid: str, *, nested: bool) -> list[KeyedTable]:
        return keyed_tables(self.point.operator(uid).schema, nested=nested)

    def _operator_states(self, uid: str) -> dict[str, list[StoredOperatorState | None]]:
        files = self.point.operator(uid).operator_state
        found = [None if file is None else read_operator_state(self.point.store, file).states for file in files]
        names = {name for states in found if states is not None for name in states}
        return {name: [None if states is None else states.get(name) for states in found] for name in names}


class StateTable(ABC):
    """The rows of one state of one operator.

    Tools that read Arrow streams, such as DuckDB, Polars and pandas, can read the table itself.

    Attributes:
        operator: The operator's uid.
        name: The state's name.
        kind: The kind of the state.
        schema: The columns of the rows.
        identity: The columns that identify a row.
    """

    operator: str
    name: str
    kind: str
    schema: pa.Schema
    identity: tuple[str, ...]

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields all rows in batches of a bounded size.

        Raises:
            ObjectNotFoundError, ObjectCorruptError, CorruptValueError: A stored object or value is missing or damaged.
            DiskFullError, DiskReadOnlyError: The scratch directory cannot be written.
        """

    def reader(self) -> pa.RecordBatchReader:
        """Returns all rows as a stream."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)


class KeyedStateTable(StateTable):
    """The rows of a keyed state or of timers, in stored order."""

    def __init__(self, state: StateReader, operator: str, table: KeyedTable) -> None:
        self.operator, self.name, self.kind = operator, table.name, table.kind
        self.schema, self.identity = table.schema, table.identity
        self.stored = table
        self._state = state

    def batches(
        self, *, key: tuple[Any, ...] | None = None, key_groups: KeyGroupRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields rows in batches of a bounded size; raises as `StateTable.batches`.

        Args:
            key: Yields only the rows of this key, a value per key column, from the files of its key group.
            key_groups: Yields only the rows of these key groups.
        """
        return self.stored.batches(self.entries(key=key, key_groups=key_groups))

    def entries(
        self, *, key: tuple[Any, ...] | None = None, key_groups: KeyGroupRange | None = None
    ) -> Iterator[RawEntry]:
        """Yields stored entries, by stored key; arguments as for `batches`."""
        check_argument("key_groups", key_groups, "a KeyGroupRange or None", KeyGroupRange, type(None))
        if key is not None:
            names = self.stored.key_schema.names
            check_argument("key", key, f"a tuple with the values of {names}", tuple)
            if len(key) != len(names):
                raise ArgumentInvalidError(f"key has {counted(len(key), 'value')}; give the values of {names}")
            group = self.key_group_of(key)
            start, end = self.stored.range_of(group, key)
            wanted = KeyGroupRange(group, group)
        else:
            wanted = key_groups or KeyGroupRange(0, self._state.point.max_parallelism - 1)
            start, end = wanted.start_key, wanted.end_key
        for shard in self.shards:
            if shard.intersection(wanted) is not None:
                found = self._state.shards.entries(self.operator, self.name, shard, start, end)
                if key is None:
                    yield from found
                else:
                    yield from (entry for entry in found if self.stored.is_of(entry[0], key))

    @cached_property
    def shards(self) -> tuple[KeyGroupRange, ...]:
        """The key groups of each of the operator's shards."""
        return self._state.point.shard_ranges(self.operator)

    def key_group_of(self, key: tuple[Any, ...]) -> int:
        """Returns the key group of a key."""
        types = tuple(field.type for field in self.stored.key_schema)
        point = self._state.point
        return assign_to_key_group(key, point.max_parallelism, hash_id=point.hash_id, types=types)


class OperatorStateTable(StateTable):
    """The rows of an operator state, by subtask."""

    def __init__(self, operator: str, name: str, states: list[StoredOperatorState | None]) -> None:
        table = OperatorTable(name, next(state for state in states if state is not None))
        self.operator, self.name, self.kind = operator, name, table.kind
        self.schema, self.identity = table.schema, table.identity
        self._table, self._states = table, states

    def batches(self) -> Iterator[pa.RecordBatch]:
        return self._table.batches(self._states)
