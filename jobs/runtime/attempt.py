"""Opening an attempt: what the job has committed, whether this run fits it, and the fence against every older run."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jobs.nodes import ONLY_SOURCE_UID
from jobs.runtime.clock import now_ms
from jobs.runtime.errors import RestoreRefusedError
from jobs.runtime.patience import Patience
from jobs.runtime.positions import merged, with_commit
from jobs.runtime.source_order import order_of, recorded_order
from state.claim import ClaimMode, check_claim, take_claim
from state.hashing import HashId
from state.identifiers import Attempt, JobId
from state.layout import Layout, split_location
from state.log import AttemptOpened, CommitLog, FencedError
from state.manifest import SnapshotKind, read_positions
from state.objects import ObjectCorruptError, ObjectNotFoundError
from state.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobs.wire import Assignment
    from state.identifiers import OperatorUid
    from state.log import LogEntry, ResumePoint
    from state.manifest import Manifest, OperatorFacts
    from state.objects import ObjectStore
    from state.recovery import Recovery

_log = logging.getLogger(__name__)

IMPATIENT = Patience(0)


class Journal:
    """The one appender of an attempt: its entries follow each other without a gap, or the attempt is fenced.

    Not for several threads at once: batches append while they hold the batch lock.
    """

    def __init__(self, log: CommitLog, next_position: int, patience: Patience = IMPATIENT) -> None:
        self._log = log
        self._next_position = next_position
        self._patience = patience

    @property
    def last_position(self) -> int:
        """Position of the last entry that is known to be in the log."""
        return self._next_position - 1

    def append(self, entry: LogEntry) -> None:
        """Append an entry.

        Raises:
            FencedError: A newer attempt has taken over.
            StoreUnavailableError: The store was away for too long. It is unknown whether the entry is there; the run must end.
        """
        position = self._next_position
        self._next_position = self._patience.wait_out(lambda: self._log.append(position, entry))

    def at(self, next_position: int) -> Journal:
        """Another one of the same attempt, which goes on at this position."""
        return Journal(self._log, next_position, self._patience)

    def patient(self, patience: Patience) -> Journal:
        """The same one, which waits while the store is away. An entry that is appended again is the same entry."""
        return Journal(self._log, self._next_position, patience)

    def is_overtaken(self) -> bool:
        """Whether a newer attempt has appended; asked where there is nothing to append."""
        return bool(self._log.read(self._next_position - 1))


@dataclass(frozen=True, slots=True)
class OpenAttempt:
    """An attempt that may commit.

    Attributes:
        attempt: Its fencing number.
        journal: Where it appends.
        resume: What was committed before it.
        manifest: What it is restored from, or None.
        positions: Files of Spark's checkpoint directory to start from; empty for a job that has never run.
        unusable: Paths of manifests that turned out to be damaged.
        claims: Whether what it is restored from belongs to the job now.
    """

    attempt: Attempt
    journal: Journal
    resume: ResumePoint
    manifest: Manifest | None
    positions: dict[str, str]
    unusable: frozenset[str] = frozenset()
    claims: bool = False


def open_attempt(
    store: ObjectStore,
    assignment: Assignment,
    operators: Mapping[OperatorUid, OperatorFacts],
    sources: Sequence[OperatorUid] = (ONLY_SOURCE_UID,),
) -> OpenAttempt:
    """Read what was committed, refuse what does not fit it, and fence every older attempt.

    Args:
        store: The job's object store.
        assignment: What to run.
        operators: What the job's operators declare.
        sources: Uids of the job's sources.

    Raises:
        RestoreRefusedError: The job does not fit its checkpoint.
        FencedError: A newer attempt is open already.
        KeyscaleError: The checkpoint or the log cannot be read.
    """
    layout = Layout(JobId(assignment.job_id))
    attempt = Attempt(assignment.attempt)
    recovery, positions, unusable = _recover(store, assignment, frozenset())
    manifest, resume = recovery.base.manifest, recovery.resume
    check_fit(assignment, resume, operators)
    order_of(sources, recorded_order(positions))
    claims = _claim(store, assignment, manifest)
    opened = AttemptOpened(
        attempt=attempt,
        parallelism=assignment.parallelism,
        max_parallelism=assignment.max_parallelism,
        hash_id=HashId(assignment.hash_id),
        restored_from=manifest.path if manifest else None,
        opened_at_ms=now_ms(),
        operators=dict(operators),
        claims=claims,
    )
    journal = Journal(CommitLog(store, layout), resume.next_position)
    journal.append(opened)
    # Chosen once more: only now can no older attempt's clean-up delete what is chosen.
    recovery, positions, unusable = _recover(store, assignment, unusable)
    base = recovery.base.manifest
    return OpenAttempt(attempt, journal, recovery.resume, base, positions, unusable, claims and base == manifest)


def reopen_attempt(store: ObjectStore, assignment: Assignment, opened: OpenAttempt) -> OpenAttempt:
    """The same attempt once more, in the same process, from what it has committed: its fence still stands.

    A write that was given up as failed, and is applied only now, takes the position that this run appends at next: then that
    append is refused, and the attempt ends. So nothing can be committed twice.

    Raises:
        FencedError: A newer attempt has taken over meanwhile.
        KeyscaleError: The checkpoint or the log cannot be read.
    """
    recovery, positions, unusable = _recover(store, assignment, opened.unusable)
    if recovery.resume.attempt != opened.attempt:
        message = f"attempt {recovery.resume.attempt} has taken over from attempt {opened.attempt}, which had failed"
        raise FencedError(message)
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
    """The same attempt, restored from an older checkpoint: the one that it was opened with turned out to be damaged.

    Nothing is lost by it, as the commit log goes back as far as the oldest checkpoint that is kept.

    Raises:
        NothingUsableError: There is no other one.
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


def _claim(store: ObjectStore, assignment: Assignment, manifest: Manifest | None) -> bool:
    """Make what the attempt is restored from the job's, if that was asked for; whether it is.

    Raises:
        ClaimRefusedError: It cannot be the job's, or is another one's.
    """
    if manifest is None:
        return False
    job_id = JobId(assignment.job_id)
    if ClaimMode(assignment.claim_mode) is ClaimMode.CLAIM and manifest.path == _path_of(
        store, assignment.restore_from
    ):
        take_claim(store, manifest, job_id)
        return manifest.kind is SnapshotKind.SAVEPOINT
    check_claim(store, manifest, job_id)
    return False


def _recover(
    store: ObjectStore, assignment: Assignment, unusable: frozenset[str]
) -> tuple[Recovery, dict[str, str], frozenset[str]]:
    """The newest base that can be used, the positions to start from, and all bases that cannot be used."""
    hint = _path_of(store, assignment.restore_from)
    while True:
        recovery = recover(store, JobId(assignment.job_id), hint, excluded=unusable)
        manifest = recovery.base.manifest
        if manifest is None:
            return recovery, resume_positions({}, recovery.resume), unusable
        try:
            positions = read_positions(store, manifest.positions)
        except (ObjectCorruptError, ObjectNotFoundError):
            _log.exception("skipping %s: its source positions cannot be read", manifest.path)
            unusable |= {manifest.path}
        else:
            return recovery, resume_positions(positions, recovery.resume), unusable


def _path_of(store: ObjectStore, location: str | None) -> str | None:
    if location is None:
        return None
    root, path = split_location(location)
    if root != store.url.rstrip("/"):
        message = "the checkpoint is in another object store than the job's"
        raise RestoreRefusedError(message)
    return path


def resume_positions(of_manifest: Mapping[str, str], resume: ResumePoint) -> dict[str, str]:
    """The files that Spark starts from: it re-runs the planned batch, or goes on after the one committed last.

    Raises:
        PositionsCorruptError: The offsets of the last batch are not among them.
    """
    of_spark = resume.batch_id - resume.time.time_batches  # Spark numbers its own batches only
    files = merged(of_manifest, resume.positions, of_spark + 1 if resume.planned else of_spark)
    return with_commit(files, of_spark) if of_spark >= 0 else files


def check_fit(assignment: Assignment, resume: ResumePoint, operators: Mapping[OperatorUid, OperatorFacts]) -> None:
    """Refuse to run a job whose state would be lost or misread, or that a newer attempt runs already.

    Raises:
        FencedError: This attempt, or a newer one, was opened before.
        RestoreRefusedError: Says all that does not fit.
    """
    if resume.attempt >= assignment.attempt:
        raise FencedError(f"attempt {resume.attempt} was opened already, so attempt {assignment.attempt} may not begin")
    wrong = []
    if resume.max_parallelism not in {None, assignment.max_parallelism}:
        wrong.append(
            f"the state has max parallelism {resume.max_parallelism}, the job {assignment.max_parallelism};"
            " it cannot change"
        )
    if resume.hash_id is not None and resume.hash_id != assignment.hash_id:
        wrong.append(f"the state's keys are hashed by {resume.hash_id.value!r}, the job's by {assignment.hash_id!r}")
    for uid, history in resume.operators.items():
        if uid not in operators:
            if history.snapshots or history.changelogs:
                wrong.append(f"there is state of operator {uid!r}, which the job no longer has")
        elif history.facts is not None and history.facts.key_schema != operators[uid].key_schema:
            wrong.append(
                f"operator {uid!r} was keyed by {_described(history.facts)} and is now by {_described(operators[uid])}"
            )
    if wrong:
        raise RestoreRefusedError("; ".join(wrong))


def _described(facts: OperatorFacts) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in facts.key_schema)
