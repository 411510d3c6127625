"""Tokens that expire and have a scope, sessions of browsers, labels of jobs, and where an event came from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_ROLES = ("VIEWER", "OPERATOR", "ADMIN")
_ORIGIN = ("actor_id", "address", "request_id")


def upgrade() -> None:
    """Adds the tables and columns; existing tokens reach every job and do not expire."""
    op.add_column("tokens", sa.Column("id", sa.Text, nullable=True))
    op.execute("UPDATE tokens SET id = replace(gen_random_uuid()::text, '-', '')")
    op.alter_column("tokens", "id", nullable=False)
    op.create_unique_constraint("uq_tokens_id", "tokens", ["id"])
    op.add_column("tokens", sa.Column("job_names", JSONB, nullable=False, server_default="[]"))
    op.add_column("tokens", sa.Column("job_labels", JSONB, nullable=False, server_default="{}"))
    op.add_column("tokens", sa.Column("created_by", sa.Text, nullable=False, server_default="system"))
    op.alter_column("tokens", "created_by", server_default=None)
    op.add_column("tokens", sa.Column("expires_at_ms", sa.BigInteger, nullable=True))
    op.create_table(
        "browser_sessions",
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("token_sha256", sa.Text, nullable=True),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("role", sa.Enum(*_ROLES, name="role", native_enum=False, length=32), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_browser_sessions"),
        sa.ForeignKeyConstraint(
            ["token_sha256"], ["tokens.sha256"], name="fk_browser_sessions_token_sha256_tokens", ondelete="CASCADE"
        ),
        sa.CheckConstraint("role IN ('VIEWER', 'OPERATOR', 'ADMIN')", name=op.f("ck_browser_sessions_role")),
    )
    op.create_index("ix_browser_sessions_token_sha256", "browser_sessions", ["token_sha256"])
    op.create_index("ix_browser_sessions_expires_at_ms", "browser_sessions", ["expires_at_ms"])
    op.add_column("jobs", sa.Column("labels", JSONB, nullable=False, server_default="{}"))
    op.add_column("artifacts", sa.Column("uploaded_by", sa.Text, nullable=True))
    for name in _ORIGIN:
        op.add_column("events", sa.Column(name, sa.Text, nullable=True))


def downgrade() -> None:
    """Removes them. Tokens with a scope or an expiry are deleted: without these they would open more than they may."""
    for name in reversed(_ORIGIN):
        op.drop_column("events", name)
    op.drop_column("artifacts", "uploaded_by")
    op.drop_column("jobs", "labels")
    op.drop_table("browser_sessions")
    op.execute("DELETE FROM tokens WHERE expires_at_ms IS NOT NULL OR job_names <> '[]' OR job_labels <> '{}'")
    for name in ("expires_at_ms", "created_by", "job_labels", "job_names", "id"):
        op.drop_column("tokens", name)
