"""Means of series count only the samples that have a value."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the weight of busy ratios; earlier ones were as many as all samples."""
    op.add_column("series_points", sa.Column("busy_samples", sa.BigInteger, nullable=False, server_default="0"))
    op.execute("UPDATE series_points SET busy_samples = samples WHERE busy_ratio IS NOT NULL")


def downgrade() -> None:
    """Removes it."""
    op.drop_column("series_points", "busy_samples")
