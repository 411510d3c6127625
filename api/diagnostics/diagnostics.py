"""Requests and shows diagnostics.

A request is a row that the driver gets with the answer to its next heartbeat. The driver's report completes the row.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from keyscale.db.repositories import attempts, diagnostics, events
from keyscale.jobs.protocol.messages import DiagnosticCommand
from keyscale.vocabulary import AttemptStage, DiagnosticKind, DiagnosticStatus, JobStatus, OperationKind

from ..database_clock import shared_now_ms
from ..errors import DiagnosticNotFoundError, DiagnosticUnansweredError, JobStatusConflictError, TooManyInFlightError
from ..jobs.jobs import require_job, require_job_id
from ..lifecycle.transitions import what_helps
from ..shapes import FailureAnswer
from .schemas import DiagnosticAnswer, DiagnosticList, DiagnosticPartAnswer, DiagnosticSummaryAnswer

if TYPE_CHECKING:
    from keyscale.db.models import Diagnostic, Job

    from ..access.principal import Principal
    from ..control_plane.context import Context
    from .schemas import DiagnosticRequest

IN_PROGRESS_MAX = 4
"""Maximum number of a job's diagnostics in progress: its driver takes one after the other."""
ANSWER_MS = 30_000
"""How long a driver may take to answer, beyond the time in which it observes the job."""
_POLL_S = 0.2


def request(context: Context, user: Principal, reference: str, wanted: DiagnosticRequest) -> DiagnosticAnswer:
    """Requests a diagnostic; returns the existing one if its id is known.

    Raises:
        JobNotFoundError: The job does not exist.
        JobStatusConflictError: No driver runs the job.
        TooManyInFlightError: Other diagnostics of the job are in progress.
    """
    with context.sessions.begin() as session:
        job = require_job(session, reference, lock=True)
        known = None if wanted.id is None else diagnostics.find(session, job.id, wanted.id)
        if known is not None:
            return _answer(known)
        attempt = attempts.of_stage(session, job.id, AttemptStage.ACTIVE)
        if attempt is None or attempt.attached_at_ms is None:
            helps = _what_helps(job)
            raise JobStatusConflictError(f"no driver runs the job while it is {job.status}: {helps}")
        at_ms = shared_now_ms()
        pending = diagnostics.pending(session, job.id, attempt.number, at_ms)
        if len(pending) >= IN_PROGRESS_MAX:
            raise TooManyInFlightError(f"{len(pending)} diagnostics of the job are in progress")
        command = _command(wanted)
        added = diagnostics.add(
            session,
            command.id,
            job_id=job.id,
            attempt=attempt.number,
            kind=command.kind,
            request=command.model_dump(mode="json"),
            at_ms=at_ms,
            requested_by=user.name,
            until_ms=max([at_ms, *(each.until_ms for each in pending)]) + command.duration_ms + ANSWER_MS,
        )
        events.record(
            session,
            job_id=job.id,
            at_ms=at_ms,
            kind="DIAGNOSTIC_REQUESTED",
            actor=user.name,
            message=f"{user.name} looks into the job: {command.kind}",
            diagnostic_id=command.id,
            diagnostic_kind=command.kind,
            **command.model_dump(mode="json", exclude={"id", "kind"}, exclude_defaults=True),
        )
        return _answer(added)


def _what_helps(job: Job) -> str:
    """Returns what helps a user of a job without a driver."""
    if job.status is JobStatus.FAILED:
        return f"`./keyscale jobs show {job.name}` shows why, and `./keyscale logs {job.name}` what its driver wrote"
    return what_helps(OperationKind.CHECKPOINT, job.status, job.name)


def _command(wanted: DiagnosticRequest) -> DiagnosticCommand:
    """Returns the command of a request, with its kind's own arguments."""
    command = DiagnosticCommand(id=wanted.id or uuid.uuid4().hex, kind=wanted.kind)
    if wanted.kind is DiagnosticKind.PROFILE:
        return command.model_copy(update=wanted.model_dump(include={"duration_ms"}))
    if wanted.kind is DiagnosticKind.SAMPLE:
        return command.model_copy(
            update=wanted.model_dump(include={"duration_ms", "operator_uid", "rows", "with_values"})
        )
    return command


def show(context: Context, reference: str, diagnostic_id: str) -> DiagnosticAnswer:
    """Shows a diagnostic with its parts.

    Raises:
        JobNotFoundError: The job does not exist.
        DiagnosticNotFoundError: The job has no such diagnostic.
    """
    with context.reads() as session:
        found = diagnostics.find(session, require_job_id(session, reference), diagnostic_id)
        if found is None:
            raise DiagnosticNotFoundError("the job has no diagnostic with this id")
        return _answer(found)


def list_of(context: Context, reference: str) -> DiagnosticList:
    """Lists the diagnostics of a job.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    with context.reads() as session:
        found = diagnostics.list_of(session, require_job_id(session, reference))
        return DiagnosticList(diagnostics=[_summary(each) for each in found])


def take(
    context: Context, user: Principal, reference: str, wanted: DiagnosticRequest, *, seconds: float
) -> DiagnosticAnswer:
    """Requests a diagnostic, and waits for its parts.

    Raises:
        DiagnosticUnansweredError: The driver does not answer in time, or cannot take it.
        KeyscaleError: As `request`.
    """
    answer, until = request(context, user, reference, wanted), time.monotonic() + seconds
    while answer.status is DiagnosticStatus.IN_PROGRESS and time.monotonic() < until:
        time.sleep(_POLL_S)
        answer = show(context, reference, answer.id)
    if answer.status is not DiagnosticStatus.COMPLETED:
        reason = "the driver has not answered yet" if answer.failure is None else answer.failure.message
        raise DiagnosticUnansweredError(reason)
    return answer


def _answer(found: Diagnostic) -> DiagnosticAnswer:
    parts = [DiagnosticPartAnswer.model_validate(each) for each in found.parts or ()]
    return DiagnosticAnswer(**dict(_summary(found)), parts=parts)


def _summary(found: Diagnostic) -> DiagnosticSummaryAnswer:
    status, failure = status_of(found, shared_now_ms())
    return DiagnosticSummaryAnswer(
        id=found.id,
        job_id=found.job_id,
        attempt=found.attempt,
        kind=found.kind,
        status=status,
        requested_at_ms=found.requested_at_ms,
        requested_by=found.requested_by,
        ended_at_ms=found.until_ms if found.ended_at_ms is None and failure is not None else found.ended_at_ms,
        failure=failure,
    )


def status_of(found: Diagnostic, at_ms: int) -> tuple[DiagnosticStatus, FailureAnswer | None]:
    """Returns the status of a diagnostic at a time, and its failure."""
    if found.failure is not None:
        return DiagnosticStatus.FAILED, FailureAnswer.model_validate(found.failure)
    if found.ended_at_ms is not None:
        return DiagnosticStatus.COMPLETED, None
    if found.until_ms > at_ms:
        return DiagnosticStatus.IN_PROGRESS, None
    over = DiagnosticUnansweredError(f"the driver of attempt {found.attempt} has not answered in time")
    return DiagnosticStatus.FAILED, FailureAnswer(code=over.code, message=str(over), advice=over.advice)
