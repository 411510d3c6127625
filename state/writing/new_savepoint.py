"""A savepoint that is being written: its place, and its manifest."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from keyscale.clock import now_ms
from keyscale.identifiers import Attempt, BatchId, CheckpointId, OperatorUid

from ..documents.job_time import JobTime
from ..documents.manifest import Manifest, OperatorDeclaration, OperatorSnapshot, SnapshotKind, write_manifest
from ..documents.source_positions import write_positions
from ..documents.state_version import NO_BATCH
from ..errors import StateError
from ..keys.key_group_ranges import KeyGroupRanges
from ..keys.key_groups import check_max_parallelism
from ..layout import Layout, LocationError, location_of, savepoint_of
from ..objects.errors import ObjectNotFoundError
from ..objects.local_store import LocalObjectStore
from ..objects.opening import open_store
from ..snapshot.own_copy import FileCopies

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from keyscale.identifiers import JobId

    from ..documents.manifest import FileHandle, SnapshotHandle
    from ..documents.source_positions import SourcePositions
    from ..keyed.schema import KeyedSchema
    from ..keys.key_groups import KeyGroupRange
    from ..objects.object_store import ObjectStore
    from .row_encoder import KeyHashing

FIRST_CHECKPOINT = CheckpointId(1)
_NO_ATTEMPT = Attempt(0)


class SavepointExistsError(StateError):
    """A location has a savepoint already."""

    code = "STATE_SAVEPOINT_EXISTS"
    domain = "user"
    advice = "Choose another id for the savepoint; a savepoint is never overwritten."


@dataclass(frozen=True, slots=True)
class NewSavepoint:
    """The place of a new savepoint, and its common facts; picklable.

    Attributes:
        store_url: The object store.
        job_id: The job, in whose folder the savepoint is.
        savepoint_id: Its id.
        hashing: How keys are assigned to key groups.
        checkpoint_id: The number in its manifest.
        batch_id: The batch after which its state is; -1: before any.
        attempt: The attempt that took the snapshot that it is derived from; 0: there is none.
        unique: A string that no other write uses.
    """

    store_url: str
    job_id: JobId
    savepoint_id: str
    hashing: KeyHashing
    checkpoint_id: CheckpointId = FIRST_CHECKPOINT
    batch_id: BatchId = NO_BATCH
    attempt: Attempt = _NO_ATTEMPT
    unique: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def at(
        cls, location: str, hashing: KeyHashing, *, base: Manifest | None = None, base_store: str | None = None
    ) -> NewSavepoint:
        """Returns the new savepoint at a location.

        Args:
            location: `<store>/<job>/savepoints/<id>`, with or without the name of the manifest.
            hashing: How keys are assigned to key groups.
            base: The snapshot that the savepoint is derived from; None: there is none.
            base_store: The URL of the base's store.

        Raises:
            LocationError: The location cannot be a savepoint's, or is in another store than the base.
            SavepointExistsError: It has a savepoint already.
            KeyGroupError: The max parallelism is out of bounds.
            StoreUrlError, StoreUnavailableError: The store cannot be used.
        """
        check_max_parallelism(hashing.max_parallelism)
        root, job_id, savepoint_id = savepoint_of(location)
        store = open_store(root)
        if base_store is not None and store.url != base_store:
            raise LocationError(f"a savepoint that is derived from another one is in its store, {base_store}")
        new = cls(store.url, job_id, savepoint_id, hashing)
        if base is not None:
            attempt = base.attempt if base.job_id == job_id else _NO_ATTEMPT
            new = replace(new, checkpoint_id=base.checkpoint_id, batch_id=base.batch_id, attempt=attempt)
        if store.head(new.path) is not None:
            raise SavepointExistsError(f"{new.location} has a savepoint already")
        return new

    @property
    def layout(self) -> Layout:
        return Layout(self.job_id)

    @property
    def path(self) -> str:
        """The path of its manifest."""
        return self.layout.manifest(self.checkpoint_id, self.savepoint_id)

    @property
    def location(self) -> str:
        """The location that a job starts from."""
        return location_of(self.store_url, self.path)

    def store(self) -> ObjectStore:
        """Returns its object store."""
        return open_store(self.store_url)

    @contextlib.contextmanager
    def written(self, *, is_private: bool = True) -> Iterator[None]:
        """Removes the objects of the savepoint if its write fails.

        Args:
            is_private: Whether only this user may enter a new folder of a job in a local store, as for the folders that
                the control plane makes. False: processes of other users write the savepoint.

        Raises:
            StoreUnavailableError: The store is unavailable.
        """
        store, folder = self.store(), self.layout.savepoint(self.savepoint_id)
        if is_private and isinstance(store, LocalObjectStore):
            store.make_private(self.layout.job.rstrip("/"))
        earlier = {info.path for info in store.list(folder)}
        try:
            yield
        except BaseException:
            with contextlib.suppress(StateError):  # the failure of the write counts
                if store.head(self.path) is None:
                    store.delete([info.path for info in store.list(folder) if info.path not in earlier])
            raise

    def ranges(self, parallelism: int) -> list[KeyGroupRange]:
        """Returns the key groups of each subtask.

        Raises:
            KeyGroupError: Not 1 <= parallelism <= max parallelism <= 32768.
        """
        return list(KeyGroupRanges.of_count(self.hashing.max_parallelism, parallelism))

    def copies(self) -> FileCopies:
        """Returns the copies of files of other snapshots in the same store."""
        return FileCopies(self.store(), self.layout, self.savepoint_id, self.checkpoint_id)

    def publish(
        self,
        operators: Iterable[OperatorSnapshot],
        *,
        base: Manifest | None = None,
        renamed: Mapping[str, str] | None = None,
        positions: SourcePositions | None = None,
        time: JobTime | None = None,
    ) -> Manifest:
        """Publishes the manifest, which completes the savepoint.

        The savepoint keeps source positions and times of its base. The savepoint contains no part of a job's log, so
        that it counts only for an attempt that restores from it by name.

        Args:
            operators: All operators.
            base: The snapshot that the savepoint is derived from.
            renamed: The new uid of each operator of the base with a new uid.
            positions: The source positions of a savepoint without a base.
            time: The times of a savepoint without a base.

        Raises:
            ManifestTakenError: Another savepoint was published there meanwhile.
            ObjectNotFoundError: A file is gone: another write to the location has failed meanwhile.
            StoreUnavailableError: The store is unavailable.
        """
        ordered = tuple(sorted(operators, key=lambda each: each.uid))
        manifest = Manifest(
            job_id=self.job_id,
            checkpoint_id=self.checkpoint_id,
            kind=SnapshotKind.SAVEPOINT,
            attempt=self.attempt,
            batch_id=self.batch_id,
            log_position=0,
            max_parallelism=self.hashing.max_parallelism,
            hash_id=self.hashing.hash_id,
            created_at_ms=now_ms(),
            operators=ordered,
            savepoint_id=self.savepoint_id,
            positions=None if positions is None else self._stored(positions),
            time=UNSET if time is None else time,
        )
        if base is not None:
            manifest = self._continued(manifest, base, renamed or {})
        self._check_files(manifest)
        write_manifest(self.store(), manifest)
        return manifest

    def _check_files(self, manifest: Manifest) -> None:
        stored = {info.path for info in self.store().list(self.layout.savepoint(self.savepoint_id))}
        files = (file.path for operator in manifest.operators for each in operator.subtasks for file in each.files())
        gone = next((path for path in files if path not in stored), None)
        if gone is not None:
            raise ObjectNotFoundError(f"{gone} is gone: another write to {self.location} has failed")

    def _stored(self, positions: SourcePositions) -> FileHandle:
        return write_positions(
            self.store(),
            self.layout,
            positions,
            checkpoint_id=self.checkpoint_id,
            savepoint_id=self.savepoint_id,
            unique=self.unique,
        )

    def _continued(self, manifest: Manifest, base: Manifest, renamed: Mapping[str, str]) -> Manifest:
        """Returns the manifest with its base's positions and times."""
        is_own = base.job_id == self.job_id
        uids = {each.uid for each in manifest.operators}
        time = base.time
        if isinstance(time, JobTime):
            event_times = {OperatorUid(renamed.get(uid, uid)): times for uid, times in time.event_times.items()}
            kept = {uid: times for uid, times in event_times.items() if uid in uids}
            time = msgspec.structs.replace(time, event_times=kept)
        return msgspec.structs.replace(
            manifest,
            positions=None if base.positions is None else self.copies().file(base.positions),
            created_at_ms=max(manifest.created_at_ms, base.created_at_ms + 1),
            time=time,
            sinks=base.sinks if is_own else {},
            forked_from=base.forked_from if is_own else base.job_id,
            counters=base.counters if is_own else UNSET,
            rewinds=base.rewinds if is_own else UNSET,
        )


def operator_snapshot(uid: str, schema: KeyedSchema | None, subtasks: Sequence[SnapshotHandle]) -> OperatorSnapshot:
    """Returns an operator of written subtasks, in order."""
    key = () if schema is None else tuple((field.name, str(field.type)) for field in schema.key_schema())
    return OperatorSnapshot(OperatorUid(uid), len(subtasks), OperatorDeclaration(key, schema), tuple(subtasks))
