"""Savepoints of changes.

A change has the location of its savepoint, which names the savepoint alone.
"""

from __future__ import annotations

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drops the number of the savepoint, which was never read."""
    op.drop_column("changes", "savepoint_checkpoint_id")
