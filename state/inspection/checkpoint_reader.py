"""Reads all entries of a checkpoint or savepoint without its job."""

from __future__ import annotations

import shutil
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..documents.manifest import read_manifest
from ..engine.rocksdb import RocksDbEngine
from ..engine.sharded import ShardedEngine
from ..errors import StateError
from ..keyed.formats import ValueFormats
from ..keyed.schema import merge_schemas
from ..keys.stored_key import parse_stored_key
from ..layout import split_location
from ..objects.opening import open_store
from ..restore.plan import assign_to_range
from ..restore.rebuild import clip, fetch_shards
from ..serializers.key_codecs import key_codec_for
from ..serializers.key_serializer import KeySerializer
from ..serializers.type_names import type_from_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..documents.manifest import Manifest, OperatorSnapshot, SnapshotHandle
    from ..engine.engine import Engine
    from ..keyed.schema import KeyedSchema, StateSchema
    from ..keys.key_groups import KeyGroupRange
    from ..objects.object_store import ObjectStore
    from ..serializers.key_codecs import KeyCodec
    from ..serializers.type_names import TypeJson


class UnknownStateError(StateError):
    """A checkpoint lacks the operator, or the operator lacks the state."""

    code = "STATE_UNKNOWN"
    domain = "user"
    advice = "Use one of the names in the message; `python -m keyscale.state inspect <location>` lists them."


class Entry(NamedTuple):
    """One stored entry of a state.

    Attributes:
        key_group: The key's group.
        key: The key's columns.
        namespace: The scope under the key; None for the void namespace.
        user_key: A map's key, or a list's index; None for other kinds.
        value: In the type of the state's last declaration.
        stamp_ms: When its TTL began; None for a state without a TTL. The entry may have expired since.
    """

    key_group: int
    key: tuple[Any, ...]
    namespace: Any
    user_key: Any
    value: Any
    stamp_ms: int | None


@dataclass(frozen=True, slots=True)
class SubtaskState:
    """One subtask's restored state, open for reading.

    It is available as one engine, and as the engines of its shards.
    """

    snapshot: SnapshotHandle
    engine: Engine
    schema: KeyedSchema | None
    shards: tuple[Engine, ...] = ()

    def entries(self, state: StateSchema) -> Iterator[Entry]:
        """Yields all entries of a state, by stored key."""
        assert self.schema is not None  # noqa: S101 - the state's schema came from it
        keys = KeySerializer(self.schema.key_schema())
        formats = ValueFormats(state, len(state.formats) - 1)
        namespace, map_key = _codec(state.namespace), _codec(state.map_key)
        for raw_key, raw in self.engine.scan(state.name, b"", None):
            key = parse_stored_key(raw_key, keys, namespace, map_key, indexed=state.kind.is_indexed)
            value, stamp_ms = formats.unpack(raw)
            yield Entry(key.key_group, key.key, key.namespace, key.user_key, value, stamp_ms)


class CheckpointReader:
    """Reads a published checkpoint or savepoint.

    Files are fetched into a scratch directory and verified, one subtask at a time.
    """

    def __init__(self, store: ObjectStore, manifest: Manifest, scratch: Path) -> None:
        self.manifest = manifest
        self.store = store
        self.scratch = scratch

    @classmethod
    def open(cls, location: str, scratch: Path) -> CheckpointReader:
        """Opens the checkpoint with its manifest at a location.

        Args:
            location: The manifest's URL, such as `file:///snapshots/job/chk-7/manifest.json`.
            scratch: A directory with room for one subtask's state.

        Raises:
            LocationError: The location does not lead to a manifest.
            ObjectNotFoundError: The manifest does not exist.
            DocumentCorruptError, FormatTooNewError: The manifest cannot be read.
            StoreUnavailableError: The object store is unavailable.
        """
        root, path = split_location(location)
        store = open_store(root)
        return cls(store, read_manifest(store, path), scratch)

    def operator(self, uid: str) -> OperatorSnapshot:
        """Returns the operator of a uid.

        Raises:
            UnknownStateError: The checkpoint has no such operator.
        """
        found = [operator for operator in self.manifest.operators if operator.uid == uid]
        if not found:
            known = ", ".join(operator.uid for operator in self.manifest.operators) or "none"
            raise UnknownStateError(f"the checkpoint has no operator {uid!r}; it has: {known}")
        return found[0]

    def schema(self, operator: OperatorSnapshot) -> KeyedSchema | None:
        """Returns the schema of an operator's entries; None without state."""
        return merge_schemas([snapshot.schema for snapshot in operator.subtasks])

    def state(self, operator: OperatorSnapshot, name: str) -> StateSchema:
        """Returns the schema of an operator's state.

        Raises:
            UnknownStateError: The operator has no state of this name.
        """
        schema = self.schema(operator)
        found = None if schema is None else schema.state(name)
        if found is None:
            known = ", ".join(state.name for state in schema.states) if schema is not None else "none"
            raise UnknownStateError(f"operator {operator.uid!r} has no state {name!r}; it has: {known}")
        return found

    def subtasks(self, operator: OperatorSnapshot) -> Iterator[SubtaskState]:
        """Yields the state of each subtask, open one at a time.

        Raises:
            ObjectNotFoundError, ObjectCorruptError: A file is missing or damaged.
            DiskFullError, DiskReadOnlyError: The scratch directory cannot be written.
        """
        schema = self.schema(operator)
        for snapshot in operator.subtasks:
            with self._opened(snapshot) as shards:
                engine = ShardedEngine(shards)
                yield SubtaskState(snapshot, engine, schema, tuple(shard for _, shard in shards))

    @contextmanager
    def _opened(self, snapshot: SnapshotHandle) -> Iterator[list[tuple[KeyGroupRange, Engine]]]:
        assignments = assign_to_range([snapshot], snapshot.key_groups)
        folder = self.scratch / uuid.uuid4().hex
        directories = [folder / str(number) for number in range(len(assignments))]
        fetch_shards(self.store, assignments, directories, ())
        engines: list[RocksDbEngine] = []
        try:
            for assignment, directory in zip(assignments, directories, strict=True):
                engines.append(RocksDbEngine(directory))
                clip(engines[-1], assignment)
            yield [(assignment.key_groups, engine) for assignment, engine in zip(assignments, engines, strict=True)]
        finally:
            for engine in engines:
                engine.close()
            shutil.rmtree(folder, ignore_errors=True)


def _codec(of_type: TypeJson | None) -> KeyCodec | None:
    return None if of_type is None else key_codec_for(type_from_json(of_type))
