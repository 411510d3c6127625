"""The ledger of changes: where their downtime went, and the figures before and after; requests to cancel one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_COLUMNS = (
    ("changes", "cancel_requested_at_ms", sa.BigInteger),
    ("changes", "caught_up_at_ms", sa.BigInteger),
    ("changes", "figures_before", JSONB),
    ("changes", "figures_after", JSONB),
    ("changes", "times", JSONB),
    ("attempts", "caught_up_at_ms", sa.BigInteger),
    ("attempts", "settled_at_ms", sa.BigInteger),
    ("attempts", "lag_before", sa.BigInteger),
)


def upgrade() -> None:
    """Adds the columns."""
    for table, name, kind in _COLUMNS:
        op.add_column(table, sa.Column(name, kind))


def downgrade() -> None:
    """Removes them."""
    for table, name, _ in _COLUMNS:
        op.drop_column(table, name)
