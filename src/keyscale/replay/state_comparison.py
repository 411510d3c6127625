"""The changes of a replayed subtask, beside the committed changes."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from keyscale.state.doors.reading import OperatorTable, changelog_mutations, keyed_tables, read_operator_state
from keyscale.state.doors.subtasks import merge_schemas
from keyscale.state_io.row_files import plain_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from keyscale.identifiers import OperatorUid
    from keyscale.state.doors.keyed import OperatorStateSnapshot
    from keyscale.state.doors.objects import ObjectStore
    from keyscale.state.doors.reading import KeyedTable, SortedRun
    from keyscale.state.doors.subtasks import ChangelogHandle, SubtaskStore
    from keyscale.state.doors.writing import KeyedSchema

    from .replayed_key import ReplayedKey

Entry = tuple[str, bytes]
"""A state and a stored key."""


class StateDifference(NamedTuple):
    """An entry whose value after the batch differs.

    Attributes:
        operator: The operator's uid.
        state: The state, or the timers.
        entry: The key and what else identifies the entry.
        committed: What the batch has left; None: no entry.
        replayed: What the replay has left; None: no entry.
    """

    operator: str
    state: str
    entry: Any
    committed: Any
    replayed: Any


class StateComparison:
    """Compares a subtask's state after a replay with its committed state.

    Create it before the replay: it keeps the operator state of then.

    Args:
        uid: The operator.
        subtask: The subtask's store, in which the replay changes nothing.
        committed: The changelog of the subtask; None: the batch has changed nothing.
        store: The job's object store.
        scratch: An existing directory.
        only: The only key that is replayed; None: all keys.
    """

    def __init__(
        self,
        uid: OperatorUid,
        subtask: SubtaskStore,
        committed: ChangelogHandle | None,
        *,
        store: ObjectStore,
        scratch: Path,
        only: ReplayedKey | None,
    ) -> None:
        self._uid = uid
        self._store = store
        self._scratch = scratch
        self._subtask = subtask
        self._committed = committed
        self._only = only
        self._operator_state = subtask.operator.snapshot()

    def differences(self, changes: Sequence[SortedRun], schema: KeyedSchema) -> list[StateDifference]:
        """Returns the entries whose values after the batch differ.

        Args:
            changes: The changes of the replay.
            schema: The schema of the replay's state.

        Raises:
            ObjectNotFoundError, ObjectCorruptError: The changelog is missing or damaged.
        """
        replayed = {
            (run.family, key): value for run in changes for key, value in zip(run.keys, run.values, strict=True)
        }
        committed = self._committed_changes(replayed)
        merged = merge_schemas([schema, None if self._committed is None else self._committed.schema])
        tables = {table.name: table for table in keyed_tables(merged)}
        found = []
        for entry in sorted({*replayed, *committed}):
            family, key = entry
            table = tables[family]
            if self._only is not None and not self._is_of_key(table, key):
                continue
            before = self._subtask.engine.get(family, key)
            after = committed.get(entry, before), replayed.get(entry, before)
            if after[0] != after[1]:
                found.append(self._difference(table, key, *after))
        return found if self._only is not None else [*found, *self._of_operator_state()]

    def _committed_changes(self, replayed: Mapping[Entry, bytes | None]) -> dict[Entry, bytes | None]:
        if self._committed is None:
            return {}
        found = changelog_mutations(self._store, self._committed, known=replayed, scratch=self._scratch)
        return {(each.family, each.key): each.value for each in found}

    def _is_of_key(self, table: KeyedTable, key: bytes) -> bool:
        assert self._only is not None  # noqa: S101 - the caller has checked it
        start, end = table.range_of(self._only.key_group, self._only.key)
        return start <= key < end and table.is_of(key, self._only.key)

    def _difference(
        self, table: KeyedTable, key: bytes, committed: bytes | None, replayed: bytes | None
    ) -> StateDifference:
        rows = [
            None if value is None else table.batch([(key, value)]).to_pylist()[0] for value in (committed, replayed)
        ]
        identity = next(row for row in rows if row is not None)
        shown = [
            _plain(row, [name for name in row or () if name not in {*table.identity, "key_group"}]) for row in rows
        ]
        return StateDifference(self._uid, table.name, _plain(identity, table.identity), *shown)

    def _of_operator_state(self) -> list[StateDifference]:
        handle = None if self._committed is None else self._committed.operator_state
        committed = self._operator_state if handle is None else read_operator_state(self._store, handle)
        replayed = self._subtask.operator.snapshot()
        return [
            StateDifference(self._uid, name, None, _elements(committed, name), _elements(replayed, name))
            for name in sorted({*committed.states, *replayed.states})
            if committed.states.get(name) != replayed.states.get(name)
        ]


def _plain(row: Mapping[str, Any] | None, names: Sequence[str]) -> Any:
    if row is None:
        return None
    values = {name: plain_value(row[name]) for name in names}
    return values.get("value", values) if len(values) == 1 else values


def _elements(snapshot: OperatorStateSnapshot, name: str) -> list[Any] | None:
    state = snapshot.states.get(name)
    if state is None:
        return None
    rows = chain.from_iterable(batch.to_pylist() for batch in OperatorTable(name, state).batches([state]))
    return [_plain(row, [each for each in row if each not in {"subtask", "list_index"}]) for row in rows]
