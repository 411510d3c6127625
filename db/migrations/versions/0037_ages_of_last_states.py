"""Stores the greatest age of the last state with waiting changes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the age."""
    op.add_column("operations", sa.Column("last_state_age_ms_max", sa.BigInteger))
