"""A number per job, which chooses the user that the job runs as."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column, and numbers the jobs that there are."""
    op.add_column("jobs", sa.Column("user_number", sa.BigInteger, sa.Identity(), nullable=False))
    op.create_unique_constraint("uq_jobs_user_number", "jobs", ["user_number"])


def downgrade() -> None:
    """Removes it."""
    op.drop_column("jobs", "user_number")
