"""Series of jobs' figures, counters that survive an attempt, and events of a job by their time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_KEY = ("step_ms", "slot")
_NUMBERS = (
    "input_records",
    "output_records",
    "late_records",
    "lost_records",
    "lag_records",
    "lag_ms",
    "watermark_ms",
    "state_size",
    "checkpointed_size",
    "checkpoint_duration_ms",
)


def upgrade() -> None:
    """Adds the table, the column and the index."""
    op.create_table(
        "series_points",
        sa.Column("job_id", sa.Text, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False) for name in _KEY),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("samples", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.BigInteger) for name in _NUMBERS),
        *(sa.Column(name, sa.Float) for name in ("processed_rate", "busy_ratio", "batch_duration_ms")),
        sa.PrimaryKeyConstraint("job_id", *_KEY, name="pk_series_points"),
    )
    op.add_column("attempts", sa.Column("totals_before", JSONB))
    op.create_index("ix_events_job_at_ms", "events", ["job_id", "at_ms", "id"])


def downgrade() -> None:
    """Removes them."""
    op.drop_index("ix_events_job_at_ms", "events")
    op.drop_column("attempts", "totals_before")
    op.drop_table("series_points")
