"""Migration of a savepoint's value state of maps to a map state.

It is the offline form of `keyscale.state.keyed.migrating_map`. It writes a new, self-contained savepoint; the source
stays untouched. It fetches one subtask after another, writes its maps as map entries of the same keys, a bounded number
at a time, and stores its files. The manifest comes last, so a migration that died has changed nothing, and the job's
retention removes its remains.
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from keyscale.clock import now_ms
from keyscale.failpoints import failpoint

from ..documents.job_time import EventTime, JobTime
from ..documents.manifest import SnapshotKind, write_manifest
from ..documents.state_version import StateVersion
from ..engine.engine import Mutation
from ..errors import StateError
from ..keyed.batch_clock import TimeDomain
from ..keyed.descriptors import MapStateDescriptor, check_name
from ..keyed.formats import ValueFormats
from ..keyed.schema import StateKind, ValueFormat
from ..keyed.stamp import STAMP_MIN_MS
from ..keys.stored_key import check_key_size
from ..layout import Layout
from ..local.subtask_directory import snapshots_root
from ..serializers.key_codecs import key_codec_for
from ..serializers.type_names import type_from_json, type_to_json
from ..snapshot.snapshot import LocalSnapshot, link_snapshot, upload_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyscale.identifiers import OperatorUid

    from ..documents.manifest import FileHandle, Manifest, OperatorSnapshot, SnapshotHandle
    from ..engine.engine import Engine
    from ..keyed.schema import KeyedSchema, StateSchema
    from ..objects.object_store import ObjectStore
    from ..serializers.key_codecs import KeyCodec
    from .checkpoint_reader import CheckpointReader, SubtaskState

_KEYS_AT_A_TIME = 64  # each with a whole map
_ENTRIES_AT_A_TIME = 10_000


class MigrationRefusedError(StateError):
    """A state of a savepoint cannot be migrated as requested."""

    code = "STATE_MIGRATION_REFUSED"
    domain = "user"
    advice = (
        "See the message for what does not fit; `./keyscale state tables LOCATION` shows the states and their types."
    )


@dataclass(frozen=True, slots=True)
class MapMigration:
    """The states to migrate.

    Attributes:
        operator_uid: The operator.
        state: The value state of maps.
        map_state: The map state that replaces it.
        savepoint_id: Id of the new savepoint, which is written beside the job's other savepoints.
    """

    operator_uid: str
    state: str
    map_state: str
    savepoint_id: str


@dataclass(frozen=True, slots=True)
class Migrated:
    """A new savepoint, with the numbers of migrated keys and map entries."""

    manifest: Manifest
    keys: int
    entries: int


def migrate_map(reader: CheckpointReader, migration: MapMigration) -> Migrated:
    """Writes a savepoint with a value state's maps as map entries.

    Entries keep the time of their map's last access. Maps without a time, which were written before the state had a
    TTL, get the savepoint's own time. Expired entries are migrated as well, because the savepoint does not say how long
    entries live.

    Args:
        reader: The savepoint or checkpoint; its scratch directory has room for twice one subtask's state.
        migration: What to migrate.

    Raises:
        UnknownStateError: The operator or state does not exist.
        MigrationRefusedError: The state does not hold maps, or a name is taken.
        DescriptorError, UnsupportedTypeError, InvalidNameError: A name or the maps' key type cannot be used.
        KeyTooLargeError: A map key is too long.
        ObjectNotFoundError, ObjectCorruptError, CorruptValueError: A stored object or value is missing or damaged.
        DiskFullError, DiskReadOnlyError: The scratch directory cannot be written.
    """
    store, source = reader.store, reader.manifest
    operator = reader.operator(migration.operator_uid)
    old = reader.state(operator, migration.state)
    new = plan_map_state(reader.schema(operator), old, migration.map_state)
    layout = Layout(source.job_id)
    target = layout.manifest(source.checkpoint_id, migration.savepoint_id)
    if store.head(target) is not None:
        raise MigrationRefusedError(f"job {source.job_id!r} already has a savepoint {migration.savepoint_id!r}")
    default_ms = _time_ms(source, operator.uid, new)
    work = _NewSavepoint(store, source, migration.savepoint_id, _MapConversion(old, new, default_ms), reader.scratch)
    operators = tuple(
        work.migrated(operator, reader) if each.uid == operator.uid else work.copied(each) for each in source.operators
    )
    positions = None if source.positions is None else work.copied_file(source.positions, work.unique)
    manifest = msgspec.structs.replace(
        source,
        kind=SnapshotKind.SAVEPOINT,
        savepoint_id=migration.savepoint_id,
        operators=operators,
        positions=positions,
        created_at_ms=max(now_ms(), source.created_at_ms + 1),
    )
    failpoint("migration.publishing")
    write_manifest(store, manifest)
    return Migrated(manifest, work.keys, work.entries)


def plan_map_state(schema: KeyedSchema | None, old: StateSchema, name: str) -> StateSchema:
    """Returns the schema of the map state that replaces a value state.

    Pure.

    Raises:
        MigrationRefusedError: The state is not a value state of maps, or the name is taken.
        DescriptorError, UnsupportedTypeError: The name or the maps' key type cannot be used.
    """
    check_name(name)
    written = old.formats[-1]
    if old.kind is not StateKind.VALUE:
        raise MigrationRefusedError(f"state {old.name!r} is of kind {old.kind}, not a value state")
    if isinstance(written.type, str) or not pa.types.is_map(whole := type_from_json(written.type)):
        raise MigrationRefusedError(f"state {old.name!r} holds values of type {written.type}, not maps")
    if schema is not None and schema.state(name) is not None:
        raise MigrationRefusedError(f"the operator has a state {name!r} already; the map state needs a name of its own")
    key_codec_for(whole.key_type)
    declared = MapStateDescriptor(name, whole.key_type, whole.item_type).stored()
    formats = (ValueFormat(type_to_json(whole.item_type), written.stamps),)
    return msgspec.structs.replace(declared, formats=formats, namespace=old.namespace)


def _time_ms(manifest: Manifest, uid: OperatorUid, state: StateSchema) -> int:
    """Returns the start of the TTL for maps without a time."""
    if state.formats[0].stamps != TimeDomain.EVENT:
        return manifest.created_at_ms
    times = manifest.time.event_times if isinstance(manifest.time, JobTime) else {}
    watermark_ms = times.get(uid, EventTime()).watermark_ms
    return STAMP_MIN_MS if watermark_ms is None else watermark_ms


class _MapConversion:
    """Converts stored maps to stored map entries."""

    def __init__(self, old: StateSchema, new: StateSchema, default_ms: int) -> None:
        self.old, self.new = old, new
        self._read = ValueFormats(old, len(old.formats) - 1)
        self._written = ValueFormats(new, 0)
        self._map_keys: KeyCodec = key_codec_for(self._read.type.key_type)
        self._default_ms = default_ms

    def entries(self, prefix: bytes, raw: bytes) -> Iterator[Mutation]:
        value, stamp_ms = self._read.unpack(raw)
        stamp_ms = self._default_ms if stamp_ms is None else stamp_ms
        for map_key, item in (value or {}).items():
            key = prefix + self._map_keys.encode(map_key)
            check_key_size(key)
            yield Mutation(self.new.name, key, self._written.pack(item, stamp_ms))

    def migrate(self, engine: Engine) -> tuple[int, int]:
        """Migrates all of a store; returns the numbers of keys and entries."""
        keys, entries, start = 0, 0, b""
        while chunk := list(engine.scan(self.old.name, start, None, _KEYS_AT_A_TIME)):
            changes: list[Mutation] = []
            for prefix, raw in chunk:
                for mutation in self.entries(prefix, raw):
                    changes.append(mutation)
                    if len(changes) >= _ENTRIES_AT_A_TIME:
                        engine.write(changes)
                        entries += len(changes)
                        changes = []
            engine.write(changes)
            entries += len(changes)
            keys += len(chunk)
            start = chunk[-1][0] + b"\0"
        engine.delete_range(b"", None, self.old.name)
        engine.compact(self.old.name)
        return keys, entries


class _NewSavepoint:
    """The stored parts of the new savepoint."""

    def __init__(
        self, store: ObjectStore, source: Manifest, savepoint_id: str, maps: _MapConversion, scratch: Path
    ) -> None:
        self.unique = uuid.uuid4().hex
        self.keys = 0
        self.entries = 0
        self._store = store
        self._source = source
        self._savepoint_id = savepoint_id
        self._maps = maps
        self._scratch = scratch
        self._layout = Layout(source.job_id)

    def migrated(self, operator: OperatorSnapshot, reader: CheckpointReader) -> OperatorSnapshot:
        schema = reader.schema(operator)
        assert schema is not None  # noqa: S101 - the state was found in it
        fresh = self._schema(schema)
        declared = operator.declaration
        declaration = msgspec.structs.replace(declared, schema=fresh if declared.schema is not None else None)
        subtasks = tuple(self._migrated_subtask(operator, subtask, fresh) for subtask in reader.subtasks(operator))
        return msgspec.structs.replace(operator, subtasks=subtasks, declaration=declaration)

    def copied(self, operator: OperatorSnapshot) -> OperatorSnapshot:
        subtasks = tuple(self._copied_subtask(operator.uid, snapshot) for snapshot in operator.subtasks)
        return msgspec.structs.replace(operator, subtasks=subtasks)

    def copied_file(self, file: FileHandle, folder: str) -> FileHandle:
        """Copies a file into the new savepoint; returns the copy's handle."""
        if file.shared:
            path = self._layout.savepoint_file(
                self._savepoint_id, file.sha256, self._source.attempt, self._source.checkpoint_id
            )
        else:
            path = f"{self._layout.savepoint(self._savepoint_id)}{folder}/{file.name}"
        self._store.copy(file.path, path)
        return msgspec.structs.replace(file, path=path)

    def _schema(self, schema: KeyedSchema) -> KeyedSchema:
        others = tuple(state for state in schema.states if state.name != self._maps.old.name)
        return msgspec.structs.replace(schema, states=others).with_state(self._maps.new)

    def _migrated_subtask(
        self, operator: OperatorSnapshot, subtask: SubtaskState, schema: KeyedSchema
    ) -> SnapshotHandle:
        snapshot = subtask.snapshot
        keys, entries = self._maps.migrate(subtask.engine)
        self.keys, self.entries = self.keys + keys, self.entries + entries
        root = self._scratch / uuid.uuid4().hex
        directory = snapshots_root(root) / f"{self._source.checkpoint_id}-{self.unique}"
        lineage = hashlib.sha256(f"{snapshot.lineage}\n{self._maps.old.name}\n{self._maps.new.name}".encode())
        try:
            link_snapshot(directory, subtask.shards)
            local = LocalSnapshot(
                directory=str(directory),
                local_root=str(root),
                job_id=self._source.job_id,
                operator_uid=operator.uid,
                subtask=snapshot.subtask,
                attempt=self._source.attempt,
                checkpoint_id=self._source.checkpoint_id,
                unique=self.unique,
                version=StateVersion(snapshot.batch_id, lineage.hexdigest()),
                key_groups=snapshot.key_groups,
                shards=tuple(shard.key_groups for shard in snapshot.shards),
                schema=schema,
            )
            handle = upload_snapshot(local, self._store, self._layout, {}, self._savepoint_id).handle
        finally:
            shutil.rmtree(root, ignore_errors=True)
        failpoint("migration.subtask_stored")
        return self._with_operator_state(operator.uid, snapshot, handle)

    def _copied_subtask(self, uid: OperatorUid, snapshot: SnapshotHandle) -> SnapshotHandle:
        shards = []
        for number, shard in enumerate(snapshot.shards):
            files = tuple(self.copied_file(file, f"{self._folder(uid, snapshot)}/{number}") for file in shard.files)
            shards.append(msgspec.structs.replace(shard, files=files))
        return self._with_operator_state(uid, snapshot, msgspec.structs.replace(snapshot, shards=tuple(shards)))

    def _with_operator_state(self, uid: OperatorUid, source: SnapshotHandle, handle: SnapshotHandle) -> SnapshotHandle:
        file = source.operator_state_file
        if file is None:
            return handle
        copied = self.copied_file(file, self._folder(uid, source))
        return msgspec.structs.replace(handle, operator_state=copied)

    def _folder(self, uid: OperatorUid, snapshot: SnapshotHandle) -> str:
        return f"{self.unique}-{hashlib.sha256(uid.encode()).hexdigest()[:16]}/{snapshot.subtask}"
