"""The least time between the starts of two batches of a job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; existing jobs have the interval that their scripts set, or none."""
    op.add_column("jobs", sa.Column("batch_interval_ms", sa.BigInteger, nullable=True))


def downgrade() -> None:
    """Removes it."""
    op.drop_column("jobs", "batch_interval_ms")
