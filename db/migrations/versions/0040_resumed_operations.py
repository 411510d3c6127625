"""Indexes the operations that have a downtime.

A scrape for Prometheus reads the newest operation of each job.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the index."""
    op.create_index(
        "ix_operations_resumed",
        "operations",
        ["job_id", "requested_at_ms"],
        postgresql_where=sa.text("resumed_at_ms IS NOT NULL AND stopped_at_ms IS NOT NULL"),
    )
