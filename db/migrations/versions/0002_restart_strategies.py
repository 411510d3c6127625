"""A job's restart strategy, and its failures since its user started it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds both columns; a job that is there has neither."""
    op.add_column("jobs", sa.Column("restart", JSONB(none_as_null=True), nullable=True))
    op.add_column("jobs", sa.Column("failures", JSONB(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Removes them."""
    op.drop_column("jobs", "failures")
    op.drop_column("jobs", "restart")
