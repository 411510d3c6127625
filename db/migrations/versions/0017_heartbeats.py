"""The columns of attempts that every heartbeat changes have a narrow table of their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_COLUMNS = (("last_commit_batch_id", sa.BigInteger), ("last_commit_at_ms", sa.BigInteger), ("metrics", JSONB))
_NAMES = ", ".join(name for name, _ in _COLUMNS)


def upgrade() -> None:
    """Moves what the attempts have."""
    op.create_table(
        "heartbeats",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("at_ms", sa.BigInteger),
        *(sa.Column(name, kind) for name, kind in _COLUMNS),
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
        f"INSERT INTO heartbeats (job_id, attempt, at_ms, {_NAMES})"  # noqa: S608 - constants
        f" SELECT job_id, number, heartbeat_at_ms, {_NAMES} FROM attempts WHERE heartbeat_at_ms IS NOT NULL"
    )
    for name in ("heartbeat_at_ms", *(name for name, _ in _COLUMNS)):
        op.drop_column("attempts", name)


def downgrade() -> None:
    """Moves it back."""
    op.add_column("attempts", sa.Column("heartbeat_at_ms", sa.BigInteger))
    for name, kind in _COLUMNS:
        op.add_column("attempts", sa.Column(name, kind))
    assigned = ", ".join(f"{name} = heartbeats.{name}" for name, _ in _COLUMNS)
    op.execute(
        f"UPDATE attempts SET heartbeat_at_ms = heartbeats.at_ms, {assigned} FROM heartbeats"  # noqa: S608 - constants
        " WHERE heartbeats.job_id = attempts.job_id AND heartbeats.attempt = attempts.number"
    )
    op.drop_table("heartbeats")
