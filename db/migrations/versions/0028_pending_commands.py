"""Index of the commands without a result."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the index."""
    op.create_index(
        "ix_commands_in_progress",
        "commands",
        ["job_id", "attempt"],
        postgresql_where=sa.text("status = 'IN_PROGRESS'"),
    )
