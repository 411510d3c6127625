"""The table of the autoscaler's decisions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from keyscale.vocabulary import ScalingOutcome, ScalingVerdict

from ..base import Base, closed_set


class ScalingDecision(Base):
    """A decision of the autoscaler about a job, with its facts.

    A decision that stays the same is one row: `at_ms` is its first time, `confirmed_at_ms` its last time, and the facts
    are of its last time. A move has the operation that carries it out, if the autoscaler may act, and an outcome.
    """

    __tablename__ = "scaling_decisions"
    __table_args__ = (
        Index("ix_scaling_decisions_job_id", "job_id", "id"),
        Index("ix_scaling_decisions_pending", "job_id", postgresql_where=text("outcome = 'PENDING'")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    at_ms: Mapped[int]
    confirmed_at_ms: Mapped[int]
    verdict: Mapped[ScalingVerdict] = mapped_column(closed_set(ScalingVerdict, "verdict"))
    parallelism: Mapped[int]
    target: Mapped[int]
    message: Mapped[str]
    advice: Mapped[str | None]
    facts: Mapped[dict[str, Any]]
    present: Mapped[dict[str, Any] | None]  # the effect of the present parallelism
    expected: Mapped[dict[str, Any] | None]  # of the target
    measured: Mapped[dict[str, Any] | None]  # of the target, after the move
    operation_id: Mapped[str | None]
    outcome: Mapped[ScalingOutcome | None] = mapped_column(closed_set(ScalingOutcome, "outcome"))
