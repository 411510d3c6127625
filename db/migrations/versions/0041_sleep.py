"""Jobs that sleep."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

_STATUSES = (
    "CREATED",
    "SUBMITTING",
    "RUNNING",
    "SLEEPING",
    "SAVEPOINTING",
    "STOPPING",
    "STOPPED",
    "RESCALING",
    "UPGRADING",
    "RESTARTING",
    "FAILED",
    "FINISHED",
)
_VERDICTS = (
    "SCALE_UP",
    "SCALE_DOWN",
    "UNDO",
    "STEADY",
    "SLEEP",
    "SINK_SLOW",
    "STORE_SLOW",
    "HOT_KEY_GROUP",
    "FUNCTION_SLOW",
    "SOURCE_LIMITED",
    "FIXED_COST",
    "HOST_OVERLOADED",
    "NOT_DELIVERED",
    "NO_SLOTS",
    "EXCLUDED_HOURS",
    "BUDGET",
    "COOLING_DOWN",
    "WARMING_UP",
    "GARBAGE_COLLECTION",
    "OUTAGE",
    "FAILING",
    "NOT_RUNNING",
)


def upgrade() -> None:
    """Allows the status and the verdict; adds the request."""
    for table, column, values in (("jobs", "status", _STATUSES), ("scaling_decisions", "verdict", _VERDICTS)):
        op.drop_constraint(op.f(f"ck_{table}_{column}"), table, type_="check")
        op.create_check_constraint(op.f(f"ck_{table}_{column}"), table, sa.column(column).in_(values))
    op.add_column("attempts", sa.Column("sleep_requested_at_ms", sa.BigInteger))
