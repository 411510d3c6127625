"""Takes checkpoints and savepoints.

A checkpoint links files during a pause of the batches, uploads them beside the batches, is published and reported.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
import uuid
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from keyscale.clock import now_ms
from keyscale.failpoints import failpoint
from keyscale.identifiers import CheckpointId
from keyscale.state.doors.catalogue import Manifest, SnapshotKind, read_manifest
from keyscale.state.doors.commits import (
    EventTime,
    JobTime,
    OperatorSnapshot,
    distinct_bytes,
    known_files,
    write_manifest,
    write_positions,
)
from keyscale.state.doors.keyed import STAMP_MIN_MS, BatchClock
from keyscale.state.doors.objects import ObjectNotFoundError
from keyscale.state.doors.paths import location_of
from keyscale.vocabulary import CheckpointStatus

from ...operators.failures import shown_message, typed_failure
from ...protocol.messages import CheckpointReport, LargeKeyGroupReport, SubtaskCheckpointReport
from ...spark_internals.broadcast_payloads import BroadcastPayload
from ..batch.source_order import stored_positions
from ..errors import CheckpointTimeoutError
from ..executor.subtask_jobs import SnapshotSubtasks, Uploads, UploadSnapshots, run_per_subtask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from keyscale.identifiers import Attempt, OperatorUid, SubtaskIndex
    from keyscale.state.doors.commits import OperatorDeclaration
    from keyscale.state.doors.objects import ObjectStore
    from keyscale.state.doors.paths import Layout

    from ...spark_internals.affinity import PlacementDataset
    from ..batch.committed_state import CommittedState
    from ..batch.runner import RunInfo
    from ..batch.shipped_logic import ShippedLogic
    from ..executor.subtask_jobs import LinkedSubtask, StoredSubtask, SubtaskPlaces
    from .batch_loop import BatchLoop

logger = logging.getLogger(__name__)

_UPLOAD_POLL_SECONDS = 0.25
_UPLOAD_POLL_SECONDS_MAX = 2.0
KEY_GROUPS_REPORTED_MAX = 4096  # with more key groups, the sizes of single key groups are not stored and reported


@dataclass(frozen=True, slots=True)
class SnapshotContext:
    """The context that all checkpoints of an attempt share.

    Attributes:
        spark: The session.
        placement: The subtasks' rows.
        shipped: The parts of the run that are shipped once.
        info: The attempt's info.
        operators: Each operator's declaration.
        places: The subtasks and where their state is.
        store: The object store.
        layout: The paths of the job's objects.
        timeout_ms: Time limit of waiting for a running batch, and then of completing the checkpoint.
    """

    spark: SparkSession
    placement: PlacementDataset
    shipped: ShippedLogic
    info: RunInfo
    operators: Mapping[OperatorUid, OperatorDeclaration]
    places: SubtaskPlaces
    store: ObjectStore
    layout: Layout
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class CompletedSnapshot:
    """A published manifest and its location."""

    manifest: Manifest
    location: str


@dataclass(slots=True)
class Checkpoints:
    """Takes an attempt's checkpoints and savepoints, one at a time.

    Attributes:
        context: The context that all checkpoints share.
        loop: The loop of the batches.
        report: Takes the reports to the control plane.
        next_id: Number of the next checkpoint; numbers never start over.
        retained_ids: Numbers of the checkpoints that are kept, oldest first.
        retained_count: Number of checkpoints to keep.
        base: The newest complete checkpoint, or the checkpoint that the attempt was restored from: its files are not
            uploaded again.
        input_records: Returns how many records the attempt has committed so far.
        claims: Whether the files of the checkpoint that the attempt was restored from are the job's own now.
        reported_records: Number of records that earlier checkpoints have reported.
    """

    context: SnapshotContext
    loop: BatchLoop
    report: Callable[[CheckpointReport], None]
    next_id: CheckpointId
    retained_ids: list[CheckpointId]
    retained_count: int
    base: Manifest | None
    input_records: Callable[[], int]
    claims: bool = False
    reported_records: int = 0
    _copyable: bool = field(default=True, init=False)

    def find_savepoint(self, savepoint_id: str) -> CompletedSnapshot | None:
        """Returns the savepoint of this id if it is already complete.

        An earlier attempt may have taken it.
        """
        path = self.context.layout.manifest(self.next_id, savepoint_id)
        try:
            return self._completed(read_manifest(self.context.store, path))
        except ObjectNotFoundError:
            return None

    def take(
        self, savepoint_id: str | None = None, *, then: Callable[[CompletedSnapshot], None] | None = None
    ) -> CompletedSnapshot:
        """Takes a checkpoint, or a savepoint if an id is given.

        Args:
            savepoint_id: The savepoint's id, chosen by the control plane.
            then: Called when the savepoint is complete; batches are paused until it returns.

        Raises:
            RunEndedError: The run has ended.
            CheckpointNotBegunError: A batch ran for the whole timeout. No number was used, and nothing was reported.
            KeyscaleError: The checkpoint failed, and was reported as failed; nothing refers to the uploaded files.
        """
        triggered_at_ms = now_ms()
        with ExitStack() as pause:
            committed = pause.enter_context(self.loop.paused(self._deadline()))
            taking = _Taking(self.context, self._take_number(), savepoint_id, triggered_at_ms)
            self.report(taking.in_progress())
            try:
                with taking.cancelled_at(self._deadline()):
                    linked = taking.link(committed)
                    if then is None:
                        pause.close()
                    manifest = self._complete(taking, committed, linked, batches_wait=then is not None)
                    completed = self._completed(manifest)
                    if then is not None:
                        then(completed)
                    elif savepoint_id is None:
                        self.loop.rebase(completed.manifest)
            except Exception as failure:
                # A file to copy may be gone: the next checkpoint uploads it instead.
                self._copyable = False
                self.report(taking.failed(failure))
                raise
        return completed

    def _take_number(self) -> CheckpointId:
        """Returns the next number without a manifest.

        An overtaken driver may have published a manifest late.
        """
        context = self.context
        while context.store.head(context.layout.manifest(self.next_id)) is not None:
            self.next_id = CheckpointId(self.next_id + 1)
        taken = self.next_id
        self.next_id = CheckpointId(taken + 1)
        return taken

    def _deadline(self) -> float:
        return time.monotonic() + self.context.timeout_ms / 1000

    def _complete(
        self,
        taking: _Taking,
        committed: CommittedState,
        linked: Mapping[SubtaskIndex, list[LinkedSubtask]],
        *,
        batches_wait: bool,
    ) -> Manifest:
        bases = [self.base] if self.base is not None else []
        job_id = self.context.info.job_id
        copies = known_files(bases, job_id, claimed=True) if self._copyable else {}
        # Searching a savepoint for expired entries takes a time that grows with the state: waiting batches skip the
        # search.
        clocks = {} if batches_wait else snapshot_clocks(committed.time, self.context.places.specs)
        stored = taking.upload(linked, known_files(bases, job_id, claimed=self.claims), copies, clocks)
        failpoint("checkpoint.uploaded")
        manifest = taking.publish(committed, stored)
        failpoint("checkpoint.published")
        records, self.reported_records = self.input_records() - self.reported_records, self.input_records()
        subsumed = self._retain(taking)
        report = taking.completed(manifest, stored, records)
        self.report(report.model_copy(update={"subsumed_checkpoint_ids": subsumed}))
        if taking.savepoint_id is None:
            self.base = manifest
        return manifest

    def _retain(self, taking: _Taking) -> list[CheckpointId]:
        """Keeps a checkpoint's number; returns the numbers that it subsumes.

        Savepoints are kept by their owner.
        """
        if taking.savepoint_id is not None:
            return []
        self.retained_ids.append(taking.checkpoint_id)
        subsumed = self.retained_ids[: -self.retained_count]
        del self.retained_ids[: -self.retained_count]
        return subsumed

    def _completed(self, manifest: Manifest) -> CompletedSnapshot:
        return CompletedSnapshot(manifest, location_of(self.context.store.url, manifest.path))


@dataclass(slots=True)
class _Taking:
    """A checkpoint that is being taken."""

    context: SnapshotContext
    checkpoint_id: CheckpointId
    savepoint_id: str | None
    triggered_at_ms: int
    _timed_out: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def cancelled_at(self, deadline: float) -> Iterator[None]:
        """Cancels only this checkpoint's Spark jobs at the deadline."""
        spark_context = self.context.spark.sparkContext
        tag = f"checkpoint-{self.checkpoint_id}"

        def cancel() -> None:
            self._timed_out.set()
            with suppress(Exception):  # Spark may be gone, and its jobs with it
                spark_context.cancelJobsWithTag(tag)

        timer = threading.Timer(min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX), cancel)
        timer.daemon = True
        timer.start()
        spark_context.addJobTag(tag)
        try:
            yield
        except Exception as failure:
            if self._timed_out.is_set():
                raise self._timeout() from failure
            raise
        finally:
            timer.cancel()
            spark_context.removeJobTag(tag)

    def _timeout(self) -> CheckpointTimeoutError:
        return CheckpointTimeoutError(
            f"checkpoint {self.checkpoint_id} was not complete after {self.context.timeout_ms} ms"
        )

    def link(self, committed: CommittedState) -> dict[SubtaskIndex, list[LinkedSubtask]]:
        """Runs the synchronous part; batches wait for it."""
        clocks = snapshot_clocks(committed.time, self.context.places.specs)
        task = SnapshotSubtasks(self.context.places, self.context.shipped.starts(committed), self.checkpoint_id, clocks)
        linked = self._run("snapshot", task)
        failpoint("checkpoint.linked")
        return linked

    def upload(
        self,
        linked: Mapping[SubtaskIndex, list[LinkedSubtask]],
        known: Mapping[str, str],
        copies: Mapping[str, str],
        clocks: Mapping[OperatorUid, BatchClock],
    ) -> list[StoredSubtask]:
        uploads = BroadcastPayload.of(self.context.spark.sparkContext, Uploads(linked, known, copies))
        task = UploadSnapshots(self.context.places, uploads, self.savepoint_id, clocks)
        try:
            pause = _UPLOAD_POLL_SECONDS
            results = self._run("upload", task)
            while None in results.values():
                if self._timed_out.wait(pause):
                    raise self._timeout()
                pause = min(2 * pause, _UPLOAD_POLL_SECONDS_MAX)
                results = self._run("upload", task)
        finally:
            uploads.release()
        return list(chain.from_iterable(results.values()))

    def _run(self, label: str, task: Callable[[SubtaskIndex], bytes]) -> dict[SubtaskIndex, list[Any]]:
        if not self.context.places.specs:
            return {}
        context = self.context
        results = run_per_subtask(context.spark, context.placement, f"{label} {self.checkpoint_id}", task)
        return {subtask: pickle.loads(result) for subtask, result in results.items()}  # noqa: S301 - from our tasks

    def publish(self, committed: CommittedState, stored: Sequence[StoredSubtask]) -> Manifest:
        """Writes the manifest, which completes the checkpoint."""
        context, info = self.context, self.context.info
        positions = None
        if committed.positions:
            positions = write_positions(
                context.store,
                context.layout,
                stored_positions(committed.positions),
                checkpoint_id=self.checkpoint_id,
                savepoint_id=self.savepoint_id,
                unique=uuid.uuid4().hex,
            )
        by_place = {(part.uid, part.handle.subtask): part for part in stored}
        manifest = Manifest(
            job_id=info.job_id,
            checkpoint_id=self.checkpoint_id,
            kind=SnapshotKind.CHECKPOINT if self.savepoint_id is None else SnapshotKind.SAVEPOINT,
            attempt=info.attempt,
            batch_id=committed.batch_id,
            log_position=committed.log_position,
            max_parallelism=info.max_parallelism,
            hash_id=info.hash_id,
            created_at_ms=now_ms(),
            operators=tuple(
                OperatorSnapshot(
                    uid=uid,
                    parallelism=info.parallelism,
                    declaration=declared,
                    subtasks=tuple(part.handle for part in of_operator),
                    key_group_entries=_of_all(part.sizes.entries for part in of_operator),
                    key_group_bytes=_of_all(part.sizes.size_bytes for part in of_operator),
                )
                for uid, declared in context.operators.items()
                for of_operator in [[by_place[uid, spec.index] for spec in context.places.specs[uid]]]
            ),
            positions=positions,
            sinks=committed.sinks,
            savepoint_id=self.savepoint_id,
            time=UNSET if committed.time == JobTime() else committed.time,
            counters=committed.counters,
            rewinds=committed.rewinds or UNSET,
        )
        failpoint("checkpoint.publishing")
        write_manifest(context.store, manifest)
        return manifest

    def in_progress(self) -> CheckpointReport:
        return self._report(CheckpointStatus.IN_PROGRESS)

    def failed(self, failure: BaseException) -> CheckpointReport:
        error = typed_failure(failure)
        return self._report(CheckpointStatus.FAILED).model_copy(
            update={"failure_message": shown_message(f"{error.code}: {error}")}
        )

    def completed(self, manifest: Manifest, stored: Sequence[StoredSubtask], records: int) -> CheckpointReport:
        report = self._report(CheckpointStatus.COMPLETED)
        added = added_bytes(stored, self.context.info.attempt, self.checkpoint_id)
        distinct = distinct_bytes(part.handle for part in stored)
        with_key_groups = self.context.info.max_parallelism <= KEY_GROUPS_REPORTED_MAX
        subtasks = [
            subtask_report(*of_one, triggered_at_ms=self.triggered_at_ms, with_key_groups=with_key_groups)
            for of_one in zip(stored, added, distinct, strict=True)
        ]
        return report.model_copy(
            update={
                "latest_ack_timestamp": max((part.acknowledged_at_ms for part in stored), default=now_ms()),
                "checkpointed_size": sum(added),
                "state_size": manifest.state_size_bytes,
                "processed_records": records,
                "external_path": location_of(self.context.store.url, manifest.path),
                "batch_id": manifest.batch_id,
                "subtasks": subtasks,
            }
        )

    def _report(self, status: CheckpointStatus) -> CheckpointReport:
        return CheckpointReport(
            checkpoint_id=self.checkpoint_id,
            status=status,
            is_savepoint=self.savepoint_id is not None,
            savepoint_id=self.savepoint_id,
            trigger_timestamp=self.triggered_at_ms,
            end_to_end_duration=now_ms() - self.triggered_at_ms,
        )


def _of_all(sizes: Iterable[tuple[int, ...]]) -> tuple[int, ...] | UnsetType:
    """Returns the sizes of all key groups for a manifest.

    With too many key groups, the manifest has no sizes.
    """
    joined = tuple(chain.from_iterable(sizes))
    return joined if len(joined) <= KEY_GROUPS_REPORTED_MAX else UNSET


def subtask_report(
    part: StoredSubtask, added: int, distinct: int, *, triggered_at_ms: int, with_key_groups: bool
) -> SubtaskCheckpointReport:
    """Returns the report of one subtask's part of a checkpoint. Pure.

    Args:
        part: The part.
        added: The bytes that it has added to the store.
        distinct: The bytes of its files that no other subtask counts.
        triggered_at_ms: When the checkpoint was triggered.
        with_key_groups: Whether to report the sizes of single key groups.
    """
    return SubtaskCheckpointReport(
        operator_uid=part.uid,
        index=part.handle.subtask,
        key_group_start=part.handle.key_group_start,
        key_group_end=part.handle.key_group_end,
        status=CheckpointStatus.COMPLETED,
        ack_timestamp=part.acknowledged_at_ms,
        end_to_end_duration=max(0, part.acknowledged_at_ms - triggered_at_ms),
        start_delay=max(0, part.started_at_ms - triggered_at_ms),
        sync_duration=part.sync_ms,
        async_duration=part.async_ms,
        checkpointed_size=added,
        state_size=part.handle.state_size_bytes,
        distinct_size=distinct,
        files=len(part.handle.distinct_files),
        entries=sum(part.sizes.entries),
        key_group_entries=list(part.sizes.entries) if with_key_groups else [],
        key_group_bytes=list(part.sizes.size_bytes) if with_key_groups else [],
        largest_key_groups=[LargeKeyGroupReport(**asdict(each)) for each in part.sizes.largest],
    )


def added_bytes(stored: Sequence[StoredSubtask], attempt: Attempt, checkpoint_id: CheckpointId) -> list[int]:
    """Returns the bytes that each subtask has added for a checkpoint.

    Pure. After a rescale several subtasks hold the same file. Each subtask stores it, as the same object, which counts
    once.
    """
    new = f"-{attempt}-{checkpoint_id}"
    seen: set[str] = set()
    added = []
    for part in stored:
        sizes = {file.path: file.size_bytes for file in part.handle.files() if file.shared and file.path.endswith(new)}
        added.append(part.uploaded_bytes - sum(size for path, size in sizes.items() if path in seen))
        seen |= sizes.keys()
    return added


def snapshot_clocks(time: JobTime, uids: Iterable[OperatorUid]) -> dict[OperatorUid, BatchClock]:
    """Returns the times by which a snapshot's entries have expired.

    Times are by operator, and at most the next batch's times. They are the times of the last batch, not of the driver's
    clock, which may be ahead of the next driver's clock.
    """
    return {
        uid: BatchClock(time.processing_ms, STAMP_MIN_MS if (event := _watermark_ms(time, uid)) is None else event)
        for uid in uids
    }


def _watermark_ms(time: JobTime, uid: OperatorUid) -> int | None:
    return time.event_times.get(uid, EventTime()).watermark_ms
