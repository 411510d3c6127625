from __future__ import annotations

from typing import TYPE_CHECKING

from api.errors import AttemptNotFoundError
from api.redaction import redact
from api.schemas.job import LogAnswer
from api.services.lookup import require_job
from db.repositories import attempts

if TYPE_CHECKING:
    from api.context import Context


def show(context: Context, reference: str, number: int | None, tail_bytes: int) -> LogAnswer:
    """Shows the end of a driver's log. Its path is made of the job's id and a number, nothing that a client writes.

    Raises:
        JobNotFoundError: There is no such job.
        AttemptNotFoundError: It has no such attempt.
    """
    with context.sessions() as session:
        job = require_job(session, reference)
        attempt = attempts.latest(session, job.id) if number is None else attempts.find(session, job.id, number)
    if attempt is None:
        raise AttemptNotFoundError("the job has never been started" if number is None else "no attempt has this number")
    text, size_bytes = context.launcher.log_tail(job.id, attempt.number, tail_bytes)
    return LogAnswer(
        attempt=attempt.number,
        text=redact(text, context.settings.store_environment),
        size_bytes=size_bytes,
        truncated=size_bytes > tail_bytes,
    )
