"""Allows operations of the kind RELOAD_SECRETS."""

from __future__ import annotations

from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

_KINDS = (
    "START",
    "STOP",
    "DRAIN",
    "CANCEL",
    "RESTART",
    "RELOAD_SECRETS",
    "CHECKPOINT",
    "SAVEPOINT",
    "RESCALE",
    "UPGRADE",
    "ROLLBACK",
)


def upgrade() -> None:
    """Replaces the constraint."""
    op.drop_constraint("ck_operations_kind", "operations")
    op.create_check_constraint("ck_operations_kind", "operations", f"kind IN {_KINDS}")
