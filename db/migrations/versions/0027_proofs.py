"""The key by which replicas know each other."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the key, of 244 random bits."""
    value = sa.Column("value", sa.Text, nullable=False)
    op.create_table("replica_key", value, sa.PrimaryKeyConstraint("value", name="pk_replica_key"))
    op.execute("INSERT INTO replica_key (value) VALUES (gen_random_uuid()::text || gen_random_uuid()::text)")
