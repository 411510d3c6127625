"""The specification of a job has revisions; a rescale is one kind of change from one revision to another."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_STATUSES = (
    "CREATED",
    "SUBMITTING",
    "RUNNING",
    "SAVEPOINTING",
    "STOPPING",
    "STOPPED",
    "RESCALING",
    "RESTARTING",
    "FAILED",
    "FINISHED",
)
_SPECIFICATION = (
    ("artifact_id", sa.Text, False),
    ("parallelism", sa.BigInteger, False),
    ("parameters", JSONB, False),
    ("secrets", JSONB, True),
    ("spark_conf", JSONB, False),
    ("checkpoints", JSONB, False),
    ("restart", JSONB, True),
    ("batch_interval_ms", sa.BigInteger, True),
)
_NAMES = ", ".join(name for name, _, _ in _SPECIFICATION)
_NAMES_WITHOUT_PARALLELISM = ", ".join(name for name, _, _ in _SPECIFICATION if name != "parallelism")


def upgrade() -> None:
    """Existing jobs become their revision 1; one that is being rescaled has a second one for the new parallelism."""
    op.create_table(
        "revisions",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False, autoincrement=False),
        *(sa.Column(name, kind, nullable=nullable) for name, kind, nullable in _SPECIFICATION),
        sa.Column("libraries", JSONB, nullable=False, server_default="[]"),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.Text, nullable=True),
        sa.Column("message", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("job_id", "number", name="pk_revisions"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_revisions_job_id_jobs", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["artifact_id"], ["artifacts.id"], name="fk_revisions_artifact_id_artifacts"),
    )
    op.create_index("ix_revisions_artifact_id", "revisions", ["artifact_id"])
    op.add_column("jobs", sa.Column("revision", sa.BigInteger, nullable=False, server_default=sa.text("1")))
    op.add_column("jobs", sa.Column("restore", JSONB, nullable=True))
    op.add_column("jobs", sa.Column("rewound_by", sa.BigInteger, nullable=False, server_default=sa.text("0")))
    op.add_column("jobs", sa.Column("rewound_to", sa.Text, nullable=True))
    op.add_column("attempts", sa.Column("revision", sa.BigInteger, nullable=False, server_default=sa.text("1")))
    op.add_column("attempts", sa.Column("restore_id", sa.Text, nullable=True))
    op.add_column("attempts", _flag("allow_non_restored_state"))
    _add_closed_set("attempts", "restore_mode", ("CONTINUE", "REWIND", "STATELESS"), default="CONTINUE")
    _add_closed_set("attempts", "claim_mode", ("NO_CLAIM", "CLAIM"), default="NO_CLAIM")
    _rename_rescales("rescales", "changes")
    _add_closed_set("changes", "kind", ("RESCALE", "UPGRADE", "ROLLBACK"), default="RESCALE", keep_default=False)
    modes = ("SAVEPOINT", "LAST_STATE", "STATELESS")
    _add_closed_set("changes", "upgrade_mode", modes, default="SAVEPOINT", keep_default=False)
    for name in ("from_revision", "to_revision"):
        op.add_column("changes", sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("1")))
        op.alter_column("changes", name, server_default=None)
    op.add_column("changes", _flag("allow_non_restored_state"))
    op.add_column("changes", sa.Column("rewind_to", sa.Text, nullable=True))
    op.create_index("ix_changes_to_revision", "changes", ["job_id", "to_revision"])
    _allow_statuses((*_STATUSES, "UPGRADING"))
    _move_specifications()
    op.drop_index("ix_jobs_artifact_id", "jobs")
    op.drop_constraint("fk_jobs_artifact_id_artifacts", "jobs", type_="foreignkey")
    for name, _, _ in _SPECIFICATION:
        op.drop_column("jobs", name)


def downgrade() -> None:
    """Jobs keep their present revision. Changes that are no rescales are forgotten."""
    for name, kind, _ in _SPECIFICATION:
        op.add_column("jobs", sa.Column(name, kind, nullable=True))
    assigned = ", ".join(f"{name} = revisions.{name}" for name, _, _ in _SPECIFICATION)
    op.execute(
        f"UPDATE jobs SET {assigned} FROM revisions"  # noqa: S608 - constants
        " WHERE revisions.job_id = jobs.id AND revisions.number = jobs.revision"
    )
    for name, _, nullable in _SPECIFICATION:
        op.alter_column("jobs", name, nullable=nullable)
    op.create_foreign_key("fk_jobs_artifact_id_artifacts", "jobs", "artifacts", ["artifact_id"], ["id"])
    op.create_index("ix_jobs_artifact_id", "jobs", ["artifact_id"])
    op.execute("UPDATE jobs SET status = 'RESCALING' WHERE status = 'UPGRADING'")
    _allow_statuses(_STATUSES)
    op.execute("DELETE FROM changes WHERE kind <> 'RESCALE'")
    op.drop_index("ix_changes_to_revision", "changes")
    for name in ("kind", "upgrade_mode", "from_revision", "to_revision", "allow_non_restored_state", "rewind_to"):
        op.drop_column("changes", name)
    _rename_rescales("changes", "rescales")
    for name in ("revision", "restore_id", "allow_non_restored_state", "restore_mode", "claim_mode"):
        op.drop_column("attempts", name)
    for name in ("revision", "restore", "rewound_by", "rewound_to"):
        op.drop_column("jobs", name)
    op.drop_table("revisions")


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())


def _add_closed_set(
    table: str, name: str, members: tuple[str, ...], *, default: str, keep_default: bool = True
) -> None:
    op.add_column(table, sa.Column(name, sa.String(32), nullable=False, server_default=default))
    if not keep_default:
        op.alter_column(table, name, server_default=None)
    op.create_check_constraint(op.f(f"ck_{table}_{name}"), table, sa.column(name).in_(members))


def _rename_rescales(old: str, new: str) -> None:
    op.rename_table(old, new)
    op.execute(f"ALTER INDEX ix_{old}_requested_at_ms RENAME TO ix_{new}_requested_at_ms")
    op.execute(f"ALTER INDEX uq_{old}_one_running RENAME TO uq_{new}_one_running")
    for constraint in ("pk_{}", "fk_{}_job_id_jobs", "ck_{}_status", "ck_{}_phase"):
        op.execute(f"ALTER TABLE {new} RENAME CONSTRAINT {constraint.format(old)} TO {constraint.format(new)}")


def _allow_statuses(statuses: tuple[str, ...]) -> None:
    op.drop_constraint(op.f("ck_jobs_status"), "jobs", type_="check")
    op.create_check_constraint(op.f("ck_jobs_status"), "jobs", sa.column("status").in_(statuses))


def _move_specifications() -> None:
    op.execute(
        f"INSERT INTO revisions (job_id, number, {_NAMES}, created_at_ms)"  # noqa: S608 - constants
        f" SELECT id, 1, {_NAMES}, created_at_ms FROM jobs"
    )
    rescaled = "changes.job_id = {} AND changes.status = 'IN_PROGRESS'"
    op.execute(
        "UPDATE revisions SET parallelism = changes.from_parallelism FROM changes"  # noqa: S608 - constants
        f" WHERE {rescaled.format('revisions.job_id')}"
    )
    op.execute(
        f"INSERT INTO revisions (job_id, number, parallelism, {_NAMES_WITHOUT_PARALLELISM}, created_at_ms)"  # noqa: S608
        f" SELECT job_id, 2, to_parallelism, {_NAMES_WITHOUT_PARALLELISM}, requested_at_ms"
        " FROM changes JOIN jobs ON jobs.id = changes.job_id WHERE changes.status = 'IN_PROGRESS'"
    )
    op.execute(
        "UPDATE attempts SET revision = 2 FROM changes"  # noqa: S608 - constants
        f" WHERE {rescaled.format('attempts.job_id')}"
        " AND attempts.number > changes.old_attempt AND attempts.parallelism = changes.to_parallelism"
    )
    op.execute(
        "UPDATE jobs SET revision = 2 FROM changes"  # noqa: S608 - constants
        f" WHERE {rescaled.format('jobs.id')} AND jobs.parallelism = changes.to_parallelism"
    )
    op.execute("UPDATE changes SET to_revision = 2 WHERE status = 'IN_PROGRESS'")
