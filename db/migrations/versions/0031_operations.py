"""One table of operations, made from changes and commands.

A running change and a pending command go on: ids stay, and a change has its command in its own row.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_CLOSED_SETS = {
    "kind": (
        "START STOP DRAIN CANCEL RESTART CHECKPOINT SAVEPOINT RESCALE UPGRADE ROLLBACK",
        False,
    ),
    "status": ("IN_PROGRESS COMPLETED CANCELLED ROLLED_BACK FAILED", False),
    "command_status": ("IN_PROGRESS COMPLETED FAILED", True),
    "phase": ("REQUESTED SAVEPOINT STOP RESTORE VERIFY ROLL_BACK", True),
    "upgrade_mode": ("SAVEPOINT LAST_STATE STATELESS", True),
}
_TEXTS = ("requested_by", "request_sha256", "location", "rewind_to")
_NUMBERS = (
    "ended_at_ms",
    "checkpoint_id",
    "from_revision",
    "to_revision",
    "from_parallelism",
    "to_parallelism",
    "old_attempt",
    "new_attempt",
    "stopped_at_ms",
    "resumed_at_ms",
    "cancel_requested_at_ms",
    "caught_up_at_ms",
)
_DOCUMENTS = ("failure", "metrics_before", "metrics_after", "times")
_KEPT = (
    "id, job_id, kind, phase, phases, from_revision, to_revision, from_parallelism, to_parallelism, upgrade_mode,"
    " allow_non_restored_state, rewind_to, old_attempt, new_attempt, requested_at_ms, ended_at_ms, stopped_at_ms,"
    " resumed_at_ms, cancel_requested_at_ms, caught_up_at_ms, times"
)


def upgrade() -> None:
    """Moves changes and commands into one table.

    A stop is in progress until its job has ended.
    """
    _create()
    was_cancelled = "status = 'ROLLED_BACK' AND failure ->> 'code' = 'CHANGE_CANCELLED'"
    changes = ", ".join(f"changes.{name}" for name in _KEPT.split(", "))
    op.execute(
        f"INSERT INTO operations ({_KEPT}, status, failure, metrics_before, metrics_after, location, checkpoint_id,"  # noqa: S608 - constants
        " command_status)"
        f" SELECT {changes}, CASE WHEN changes.{was_cancelled.replace('failure', 'changes.failure')} THEN 'CANCELLED'"
        f" ELSE changes.status END, CASE WHEN changes.{was_cancelled.replace('failure', 'changes.failure')} THEN NULL"
        " ELSE changes.failure END, changes.figures_before, changes.figures_after,"
        " coalesce(changes.savepoint_location, commands.location),"
        " commands.checkpoint_id, commands.status"
        " FROM changes LEFT JOIN commands ON commands.id = lower(changes.kind) || ':' || changes.id"
    )
    goes_on = (
        "jobs.stop_operation_id = commands.id AND jobs.desired = 'STOPPED'"
        " AND jobs.status NOT IN ('CREATED', 'STOPPED', 'FAILED', 'FINISHED')"
    )
    op.execute(
        "INSERT INTO operations (id, job_id, kind, status, command_status, old_attempt, location, checkpoint_id,"  # noqa: S608 - constants
        " failure, requested_at_ms, ended_at_ms)"
        " SELECT commands.id, job_id, CASE WHEN kind <> 'STOP_WITH_SAVEPOINT' THEN kind WHEN drain THEN 'DRAIN'"
        f" ELSE 'STOP' END, CASE WHEN {goes_on} THEN 'IN_PROGRESS' ELSE commands.status END, commands.status, attempt,"
        f" location, checkpoint_id, commands.failure, commands.created_at_ms,"
        f" CASE WHEN {goes_on} THEN NULL ELSE commands.ended_at_ms END"
        " FROM commands JOIN jobs ON jobs.id = commands.job_id"
        " WHERE position(':' IN commands.id) = 0"
    )
    op.execute(
        "UPDATE events"
        " SET details = details - 'change_id' || jsonb_build_object('operation_id', details -> 'change_id')"
        " WHERE details ? 'change_id'"
    )
    op.drop_table("changes")
    op.drop_table("commands")
    op.drop_column("jobs", "stop_operation_id")


def _create() -> None:
    op.create_table(
        "operations",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        *(sa.Column(name, sa.String(32), nullable=nullable) for name, (_, nullable) in _CLOSED_SETS.items()),
        sa.Column("requested_at_ms", sa.BigInteger, nullable=False),
        sa.Column("phases", JSONB, nullable=False, server_default="[]"),
        sa.Column("allow_non_restored_state", sa.Boolean, nullable=False, server_default=sa.false()),
        *(sa.Column(name, sa.Text) for name in _TEXTS),
        *(sa.Column(name, sa.BigInteger) for name in _NUMBERS),
        *(sa.Column(name, JSONB) for name in _DOCUMENTS),
        *(
            sa.CheckConstraint(sa.column(name).in_(members.split()), name=op.f(f"ck_operations_{name}"))
            for name, (members, _) in _CLOSED_SETS.items()
        ),
        sa.PrimaryKeyConstraint("id", name="pk_operations"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_operations_job_id_jobs", ondelete="CASCADE"),
    )
    in_progress = "status = 'IN_PROGRESS'"
    for name, columns, where in (
        ("ix_operations_requested_at_ms", ["job_id", "requested_at_ms", "id"], None),
        ("ix_operations_to_revision", ["job_id", "to_revision", "requested_at_ms", "id"], "to_revision IS NOT NULL"),
        ("ix_operations_commands", ["job_id", "old_attempt"], "command_status = 'IN_PROGRESS'"),
        ("ix_operations_in_progress", ["job_id"], in_progress),
    ):
        op.create_index(name, "operations", columns, postgresql_where=None if where is None else sa.text(where))
    op.create_index(
        "uq_operations_one_running",
        "operations",
        ["job_id"],
        unique=True,
        postgresql_where=sa.text(f"{in_progress} AND kind NOT IN ('CANCEL', 'CHECKPOINT', 'SAVEPOINT')"),
    )
