"""Restart strategies and failures of jobs; snapshots' sizes by key group."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SNAPSHOTS = "checkpoint_subtasks"
SIZES = ("key_group_entries", "key_group_bytes")


def upgrade() -> None:
    """Adds the columns, empty for existing jobs and snapshots."""
    op.add_column("jobs", sa.Column("restart", JSONB(none_as_null=True), nullable=True))
    op.add_column("jobs", sa.Column("failures", JSONB(none_as_null=True), nullable=True))
    op.add_column(SNAPSHOTS, sa.Column("entries", sa.BigInteger, nullable=False, server_default="0"))
    for name in SIZES:
        op.add_column(SNAPSHOTS, sa.Column(name, JSONB(none_as_null=True), nullable=False, server_default="[]"))
