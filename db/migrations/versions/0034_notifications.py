"""Subscriptions, the outbox of their deliveries, and alarms."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

_CHANNELS = ("WEBHOOK", "SLACK", "TEAMS", "PAGERDUTY", "MAIL")
_STATUSES = ("PENDING", "DELIVERED", "FAILED")


def upgrade() -> None:
    """Creates the three tables."""
    op.create_table(
        "subscriptions",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("channel", sa.String(32), nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("secret", sa.Text),
        *(
            sa.Column(name, JSONB, nullable=False)
            for name in (
                "kinds",
                "job_names",
                "job_labels",
                "owner_job_names",
                "owner_job_labels",
                "owner_any_labels",
            )
        ),
        sa.Column("owner_id", sa.Text, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.CheckConstraint(sa.column("channel").in_(_CHANNELS), name=op.f("ck_subscriptions_channel")),
        sa.PrimaryKeyConstraint("id", name="pk_subscriptions"),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("subscription_id", sa.Text, nullable=False),
        sa.Column("event_id", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("next_at_ms", sa.BigInteger),
        sa.Column("attempts", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("last_attempt_at_ms", sa.BigInteger),
        sa.Column("ended_at_ms", sa.BigInteger),
        sa.Column("problem", sa.Text),
        sa.CheckConstraint(sa.column("status").in_(_STATUSES), name=op.f("ck_deliveries_status")),
        sa.PrimaryKeyConstraint("id", name="pk_deliveries"),
        sa.ForeignKeyConstraint(
            ["subscription_id"],
            ["subscriptions.id"],
            ondelete="CASCADE",
            name="fk_deliveries_subscription_id_subscriptions",
        ),
        sa.ForeignKeyConstraint(["event_id"], ["events.id"], ondelete="CASCADE", name="fk_deliveries_event_id_events"),
    )
    is_pending = sa.text("status = 'PENDING'")
    op.create_index("ix_deliveries_due", "deliveries", ["subscription_id", "next_at_ms"], postgresql_where=is_pending)
    op.create_index("ix_deliveries_created_at_ms", "deliveries", ["subscription_id", "created_at_ms", "id"])
    op.create_index("ix_deliveries_event_id", "deliveries", ["event_id"])
    op.create_table(
        "alarms",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("since_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "kind", name="pk_alarms"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE", name="fk_alarms_job_id_jobs"),
    )
