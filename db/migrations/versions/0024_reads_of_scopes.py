"""Indexes of the lists that users with a scope read, and of events among very many others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_SHOWN_TO_ALL = "kind NOT IN ('ACCESS_DENIED', 'SIGNED_IN', 'SIGNED_OUT', 'TOKEN_CREATED', 'TOKEN_REVOKED')"
_NAMED = "savepoint_id IS NOT NULL"


def upgrade() -> None:
    """Adds the indexes, and columns to two others."""
    op.create_index("ix_events_shown_to_all", "events", ["id"], postgresql_where=sa.text(_SHOWN_TO_ALL))
    op.drop_index("ix_events_job_at_ms", "events")
    op.create_index("ix_events_job_at_ms", "events", ["job_id", "at_ms", "id"], postgresql_include=["kind"])
    op.create_index("ix_revisions_libraries", "revisions", ["libraries"], postgresql_using="gin")
    op.create_index(
        "ix_commands_savepoint_id", "commands", ["job_id", "savepoint_id"], postgresql_where=sa.text(_NAMED)
    )
    op.drop_index("ix_changes_to_revision", "changes")
    op.create_index("ix_changes_to_revision", "changes", ["job_id", "to_revision", "requested_at_ms", "id"])


def downgrade() -> None:
    """Removes them."""
    op.drop_index("ix_changes_to_revision", "changes")
    op.create_index("ix_changes_to_revision", "changes", ["job_id", "to_revision"])
    op.drop_index("ix_commands_savepoint_id", "commands")
    op.drop_index("ix_revisions_libraries", "revisions")
    op.drop_index("ix_events_job_at_ms", "events")
    op.create_index("ix_events_job_at_ms", "events", ["job_id", "at_ms", "id"])
    op.drop_index("ix_events_shown_to_all", "events")
