"""The claims of deleted jobs, which end with them; and an index to find a checkpoint that its user has deleted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column and the index."""
    op.add_column("deleted_jobs", sa.Column("claimed", JSONB, nullable=False, server_default="[]"))
    op.create_index(
        "ix_checkpoints_discarded_path",
        "checkpoints",
        ["external_path"],
        postgresql_where=sa.text("discard_requested_at_ms IS NOT NULL"),
    )


def downgrade() -> None:
    """Removes them."""
    op.drop_index("ix_checkpoints_discarded_path", "checkpoints")
    op.drop_column("deleted_jobs", "claimed")
