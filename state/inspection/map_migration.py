"""Migration of a savepoint's value state of maps to a map state.

It is the offline form of `keyscale.state.keyed.migrating_map`. It writes a new, self-contained savepoint; the source
stays untouched. It fetches one subtask after another, writes its maps as map entries of the same keys, a bounded number
at a time, and stores its files. The manifest comes last, so a migration that died has changed nothing, and the job's
retention removes its remains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from keyscale.clock import now_ms
from keyscale.failpoints import failpoint

from ..documents.job_time import event_time_ms
from ..documents.manifest import SnapshotKind, write_manifest
from ..engine.engine import Mutation
from ..errors import StateError
from ..keyed.batch_clock import TimeDomain
from ..keyed.descriptors import MapStateDescriptor, check_name
from ..keyed.formats import ValueFormats
from ..keyed.schema import StateKind, ValueFormat
from ..keys.stored_key import check_key_size
from ..layout import Layout
from ..serializers.key_codecs import key_codec_for
from ..serializers.type_names import type_from_json, type_to_json
from ..writing.changed_subtask import store_changed
from ..writing.new_savepoint import NewSavepoint
from ..writing.row_encoder import KeyHashing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyscale.identifiers import OperatorUid

    from ..documents.manifest import Manifest, OperatorSnapshot, SnapshotHandle
    from ..engine.engine import Engine
    from ..keyed.schema import KeyedSchema, StateSchema
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
    new_savepoint = NewSavepoint(
        store.url,
        source.job_id,
        migration.savepoint_id,
        KeyHashing(source.max_parallelism, source.hash_id),
        source.checkpoint_id,
        source.batch_id,
        source.attempt,
    )
    work, copies = _Migration(new_savepoint, _MapConversion(old, new, default_ms)), new_savepoint.copies()
    operators = tuple(
        work.migrated(operator, reader) if each.uid == operator.uid else copies.operator(each)
        for each in source.operators
    )
    positions = None if source.positions is None else copies.file(source.positions)
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
    is_event_time = state.formats[0].stamps == TimeDomain.EVENT
    return event_time_ms(manifest.time, uid) if is_event_time else manifest.created_at_ms


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


class _Migration:
    """The operators of the new savepoint, with counted keys and entries."""

    def __init__(self, savepoint: NewSavepoint, maps: _MapConversion) -> None:
        self.keys = 0
        self.entries = 0
        self._savepoint = savepoint
        self._maps = maps

    def migrated(self, operator: OperatorSnapshot, reader: CheckpointReader) -> OperatorSnapshot:
        schema = reader.schema(operator)
        assert schema is not None  # noqa: S101 - the state was found in it
        others = tuple(state for state in schema.states if state.name != self._maps.old.name)
        fresh = msgspec.structs.replace(schema, states=others).with_state(self._maps.new)
        declared = operator.declaration
        declaration = msgspec.structs.replace(declared, schema=fresh if declared.schema is not None else None)
        subtasks = tuple(
            self._migrated_subtask(operator, subtask, fresh, reader.scratch) for subtask in reader.subtasks(operator)
        )
        return msgspec.structs.replace(operator, subtasks=subtasks, declaration=declaration)

    def _migrated_subtask(
        self, operator: OperatorSnapshot, subtask: SubtaskState, schema: KeyedSchema, scratch: Path
    ) -> SnapshotHandle:
        keys, entries = self._maps.migrate(subtask.engine)
        self.keys, self.entries = self.keys + keys, self.entries + entries
        stored = store_changed(
            self._savepoint, operator.uid, subtask.snapshot, subtask.shards, schema=schema, scratch=scratch
        )
        failpoint("migration.subtask_stored")
        return stored
