"""Whether a job goes on without the records that its sources have lost, since its last start."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; existing jobs fail if records are lost."""
    op.add_column("jobs", sa.Column("skip_lost_records", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Removes it."""
    op.drop_column("jobs", "skip_lost_records")
