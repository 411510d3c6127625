"""Parts that revisions 0026 and 0027 gained after their first form."""

from __future__ import annotations

from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds what a database of an early development version lacks."""
    op.execute("ALTER TABLE jobs ADD COLUMN IF NOT EXISTS time_reset_after BIGINT")
    op.execute(
        "CREATE TABLE IF NOT EXISTS secret_labels (name TEXT NOT NULL, labels JSONB NOT NULL,"
        " CONSTRAINT pk_secret_labels PRIMARY KEY (name))"
    )
    op.execute("CREATE INDEX IF NOT EXISTS ix_events_kind ON events (kind, id)")
    op.execute("CREATE INDEX IF NOT EXISTS ix_events_actor ON events (actor, id)")
    op.execute("CREATE INDEX IF NOT EXISTS ix_events_not_refused ON events (id) WHERE kind <> 'ACCESS_DENIED'")
