"""The leader, with the epoch that each of its writes checks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the table with its one row: nobody has led yet."""
    leader = op.create_table(
        "leader",
        sa.Column("epoch", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("elected_at_ms", sa.BigInteger, nullable=False),
        sa.Column("beat_at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("epoch", name="pk_leader"),
    )
    op.bulk_insert(leader, [{"epoch": 0, "url": "", "elected_at_ms": 0, "beat_at_ms": 0}])


def downgrade() -> None:
    """Removes it."""
    op.drop_table("leader")
