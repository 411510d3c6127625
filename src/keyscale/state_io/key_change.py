"""Sets and deletes the state of one key in a new savepoint."""

from __future__ import annotations

import tempfile
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from keyscale.errors import KeyscaleError
from keyscale.identifiers import CheckpointId, JobId
from keyscale.state.doors.commits import event_time_ms
from keyscale.state.doors.objects import open_store
from keyscale.state.doors.paths import Layout, location_of
from keyscale.state.doors.reading import (
    CheckpointReader,
    Mutation,
    StatePoint,
    UnknownStateError,
    assign_to_key_group,
    keyed_tables,
)
from keyscale.state.doors.writing import KeyHashing, NewSavepoint, encoder_of, store_changed

from .json_value import value_of_json
from .key_state import READ_BYTES_MAX, KeyReadTooLargeError
from .key_text import key_of_text
from .row_files import plain_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyscale.state.doors.catalogue import Manifest
    from keyscale.state.doors.commits import OperatorSnapshot
    from keyscale.state.doors.reading import Engine, KeyedTable
    from keyscale.state.doors.subtasks import SnapshotHandle

TIMERS = "timers"


class KeyChangeError(KeyscaleError):
    """A change of a key's state does not fit the state."""

    code = "STATE_KEY_CHANGE_INVALID"
    domain = "user"
    advice = (
        "Give a namespace if the state has namespaces, a map key only for a map, a time for timers, and a value for all"
        " other states. `./keyscale state get JOB` shows the state of the key."
    )


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A change of one key's state; its values are JSON.

    Attributes:
        operator: The operator's uid.
        state: The state, or timers.
        key: The key as text, as `key_of_text` reads it.
        value: The new value: of a map without `map_key` an object with all entries, of a list a list of all elements.
        deletes: Whether the state of the key is deleted instead.
        namespace: The namespace, for a state with namespaces.
        map_key: The entry of a map that alone changes; None: the whole map.
        time_ms: The time of the timer that is set or deleted; None: all timers of the key are deleted.
    """

    operator: str
    state: str
    key: str
    value: Any = None
    deletes: bool = False
    namespace: Any = None
    map_key: Any = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ChangedKey:
    """The new savepoint, and the rows of the key before and after.

    Attributes:
        location: The location of the savepoint.
        manifest: Its manifest.
        key: The key, by column.
        before: The rows that were removed or replaced, without the key.
        after: The rows in their place.
    """

    location: str
    manifest: Manifest
    key: dict[str, Any]
    before: list[dict[str, Any]]
    after: list[dict[str, Any]]


def change_key(source: str, target: str, change: KeyChange, *, scratch: Path | None = None) -> ChangedKey:
    """Writes a copy of a snapshot with one key's state changed.

    Only the files of the key's subtask are fetched; other files are copied inside the store.

    Args:
        source: The location of the checkpoint or savepoint.
        target: Where: `<store>/<job>/savepoints/<id>`, in the store of the source.
        change: The change.
        scratch: A directory with room for the subtask's state; None: the system's.

    Raises:
        UnknownStateError: The source lacks the operator or the state.
        KeyTextError, ValueJsonError, KeyChangeError: The key or the value does not fit the state.
        LocationError: The target cannot be a savepoint's, or is in another store.
        SavepointExistsError: The target has a savepoint already.
        ObjectNotFoundError, ObjectCorruptError: A file is missing or damaged.
        StoreUnavailableError: The object store is unavailable.
    """
    return change_point(StatePoint.of_location(source), target, change, scratch=scratch)


def change_point(
    point: StatePoint,
    target: str,
    change: KeyChange,
    *,
    scratch: Path | None = None,
    checkpoint_id: int | None = None,
    fetched_bytes_max: int | None = None,
) -> ChangedKey:
    """Changes one key's state in a snapshot that was opened; see `change_key`.

    Args:
        point: The snapshot.
        target: As for `change_key`.
        change: The change.
        scratch: As for `change_key`.
        checkpoint_id: The number in the savepoint's manifest; None: the snapshot's.
        fetched_bytes_max: The bytes of files that the change may fetch; None: any.
    """
    base = point.manifest
    assert base is not None  # noqa: S101 - the point is a snapshot's
    hashing = KeyHashing(base.max_parallelism, base.hash_id)
    with tempfile.TemporaryDirectory(prefix="keyscale-change-", dir=scratch) as directory:
        reader = CheckpointReader(point.store, base, Path(directory))
        operator = reader.operator(change.operator)
        edit = _Edit(change, reader, operator, hashing)
        if fetched_bytes_max is not None and (size := edit.size_bytes) > fetched_bytes_max:
            raise KeyReadTooLargeError(
                f"the files with the key take {size:,} bytes, and a change may fetch {fetched_bytes_max:,}"
            )
        savepoint = NewSavepoint.at(target, hashing, base=base, base_store=point.store.url)
        if checkpoint_id is not None:
            savepoint = replace(savepoint, checkpoint_id=CheckpointId(checkpoint_id))
        with savepoint.written():
            written = [
                edit.changed(savepoint) if each.uid == operator.uid else savepoint.copies().operator(each)
                for each in base.operators
            ]
            manifest = savepoint.publish(written, base=base)
    return ChangedKey(savepoint.location, manifest, edit.named_key, edit.before, edit.after)


def change_of_job(
    *,
    store_url: str,
    job_id: str,
    savepoint_id: str,
    checkpoint_id: int,
    manifest_path: str,
    fetched_bytes_max: int,
    **change: Any,
) -> dict[str, Any]:
    """Writes a job's savepoint with one key's state changed.

    Args:
        store_url: The job's object store.
        job_id: The job.
        savepoint_id: The id of the new savepoint.
        checkpoint_id: The number in its manifest.
        manifest_path: The path of the snapshot's manifest.
        fetched_bytes_max: The bytes of files that the change may fetch.
        change: The fields of a `KeyChange`.

    Raises:
        ForeignStateError: The snapshot has objects of another job.
        KeyReadTooLargeError: The files of the key's subtask are too large.
        KeyscaleError: As `change_key`.
    """
    store = open_store(store_url, get_bytes_max=READ_BYTES_MAX)
    point = StatePoint.of_path(store, manifest_path)
    point.check_own(JobId(job_id))
    target = location_of(store.url, Layout(JobId(job_id)).manifest(CheckpointId(checkpoint_id), savepoint_id))
    changed = change_point(
        point, target, KeyChange(**change), checkpoint_id=checkpoint_id, fetched_bytes_max=fetched_bytes_max
    )
    return {
        "location": changed.location,
        "key": changed.key,
        "before": changed.before,
        "after": changed.after,
        "batch_id": changed.manifest.batch_id,
        "created_at_ms": changed.manifest.created_at_ms,
        "state_size_bytes": changed.manifest.state_size_bytes,
    }


class _Edit:
    """A change of a key in one operator, and its effect."""

    def __init__(
        self, change: KeyChange, reader: CheckpointReader, operator: OperatorSnapshot, hashing: KeyHashing
    ) -> None:
        schema = reader.schema(operator)
        tables = {table.name: table for table in keyed_tables(schema)}
        if schema is None or change.state not in tables:
            known = ", ".join(tables) or "none"
            raise UnknownStateError(f"operator {operator.uid!r} has no keyed state {change.state!r}; it has: {known}")
        self.before: list[dict[str, Any]] = []
        self.after: list[dict[str, Any]] = []
        self._reader, self._operator, self._schema = reader, operator, schema
        self._table = tables[change.state]
        self._key = key_of_text(change.key, self._table.key_schema)
        types = tuple(field.type for field in self._table.key_schema)
        self._group = assign_to_key_group(self._key, hashing.max_parallelism, hash_id=hashing.hash_id, types=types)
        self._scope = _scope_of(change, self._table)
        self._new: list[tuple[bytes, bytes]] = []
        if not change.deletes:
            rows = _rows_of(change, self._table, {**self.named_key_values, **self._scope})
            base = reader.manifest
            watermark_ms = event_time_ms(base.time, operator.uid)
            encoder = encoder_of(schema, change.state, hashing, base.created_at_ms, event_time_ms=watermark_ms)
            entries = encoder.encode(rows)
            self._new = list(zip(entries.keys.to_list(), entries.values.to_list(), strict=True))
            if len({key for key, _ in self._new}) < len(self._new):
                raise KeyChangeError("the value has two entries of the same map key")

    @property
    def named_key_values(self) -> dict[str, Any]:
        """The values of the key's columns."""
        return dict(zip(self._table.key_schema.names, self._key, strict=True))

    @property
    def named_key(self) -> dict[str, Any]:
        """The key as JSON can hold it."""
        return {name: plain_value(value) for name, value in self.named_key_values.items()}

    @property
    def size_bytes(self) -> int:
        """The bytes of the files that the change fetches."""
        return self._owner.state_size_bytes

    @property
    def _owner(self) -> SnapshotHandle:
        return next(each for each in self._operator.subtasks if self._group in each.key_groups)

    def changed(self, savepoint: NewSavepoint) -> OperatorSnapshot:
        """Returns the operator with the changed subtask."""
        owner = self._owner
        others = msgspec.structs.replace(
            self._operator, subtasks=tuple(each for each in self._operator.subtasks if each is not owner)
        )
        copied = savepoint.copies().operator(others).subtasks
        alone = msgspec.structs.replace(self._operator, subtasks=(owner,))
        subtasks = [*copied]
        for subtask in self._reader.subtasks(alone):
            self._apply(subtask.engine)
            stored = store_changed(
                savepoint, self._operator.uid, owner, subtask.shards, schema=self._schema, scratch=self._reader.scratch
            )
            subtasks.append(stored)
        ordered = tuple(sorted(subtasks, key=lambda each: each.subtask))
        return msgspec.structs.replace(self._operator, subtasks=ordered)

    def _apply(self, engine: Engine) -> None:
        table, family = self._table, self._table.name
        start, end = table.range_of(self._group, self._key)
        old = [
            entry
            for entry in engine.scan(family, start, end)
            if table.is_of(entry[0], self._key) and self._is_in_scope(table.identity_of(entry[0]))
        ]
        self.before, self.after = _shown(table, old), _shown(table, self._new)
        removed = {key for key, _ in old} - {key for key, _ in self._new}
        puts = [Mutation(family, key, value) for key, value in self._new]
        engine.write([*(Mutation(family, key, None) for key in sorted(removed)), *puts])

    def _is_in_scope(self, identity: Mapping[str, Any]) -> bool:
        return all(_is_same(identity[name], value) for name, value in self._scope.items())


def _is_same(stored: Any, named: Any) -> bool:
    """Returns whether a stored part of an identity is the named one.

    UUIDs are named by text. A NaN is the same as any other NaN.
    """
    if isinstance(stored, uuid.UUID):
        return str(stored) == str(named).lower()
    return bool(stored == named or (stored != stored and named != named))  # noqa: PLR0124 - only NaN differs from itself


def _scope_of(change: KeyChange, table: KeyedTable) -> dict[str, Any]:
    """Returns the parts of the identity that the change names."""
    given = {"namespace": change.namespace, "map_key": change.map_key, "time_ms": change.time_ms}
    for name, value in given.items():
        if value is not None and name not in table.identity:
            raise KeyChangeError(f"{table.name!r} is {table.kind} state without {name}")
    if not change.deletes and "namespace" in table.identity and change.namespace is None:
        raise KeyChangeError(f"{table.name!r} has namespaces; name one")
    if change.deletes and change.value is not None:
        raise KeyChangeError("a deletion has no value")
    if not change.deletes and table.kind != TIMERS and change.value is None and change.map_key is None:
        raise KeyChangeError(f"{table.name!r} has no value to set; delete the state of the key instead")
    if not change.deletes and table.kind == TIMERS and (change.time_ms is None or change.value is not None):
        raise KeyChangeError("a timer is set with a time, and has no value")
    return {
        name: value_of_json(value, table.schema.field(name).type) for name, value in given.items() if value is not None
    }


def _rows_of(change: KeyChange, table: KeyedTable, identity: Mapping[str, Any]) -> pa.RecordBatch:
    """Returns the new rows as the encoder takes them.

    A whole map or list is one row.
    """
    types = {**{each.name: each.type for each in table.key_schema}, **{each.name: each.type for each in table.schema}}
    columns = {name: pa.array([value], types[name]) for name, value in identity.items()}
    if table.kind != TIMERS:
        value_type = types["value"]
        if table.kind == "map" and change.map_key is None:
            value_type = pa.map_(types["map_key"], value_type)
        elif table.kind == "list":
            value_type = pa.list_(value_type)
        columns["value"] = pa.array([value_of_json(change.value, value_type)], value_type)
    return pa.RecordBatch.from_pydict(columns)


def _shown(table: KeyedTable, entries: list[tuple[bytes, bytes]]) -> list[dict[str, Any]]:
    if not entries:
        return []
    rows = table.batch(entries).to_pylist()
    return [{name: plain_value(each) for name, each in row.items() if name not in {"key", "key_group"}} for row in rows]
