"""Opens an attempt and fences all older attempts.

`keyscale.jobs.runtime.driver.resume_plan` says where the attempt resumes.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType, convert, structs

from keyscale.clock import now_ms
from keyscale.identifiers import Attempt, JobId
from keyscale.state.doors.catalogue import JobCounters, SnapshotKind
from keyscale.state.doors.commits import (
    AttemptOpened,
    ClaimMode,
    CommitLog,
    FencedError,
    ResumePoint,
    check_claim,
    output_history_after,
    own_copy,
    take_claim,
)
from keyscale.state.doors.objects import ObjectNotFoundError
from keyscale.state.doors.paths import Layout
from keyscale.state.doors.planning import chosen_ranges
from keyscale.state.doors.values import HashId, KeyGroupRanges
from keyscale.vocabulary import KeyGroupDivision

from ...graph.nodes import ONLY_SOURCE_UID
from ..batch.source_order import SourceInputs
from ..errors import RestoreRefusedError
from .journal import Journal
from .resume_plan import newest_plan, path_of, plan_resume

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from keyscale.identifiers import OperatorUid
    from keyscale.state.doors.catalogue import Manifest
    from keyscale.state.doors.commits import OperatorDeclaration
    from keyscale.state.doors.objects import ObjectStore

    from ...protocol.messages import Assignment
    from ..batch.committed_state import CommittedState

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
        ranges: The key groups of each subtask.
        unusable: Paths of manifests that turned out to be damaged.
        claims: Whether that checkpoint belongs to the job now.
        opened_at_ms: When it was opened, by the object store's clock; None if unknown.
    """

    attempt: Attempt
    journal: Journal
    resume: ResumePoint
    manifest: Manifest | None
    positions: dict[str, str]
    ranges: KeyGroupRanges
    unusable: frozenset[str] = frozenset()
    claims: bool = False
    opened_at_ms: int | None = None


def open_attempt(
    store: ObjectStore,
    assignment: Assignment,
    operators: Mapping[OperatorUid, OperatorDeclaration],
    sources: Sequence[SourceInputs] = (SourceInputs(ONLY_SOURCE_UID),),
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
        OutputWithdrawnError: The sinks have taken output of the checkpoint back.
        FencedError: A newer attempt is already open.
        KeyscaleError: The checkpoint or the log cannot be read.
    """
    layout = Layout(JobId(assignment.job_id))
    plan = plan_resume(store, assignment, operators, sources, sinks)
    manifest, rewinds = plan.manifest, plan.rewinds
    if manifest is not None and (rewinds or plan.resume.next_position == 1) and _may_vanish(manifest, layout.job_id):
        manifest, rewinds = _own_copy(store, manifest, assignment), True
    claims = _claim(store, assignment, manifest)
    kept = None if rewinds else plan.resume.key_group_ranges
    ranges = attempt_ranges(assignment, manifest, kept)
    opened = AttemptOpened(
        attempt=Attempt(assignment.attempt),
        parallelism=len(ranges),
        max_parallelism=ranges.max_parallelism,
        hash_id=HashId(assignment.spec.hash_id),
        restored_from=manifest.path if manifest else None,
        opened_at_ms=now_ms(),
        operators=dict(operators),
        rewinds=rewinds,
        claims=claims,
        restore_id=assignment.restore_id if rewinds else None,
        dropped_operators=plan.dropped_operators,
        dropped_sources=plan.dropped_sources,
        positions=plan.positions if plan.dropped_sources else UNSET,
        counters=_counted(assignment, plan.resume, CommitLog(store, layout) if rewinds else None),
        resets_time=assignment.time_reset_after is not None and plan.resume.attempt <= assignment.time_reset_after,
        key_group_starts=_starts_of(ranges),
    )
    log = CommitLog(store, layout)
    if rewinds:
        opened = structs.replace(opened, output_history=output_history_after(opened, manifest, log))
    journal = Journal(log, plan.resume.next_position)
    journal.append(opened)
    _tell(opened)
    # Plan again: only now older attempts' retention can no longer delete the chosen checkpoint.
    again = newest_plan(store, assignment, plan.unusable)
    return OpenAttempt(
        opened.attempt,
        journal,
        again.resume,
        again.manifest,
        again.positions,
        ranges,
        again.unusable,
        claims and again.manifest == manifest,
        log.opened_at_ms,
    )


def open_next_attempt(
    before: OpenAttempt,
    assignment: Assignment,
    operators: Mapping[OperatorUid, OperatorDeclaration],
    committed: CommittedState,
    manifest: Manifest | None,
    *,
    ranges: KeyGroupRanges,
) -> OpenAttempt:
    """Opens the attempt that follows in the same process, between two batches.

    Its state is the state in memory, so that it reads neither log nor manifests.

    Args:
        before: The running attempt.
        assignment: The next attempt, which differs in the parallelism.
        operators: The declarations of the job's operators.
        committed: The state after the last batch, which is published.
        manifest: The newest checkpoint of the running attempt, or the checkpoint that it was restored from.
        ranges: The key groups of each subtask.

    Raises:
        FencedError: Another attempt has been opened.
        StoreUnavailableError: The store did not answer in time. The attempt may be open, so the run must end.
    """
    attempt, hash_id = Attempt(assignment.attempt), HashId(assignment.spec.hash_id)
    before.journal.append(
        AttemptOpened(
            attempt=attempt,
            parallelism=len(ranges),
            max_parallelism=ranges.max_parallelism,
            hash_id=hash_id,
            restored_from=manifest.path if manifest else None,
            opened_at_ms=now_ms(),
            operators=dict(operators),
            counters=committed.counters,
            key_group_starts=_starts_of(ranges),
        )
    )
    resume = ResumePoint(
        batch_id=committed.batch_id,
        planned=None,
        positions={},
        operators={},
        next_position=before.journal.last_position + 1,
        attempt=attempt,
        sinks=committed.sinks,
        max_parallelism=assignment.spec.max_parallelism,
        hash_id=hash_id,
        time=committed.time,
        counters=committed.counters,
        rewinds=committed.rewinds,
        key_group_ranges=ranges,
    )
    return replace(
        before, attempt=attempt, resume=resume, manifest=manifest, positions=committed.positions, ranges=ranges
    )


def attempt_ranges(
    assignment: Assignment, manifest: Manifest | None, kept: KeyGroupRanges | None = None
) -> KeyGroupRanges:
    """Decides the key group ranges of an attempt.

    Pure.

    Args:
        assignment: The job and its settings.
        manifest: The checkpoint that the attempt starts from, which has the sizes of key groups.
        kept: The ranges of the attempt before, for as many subtasks.
    """
    spec = assignment.spec
    sized = manifest if spec.key_group_division is KeyGroupDivision.BY_SIZE else None
    return chosen_ranges(spec.max_parallelism, spec.parallelism, kept=kept, sized=sized)


def _starts_of(ranges: KeyGroupRanges) -> tuple[int, ...] | UnsetType:
    """Returns the ranges for the log.

    An entry without ranges means ranges by count.
    """
    return UNSET if ranges.is_by_count else ranges.starts


def _tell(opened: AttemptOpened) -> None:
    """Logs what the attempt gives up."""
    if opened.rewinds:
        logger.warning("attempt %d goes back to %s", opened.attempt, opened.restored_from or "nothing")
    if opened.resets_time:
        logger.warning("attempt %d begins event time and processing time again", opened.attempt)
    if opened.dropped_operators or opened.dropped_sources:
        logger.warning(
            "attempt %d drops state that the program no longer has: operators %s, sources %s",
            opened.attempt,
            ", ".join(opened.dropped_operators) or "none",
            ", ".join(opened.dropped_sources) or "none",
        )


def _counted(assignment: Assignment, resume: ResumePoint, disowned: CommitLog | None) -> JobCounters:
    """Returns the job's counters until now.

    Batches that a rewind disowns have also been counted. A log of an earlier version has no counters; then the counters
    that the control plane knows count.
    """
    known = convert(assignment.counters.model_dump(), JobCounters)
    counted = known.at_least(resume.counters)
    return counted if disowned is None else counted.at_least(disowned.newest_counters())


def reopen_attempt(store: ObjectStore, assignment: Assignment, opened: OpenAttempt) -> OpenAttempt:
    """Opens the same attempt again from its commits, in the same process.

    Its fence still stands.

    A write that seemed to have failed may be applied only now and take the position of this run's next append: then
    that append is refused, and the attempt ends. So nothing is committed twice.

    Raises:
        FencedError: A newer attempt has taken over.
        KeyscaleError: The checkpoint or the log cannot be read.
    """
    plan = newest_plan(store, assignment, opened.unusable)
    newer = plan.resume.attempt
    if newer != opened.attempt:
        raise FencedError(f"attempt {newer} has taken over from attempt {opened.attempt}, which had failed")
    return replace(
        opened,
        journal=opened.journal.at(plan.resume.next_position),
        resume=plan.resume,
        manifest=plan.manifest,
        positions=plan.positions,
        unusable=plan.unusable,
        claims=opened.claims and plan.manifest == opened.manifest,
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
    plan = newest_plan(store, assignment, unusable)
    return replace(
        opened,
        resume=plan.resume,
        manifest=plan.manifest,
        positions=plan.positions,
        unusable=plan.unusable,
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
    is_given = manifest.path == path_of(store, assignment.restore_from)
    is_own_copy = not isinstance(manifest.forked_from, UnsetType) and manifest.job_id == job_id
    if is_own_copy or (is_given and ClaimMode(assignment.claim_mode) is ClaimMode.CLAIM):
        take_claim(store, manifest, job_id)
        return manifest.kind is SnapshotKind.SAVEPOINT
    check_claim(store, manifest, job_id)
    return False
