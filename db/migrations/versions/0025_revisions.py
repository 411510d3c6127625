"""Revisions of jobs' specifications, and changes between them."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0025_revisions"
down_revision = "0024_access"
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
    "UPGRADING",
)
_COPIED = ("artifact_id", "parameters", "spark_conf", "checkpoints", "restart")
_NAMES = ", ".join(_COPIED)
_DURATION_MS_MAX = 365 * 24 * 3600 * 1000
_COUNT_MAX = 1_000_000


def upgrade() -> None:
    """Turns each existing job into its revision 1.

    A job in a rescale gets revision 2 for the new parallelism. Numbers above today's bounds become the largest
    allowed. The jobs name no secrets, so they get all of them.
    """
    _create_revisions()
    _extend_jobs()
    _extend_attempts()
    _turn_rescales_into_changes()
    _index_commands()
    _move_specifications()
    _lower_numbers()


def _create_revisions() -> None:
    op.create_table(
        "revisions",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("artifact_id", sa.Text, nullable=False),
        sa.Column("parallelism", sa.BigInteger, nullable=False),
        sa.Column("parameters", JSONB, nullable=False),
        sa.Column("secrets", JSONB, nullable=True),
        sa.Column("spark_conf", JSONB, nullable=False),
        sa.Column("checkpoints", JSONB, nullable=False),
        sa.Column("restart", JSONB, nullable=True),
        sa.Column("batch_interval_ms", sa.BigInteger, nullable=True),
        sa.Column("libraries", JSONB, nullable=False, server_default="[]"),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.Text, nullable=True),
        sa.Column("message", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("job_id", "number", name="pk_revisions"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_revisions_job_id_jobs", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["artifact_id"], ["artifacts.id"], name="fk_revisions_artifact_id_artifacts"),
    )
    op.create_index("ix_revisions_artifact_id", "revisions", ["artifact_id"])
    op.create_index("ix_revisions_libraries", "revisions", ["libraries"], postgresql_using="gin")


def _extend_jobs() -> None:
    op.add_column("jobs", sa.Column("revision", sa.BigInteger, nullable=False, server_default=sa.text("1")))
    op.add_column("jobs", sa.Column("restore", JSONB, nullable=True))
    op.add_column("jobs", sa.Column("rewound_by", sa.BigInteger, nullable=False, server_default=sa.text("0")))
    op.add_column("jobs", sa.Column("rewound_to", sa.Text, nullable=True))
    op.drop_constraint(op.f("ck_jobs_status"), "jobs", type_="check")
    op.create_check_constraint(op.f("ck_jobs_status"), "jobs", sa.column("status").in_(_STATUSES))


def _extend_attempts() -> None:
    op.add_column("attempts", sa.Column("totals_before", JSONB))
    op.add_column("attempts", sa.Column("revision", sa.BigInteger, nullable=False, server_default=sa.text("1")))
    op.add_column("attempts", sa.Column("restore_id", sa.Text, nullable=True))
    op.add_column("attempts", _flag("allow_non_restored_state"))
    _add_closed_set("attempts", "restore_mode", ("CONTINUE", "REWIND", "STATELESS"), default="CONTINUE")
    _add_closed_set("attempts", "claim_mode", ("NO_CLAIM", "CLAIM"), default="NO_CLAIM")
    op.create_index(
        "ix_attempts_unreaped", "attempts", ["job_id"], postgresql_where=sa.text("stage <> 'ENDED' OR NOT reaped")
    )


def _turn_rescales_into_changes() -> None:
    op.rename_table("rescales", "changes")
    op.execute("ALTER INDEX uq_rescales_one_running RENAME TO uq_changes_one_running")
    for constraint in ("pk_{}", "fk_{}_job_id_jobs", "ck_{}_status", "ck_{}_phase"):
        old, new = constraint.format("rescales"), constraint.format("changes")
        op.execute(f"ALTER TABLE changes RENAME CONSTRAINT {old} TO {new}")
    _add_closed_set("changes", "kind", ("RESCALE", "UPGRADE", "ROLLBACK"), default="RESCALE")
    _add_closed_set("changes", "upgrade_mode", ("SAVEPOINT", "LAST_STATE", "STATELESS"), default="SAVEPOINT")
    for name in ("from_revision", "to_revision"):
        op.add_column("changes", sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("1")))
    for name in ("kind", "upgrade_mode", "from_revision", "to_revision"):
        op.alter_column("changes", name, server_default=None)
    op.add_column("changes", _flag("allow_non_restored_state"))
    op.add_column("changes", sa.Column("rewind_to", sa.Text, nullable=True))
    op.drop_index("ix_rescales_job_id", "changes")
    op.create_index("ix_changes_requested_at_ms", "changes", ["job_id", "requested_at_ms", "id"])
    op.create_index("ix_changes_to_revision", "changes", ["job_id", "to_revision", "requested_at_ms", "id"])


def _index_commands() -> None:
    op.drop_index("ix_commands_job_id", "commands")
    op.create_index("ix_commands_created_at_ms", "commands", ["job_id", "created_at_ms", "id"])
    op.create_index(
        "ix_commands_savepoint_id",
        "commands",
        ["job_id", "savepoint_id"],
        postgresql_where=sa.text("savepoint_id IS NOT NULL"),
    )


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())


def _add_closed_set(table: str, name: str, members: tuple[str, ...], *, default: str) -> None:
    op.add_column(table, sa.Column(name, sa.String(32), nullable=False, server_default=default))
    op.create_check_constraint(op.f(f"ck_{table}_{name}"), table, sa.column(name).in_(members))


def _move_specifications() -> None:
    op.execute(
        f"INSERT INTO revisions (job_id, number, parallelism, {_NAMES}, created_at_ms)"  # noqa: S608 - constants
        f" SELECT id, 1, parallelism, {_NAMES}, created_at_ms FROM jobs"
    )
    rescaled = "changes.job_id = {} AND changes.status = 'IN_PROGRESS'"
    op.execute(
        "UPDATE revisions SET parallelism = changes.from_parallelism FROM changes"  # noqa: S608 - constants
        f" WHERE {rescaled.format('revisions.job_id')}"
    )
    op.execute(
        f"INSERT INTO revisions (job_id, number, parallelism, {_NAMES}, created_at_ms)"  # noqa: S608 - constants
        f" SELECT job_id, 2, to_parallelism, {_NAMES}, requested_at_ms"
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
    op.drop_index("ix_jobs_artifact_id", "jobs")
    op.drop_constraint("fk_jobs_artifact_id_artifacts", "jobs", type_="foreignkey")
    for name in (*_COPIED, "parallelism"):
        op.drop_column("jobs", name)


def _lower_numbers() -> None:
    connection = op.get_bind()
    revisions = connection.execute(sa.text("SELECT job_id, number, checkpoints, restart FROM revisions")).all()
    for job_id, number, checkpoints, restart in revisions:
        connection.execute(
            sa.text(
                "UPDATE revisions SET checkpoints = CAST(:checkpoints AS jsonb), restart = CAST(:restart AS jsonb)"
                " WHERE job_id = :job_id AND number = :number"
            ),
            {
                "checkpoints": json.dumps(_lowered(checkpoints)),
                "restart": None if restart is None else json.dumps(_lowered(restart)),
                "job_id": job_id,
                "number": number,
            },
        )


def _lowered(settings: dict[str, object]) -> dict[str, object]:
    return {name: _lowered_number(name, value) for name, value in settings.items()}


def _lowered_number(name: str, value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    return min(value, _DURATION_MS_MAX if name.endswith("_ms") else _COUNT_MAX)
