"""Heartbeats, series, exceptions, times of changes, and requests about checkpoints."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0026"
down_revision = "0025_revisions"
branch_labels = None
depends_on = None

_DAY_SUMS = (
    "completed",
    "failed",
    "checkpointed_size",
    "state_size_max",
    "end_to_end_duration",
    "end_to_end_duration_max",
    "processed_records",
)
_SERIES_NUMBERS = (
    "input_records",
    "output_records",
    "late_records",
    "lost_records",
    "lag_records",
    "lag_ms",
    "watermark_ms",
    "state_size",
    "checkpointed_size",
    "checkpoint_duration_ms",
)
_SERIES_DAY_NUMBERS = (
    "checkpoints_completed",
    "checkpoints_failed",
    "checkpointed_bytes",
    "checkpoint_duration_sum_ms",
    "checkpoint_duration_min_ms",
    "restarts",
    "dead_letters",
)


def upgrade() -> None:
    """Moves attempts' last heartbeats into a table, and adds the rest."""
    _create_heartbeats()
    _create_series()
    _create_exceptions()
    _extend_changes()
    _extend_checkpoints()


def _create_heartbeats() -> None:
    columns = (("last_commit_batch_id", sa.BigInteger), ("last_commit_at_ms", sa.BigInteger), ("metrics", JSONB))
    names = ", ".join(name for name, _ in columns)
    op.create_table(
        "heartbeats",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("at_ms", sa.BigInteger),
        *(sa.Column(name, kind) for name, kind in columns),
        sa.PrimaryKeyConstraint("job_id", "attempt", name="pk_heartbeats"),
        sa.ForeignKeyConstraint(
            ["job_id", "attempt"],
            ["attempts.job_id", "attempts.number"],
            name="fk_heartbeats_job_id_attempts",
            ondelete="CASCADE",
        ),
        postgresql_with={"fillfactor": 50},
    )
    op.execute(
        f"INSERT INTO heartbeats (job_id, attempt, at_ms, {names})"  # noqa: S608 - constants
        f" SELECT job_id, number, heartbeat_at_ms, {names} FROM attempts WHERE heartbeat_at_ms IS NOT NULL"
    )
    for name in ("heartbeat_at_ms", *(name for name, _ in columns)):
        op.drop_column("attempts", name)


def _create_series() -> None:
    op.create_table(
        "series_points",
        sa.Column("job_id", sa.Text, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False) for name in ("step_ms", "slot")),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("samples", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.BigInteger) for name in _SERIES_NUMBERS),
        *(sa.Column(name, sa.Float) for name in ("processed_rate", "busy_ratio", "batch_duration_ms")),
        *(sa.Column(name, sa.BigInteger) for name in _SERIES_DAY_NUMBERS),
        sa.Column("busy_samples", sa.BigInteger, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("job_id", "step_ms", "slot", name="pk_series_points"),
    )


def _create_exceptions() -> None:
    op.create_table(
        "exceptions",
        sa.Column("id", sa.BigInteger, sa.Identity(), nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("code", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("traceback", sa.Text),
        sa.Column("operator_uid", sa.Text),
        sa.Column("subtask", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_exceptions"),
    )
    op.create_index("ix_exceptions_job", "exceptions", ["job_id", "id"])


def _extend_changes() -> None:
    for name in ("cancel_requested_at_ms", "caught_up_at_ms"):
        op.add_column("changes", sa.Column(name, sa.BigInteger))
    for name in ("figures_before", "figures_after", "times"):
        op.add_column("changes", sa.Column(name, JSONB))
    for name in ("caught_up_at_ms", "settled_at_ms", "lag_before"):
        op.add_column("attempts", sa.Column(name, sa.BigInteger))


def _extend_checkpoints() -> None:
    """Removes the foreign key, because deleted jobs' checkpoints are removed in pieces."""
    op.drop_constraint("fk_checkpoints_job_id_jobs", "checkpoints", type_="foreignkey")
    op.create_index("ix_checkpoints_status", "checkpoints", ["job_id", "status", "is_savepoint", "checkpoint_id"])
    op.create_index("ix_checkpoints_external_path", "checkpoints", ["job_id", "external_path"])
    for name in ("discard_requested_at_ms", "objects_deleted_at_ms"):
        op.add_column("checkpoints", sa.Column(name, sa.BigInteger))
    op.add_column("checkpoints", sa.Column("verification", JSONB))
    op.create_index(
        "ix_checkpoints_discarded",
        "checkpoints",
        ["discard_requested_at_ms"],
        postgresql_where=sa.text("discard_requested_at_ms IS NOT NULL AND objects_deleted_at_ms IS NULL"),
    )
    op.create_index(
        "ix_checkpoints_discarded_path",
        "checkpoints",
        ["external_path"],
        postgresql_where=sa.text("discard_requested_at_ms IS NOT NULL"),
    )
    op.add_column("checkpoint_subtasks", sa.Column("distinct_size", sa.BigInteger))
    op.create_table(
        "checkpoint_days",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("day", sa.BigInteger, nullable=False, autoincrement=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in _DAY_SUMS),
        sa.PrimaryKeyConstraint("job_id", "day", name="pk_checkpoint_days"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_checkpoint_days_job_id_jobs", ondelete="CASCADE"),
    )
