"""Series have the number of dead letters."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; of earlier steps the number is not known."""
    op.add_column("series_points", sa.Column("dead_letters", sa.BigInteger))


def downgrade() -> None:
    """Removes it."""
    op.drop_column("series_points", "dead_letters")
