"""Live rescales: attempts that a running driver opens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds reserved attempts, and the progress of live rescales."""
    op.add_column("attempts", sa.Column("run", sa.BigInteger))
    op.add_column("attempts", sa.Column("slots", sa.BigInteger))
    _allow("attempts", "stage", "RESERVED STANDBY ACTIVE ENDED")
    op.add_column("heartbeats", sa.Column("rescale", JSONB))
    op.add_column("operations", sa.Column("rescale_mode", sa.String(32)))
    op.create_check_constraint("rescale_mode", "operations", "rescale_mode IN ('LIVE', 'STANDBY')")
    op.add_column("operations", sa.Column("live", JSONB))
    op.add_column("operations", sa.Column("not_live", JSONB))
    _allow("operations", "phase", "PREPARE SWITCH REQUESTED SAVEPOINT STOP RESTORE VERIFY ROLL_BACK")


def _allow(table: str, column: str, values: str) -> None:
    """Replaces the check of a closed set."""
    op.drop_constraint(column, table, type_="check")
    listed = ", ".join(f"'{value}'" for value in values.split())
    op.create_check_constraint(column, table, f"{column} IN ({listed})")
