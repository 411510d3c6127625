"""Sets and deletes the state of keys in a new savepoint."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa

from keyscale.errors import KeyscaleError
from keyscale.identifiers import CheckpointId, JobId
from keyscale.state.doors.commits import event_time_ms
from keyscale.state.doors.objects import ObjectNotFoundError, open_store
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

from .answer_limit import check_answer
from .argument import check_argument, items_of
from .json_value import value_of_json
from .key_state import READ_BYTES_MAX, KeyReadTooLargeError
from .key_text import key_of_text
from .row_files import plain_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from keyscale.state.doors.catalogue import Manifest
    from keyscale.state.doors.commits import OperatorSnapshot
    from keyscale.state.doors.reading import Engine, KeyedTable
    from keyscale.state.doors.subtasks import SnapshotHandle

TIMERS = "timers"
_FACTS_BYTES_MAX = 16 << 10
"""The most bytes of an answer's location and numbers."""


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

    def __post_init__(self) -> None:
        for name in ("operator", "state", "key"):
            check_argument(f"KeyChange.{name}", getattr(self, name), "text", str)
        check_argument("KeyChange.time_ms", self.time_ms, "a whole number or None", int, type(None))


@dataclass(frozen=True, slots=True)
class ChangedKey:
    """The rows of a key before and after a change.

    Attributes:
        key: The key, by column.
        before: The rows that were removed or replaced, without the key.
        after: The rows in their place.
    """

    key: dict[str, Any]
    before: list[dict[str, Any]]
    after: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    """The new savepoint, and the effect of each change.

    Attributes:
        location: The location of the savepoint.
        manifest: Its manifest.
        changes: The effects, in the order of the changes.
    """

    location: str
    manifest: Manifest
    changes: list[ChangedKey]


def change_keys(source: str, target: str, changes: Sequence[KeyChange], *, scratch: Path | None = None) -> ChangedKeys:
    """Writes a copy of a snapshot with the state of keys changed.

    Only the files of the keys' subtasks are fetched; other files are copied inside the store. Changes take effect in
    order. If one change does not fit, no savepoint is written.

    Args:
        source: The location of the checkpoint or savepoint.
        target: Where: `<store>/<job>/savepoints/<id>`, in the store of the source.
        changes: The changes.
        scratch: A directory with room for a subtask's state; None: the system's.

    Raises:
        ArgumentInvalidError: An argument has the wrong type.
        UnknownStateError: The source lacks the operator or the state.
        KeyTextError, ValueJsonError, KeyChangeError: The key or the value does not fit the state.
        LocationError: The target cannot be a savepoint's, or is in another store.
        SavepointExistsError: The target has a savepoint already.
        ObjectNotFoundError, ObjectCorruptError: A file is missing or damaged.
        StoreUnavailableError: The object store is unavailable.
    """
    changes = items_of("changes", changes, "a KeyChange", KeyChange)
    return change_point(StatePoint.of_location(source), target, changes, scratch=scratch)


def change_point(
    point: StatePoint,
    target: str,
    changes: Sequence[KeyChange],
    *,
    scratch: Path | None = None,
    checkpoint_id: int | None = None,
    fetched_bytes_max: int | None = None,
    check: Callable[[Sequence[ChangedKey]], None] | None = None,
) -> ChangedKeys:
    """Changes the state of keys in an opened snapshot, like `change_keys`.

    Args:
        point: The snapshot.
        target: As for `change_keys`.
        changes: The changes.
        scratch: As for `change_keys`.
        checkpoint_id: The number in the savepoint's manifest; None: the snapshot's.
        fetched_bytes_max: The bytes of files that the changes may fetch; None: any.
        check: Raises an error for effects whose savepoint is not to be published; None: publishes all.
    """
    base = point.manifest
    assert base is not None  # noqa: S101 - the point is a snapshot's
    hashing = KeyHashing(base.max_parallelism, base.hash_id)
    with tempfile.TemporaryDirectory(prefix="keyscale-change-", dir=scratch) as directory:
        reader = CheckpointReader(point.store, base, Path(directory))
        edits = _edits_of(changes, reader, hashing)
        by_operator: defaultdict[str, list[_Edit]] = defaultdict(list)
        for edit in edits:
            by_operator[edit.operator.uid].append(edit)
        owners = {(edit.operator.uid, edit.owner.subtask): edit.owner.state_size_bytes for edit in edits}
        if fetched_bytes_max is not None and (size := sum(owners.values())) > fetched_bytes_max:
            raise KeyReadTooLargeError(
                f"the files with the keys take {size:,} bytes, and a change may fetch {fetched_bytes_max:,}"
            )
        savepoint = NewSavepoint.at(target, hashing, base=base, base_store=point.store.url)
        if checkpoint_id is not None:
            savepoint = replace(savepoint, checkpoint_id=CheckpointId(checkpoint_id))
        with savepoint.written():
            written = [
                _changed(each, by_operator[each.uid], reader, savepoint)
                if each.uid in by_operator
                else savepoint.copies().operator(each)
                for each in base.operators
            ]
            changed = [ChangedKey(edit.named_key, edit.before, edit.after) for edit in edits]
            if check is not None:
                check(changed)
            manifest = savepoint.publish(written, base=base)
    return ChangedKeys(savepoint.location, manifest, changed)


def change_of_job(
    *,
    store_url: str,
    job_id: str,
    savepoint_id: str,
    checkpoint_id: int,
    manifest_path: str,
    fetched_bytes_max: int,
    changes: list[dict[str, Any]],
    derived_from: int | None,
) -> dict[str, Any]:
    """Writes a job's savepoint with the state of keys changed.

    The request and the answer are stored in the savepoint's folder, for a repeated request.

    Args:
        store_url: The job's object store.
        job_id: The job.
        savepoint_id: The id of the new savepoint.
        checkpoint_id: The number in its manifest.
        manifest_path: The path of the snapshot's manifest.
        fetched_bytes_max: The bytes of files that the changes may fetch.
        changes: The fields of each `KeyChange`.
        derived_from: The number of the snapshot that the request names; None: the latest.

    Raises:
        ForeignStateError: The snapshot has objects of another job.
        KeyReadTooLargeError: The files of the keys' subtasks are too large.
        StateAnswerTooLargeError: The effects are too large for an answer; no savepoint is written.
        KeyscaleError: As `change_keys`.
    """
    store = open_store(store_url, get_bytes_max=READ_BYTES_MAX)
    first = first_answer(
        store_url=store_url, job_id=job_id, savepoint_id=savepoint_id, changes=changes, derived_from=derived_from
    )
    if first is not None and first["checkpoint_id"] == checkpoint_id:
        return first  # the savepoint is written, but its request ended before the answer
    point = StatePoint.of_path(store, manifest_path)
    point.check_own(JobId(job_id))
    target = location_of(store.url, Layout(JobId(job_id)).manifest(CheckpointId(checkpoint_id), savepoint_id))
    wanted = [KeyChange(**each) for each in changes]
    changed = change_point(
        point,
        target,
        wanted,
        checkpoint_id=checkpoint_id,
        fetched_bytes_max=fetched_bytes_max,
        check=_check_answer_of,
    )
    answer = {
        "location": changed.location,
        "checkpoint_id": checkpoint_id,
        "changes": [asdict(each) for each in changed.changes],
        "batch_id": changed.manifest.batch_id,
        "created_at_ms": changed.manifest.created_at_ms,
        "state_size_bytes": changed.manifest.state_size_bytes,
    }
    record = json.dumps({"version": 1, "request": _asked(changes, derived_from), "answer": answer})
    store.put(Layout(JobId(job_id)).changes(savepoint_id), record.encode())
    return answer


def _check_answer_of(changed: Sequence[ChangedKey]) -> None:
    """Checks that an answer can have the effects.

    The control plane would not register a savepoint whose answer it does not get.
    """
    check_answer(json.dumps([asdict(each) for each in changed]), reserved_bytes=_FACTS_BYTES_MAX)


def first_answer(
    *, store_url: str, job_id: str, savepoint_id: str, changes: list[dict[str, Any]], derived_from: int | None
) -> dict[str, Any] | None:
    """Returns the answer to an equal request for the same savepoint.

    Args:
        store_url: As for `change_of_job`.
        job_id: As for `change_of_job`.
        savepoint_id: The id of the savepoint.
        changes: As for `change_of_job`.
        derived_from: As for `change_of_job`.

    Returns:
        The answer; None: no equal request has made the savepoint.

    Raises:
        ObjectTooLargeError: The stored answer is too large.
        StoreUnavailableError: The object store is unavailable.
    """
    try:
        stored = open_store(store_url, get_bytes_max=READ_BYTES_MAX).get(Layout(JobId(job_id)).changes(savepoint_id))
        record = msgspec.json.decode(stored, type=_ChangeRecord)
    except (ObjectNotFoundError, msgspec.DecodeError):
        return None
    # As text, because in Python 1, 1.0 and True are equal.
    asked = [json.dumps(each, sort_keys=True) for each in (record.request, _asked(changes, derived_from))]
    return record.answer if asked[0] == asked[1] and record.answer.keys() == _ANSWER else None


class _ChangeRecord(msgspec.Struct, frozen=True):
    """A request and its answer, as stored beside the savepoint."""

    version: Literal[1]
    request: dict[str, Any]
    answer: dict[str, Any]


_ANSWER = {"location", "checkpoint_id", "changes", "batch_id", "created_at_ms", "state_size_bytes"}


def _asked(changes: list[dict[str, Any]], derived_from: int | None) -> dict[str, Any]:
    return {"changes": changes, "derived_from": derived_from}


def _edits_of(changes: Sequence[KeyChange], reader: CheckpointReader, hashing: KeyHashing) -> list[_Edit]:
    """Returns the edits, in the order of the changes."""
    if not changes:
        raise KeyChangeError("the list of changes is empty")
    edits = []
    for number, change in enumerate(changes, 1):
        try:
            edits.append(_Edit(change, reader, hashing))
        except KeyscaleError as error:
            if len(changes) == 1:
                raise
            raise type(error)(f"change {number}: {error}") from None
    return edits


def _changed(
    operator: OperatorSnapshot, edits: list[_Edit], reader: CheckpointReader, savepoint: NewSavepoint
) -> OperatorSnapshot:
    """Returns the operator with the changed subtasks."""
    by_subtask: defaultdict[int, list[_Edit]] = defaultdict(list)
    for edit in edits:
        by_subtask[edit.owner.subtask].append(edit)
    others = tuple(each for each in operator.subtasks if each.subtask not in by_subtask)
    subtasks = [*savepoint.copies().operator(msgspec.structs.replace(operator, subtasks=others)).subtasks]
    for owned in by_subtask.values():
        owner, schema = owned[0].owner, owned[0].schema
        for subtask in reader.subtasks(msgspec.structs.replace(operator, subtasks=(owner,))):
            for edit in owned:
                edit.apply(subtask.engine)
            stored = store_changed(
                savepoint, operator.uid, owner, subtask.shards, schema=schema, scratch=reader.scratch
            )
            subtasks.append(stored)
    ordered = tuple(sorted(subtasks, key=lambda each: each.subtask))
    return msgspec.structs.replace(operator, subtasks=ordered)


class _Edit:
    """A change of a key in one operator, and its effect."""

    def __init__(self, change: KeyChange, reader: CheckpointReader, hashing: KeyHashing) -> None:
        operator = reader.operator(change.operator)
        schema = reader.schema(operator)
        tables = {table.name: table for table in keyed_tables(schema)}
        if schema is None or change.state not in tables:
            known = ", ".join(tables) or "none"
            raise UnknownStateError(f"operator {operator.uid!r} has no keyed state {change.state!r}; it has: {known}")
        self.before: list[dict[str, Any]] = []
        self.after: list[dict[str, Any]] = []
        self.operator, self.schema = operator, schema
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
    def owner(self) -> SnapshotHandle:
        """The subtask of the key."""
        return next(each for each in self.operator.subtasks if self._group in each.key_groups)

    def apply(self, engine: Engine) -> None:
        """Changes the state of the key."""
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
