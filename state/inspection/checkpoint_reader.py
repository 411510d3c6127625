"""Opens the subtasks of a checkpoint or savepoint without its job."""

from __future__ import annotations

import shutil
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..documents.manifest import read_manifest
from ..engine.sharded import ShardedEngine
from ..keyed.schema import merge_schemas
from ..layout import split_location
from ..objects.opening import open_store
from .fetched_shards import close_all, open_fetched
from .state_point import UnknownStateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..documents.manifest import Manifest, OperatorSnapshot, SnapshotHandle
    from ..engine.engine import Engine
    from ..keyed.schema import KeyedSchema, StateSchema
    from ..keys.key_groups import KeyGroupRange
    from ..objects.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class SubtaskState:
    """One subtask's restored state, open for reading.

    It is available as one engine, and as the engines of its shards.
    """

    snapshot: SnapshotHandle
    engine: Engine
    schema: KeyedSchema | None
    shards: tuple[Engine, ...] = ()


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
        folder = self.scratch / uuid.uuid4().hex
        engines: list[tuple[KeyGroupRange, Engine]] = []
        try:
            engines += open_fetched(self.store, [snapshot], snapshot.key_groups, folder)
            yield engines
        finally:
            close_all(engines)
            shutil.rmtree(folder, ignore_errors=True)
