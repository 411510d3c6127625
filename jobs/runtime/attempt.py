"""Opening an attempt: what the job has committed, whether this run fits it, and the fence against every older run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobs.runtime.clock import now_ms
from jobs.runtime.errors import RestoreRefusedError
from jobs.runtime.positions import merged, with_commit
from state.hashing import HashId
from state.identifiers import Attempt, JobId
from state.layout import Layout, split_location
from state.log import AttemptOpened, CommitLog, FencedError, log_start, resolve
from state.manifest import read_manifest, read_positions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobs.wire import Assignment
    from state.identifiers import OperatorUid
    from state.log import LogEntry, ResumePoint
    from state.manifest import Manifest, OperatorFacts
    from state.objects import ObjectStore


class Journal:
    """The one appender of an attempt: its entries follow each other without a gap, or the attempt is fenced.

    Not for several threads at once: batches append while they hold the batch lock.
    """

    def __init__(self, log: CommitLog, next_position: int) -> None:
        self._log = log
        self._next_position = next_position

    @property
    def last_position(self) -> int:
        """Position of the last entry that is known to be in the log."""
        return self._next_position - 1

    def append(self, entry: LogEntry) -> None:
        """Append an entry.

        Raises:
            FencedError: A newer attempt has taken over.
            StoreUnavailableError: It is unknown whether the entry is there; the attempt must end.
        """
        self._next_position = self._log.append(self._next_position, entry)

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
        manifest: What it was restored from, or None.
        positions: Files of Spark's checkpoint directory to start from; empty for a job that has never run.
    """

    attempt: Attempt
    journal: Journal
    resume: ResumePoint
    manifest: Manifest | None
    positions: dict[str, str]


def open_attempt(
    store: ObjectStore, assignment: Assignment, operators: Mapping[OperatorUid, OperatorFacts]
) -> OpenAttempt:
    """Read what was committed, refuse what does not fit it, and fence every older attempt.

    Args:
        store: The job's object store.
        assignment: What to run.
        operators: What the job's operators declare.

    Raises:
        RestoreRefusedError: The job does not fit its checkpoint.
        FencedError: A newer attempt is open already.
        KeyscaleError: The checkpoint or the log cannot be read.
    """
    layout = Layout(JobId(assignment.job_id))
    attempt = Attempt(assignment.attempt)
    manifest = _read_manifest(store, assignment.restore_from)
    log = CommitLog(store, layout)
    resume = resolve(manifest, log.read(log_start(manifest, layout.job_id)), layout.job_id)
    check_fit(assignment, resume, operators)
    positions = resume_positions(read_positions(store, manifest.positions) if manifest else {}, resume)
    opened = AttemptOpened(
        attempt=attempt,
        parallelism=assignment.parallelism,
        max_parallelism=assignment.max_parallelism,
        hash_id=HashId(assignment.hash_id),
        restored_from=manifest.path if manifest else None,
        opened_at_ms=now_ms(),
        operators=dict(operators),
    )
    journal = Journal(log, resume.next_position)
    journal.append(opened)
    return OpenAttempt(attempt, journal, resume, manifest, positions)


def _read_manifest(store: ObjectStore, location: str | None) -> Manifest | None:
    if location is None:
        return None
    root, path = split_location(location)
    if root != store.url.rstrip("/"):
        message = "the checkpoint is in another object store than the job's"
        raise RestoreRefusedError(message)
    return read_manifest(store, path)


def resume_positions(of_manifest: Mapping[str, str], resume: ResumePoint) -> dict[str, str]:
    """The files that Spark starts from: it re-runs the planned batch, or goes on after the one committed last.

    Raises:
        PositionsCorruptError: The offsets of the last batch are not among them.
    """
    last = resume.planned.batch_id if resume.planned else resume.batch_id
    files = merged(of_manifest, resume.positions, last)
    return with_commit(files, resume.batch_id) if resume.batch_id >= 0 else files


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
