"""Operations that end without a driver, as a reconciler with a driver would end them."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import select

from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.steps import Cause
from keyscale.clock import now_ms
from keyscale.db.models import Job, Operation
from keyscale.db.repositories import attempts
from keyscale.vocabulary import AttemptStage, DesiredState, JobStatus, OperationStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.orm import Session, sessionmaker

POLL_S = 0.02


@contextmanager
def operations_that_complete(sessions: sessionmaker[Session]) -> Iterator[None]:
    """Completes each operation soon; the jobs run."""
    is_over = threading.Event()

    def complete() -> None:
        while not is_over.wait(POLL_S):
            with sessions.begin() as session:
                for operation in session.scalars(select(Operation).where(Operation.ended_at_ms.is_(None))):
                    operation.status, operation.ended_at_ms = OperationStatus.COMPLETED, now_ms()
                    job = session.get_one(Job, operation.job_id)
                    if attempts.of_stage(session, job.id, AttemptStage.ACTIVE) is None:
                        JobTransaction(session, job).create_attempt(job.revision, Cause.START)
                    job.status, job.desired = JobStatus.RUNNING, DesiredState.RUNNING

    thread = threading.Thread(target=complete)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
