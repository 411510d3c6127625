"""The specification of a revision as one value."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

_CHECKPOINTS = {
    "interval_ms": 10_000,
    "min_pause_ms": 0,
    "timeout_ms": 600_000,
    "retained_count": 3,
    "tolerable_failed_checkpoints": 10,
    "store_outage_max_ms": 300_000,
}
"""The defaults so far, which revisions left out."""
_MOVED = ("parallelism", "parameters", "secrets", "spark_conf", "checkpoints", "restart", "batch_interval_ms")


def upgrade() -> None:
    """Moves each revision's settings into one column.

    The program and the libraries stay columns, generated from it, for the foreign key and the indexes.
    """
    op.add_column("revisions", sa.Column("spec", JSONB, nullable=True))
    op.execute(
        sa.text(
            "UPDATE revisions SET spec = jsonb_build_object("
            "'artifact_id', artifact_id, 'libraries', libraries, 'parallelism', parallelism,"
            " 'max_parallelism', jobs.max_parallelism, 'hash_id', jobs.hash_id, 'parameters', parameters,"
            " 'secrets', secrets, 'spark_conf', spark_conf,"
            " 'checkpoints', CAST(:checkpoints AS jsonb) || checkpoints,"
            " 'restart', restart, 'batch_interval_ms', batch_interval_ms)"
            " FROM jobs WHERE jobs.id = revisions.job_id"
        ).bindparams(checkpoints=json.dumps(_CHECKPOINTS))
    )
    op.alter_column("revisions", "spec", nullable=False)
    for name in ("artifact_id", "libraries", *_MOVED):
        op.drop_column("revisions", name)  # with its foreign key and its index
    artifact_id = sa.Computed("(spec ->> 'artifact_id'::text)", persisted=True)
    libraries = sa.Computed("(spec -> 'libraries'::text)", persisted=True)
    op.add_column("revisions", sa.Column("artifact_id", sa.Text, artifact_id, nullable=False))
    op.add_column("revisions", sa.Column("libraries", JSONB, libraries, nullable=False))
    op.create_foreign_key("fk_revisions_artifact_id_artifacts", "revisions", "artifacts", ["artifact_id"], ["id"])
    op.create_index("ix_revisions_artifact_id", "revisions", ["artifact_id"])
    op.create_index("ix_revisions_libraries", "revisions", ["libraries"], postgresql_using="gin")
