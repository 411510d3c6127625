"""Artifacts may be wheels, and keep what the inspection of their upload found in them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column and the kind."""
    op.add_column("artifacts", sa.Column("contents", JSONB(none_as_null=True), nullable=True))
    op.drop_constraint(op.f("ck_artifacts_kind"), "artifacts", type_="check")
    op.create_check_constraint(op.f("ck_artifacts_kind"), "artifacts", "kind IN ('PYTHON', 'ZIP', 'JAR', 'WHEEL')")


def downgrade() -> None:
    """Drops wheels, which the version before does not know."""
    op.execute("DELETE FROM artifacts WHERE kind = 'WHEEL'")
    op.drop_constraint(op.f("ck_artifacts_kind"), "artifacts", type_="check")
    op.create_check_constraint(op.f("ck_artifacts_kind"), "artifacts", "kind IN ('PYTHON', 'ZIP', 'JAR')")
    op.drop_column("artifacts", "contents")
