"""Sessions that began at an issuer have a scope."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; sessions that have begun reach every job, as before."""
    op.add_column("browser_sessions", sa.Column("job_labels", JSONB, nullable=False, server_default="[]"))


def downgrade() -> None:
    """Removes it. Sessions with a scope end: without it they would open more than they may."""
    op.execute("DELETE FROM browser_sessions WHERE job_labels <> '[]'")
    op.drop_column("browser_sessions", "job_labels")
