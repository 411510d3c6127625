"""The size of an operator's state counts a file that several of its subtasks read once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds what each subtask has of files that no subtask before it reads; earlier checkpoints do not know it."""
    op.add_column("checkpoint_subtasks", sa.Column("distinct_size", sa.BigInteger))


def downgrade() -> None:
    """Removes it."""
    op.drop_column("checkpoint_subtasks", "distinct_size")
