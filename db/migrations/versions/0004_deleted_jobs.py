"""Deleted jobs whose objects are not deleted yet. Jobs that were deleted before keep their objects."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the table."""
    op.create_table(
        "deleted_jobs",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("store_url", sa.Text, nullable=False),
        sa.Column("deleted_at_ms", sa.BigInteger, nullable=False),
        sa.Column("due_at_ms", sa.BigInteger, nullable=False),
        sa.Column("failure_code", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("job_id", name="pk_deleted_jobs"),
    )


def downgrade() -> None:
    """Removes it."""
    op.drop_table("deleted_jobs")
