"""Several control planes; tokens, sessions and labels; deleted jobs.

Versions in development had the revisions 0003 to 0026. The three migrations from here to 0026 replace them. The ids
of the first two are new, so that a database in between is refused (`keyscale.db.migrate`).
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0024_access"
down_revision = "0002"
branch_labels = None
depends_on = None

_ROLES = ("VIEWER", "OPERATOR", "ADMIN")
_SHOWN_TO_ALL = "kind NOT IN ('ACCESS_DENIED', 'SIGNED_IN', 'SIGNED_OUT', 'TOKEN_CREATED', 'TOKEN_REVOKED')"


def upgrade() -> None:
    """Adds tables and columns.

    Existing tokens cover every job and do not expire.
    """
    _create_control_planes()
    _extend_tokens()
    _create_browser_sessions()
    _extend_jobs()
    _extend_artifacts()
    _extend_events()


def _create_control_planes() -> None:
    leader = op.create_table(
        "leader",
        sa.Column("epoch", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("elected_at_ms", sa.BigInteger, nullable=False),
        sa.Column("beat_at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("epoch", name="pk_leader"),
    )
    op.bulk_insert(leader, [{"epoch": 0, "url": "", "elected_at_ms": 0, "beat_at_ms": 0}])
    op.create_table(
        "replicas",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("seen_at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_replicas"),
    )


def _extend_tokens() -> None:
    op.add_column("tokens", sa.Column("id", sa.Text, nullable=True))
    op.execute("UPDATE tokens SET id = replace(gen_random_uuid()::text, '-', '')")
    op.alter_column("tokens", "id", nullable=False)
    op.create_unique_constraint("uq_tokens_id", "tokens", ["id"])
    op.add_column("tokens", sa.Column("job_names", JSONB, nullable=False, server_default="[]"))
    op.add_column("tokens", sa.Column("job_labels", JSONB, nullable=False, server_default="{}"))
    op.add_column("tokens", sa.Column("created_by", sa.Text, nullable=False, server_default="system"))
    op.alter_column("tokens", "created_by", server_default=None)
    op.add_column("tokens", sa.Column("expires_at_ms", sa.BigInteger, nullable=True))


def _create_browser_sessions() -> None:
    op.create_table(
        "browser_sessions",
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("token_sha256", sa.Text, nullable=True),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("role", sa.Enum(*_ROLES, name="role", native_enum=False, length=32), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
        sa.Column("job_labels", JSONB, nullable=False, server_default="[]"),
        sa.PrimaryKeyConstraint("sha256", name="pk_browser_sessions"),
        sa.ForeignKeyConstraint(
            ["token_sha256"], ["tokens.sha256"], name="fk_browser_sessions_token_sha256_tokens", ondelete="CASCADE"
        ),
        sa.CheckConstraint("role IN ('VIEWER', 'OPERATOR', 'ADMIN')", name=op.f("ck_browser_sessions_role")),
    )
    op.create_index("ix_browser_sessions_token_sha256", "browser_sessions", ["token_sha256"])
    op.create_index("ix_browser_sessions_expires_at_ms", "browser_sessions", ["expires_at_ms"])


def _extend_jobs() -> None:
    op.add_column("jobs", sa.Column("skip_lost_records", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("jobs", sa.Column("time_reset_after", sa.BigInteger))
    op.add_column("jobs", sa.Column("labels", JSONB, nullable=False, server_default="{}"))
    op.add_column("jobs", sa.Column("user_number", sa.BigInteger, sa.Identity(), nullable=False))
    op.create_unique_constraint("uq_jobs_user_number", "jobs", ["user_number"])
    op.create_index("ix_jobs_created_at_ms", "jobs", ["created_at_ms", "id"])
    op.create_table(
        "deleted_jobs",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("store_url", sa.Text, nullable=False),
        sa.Column("deleted_at_ms", sa.BigInteger, nullable=False),
        sa.Column("due_at_ms", sa.BigInteger, nullable=False),
        sa.Column("failure_code", sa.Text, nullable=True),
        sa.Column("keep_objects", sa.Boolean, nullable=False, server_default=sa.false()),
        *(sa.Column(name, JSONB, nullable=False, server_default="[]") for name in ("claimed", "discarded")),
        sa.PrimaryKeyConstraint("job_id", name="pk_deleted_jobs"),
    )


def _extend_artifacts() -> None:
    op.add_column("artifacts", sa.Column("uploaded_by", sa.Text, nullable=True))
    op.add_column("artifacts", sa.Column("contents", JSONB(none_as_null=True), nullable=True))
    op.drop_constraint(op.f("ck_artifacts_kind"), "artifacts", type_="check")
    op.create_check_constraint(op.f("ck_artifacts_kind"), "artifacts", "kind IN ('PYTHON', 'ZIP', 'JAR', 'WHEEL')")
    op.create_index("ix_artifacts_created_at_ms", "artifacts", ["created_at_ms", "id"])


def _extend_events() -> None:
    for name in ("actor_id", "address", "request_id"):
        op.add_column("events", sa.Column(name, sa.Text, nullable=True))
    op.drop_index("ix_events_job_id", "events")
    op.create_index("ix_events_job", "events", ["job_id", "id"])
    op.create_index("ix_events_at_ms", "events", ["at_ms"])
    op.create_index("ix_events_job_at_ms", "events", ["job_id", "at_ms", "id"], postgresql_include=["kind"])
    op.create_index("ix_events_shown_to_all", "events", ["id"], postgresql_where=sa.text(_SHOWN_TO_ALL))
