"""The exceptions of jobs, as a history."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the table."""
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


def downgrade() -> None:
    """Removes it."""
    op.drop_table("exceptions")
