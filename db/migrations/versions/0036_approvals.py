"""Operations that wait for an approval."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

_STATUSES = ("PENDING_APPROVAL", "IN_PROGRESS", "COMPLETED", "CANCELLED", "ROLLED_BACK", "FAILED")


def upgrade() -> None:
    """Adds the approval of an operation, and the status before it."""
    op.drop_constraint("ck_operations_status", "operations")
    op.create_check_constraint(op.f("ck_operations_status"), "operations", sa.column("status").in_(_STATUSES))
    op.add_column("operations", sa.Column("approved_by", sa.Text))
    op.add_column("operations", sa.Column("approved_at_ms", sa.BigInteger))
    op.create_index(
        "uq_operations_one_pending",
        "operations",
        ["job_id"],
        unique=True,
        postgresql_where=sa.text("status = 'PENDING_APPROVAL'"),
    )
