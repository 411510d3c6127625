"""Diagnostics of running jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

_KINDS = ("THREAD_DUMP", "PROFILE", "EXECUTOR_LOGS", "SAMPLE")


def upgrade() -> None:
    """Creates the table."""
    op.create_table(
        "diagnostics",
        *(sa.Column(name, sa.Text, nullable=False) for name in ("job_id", "id")),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("request", JSONB, nullable=False),
        sa.Column("requested_at_ms", sa.BigInteger, nullable=False),
        sa.Column("requested_by", sa.Text, nullable=False),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_at_ms", sa.BigInteger),
        *(sa.Column(name, JSONB) for name in ("parts", "failure")),
        sa.CheckConstraint(sa.column("kind").in_(_KINDS), name=op.f("ck_diagnostics_kind")),
        sa.PrimaryKeyConstraint("job_id", "id", name="pk_diagnostics"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE", name="fk_diagnostics_job_id_jobs"),
    )
    op.create_index("ix_diagnostics_requested_at_ms", "diagnostics", ["requested_at_ms"])
    op.create_index(
        "ix_diagnostics_pending",
        "diagnostics",
        ["job_id", "attempt"],
        postgresql_where=sa.text("ended_at_ms IS NULL"),
    )
