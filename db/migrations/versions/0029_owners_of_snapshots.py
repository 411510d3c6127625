"""Owners of checkpoints and savepoints.

Existing savepoints are their users': they were promised to stay.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the owner of each checkpoint and savepoint."""
    op.add_column("checkpoints", sa.Column("owner", sa.String(32), nullable=False, server_default="PLATFORM"))
    op.execute("UPDATE checkpoints SET owner = 'USER' WHERE is_savepoint")
    op.create_check_constraint(op.f("ck_checkpoints_owner"), "checkpoints", "owner IN ('PLATFORM', 'USER')")
    op.create_index(
        "ix_checkpoints_savepoints_of_changes",
        "checkpoints",
        ["job_id", "savepoint_id"],
        postgresql_where=sa.text("is_savepoint AND owner = 'PLATFORM' AND status = 'COMPLETED'"),
    )
