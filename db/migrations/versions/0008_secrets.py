"""A job names its secrets. Those of earlier jobs stay null: they get all."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column."""
    op.add_column("jobs", sa.Column("secrets", postgresql.JSONB(), nullable=True))


def downgrade() -> None:
    """Drops the column."""
    op.drop_column("jobs", "secrets")
