"""The table of attempts."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, false, text
from sqlalchemy.ext.associationproxy import AssociationProxy, association_proxy
from sqlalchemy.orm import Mapped, mapped_column, relationship

from keyscale.vocabulary import AttemptStage, ClaimMode, RestoreMode

from ..base import Base, closed_set
from .last_heartbeat import LastHeartbeat


class Attempt(Base):
    """One run of a job by one driver.

    Its number fences everything that it commits. Its last heartbeat has a separate row, so that this row is rarely
    rewritten.
    """

    __tablename__ = "attempts"
    __table_args__ = (
        Index("ix_attempts_unreaped", "job_id", postgresql_where=text("stage <> 'ENDED' OR NOT reaped")),
        Index("uq_attempts_one_active", "job_id", unique=True, postgresql_where=text("stage = 'ACTIVE'")),
        Index("uq_attempts_one_standby", "job_id", unique=True, postgresql_where=text("stage = 'STANDBY'")),
    )

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    stage: Mapped[AttemptStage] = mapped_column(closed_set(AttemptStage, "stage"))
    cause: Mapped[str]
    revision: Mapped[int] = mapped_column(default=1, server_default=text("1"))
    parallelism: Mapped[int]
    restore_from: Mapped[str | None]
    restore_mode: Mapped[RestoreMode] = mapped_column(
        closed_set(RestoreMode, "restore_mode"), default=RestoreMode.CONTINUE, server_default=RestoreMode.CONTINUE
    )
    restore_id: Mapped[str | None]
    claim_mode: Mapped[ClaimMode] = mapped_column(
        closed_set(ClaimMode, "claim_mode"), default=ClaimMode.NO_CLAIM, server_default=ClaimMode.NO_CLAIM
    )
    allow_non_restored_state: Mapped[bool] = mapped_column(default=False, server_default=false())
    token_sha256: Mapped[str | None] = mapped_column(unique=True)

    created_at_ms: Mapped[int]
    launched_at_ms: Mapped[int | None]
    launched_on: Mapped[str | None]
    attached_at_ms: Mapped[int | None]
    assigned_at_ms: Mapped[int | None]
    ended_at_ms: Mapped[int | None]
    reaped: Mapped[bool] = mapped_column(default=False)
    run: Mapped[int | None]  # of a live rescale: the attempt that its driver was launched for

    pid: Mapped[int | None]
    host: Mapped[str | None]
    spark_ui_url: Mapped[str | None]
    slots: Mapped[int | None]  # the largest parallelism of a live rescale; None: none is possible

    driver_state: Mapped[str | None]
    sleep_requested_at_ms: Mapped[int | None]  # since when its driver shall sleep
    fell_asleep_at_ms: Mapped[int | None]  # it stays when the request is withdrawn
    running_at_ms: Mapped[int | None]
    restored_at_ms: Mapped[int | None]
    first_commit_batch_id: Mapped[int | None]
    first_commit_at_ms: Mapped[int | None]
    caught_up_at_ms: Mapped[int | None]  # when its sources first had as little left as before it
    settled_at_ms: Mapped[int | None]  # when its metrics were kept for the change that created it
    lag_before: Mapped[int | None]  # records that the previous attempt had left in the sources
    totals_before: Mapped[dict[str, Any] | None]  # the job's counters when the attempt began to count its own
    failure: Mapped[dict[str, Any] | None]
    exit_code: Mapped[int | None]

    heartbeat: Mapped[LastHeartbeat | None] = relationship(lazy="joined", cascade="all, delete", passive_deletes=True)
    heartbeat_at_ms: AssociationProxy[int | None] = association_proxy(
        "heartbeat", "at_ms", creator=lambda value: LastHeartbeat(at_ms=value)
    )
    last_commit_batch_id: AssociationProxy[int | None] = association_proxy(
        "heartbeat", "last_commit_batch_id", creator=lambda value: LastHeartbeat(last_commit_batch_id=value)
    )
    last_commit_at_ms: AssociationProxy[int | None] = association_proxy(
        "heartbeat", "last_commit_at_ms", creator=lambda value: LastHeartbeat(last_commit_at_ms=value)
    )
    metrics: AssociationProxy[dict[str, Any] | None] = association_proxy(
        "heartbeat", "metrics", creator=lambda value: LastHeartbeat(metrics=value)
    )
    rescale: AssociationProxy[dict[str, Any] | None] = association_proxy(
        "heartbeat", "rescale", creator=lambda value: LastHeartbeat(rescale=value)
    )

    @property
    def run_number(self) -> int:
        """The number of the run that has its processes and its log."""
        return self.number if self.run is None else self.run
