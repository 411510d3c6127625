"""Series have steps of a day, with what operators look up of each day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_DAY_MS = 86_400_000
_COLUMNS = (
    "checkpoints_completed",
    "checkpoints_failed",
    "checkpointed_bytes",
    "checkpoint_duration_sum_ms",
    "checkpoint_duration_min_ms",
    "restarts",
)


def upgrade() -> None:
    """Adds the columns."""
    for name in _COLUMNS:
        op.add_column("series_points", sa.Column(name, sa.BigInteger))


def downgrade() -> None:
    """Removes them, and the steps of a day."""
    op.execute(f"DELETE FROM series_points WHERE step_ms = {_DAY_MS}")  # noqa: S608 - a constant
    for name in _COLUMNS:
        op.drop_column("series_points", name)
