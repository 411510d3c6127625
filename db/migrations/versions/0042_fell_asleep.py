"""Attempts know when their driver fell asleep."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the time.

    Of earlier sleeps only the time of the request is known.
    """
    op.add_column("attempts", sa.Column("fell_asleep_at_ms", sa.BigInteger))
    op.execute(
        "UPDATE attempts SET fell_asleep_at_ms = sleep_requested_at_ms WHERE driver_state IN ('SLEEPING', 'WOKEN')"
    )
