"""Plans where an attempt resumes.

Planning only reads the commit log, manifests and source positions; `keyscale.jobs.runtime.driver.attempt` opens the
attempt.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from keyscale.identifiers import JobId
from keyscale.state.doors.catalogue import DocumentCorruptError, read_manifest, read_positions
from keyscale.state.doors.commits import (
    CommitLog,
    FencedError,
    keeps_output_of,
    missing_files,
    output_history,
    recover,
    rekeyed,
    resolve,
)
from keyscale.state.doors.objects import ObjectCorruptError, ObjectNotFoundError
from keyscale.state.doors.paths import Layout, split_location
from keyscale.units import counted

from ...spark_internals.checkpoint_directory import merged, with_commit
from ..batch.source_order import (
    SourceInputs,
    check_kinds,
    gone_sources,
    order_of,
    recorded_order,
    recorded_positions,
    without_sources,
)
from ..errors import OutputWithdrawnError, RestoreRefusedError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from keyscale.identifiers import OperatorUid
    from keyscale.state.doors.catalogue import Manifest
    from keyscale.state.doors.commits import OperatorDeclaration, ResumePoint
    from keyscale.state.doors.objects import ObjectStore

    from ...protocol.messages import Assignment

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """Where an attempt resumes.

    Attributes:
        manifest: The checkpoint or savepoint to restore from, or None.
        resume: The point to resume from, committed earlier.
        positions: Files of Spark's checkpoint directory to start from; empty for a job that has never run.
        unusable: Paths of manifests that turned out to be damaged.
        rewinds: Whether later commits count no more.
        dropped_operators: Operators that the job no longer has, and whose state goes.
        dropped_sources: Sources that the job no longer has, and whose positions go.
    """

    manifest: Manifest | None
    resume: ResumePoint
    positions: dict[str, str]
    unusable: frozenset[str] = frozenset()
    rewinds: bool = False
    dropped_operators: tuple[OperatorUid, ...] = ()
    dropped_sources: tuple[OperatorUid, ...] = ()


def plan_resume(
    store: ObjectStore,
    assignment: Assignment,
    operators: Mapping[OperatorUid, OperatorDeclaration],
    sources: Sequence[SourceInputs],
    sinks: Collection[OperatorUid] | None,
) -> ResumePlan:
    """Chooses the state to resume, and checks that the job fits.

    Args:
        store: The job's object store.
        assignment: The job and its settings.
        operators: The declarations of the job's operators.
        sources: The job's sources.
        sinks: The job's sinks; None where they do not matter.

    Raises:
        RestoreRefusedError: The job does not fit its state, or the snapshot to go back to is missing or damaged.
        OutputWithdrawnError: The sinks have taken output of the snapshot back.
        FencedError: This attempt, or a newer one, was opened before.
        KeyscaleError: The checkpoint or the log cannot be read.
    """
    log = CommitLog(store, Layout(JobId(assignment.job_id)))
    rewind = None if assignment.restore_mode == "continue" else _rewind(store, log, assignment)
    if rewind is not None and rewind.manifest is not None and sinks:
        _require_output(log, rewind.manifest)
    chosen = rewind or newest_plan(store, assignment)
    dropped_operators = check_fit(assignment, chosen.resume, operators, sinks)
    positions, dropped_sources = _kept_positions(assignment, chosen.positions, sources)
    return replace(chosen, positions=positions, dropped_operators=dropped_operators, dropped_sources=dropped_sources)


def newest_plan(store: ObjectStore, assignment: Assignment, unusable: frozenset[str] = frozenset()) -> ResumePlan:
    """Chooses the newest usable checkpoint, and all commits after it.

    Args:
        store: The job's object store.
        assignment: The job and its settings.
        unusable: Paths of manifests that are known to be damaged.

    Raises:
        NothingUsableError: All of the job's checkpoints are damaged.
        KeyscaleError: The log cannot be read.
    """
    hint = path_of(store, assignment.restore_from)
    while True:
        recovery = recover(store, JobId(assignment.job_id), hint, excluded=unusable)
        manifest, resume = recovery.base.manifest, recovery.resume
        try:
            positions = manifest_positions(store, manifest)
        except (ObjectCorruptError, ObjectNotFoundError, DocumentCorruptError):
            assert manifest is not None  # noqa: S101 - without a manifest nothing was read
            logger.exception("skipping %s: its source positions cannot be read", manifest.path)
            unusable |= {manifest.path}
        else:
            return ResumePlan(manifest, resume, resume_positions(positions, resume), unusable)


def manifest_positions(store: ObjectStore, manifest: Manifest | None) -> dict[str, str]:
    """Returns the files of Spark's checkpoint directory in a snapshot.

    Raises:
        ObjectCorruptError, ObjectNotFoundError, DocumentCorruptError: The positions cannot be read.
    """
    if manifest is None or manifest.positions is None:
        return {}
    return recorded_positions(read_positions(store, manifest.positions))


def _is_carried_out(log: CommitLog, assignment: Assignment) -> bool:
    """Returns whether an earlier attempt has carried out the same request.

    Then later commits count.
    """
    if assignment.restore_id is None:
        return False
    newest = log.newest_rewind()
    return newest is not None and newest.restore_id == assignment.restore_id


def _rewind(store: ObjectStore, log: CommitLog, assignment: Assignment) -> ResumePlan | None:
    """Returns the plan to go back to a snapshot, or to nothing.

    Later commits do not count. None: an earlier attempt has carried out the same request.

    Raises:
        RestoreRefusedError: The snapshot is missing or damaged.
    """
    last = log.last()  # read first: another attempt that carries the request out from here on takes the next position
    if _is_carried_out(log, assignment):
        return None
    manifest = None if assignment.restore_mode == "stateless" else _exactly(store, assignment.restore_from)
    try:
        positions = manifest_positions(store, manifest)
    except (ObjectCorruptError, ObjectNotFoundError, DocumentCorruptError) as error:
        path = None if manifest is None else manifest.path
        raise RestoreRefusedError(f"the source positions of {path} cannot be read") from error
    resume = resolve(manifest, [], JobId(assignment.job_id))
    if last is not None:
        position, entry = last
        resume = replace(
            resume,
            attempt=max(resume.attempt, entry.attempt),
            next_position=max(resume.next_position, position + 1),
        )
    return ResumePlan(manifest, resume, resume_positions(positions, resume), rewinds=True)


def _require_output(log: CommitLog, manifest: Manifest) -> None:
    """Refuses a snapshot of a history that the job has left.

    Raises:
        OutputWithdrawnError: The sinks have taken output of the snapshot back.
    """
    if manifest.job_id == log.job_id and not keeps_output_of(output_history(log), manifest):
        raise OutputWithdrawnError(
            f"the job went back behind {manifest.path}, and its sinks have taken back output that the snapshot needs"
        )


def _exactly(store: ObjectStore, location: str | None) -> Manifest:
    """Reads the snapshot at a location, and checks that its files exist."""
    path = path_of(store, location)
    if path is None:
        raise RestoreRefusedError("the location of a checkpoint or savepoint to go back to is missing")
    try:
        manifest = read_manifest(store, path)
    except (DocumentCorruptError, ObjectNotFoundError) as error:
        raise RestoreRefusedError(f"the manifest {path} is missing or damaged: {error}") from error
    missing = missing_files(store, manifest)
    if missing:
        raise RestoreRefusedError(
            f"{path} has {counted(len(missing), 'file')} missing or truncated, such as {missing[0]};"
            " choose another snapshot"
        )
    return manifest


def _kept_positions(
    assignment: Assignment, positions: dict[str, str], sources: Sequence[SourceInputs]
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
    if resume.max_parallelism not in {None, assignment.spec.max_parallelism}:
        wrong.append(
            f"the state has max parallelism {resume.max_parallelism}, the job {assignment.spec.max_parallelism};"
            " it cannot change"
        )
    if resume.hash_id is not None and resume.hash_id != assignment.spec.hash_id:
        wrong.append(
            f"the state's keys are hashed by {resume.hash_id.value!r}, the job's by {assignment.spec.hash_id!r}"
        )
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


def path_of(store: ObjectStore, location: str | None) -> str | None:
    """Returns a manifest's path in the job's store, or None.

    Raises:
        RestoreRefusedError: The location is in another store.
    """
    if location is None:
        return None
    root, path = split_location(location)
    if root != store.url.rstrip("/"):
        raise RestoreRefusedError("the checkpoint is in another object store than the job's")
    return path
