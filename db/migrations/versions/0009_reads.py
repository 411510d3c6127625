"""Indices by which every list is read a page at a time, daily sums of removed checkpoints, and removal in pieces."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_OWNED = "fk_checkpoints_job_id_jobs"
_SUMS = (
    "completed",
    "failed",
    "checkpointed_size",
    "state_size_max",
    "end_to_end_duration",
    "end_to_end_duration_max",
    "processed_records",
)


def upgrade() -> None:
    """Adds indices and the table of daily sums; a deleted job's checkpoints no longer go with its row."""
    op.create_index("ix_artifacts_created_at_ms", "artifacts", ["created_at_ms", "id"])
    op.create_index("ix_jobs_created_at_ms", "jobs", ["created_at_ms", "id"])
    op.create_index("ix_checkpoints_status", "checkpoints", ["job_id", "status", "is_savepoint", "checkpoint_id"])
    op.create_index("ix_checkpoints_external_path", "checkpoints", ["job_id", "external_path"])
    for table, time in (("commands", "created_at_ms"), ("rescales", "requested_at_ms")):
        op.create_index(f"ix_{table}_{time}", table, ["job_id", time, "id"])
        op.drop_index(f"ix_{table}_job_id", table)
    op.create_index("ix_events_job", "events", ["job_id", "id"])
    op.drop_index("ix_events_job_id", "events")
    op.create_index("ix_events_at_ms", "events", ["at_ms"])
    op.create_index(
        "ix_attempts_unreaped", "attempts", ["job_id"], postgresql_where=sa.text("stage <> 'ENDED' OR NOT reaped")
    )
    op.create_table(
        "checkpoint_days",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("day", sa.BigInteger, nullable=False, autoincrement=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in _SUMS),
        sa.PrimaryKeyConstraint("job_id", "day", name="pk_checkpoint_days"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_checkpoint_days_job_id_jobs", ondelete="CASCADE"),
    )
    op.drop_constraint(_OWNED, "checkpoints", type_="foreignkey")
    op.add_column("deleted_jobs", sa.Column("keep_objects", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Removes them. Checkpoints of deleted jobs go, and deleted jobs whose objects stay are forgotten."""
    op.execute("DELETE FROM deleted_jobs WHERE keep_objects")
    op.drop_column("deleted_jobs", "keep_objects")
    op.execute("DELETE FROM checkpoints WHERE job_id NOT IN (SELECT id FROM jobs)")
    op.create_foreign_key(_OWNED, "checkpoints", "jobs", ["job_id"], ["id"], ondelete="CASCADE")
    op.drop_table("checkpoint_days")
    op.drop_index("ix_attempts_unreaped", "attempts")
    op.drop_index("ix_events_at_ms", "events")
    op.create_index("ix_events_job_id", "events", ["job_id"])
    op.drop_index("ix_events_job", "events")
    for table, time in (("commands", "created_at_ms"), ("rescales", "requested_at_ms")):
        op.create_index(f"ix_{table}_job_id", table, ["job_id"])
        op.drop_index(f"ix_{table}_{time}", table)
    op.drop_index("ix_checkpoints_external_path", "checkpoints")
    op.drop_index("ix_checkpoints_status", "checkpoints")
    op.drop_index("ix_jobs_created_at_ms", "jobs")
    op.drop_index("ix_artifacts_created_at_ms", "artifacts")
