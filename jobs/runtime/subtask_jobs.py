"""What runs beside each subtask's state apart from batches: restoring it, snapshotting it, uploading the snapshot.

Each is a function from a subtask's index to bytes, for `run_anchored`; all operators are served in one Spark job. Safe to
run twice: restoring and snapshotting leave nothing that counts, and an upload is named by nothing before its manifest is.
"""

from __future__ import annotations

import os
import pickle
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.runtime.background import BackgroundWork
from jobs.runtime.clock import now_ms
from jobs.runtime.worker import object_store, warm_stores_for
from state.consolidator import start_consolidator
from state.layout import Layout
from state.restore import check_cover
from state.snapshot import LocalSnapshotLostError, upload_snapshot
from state.syncpoint import reach
from state.ttl import BatchClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from jobs.runtime.task import SubtaskStart
    from state.identifiers import CheckpointId, OperatorUid, SubtaskIndex
    from state.key_group_sizes import KeyGroupSizes
    from state.key_groups import KeyGroupRange
    from state.manifest import SnapshotHandle
    from state.snapshot import LocalSnapshot
    from state.subtask import SubtaskSpec, SubtaskStore

_UPLOAD_PATIENCE_SECONDS = 0.2  # most uploads are over by then, and need no second job


@dataclass(frozen=True, slots=True)
class SubtaskPlaces:
    """Whose state there is, and where.

    Attributes:
        specs: Of every operator the subtasks, by index.
        store_url: Root of the object store.
        local_root: Directory of local state on any host.
    """

    specs: Mapping[OperatorUid, Sequence[SubtaskSpec]]
    store_url: str
    local_root: str

    def held(
        self, uid: OperatorUid, subtask: SubtaskIndex, start: SubtaskStart
    ) -> AbstractContextManager[SubtaskStore]:
        """A subtask's state at a version, open in this worker, which keeps it open for the next batch."""
        store, clock = object_store(self.store_url), BatchClock()  # the next batch sets the clock
        spec = self.specs[uid][subtask]
        return warm_stores_for(subtask).held(spec, start.version, start.plan, Path(self.local_root), store, clock=clock)


@dataclass(frozen=True, slots=True)
class RestoredSubtask:
    """A subtask whose state is there."""

    uid: OperatorUid
    key_groups: KeyGroupRange
    downloaded_bytes: int


@dataclass(frozen=True, slots=True)
class LinkedSubtask:
    """The synchronous part of a subtask's snapshot, done. Times are milliseconds since the epoch, durations milliseconds."""

    uid: OperatorUid
    snapshot: LocalSnapshot
    started_at_ms: int
    sync_ms: int
    sizes: KeyGroupSizes


@dataclass(frozen=True, slots=True)
class StoredSubtask:
    """A subtask's snapshot in the object store. Times as above."""

    uid: OperatorUid
    handle: SnapshotHandle
    uploaded_bytes: int
    started_at_ms: int
    sync_ms: int
    async_ms: int
    acknowledged_at_ms: int
    sizes: KeyGroupSizes


@dataclass(frozen=True, slots=True)
class RestoreSubtasks:
    """Brings every operator's state of a subtask to the host, before the first batch wants it."""

    places: SubtaskPlaces
    starts: Mapping[OperatorUid, Sequence[SubtaskStart]]

    def __call__(self, subtask: SubtaskIndex) -> bytes:
        restored = []
        for uid, specs in self.places.specs.items():
            start = self.starts[uid][subtask]
            with self.places.held(uid, subtask, start) as state:
                downloaded = state.fetched.downloaded_bytes if state.fetched else 0
            restored.append(RestoredSubtask(uid, specs[subtask].key_group_range, downloaded))
        return pickle.dumps(restored)


@dataclass(frozen=True, slots=True)
class SnapshotSubtasks:
    """Hard-links every operator's state of a subtask, at exactly the versions committed last.

    Attributes:
        places: Whose.
        starts: The versions.
        checkpoint_id: For which checkpoint.
        clocks: The times by which entries have expired, by operator: a store that has many such may be worth a consolidation.
    """

    places: SubtaskPlaces
    starts: Mapping[OperatorUid, Sequence[SubtaskStart]]
    checkpoint_id: CheckpointId
    clocks: Mapping[OperatorUid, BatchClock]

    def __call__(self, subtask: SubtaskIndex) -> bytes:
        linked = []
        for uid in self.places.specs:
            started_at_ms, began = now_ms(), time.perf_counter()
            start = self.starts[uid][subtask]
            with self.places.held(uid, subtask, start) as state:
                snapshot = state.snapshot(self.checkpoint_id, clock=self.clocks[uid])
                sync_ms = _elapsed_ms(began)
                sizes = state.key_group_sizes()
            linked.append(LinkedSubtask(uid, snapshot, started_at_ms, sync_ms, sizes))
        return pickle.dumps(linked)


@dataclass(frozen=True, slots=True)
class UploadSnapshots:
    """Uploads a subtask's linked snapshots: only the files that are not in the store yet.

    What takes longer than a moment goes on in the background, in no slot that batches need. The result is then that of None: who gets
    it asks again later.

    Attributes:
        places: Whose.
        linked: What `SnapshotSubtasks` left on the subtask's host, by subtask.
        known: Immutable files that may be referenced as they are, path by SHA-256.
        copies: Further ones that may be copied inside the store.
        savepoint_id: Of a savepoint, whose files are all its own.
        clocks: The times by which a savepoint's entries have expired, by operator: what has is left out, where its TTL says so.
    """

    places: SubtaskPlaces
    linked: Mapping[SubtaskIndex, Sequence[LinkedSubtask]]
    known: Mapping[str, str]
    copies: Mapping[str, str]
    savepoint_id: str | None
    clocks: Mapping[OperatorUid, BatchClock] = field(default_factory=dict)

    def __call__(self, subtask: SubtaskIndex) -> bytes:
        snapshot = self.linked[subtask][0].snapshot
        executor = os.getppid()  # worker processes come and go; what starts them lives as long as the executor
        upload = BackgroundWork(Path(snapshot.directory), lambda: self._upload(subtask, executor))
        try:
            return upload.result(_UPLOAD_PATIENCE_SECONDS) or pickle.dumps(None)
        except FileNotFoundError as error:
            raise LocalSnapshotLostError(
                f"the local files of checkpoint {snapshot.checkpoint_id} are not on this host"
            ) from error

    def _upload(self, subtask: SubtaskIndex, executor: int) -> bytes:
        store = object_store(self.places.store_url)
        stored = []
        for part in self.linked[subtask]:
            began = time.perf_counter()
            layout = Layout(part.snapshot.job_id)
            uploaded = upload_snapshot(
                part.snapshot,
                store,
                layout,
                self.known,
                self.savepoint_id,
                copies=self.copies,
                clock=self.clocks.get(part.uid),
            )
            if part.snapshot.consolidation is not None and self.savepoint_id is None:  # after one the job may well end
                start_consolidator(Path(part.snapshot.consolidation), executor, self.clocks.get(part.uid))
            stored.append(
                StoredSubtask(
                    uid=part.uid,
                    handle=uploaded.handle,
                    uploaded_bytes=uploaded.uploaded_bytes,
                    started_at_ms=part.started_at_ms,
                    sync_ms=part.sync_ms,
                    async_ms=_elapsed_ms(began),
                    acknowledged_at_ms=now_ms(),
                    sizes=part.sizes,
                )
            )
        reach("checkpoint.subtask_uploaded")
        return pickle.dumps(stored)


def check_restored(restored: Iterable[RestoredSubtask], uids: Iterable[OperatorUid], whole: KeyGroupRange) -> None:
    """Assert that the restored subtasks of every operator own each key group exactly once.

    Raises:
        CoverError: They do not; nothing may be committed.
    """
    ranges: dict[OperatorUid, list[KeyGroupRange]] = {uid: [] for uid in uids}
    for subtask in restored:
        ranges[subtask.uid].append(subtask.key_groups)
    for parts in ranges.values():
        check_cover(parts, whole)


def _elapsed_ms(began: float) -> int:
    return round((time.perf_counter() - began) * 1000)
