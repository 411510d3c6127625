"""Checkpoints of subtasks name their largest key groups."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the list."""
    op.add_column("checkpoint_subtasks", sa.Column("largest_key_groups", JSONB, nullable=False, server_default="[]"))
