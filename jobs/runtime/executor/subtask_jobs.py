"""Spark jobs with one task per subtask, beside its state.

They restore the state, take snapshots and upload them. Such a job runs a function from a subtask's index to bytes, for
all operators at once. The functions are safe to run twice: the effects of restoring and snapshotting are local, and
nothing refers to an upload before its manifest is published.
"""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.errors import KeyscaleError
from keyscale.failpoints import failpoint
from keyscale.state.doors.keyed import BatchClock
from keyscale.state.doors.paths import Layout
from keyscale.state.doors.subtasks import LocalSnapshotLostError, check_cover, start_consolidator, upload_snapshot

from ...errors import IncompleteReportsError
from ...operators.failures import CarriedFailure, TaskOrigin, typed_failure
from ...spark_internals.worker_processes import parent_of_workers
from .background_work import BackgroundWork
from .worker import object_store, open_stores_ahead, open_stores_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import Row, SparkSession

    from keyscale.identifiers import CheckpointId, OperatorUid, SubtaskIndex
    from keyscale.state.doors.subtasks import KeyGroupSizes, LocalSnapshot, SnapshotHandle, SubtaskSpec, SubtaskStore
    from keyscale.state.doors.values import KeyGroupRange

    from ...spark_internals.affinity import PlacementDataset
    from ...spark_internals.broadcast_payloads import BroadcastPayload
    from .subtask_starts import ShippedStarts

_UPLOAD_WAIT_SECONDS = 0.2  # most uploads end within this time, and need no second job


@dataclass(frozen=True, slots=True)
class SubtaskPlaces:
    """The subtasks with state, and where the state is."""

    specs: Mapping[OperatorUid, Sequence[SubtaskSpec]]
    store_url: str
    local_root: str

    def held(
        self, uid: OperatorUid, subtask: SubtaskIndex, starts: ShippedStarts, *, is_ahead: bool = False
    ) -> AbstractContextManager[SubtaskStore]:
        """Opens a subtask's state at a version.

        This worker keeps it open for the next batch, which sets the clock. `is_ahead` says that the subtask's attempt
        has not begun.
        """
        store, clock = object_store(self.store_url), BatchClock()
        spec, version = self.specs[uid][subtask], starts.versions[subtask]
        plan = starts.plan(subtask, store, spec.layout)
        warm = (open_stores_ahead if is_ahead else open_stores_for)(subtask)
        return warm.held(spec, version, plan, Path(self.local_root), store, clock=clock)


@dataclass(frozen=True, slots=True)
class RestoredSubtask:
    """A subtask with restored state."""

    uid: OperatorUid
    key_groups: KeyGroupRange


@dataclass(frozen=True, slots=True)
class LinkedSubtask:
    """A subtask's snapshot in local files.

    Times are in milliseconds since the epoch, durations in milliseconds.
    """

    uid: OperatorUid
    snapshot: LocalSnapshot
    started_at_ms: int
    sync_ms: int
    sizes: KeyGroupSizes


@dataclass(frozen=True, slots=True)
class StoredSubtask:
    """A subtask's snapshot in the object store.

    Times and durations are as in LinkedSubtask.
    """

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
    """Restores a subtask's state for all operators, before the first batch.

    Attributes:
        places: The subtasks and their state.
        starts: Their versions.
        is_ahead: Whether the attempt before still runs its batches.
    """

    places: SubtaskPlaces
    starts: Mapping[OperatorUid, ShippedStarts]
    is_ahead: bool = False

    def __call__(self, subtask: SubtaskIndex) -> bytes:
        restored = []
        for uid, specs in self.places.specs.items():
            with self.places.held(uid, subtask, self.starts[uid], is_ahead=self.is_ahead):
                restored.append(RestoredSubtask(uid, specs[subtask].key_group_range))
        return pickle.dumps(restored)


@dataclass(frozen=True, slots=True)
class SnapshotSubtasks:
    """Hard-links a subtask's state for all operators.

    The versions are exactly the last committed versions.

    Attributes:
        places: The subtasks and their state.
        starts: Their versions.
        checkpoint_id: The checkpoint that the snapshots are for.
        clocks: By operator, the times by which entries have expired: a store with many expired entries may be worth a
            consolidation.
    """

    places: SubtaskPlaces
    starts: Mapping[OperatorUid, ShippedStarts]
    checkpoint_id: CheckpointId
    clocks: Mapping[OperatorUid, BatchClock]

    def __call__(self, subtask: SubtaskIndex) -> bytes:
        linked = []
        for uid in self.places.specs:
            started_at_ms, began = now_ms(), time.perf_counter()
            with self.places.held(uid, subtask, self.starts[uid]) as state:
                snapshot = state.snapshot(self.checkpoint_id, clock=self.clocks[uid])
                sync_ms = _elapsed_ms(began)
                sizes = state.key_group_sizes()
            linked.append(LinkedSubtask(uid, snapshot, started_at_ms, sync_ms, sizes))
        return pickle.dumps(linked)


@dataclass(frozen=True, slots=True)
class Uploads:
    """The snapshots to upload and the files that need no upload.

    Attributes:
        linked: The snapshots that `SnapshotSubtasks` left on the subtasks' hosts, by subtask.
        known: Immutable files that may be referenced unchanged: their paths by SHA-256.
        copies: Further files that may be copied within the store.
    """

    linked: Mapping[SubtaskIndex, Sequence[LinkedSubtask]]
    known: Mapping[str, str]
    copies: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class UploadSnapshots:
    """Uploads the missing files of a subtask's linked snapshots.

    An upload that takes longer than a moment continues in the background, and takes no task slot from batches. The
    result is then a pickled None, and the driver asks again later.

    Attributes:
        places: The subtasks and their state.
        uploads: The `Uploads` of all subtasks.
        savepoint_id: The savepoint that the upload is for; a savepoint shares no files. None for a checkpoint.
        clocks: By operator, the times by which a savepoint's entries have expired: expired entries are left out if
            their TTL's cleanup says so.
    """

    places: SubtaskPlaces
    uploads: BroadcastPayload
    savepoint_id: str | None
    clocks: Mapping[OperatorUid, BatchClock] = field(default_factory=dict)

    def __call__(self, subtask: SubtaskIndex) -> bytes:
        uploads: Uploads = self.uploads.open()
        snapshot = uploads.linked[subtask][0].snapshot
        executor = parent_of_workers()
        upload = BackgroundWork(Path(snapshot.directory), lambda: self._upload(subtask, uploads, executor))
        try:
            return upload.result(_UPLOAD_WAIT_SECONDS) or pickle.dumps(None)
        except FileNotFoundError as error:
            raise LocalSnapshotLostError(
                f"the local files of checkpoint {snapshot.checkpoint_id} are not on this host"
            ) from error

    def _upload(self, subtask: SubtaskIndex, uploads: Uploads, executor: int) -> bytes:
        store = object_store(self.places.store_url)
        stored = []
        for part in uploads.linked[subtask]:
            began = time.perf_counter()
            layout = Layout(part.snapshot.job_id)
            uploaded = upload_snapshot(
                part.snapshot,
                store,
                layout,
                uploads.known,
                self.savepoint_id,
                copies=uploads.copies,
                clock=self.clocks.get(part.uid),
            )
            if part.snapshot.consolidation is not None and self.savepoint_id is None:  # a savepoint may end the job
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
        failpoint("checkpoint.subtask_uploaded")
        return pickle.dumps(stored)


def run_per_subtask(
    spark: SparkSession, placement: PlacementDataset, label: str, function: Callable[[SubtaskIndex], bytes]
) -> dict[SubtaskIndex, bytes]:
    """Runs a function once per subtask, beside the subtask's state.

    It runs in the subtask's Python worker.

    The job has one task per row of the placement dataset, whatever the input does. It is an RDD job, which Spark runs
    without analysis and planning: these would take longer than the job. Its tasks get the Python workers of the
    batches, due to a setting in spark_settings.py.

    Args:
        spark: The session that the placement dataset belongs to.
        placement: The subtasks' rows.
        label: The job's description in Spark's web UI, such as "snapshot 17".
        function: Pickled by value into each task, so it should be small; gets the subtask's index. Spark may try a
            task again after a failure, so it must be safe to run twice. Its results should be small, as the driver
            collects them.

    Returns:
        The result of each subtask's successful try.

    Raises:
        KeyscaleError: The function raised it; TaskFailedError for any other exception.
        IncompleteReportsError: A subtask has no result, or several.
    """
    spark.sparkContext.setJobDescription(label)
    try:
        found = placement.subtasks.mapPartitions(_task_of(function)).collect()
    except Exception as failure:
        raise typed_failure(failure) from failure
    finally:
        spark.sparkContext.setJobDescription("")
    results = dict(found)
    if len(found) != placement.parallelism or set(results) != set(range(placement.parallelism)):
        raise IncompleteReportsError(f"{label}: {len(found)} results of {placement.parallelism} subtasks")
    return results


def _task_of(
    function: Callable[[SubtaskIndex], bytes],
) -> Callable[[Iterable[Row]], Iterator[tuple[SubtaskIndex, bytes]]]:
    def task(rows: Iterable[Row]) -> Iterator[tuple[SubtaskIndex, bytes]]:
        for (subtask,) in rows:
            try:
                result = function(subtask)
            except KeyscaleError as error:
                raise CarriedFailure(error, TaskOrigin(subtask=subtask)) from None
            yield subtask, result

    return task


def check_restored(restored: Iterable[RestoredSubtask], uids: Iterable[OperatorUid], whole: KeyGroupRange) -> None:
    """Asserts that each operator's restored subtasks own each key group once.

    Raises:
        CoverError: The key groups are not covered exactly once; nothing may be committed.
    """
    ranges: dict[OperatorUid, list[KeyGroupRange]] = {uid: [] for uid in uids}
    for subtask in restored:
        ranges[subtask.uid].append(subtask.key_groups)
    for parts in ranges.values():
        check_cover(parts, whole)


def _elapsed_ms(began: float) -> int:
    return round((time.perf_counter() - began) * 1000)
