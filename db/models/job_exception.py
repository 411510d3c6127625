"""The table of jobs' exceptions."""

from __future__ import annotations

from sqlalchemy import BigInteger, Identity, Index
from sqlalchemy.orm import Mapped, mapped_column

from ..base import Base


class JobException(Base):
    """A failure of a job's run: an exception of code or platform.

    The newest failures of each job are kept. The table has no foreign key, because its check would lock the job within
    a transaction that has locked the attempt.
    """

    __tablename__ = "exceptions"
    __table_args__ = (Index("ix_exceptions_job", "job_id", "id"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    job_id: Mapped[str]
    attempt: Mapped[int]
    at_ms: Mapped[int]
    code: Mapped[str]
    message: Mapped[str]
    traceback: Mapped[str | None]
    operator_uid: Mapped[str | None]
    subtask: Mapped[int | None]
