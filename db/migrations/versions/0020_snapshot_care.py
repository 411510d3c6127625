"""Checkpoints and savepoints that their user deletes or has verified."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the columns and the index."""
    op.add_column("checkpoints", sa.Column("discard_requested_at_ms", sa.BigInteger))
    op.add_column("checkpoints", sa.Column("objects_deleted_at_ms", sa.BigInteger))
    op.add_column("checkpoints", sa.Column("verification", JSONB))
    op.create_index(
        "ix_checkpoints_discarded",
        "checkpoints",
        ["discard_requested_at_ms"],
        postgresql_where=sa.text("discard_requested_at_ms IS NOT NULL AND objects_deleted_at_ms IS NULL"),
    )


def downgrade() -> None:
    """Removes them."""
    op.drop_index("ix_checkpoints_discarded", "checkpoints")
    for name in ("discard_requested_at_ms", "objects_deleted_at_ms", "verification"):
        op.drop_column("checkpoints", name)
