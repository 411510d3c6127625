"""Savepoints that deleted jobs have claimed, or whose user deleted them; and an index of checkpoints deleted so."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the columns and the index."""
    for name in ("claimed", "discarded"):
        op.add_column("deleted_jobs", sa.Column(name, JSONB, nullable=False, server_default="[]"))
    op.create_index(
        "ix_checkpoints_discarded_path",
        "checkpoints",
        ["external_path"],
        postgresql_where=sa.text("discard_requested_at_ms IS NOT NULL"),
    )


def downgrade() -> None:
    """Removes them."""
    op.drop_index("ix_checkpoints_discarded_path", "checkpoints")
    for name in ("claimed", "discarded"):
        op.drop_column("deleted_jobs", name)
