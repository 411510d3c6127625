"""The autoscaler's decisions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

_VERDICTS = (
    "SCALE_UP",
    "SCALE_DOWN",
    "UNDO",
    "STEADY",
    "SINK_SLOW",
    "STORE_SLOW",
    "HOT_KEY_GROUP",
    "FUNCTION_SLOW",
    "SOURCE_LIMITED",
    "FIXED_COST",
    "HOST_OVERLOADED",
    "NOT_DELIVERED",
    "NO_SLOTS",
    "EXCLUDED_HOURS",
    "BUDGET",
    "COOLING_DOWN",
    "WARMING_UP",
    "GARBAGE_COLLECTION",
    "OUTAGE",
    "FAILING",
    "NOT_RUNNING",
)
_OUTCOMES = ("PENDING", "DELIVERED", "NOT_DELIVERED", "FAILED", "REPLACED")


def upgrade() -> None:
    """Creates the table."""
    op.create_table(
        "scaling_decisions",
        sa.Column("id", sa.BigInteger, sa.Identity(), nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("at_ms", "confirmed_at_ms")),
        sa.Column("verdict", sa.String(32), nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("parallelism", "target")),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("advice", sa.Text),
        sa.Column("facts", JSONB, nullable=False),
        *(sa.Column(name, JSONB) for name in ("present", "expected", "measured")),
        sa.Column("operation_id", sa.Text),
        sa.Column("outcome", sa.String(32)),
        sa.CheckConstraint(sa.column("verdict").in_(_VERDICTS), name=op.f("ck_scaling_decisions_verdict")),
        sa.CheckConstraint(sa.column("outcome").in_(_OUTCOMES), name=op.f("ck_scaling_decisions_outcome")),
        sa.PrimaryKeyConstraint("id", name="pk_scaling_decisions"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE", name="fk_scaling_decisions_job_id_jobs"),
    )
    op.create_index("ix_scaling_decisions_job_id", "scaling_decisions", ["job_id", "id"])
    op.create_index(
        "ix_scaling_decisions_pending",
        "scaling_decisions",
        ["job_id"],
        postgresql_where=sa.text("outcome = 'PENDING'"),
    )
