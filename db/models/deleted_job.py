"""The table of deleted jobs with remaining objects."""

from __future__ import annotations

from sqlalchemy import false
from sqlalchemy.orm import Mapped, mapped_column

from ..base import Base


class DeletedJob(Base):
    """A deleted job with objects in the store.

    The row is deleted after the last object. `due_at_ms` is the time of the next pass over the store, and
    `failure_code` the failure of the last pass. `claimed` has the locations of the savepoints that its attempts have
    claimed, or were to claim; `discarded` the locations of its own savepoints that their user deleted and that still
    had objects.
    """

    __tablename__ = "deleted_jobs"

    job_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    store_url: Mapped[str]
    keep_objects: Mapped[bool] = mapped_column(default=False, server_default=false())
    deleted_at_ms: Mapped[int]
    due_at_ms: Mapped[int]
    failure_code: Mapped[str | None]
    claimed: Mapped[list[str]] = mapped_column(default=list, server_default="[]")
    discarded: Mapped[list[str]] = mapped_column(default=list, server_default="[]")
