"""Means of series count only the samples that have a value."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the weight of busy ratios; earlier ones were as many as all samples. Bounds the means.

    Samples of a job that had run no batch have no values, and no longer count.
    """
    op.add_column("series_points", sa.Column("busy_samples", sa.BigInteger, nullable=False, server_default="0"))
    op.execute("UPDATE series_points SET busy_samples = samples WHERE busy_ratio IS NOT NULL")
    op.execute("UPDATE series_points SET samples = 0 WHERE processed_rate IS NULL AND batch_duration_ms IS NULL")
    # A larger mean could not be averaged with others: the statement that does it would fail.
    op.execute("UPDATE series_points SET processed_rate = 1e15 WHERE processed_rate > 1e15")
    op.execute("UPDATE series_points SET busy_ratio = 1e15 WHERE busy_ratio > 1e15")
    op.execute("UPDATE series_points SET batch_duration_ms = 1e15 WHERE batch_duration_ms > 1e15")


def downgrade() -> None:
    """Removes the weight."""
    op.drop_column("series_points", "busy_samples")
