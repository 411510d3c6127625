"""Key of the replicas, labels of secrets, indexes of events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the key, of 244 random bits, and the rest."""
    value = sa.Column("value", sa.Text, nullable=False)
    op.create_table("replica_key", value, sa.PrimaryKeyConstraint("value", name="pk_replica_key"))
    op.execute("INSERT INTO replica_key (value) VALUES (gen_random_uuid()::text || gen_random_uuid()::text)")
    op.create_table(
        "secret_labels",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("labels", JSONB, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_secret_labels"),
    )
    op.create_index("ix_events_kind", "events", ["kind", "id"])
    op.create_index("ix_events_actor", "events", ["actor", "id"])
    op.create_index("ix_events_not_refused", "events", ["id"], postgresql_where=sa.text("kind <> 'ACCESS_DENIED'"))
