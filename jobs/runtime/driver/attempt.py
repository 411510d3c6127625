"""Opens an attempt and fences all older attempts.

It reads the job's commits and checks that this run fits them.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from keyscale.clock import now_ms
from keyscale.state.documents.checked_document import DocumentCorruptError
from keyscale.state.documents.claim import ClaimMode, check_claim, take_claim
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.log_entries import AttemptOpened
from keyscale.state.documents.manifest import SnapshotKind, read_manifest
from keyscale.state.documents.source_positions import read_positions
from keyscale.state.identifiers import Attempt, JobId
from keyscale.state.keys.hashing import HashId
from keyscale.state.layout import Layout, split_location
from keyscale.state.log.commit_log import CommitLog, FencedError
from keyscale.state.log.recovery import missing_files, recover
from keyscale.state.log.resolution import resolve
from keyscale.state.objects.errors import ObjectCorruptError, ObjectNotFoundError
from keyscale.state.restore.program_change import rekeyed
from keyscale.state.snapshot.own_copy import own_copy

from ...graph.nodes import ONLY_SOURCE_UID
from ...spark_internals.checkpoint_directory import merged, with_commit
from ..batch.source_order import (
    DeclaredSource,
    check_kinds,
    gone_sources,
    order_of,
    recorded_order,
    recorded_positions,
    without_sources,
)
from ..errors import RestoreRefusedError
from .journal import Journal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from keyscale.state.documents.manifest import Manifest, OperatorDeclaration
    from keyscale.state.identifiers import OperatorUid
    from keyscale.state.log.recovery import Recovery
    from keyscale.state.log.resolution import ResumePoint
    from keyscale.state.objects.object_store import ObjectStore

    from ...protocol.messages import Assignment

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenAttempt:
    """An attempt that may commit.

    Attributes:
        attempt: Its fencing number.
        journal: Appends to the commit log.
        resume: The point to resume from, committed earlier.
        manifest: The checkpoint that the attempt is restored from, or None.
        positions: Files of Spark's checkpoint directory to start from; empty for a job that has never run.
        unusable: Paths of manifests that turned out to be damaged.
        claims: Whether that checkpoint belongs to the job now.
        opened_at_ms: When it was opened, by the object store's clock; None if unknown.
    """

    attempt: Attempt
    journal: Journal
    resume: ResumePoint
    manifest: Manifest | None
    positions: dict[str, str]
    unusable: frozenset[str] = frozenset()
    claims: bool = False
    opened_at_ms: int | None = None


def open_attempt(
    store: ObjectStore,
    assignment: Assignment,
    operators: Mapping[OperatorUid, OperatorDeclaration],
    sources: Sequence[DeclaredSource] = (DeclaredSource(ONLY_SOURCE_UID),),
    sinks: Collection[OperatorUid] | None = None,
) -> OpenAttempt:
    """Checks that the job fits its commits, and fences older attempts.

    Args:
        store: The job's object store.
        assignment: The job and its settings.
        operators: The declarations of the job's operators.
        sources: The job's sources.
        sinks: The job's sinks; None where they do not matter.

    Raises:
        RestoreRefusedError: The job does not fit its checkpoint.
        FencedError: A newer attempt is already open.
        KeyscaleError: The checkpoint or the log cannot be read.
    """
    layout = Layout(JobId(assignment.job_id))
    attempt = Attempt(assignment.attempt)
    log = CommitLog(store, layout)
    rewinds = assignment.restore_mode != "continue" and not _is_carried_out(log, assignment)
    if rewinds:
        manifest, resume, positions = _rewound(store, log, assignment)
        unusable: frozenset[str] = frozenset()
    else:
        recovery, positions, unusable = _recover(store, assignment, frozenset())
        manifest, resume = recovery.base.manifest, recovery.resume
    dropped = check_fit(assignment, resume, operators, sinks)
    kept, dropped_sources = _kept_positions(assignment, positions, sources)
    if manifest is not None and (rewinds or resume.next_position == 1) and _may_vanish(manifest, layout.job_id):
        manifest, rewinds = _own_copy(store, manifest, assignment), True
    claims = _claim(store, assignment, manifest)
    opened = AttemptOpened(
        attempt=attempt,
        parallelism=assignment.parallelism,
        max_parallelism=assignment.max_parallelism,
        hash_id=HashId(assignment.hash_id),
        restored_from=manifest.path if manifest else None,
        opened_at_ms=now_ms(),
        operators=dict(operators),
        rewinds=rewinds,
        claims=claims,
        restore_id=assignment.restore_id if rewinds else None,
        dropped_operators=dropped,
        dropped_sources=dropped_sources,
        positions=kept if dropped_sources else UNSET,
        counters=_counted(assignment, resume, log if rewinds else None),
        resets_time=assignment.time_reset_after is not None and resume.attempt <= assignment.time_reset_after,
    )
    appended = CommitLog(store, layout)
    journal = Journal(appended, resume.next_position)
    journal.append(opened)
    if rewinds:
        logger.warning("attempt %d goes back to %s", attempt, opened.restored_from or "nothing")
    if opened.resets_time:
        logger.warning("attempt %d begins event time and processing time again", attempt)
    if dropped or dropped_sources:
        logger.warning(
            "attempt %d drops state that the program no longer has: operators %s, sources %s",
            attempt,
            ", ".join(dropped) or "none",
            ", ".join(dropped_sources) or "none",
        )
    # Choose again: only now older attempts' retention can no longer delete the chosen checkpoint.
    recovery, positions, unusable = _recover(store, assignment, unusable)
    base = recovery.base.manifest
    claims = claims and base == manifest
    return OpenAttempt(attempt, journal, recovery.resume, base, positions, unusable, claims, appended.opened_at_ms)


def _kept_positions(
    assignment: Assignment, positions: dict[str, str], sources: Sequence[DeclaredSource]
) -> tuple[dict[str, str], tuple[OperatorUid, ...]]:
    """Returns the positions of the job's sources, and the dropped sources.

    Raises:
        RestoreRefusedError: A source is gone without permission to drop it, or is of another kind.
    """
    uids = [source.uid for source in sources]
    gone = gone_sources(uids, recorded_order(positions))
    if gone and assignment.allow_non_restored_state:
        positions = without_sources(positions, gone, sources)
    else:
        gone = ()
    check_kinds(positions, sources)
    order_of(uids, recorded_order(positions))
    return positions, gone


def _counted(assignment: Assignment, resume: ResumePoint, disowned: CommitLog | None) -> JobCounters:
    """Returns the job's counters until now.

    Batches that a rewind disowns have also been counted. A log of an earlier version has no counters; then the counters
    that the control plane knows count.
    """
    known = JobCounters(**assignment.counters.model_dump())
    counted = known.at_least(resume.counters)
    return counted if disowned is None else counted.at_least(disowned.newest_counters())


def _is_carried_out(log: CommitLog, assignment: Assignment) -> bool:
    """Returns whether an earlier attempt has carried out the same request.

    Then later commits count.
    """
    if assignment.restore_id is None:
        return False
    newest = log.newest_rewind()
    return newest is not None and newest.restore_id == assignment.restore_id


def _rewound(
    store: ObjectStore, log: CommitLog, assignment: Assignment
) -> tuple[Manifest | None, ResumePoint, dict[str, str]]:
    """Returns the snapshot to go back to, and its resume point.

    Later commits do not count.

    Raises:
        RestoreRefusedError: The snapshot is missing or damaged.
    """
    manifest = None if assignment.restore_mode == "stateless" else _exactly(store, assignment.restore_from)
    job_id = JobId(assignment.job_id)
    positions = {}
    if manifest is not None and manifest.positions is not None:
        try:
            positions = recorded_positions(read_positions(store, manifest.positions))
        except (ObjectCorruptError, ObjectNotFoundError, DocumentCorruptError) as error:
            raise RestoreRefusedError(f"the source positions of {manifest.path} cannot be read") from error
    resume = resolve(manifest, [], job_id)
    last = log.last()
    if last is not None:
        position, entry = last
        resume = replace(
            resume,
            attempt=max(resume.attempt, entry.attempt),
            next_position=max(resume.next_position, position + 1),
        )
    return manifest, resume, resume_positions(positions, resume)


def _exactly(store: ObjectStore, location: str | None) -> Manifest:
    """Reads the snapshot at a location, and checks that its files exist."""
    path = _path_of(store, location)
    if path is None:
        raise RestoreRefusedError("the location of a checkpoint or savepoint to go back to is missing")
    try:
        manifest = read_manifest(store, path)
    except (DocumentCorruptError, ObjectNotFoundError) as error:
        raise RestoreRefusedError(f"the manifest {path} is missing or damaged: {error}") from error
    missing = missing_files(store, manifest)
    if missing:
        raise RestoreRefusedError(
            f"{len(missing)} files of {path} are missing or truncated, such as {missing[0]}; choose another snapshot"
        )
    return manifest


def reopen_attempt(store: ObjectStore, assignment: Assignment, opened: OpenAttempt) -> OpenAttempt:
    """Opens the same attempt again from its commits, in the same process.

    Its fence still stands.

    A write that seemed to have failed may be applied only now and take the position of this run's next append: then
    that append is refused, and the attempt ends. So nothing is committed twice.

    Raises:
        FencedError: A newer attempt has taken over.
        KeyscaleError: The checkpoint or the log cannot be read.
    """
    recovery, positions, unusable = _recover(store, assignment, opened.unusable)
    if recovery.resume.attempt != opened.attempt:
        raise FencedError(
            f"attempt {recovery.resume.attempt} has taken over from attempt {opened.attempt}, which had failed"
        )
    return replace(
        opened,
        journal=opened.journal.at(recovery.resume.next_position),
        resume=recovery.resume,
        manifest=recovery.base.manifest,
        positions=positions,
        unusable=unusable,
        claims=opened.claims and recovery.base.manifest == opened.manifest,
    )


def fall_back(store: ObjectStore, assignment: Assignment, opened: OpenAttempt) -> OpenAttempt:
    """Restores the same attempt from an older checkpoint.

    The checkpoint that it was opened with is damaged.

    Nothing is lost: the commit log goes back to the oldest retained checkpoint.

    Raises:
        NothingUsableError: The job has no other checkpoint.
        KeyscaleError: The log cannot be read.
    """
    unusable = opened.unusable if opened.manifest is None else opened.unusable | {opened.manifest.path}
    recovery, positions, unusable = _recover(store, assignment, unusable)
    return replace(
        opened,
        resume=recovery.resume,
        manifest=recovery.base.manifest,
        positions=positions,
        unusable=unusable,
        claims=False,
    )


def _may_vanish(manifest: Manifest, job_id: JobId) -> bool:
    """Returns whether another job's retention may delete the snapshot."""
    return manifest.kind is SnapshotKind.CHECKPOINT and manifest.job_id != job_id


def _own_copy(store: ObjectStore, manifest: Manifest, assignment: Assignment) -> Manifest:
    if ClaimMode(assignment.claim_mode) is ClaimMode.CLAIM:
        take_claim(store, manifest, JobId(assignment.job_id))  # refuses a checkpoint of another job
    name = f"from-{manifest.job_id[:50]}-{manifest.checkpoint_id}-{uuid.uuid4().hex[:8]}"
    try:
        return own_copy(store, manifest, JobId(assignment.job_id), name)
    except ObjectNotFoundError as error:
        raise RestoreRefusedError(
            f"job {manifest.job_id} has deleted {manifest.path} while it was being copied: choose a newer checkpoint,"
            " or a savepoint"
        ) from error


def _claim(store: ObjectStore, assignment: Assignment, manifest: Manifest | None) -> bool:
    """Claims the checkpoint that the attempt is restored from.

    It does so only if the assignment says so.

    Returns:
        Whether the checkpoint is the job's own.

    Raises:
        ClaimRefusedError: The checkpoint cannot be claimed, or belongs to another job.
    """
    if manifest is None:
        return False
    job_id = JobId(assignment.job_id)
    is_given = manifest.path == _path_of(store, assignment.restore_from)
    is_own_copy = not isinstance(manifest.forked_from, UnsetType) and manifest.job_id == job_id
    if is_own_copy or (is_given and ClaimMode(assignment.claim_mode) is ClaimMode.CLAIM):
        take_claim(store, manifest, job_id)
        return manifest.kind is SnapshotKind.SAVEPOINT
    check_claim(store, manifest, job_id)
    return False


def _recover(
    store: ObjectStore, assignment: Assignment, unusable: frozenset[str]
) -> tuple[Recovery, dict[str, str], frozenset[str]]:
    """Returns the newest usable base, its positions, and all unusable bases."""
    hint = _path_of(store, assignment.restore_from)
    while True:
        recovery = recover(store, JobId(assignment.job_id), hint, excluded=unusable)
        manifest = recovery.base.manifest
        if manifest is None:
            return recovery, resume_positions({}, recovery.resume), unusable
        try:
            positions = (
                {} if manifest.positions is None else recorded_positions(read_positions(store, manifest.positions))
            )
        except (ObjectCorruptError, ObjectNotFoundError, DocumentCorruptError):
            logger.exception("skipping %s: its source positions cannot be read", manifest.path)
            unusable |= {manifest.path}
        else:
            return recovery, resume_positions(positions, recovery.resume), unusable


def _path_of(store: ObjectStore, location: str | None) -> str | None:
    if location is None:
        return None
    root, path = split_location(location)
    if root != store.url.rstrip("/"):
        raise RestoreRefusedError("the checkpoint is in another object store than the job's")
    return path


def resume_positions(of_manifest: Mapping[str, str], resume: ResumePoint) -> dict[str, str]:
    """Returns the files that Spark starts from.

    Spark runs a planned batch again, or continues after the last commit.

    Raises:
        PositionsCorruptError: The files lack the offsets of the last batch.
    """
    of_spark = resume.batch_id - resume.time.time_batches  # Spark numbers only its own batches
    files = merged(
        {} if resume.replaces_positions else of_manifest, resume.positions, of_spark + 1 if resume.planned else of_spark
    )
    return with_commit(files, of_spark) if of_spark >= 0 else files


def check_fit(
    assignment: Assignment,
    resume: ResumePoint,
    operators: Mapping[OperatorUid, OperatorDeclaration],
    sinks: Collection[OperatorUid] | None = None,
) -> tuple[OperatorUid, ...]:
    """Refuses a job that does not fit its state.

    State must not be lost or misread. Also refuses a fenced attempt.

    Returns:
        The operators that the job no longer has, and may drop with their state.

    Raises:
        FencedError: This attempt, or a newer one, was opened before.
        RestoreRefusedError: The job does not fit its state; the message lists all differences.
    """
    if resume.attempt >= assignment.attempt:
        raise FencedError(f"attempt {resume.attempt} was already opened, so attempt {assignment.attempt} may not begin")
    wrong = []
    if resume.max_parallelism not in {None, assignment.max_parallelism}:
        wrong.append(
            f"the state has max parallelism {resume.max_parallelism}, the job {assignment.max_parallelism};"
            " it cannot change"
        )
    if resume.hash_id is not None and resume.hash_id != assignment.hash_id:
        wrong.append(f"the state's keys are hashed by {resume.hash_id.value!r}, the job's by {assignment.hash_id!r}")
    dropped = tuple(uid for uid, history in resume.operators.items() if uid not in operators and history.has_state)
    if not assignment.allow_non_restored_state:
        wrong += [f"the state has operator {uid!r}, which the job no longer has" for uid in dropped]
        unpublished = [] if sinks is None else sorted(set(resume.sinks) - set(sinks))
        wrong += [
            f"batch {resume.batch_id} is committed, and may not be published yet by sink {uid!r}, which the job no"
            " longer has: run the earlier program until it has taken a savepoint"
            for uid in unpublished
        ]
    for uid, history in resume.operators.items():
        if uid in operators and (reason := rekeyed(history, operators[uid])) is not None:
            wrong.append(f"operator {uid!r} {reason}")
    if wrong:
        raise RestoreRefusedError("; ".join(wrong))
    return dropped
