"""First tables: artifacts, jobs, attempts, checkpoints, commands, rescales, events, tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

CHECKPOINT_STATUSES = ("IN_PROGRESS", "COMPLETED", "FAILED", "SUBSUMED", "DISCARDED")


def _text(name: str, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable)


def _number(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=nullable, autoincrement=False)


def _json(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, JSONB, nullable=nullable)


def _one_of(name: str, *members: str) -> sa.Column[str]:
    return sa.Column(
        name, sa.Enum(*members, name=name, native_enum=False, create_constraint=True, length=32), nullable=False
    )


def _owned_by_job(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=f"fk_{table}_job_id_jobs", ondelete="CASCADE")


def upgrade() -> None:
    """Creates all tables."""
    _create_artifacts()
    _create_jobs()
    _create_attempts()
    _create_checkpoints()
    _create_operations()
    _create_audit()


def _create_artifacts() -> None:
    op.create_table(
        "artifacts",
        _text("id"),
        _text("name"),
        _number("version"),
        _text("filename"),
        _one_of("kind", "PYTHON", "ZIP", "JAR"),
        _text("sha256"),
        _number("size_bytes"),
        _number("created_at_ms"),
        sa.PrimaryKeyConstraint("id", name="pk_artifacts"),
        sa.UniqueConstraint("name", "version", name="uq_artifacts_name_version"),
    )
    op.create_index("ix_artifacts_sha256", "artifacts", ["sha256"])
    op.create_table(
        "artifact_chunks",
        _text("sha256"),
        _number("position"),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("sha256", "position", name="pk_artifact_chunks"),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        _text("id"),
        _text("name"),
        _text("artifact_id"),
        _number("parallelism"),
        _number("max_parallelism"),
        _text("hash_id"),
        _json("parameters"),
        _json("spark_conf"),
        _json("checkpoints"),
        _text("store_url"),
        _one_of("desired", "RUNNING", "STOPPED", "CANCELLED"),
        _one_of(
            "status",
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
        ),
        _text("stop_operation_id", nullable=True),
        _json("failure", nullable=True),
        _number("consecutive_failures"),
        _number("restarts"),
        _number("next_start_at_ms"),
        _number("created_at_ms"),
        _number("started_at_ms", nullable=True),
        _number("ended_at_ms", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("name", name="uq_jobs_name"),
        sa.ForeignKeyConstraint(["artifact_id"], ["artifacts.id"], name="fk_jobs_artifact_id_artifacts"),
    )
    op.create_index("ix_jobs_artifact_id", "jobs", ["artifact_id"])
    op.create_index("ix_jobs_status", "jobs", ["status"])


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        _text("job_id"),
        _number("number"),
        _one_of("stage", "STANDBY", "ACTIVE", "ENDED"),
        _text("cause"),
        _number("parallelism"),
        _text("restore_from", nullable=True),
        _text("token_sha256", nullable=True),
        _number("created_at_ms"),
        _number("launched_at_ms", nullable=True),
        _text("launched_on", nullable=True),
        _number("attached_at_ms", nullable=True),
        _number("assigned_at_ms", nullable=True),
        _number("ended_at_ms", nullable=True),
        sa.Column("reaped", sa.Boolean, nullable=False),
        _number("pid", nullable=True),
        _text("host", nullable=True),
        _text("spark_ui_url", nullable=True),
        _text("driver_state", nullable=True),
        _number("heartbeat_at_ms", nullable=True),
        _number("running_at_ms", nullable=True),
        _number("restored_at_ms", nullable=True),
        _number("first_commit_batch_id", nullable=True),
        _number("first_commit_at_ms", nullable=True),
        _number("last_commit_batch_id", nullable=True),
        _number("last_commit_at_ms", nullable=True),
        _json("metrics", nullable=True),
        _json("failure", nullable=True),
        _number("exit_code", nullable=True),
        sa.PrimaryKeyConstraint("job_id", "number", name="pk_attempts"),
        sa.UniqueConstraint("token_sha256", name="uq_attempts_token_sha256"),
        _owned_by_job("attempts"),
    )
    for stage in ("ACTIVE", "STANDBY"):
        op.create_index(
            f"uq_attempts_one_{stage.lower()}",
            "attempts",
            ["job_id"],
            unique=True,
            postgresql_where=sa.text(f"stage = '{stage}'"),
        )


def _create_checkpoints() -> None:
    op.create_table(
        "checkpoints",
        _text("job_id"),
        _number("checkpoint_id"),
        _number("attempt"),
        _one_of("status", *CHECKPOINT_STATUSES),
        sa.Column("is_savepoint", sa.Boolean, nullable=False),
        _text("savepoint_id", nullable=True),
        _number("trigger_timestamp"),
        _number("latest_ack_timestamp", nullable=True),
        _number("end_to_end_duration"),
        _number("checkpointed_size"),
        _number("state_size"),
        _number("processed_records"),
        _text("external_path", nullable=True),
        _number("batch_id", nullable=True),
        _number("num_subtasks"),
        _number("num_acknowledged_subtasks"),
        _number("failure_timestamp", nullable=True),
        _text("failure_message", nullable=True),
        sa.PrimaryKeyConstraint("job_id", "checkpoint_id", name="pk_checkpoints"),
        _owned_by_job("checkpoints"),
    )
    op.create_table(
        "checkpoint_subtasks",
        _text("job_id"),
        _number("checkpoint_id"),
        _text("operator_uid"),
        _number("subtask"),
        _one_of("status", *CHECKPOINT_STATUSES),
        _number("key_group_start"),
        _number("key_group_end"),
        _number("ack_timestamp", nullable=True),
        _number("end_to_end_duration"),
        _number("start_delay"),
        _number("sync_duration"),
        _number("async_duration"),
        _number("checkpointed_size"),
        _number("state_size"),
        _number("files"),
        sa.PrimaryKeyConstraint("job_id", "checkpoint_id", "operator_uid", "subtask", name="pk_checkpoint_subtasks"),
        sa.ForeignKeyConstraint(
            ["job_id", "checkpoint_id"],
            ["checkpoints.job_id", "checkpoints.checkpoint_id"],
            name="fk_checkpoint_subtasks_job_id_checkpoint_id_checkpoints",
            ondelete="CASCADE",
        ),
    )


def _create_operations() -> None:
    op.create_table(
        "commands",
        _text("id"),
        _text("job_id"),
        _number("attempt"),
        _one_of("kind", "CHECKPOINT", "SAVEPOINT", "STOP_WITH_SAVEPOINT", "CANCEL"),
        _text("savepoint_id", nullable=True),
        sa.Column("drain", sa.Boolean, nullable=False),
        _one_of("status", "IN_PROGRESS", "COMPLETED", "FAILED"),
        _text("location", nullable=True),
        _number("checkpoint_id", nullable=True),
        _json("failure", nullable=True),
        _number("created_at_ms"),
        _number("ended_at_ms", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_commands"),
        _owned_by_job("commands"),
    )
    op.create_index("ix_commands_job_id", "commands", ["job_id"])
    op.create_table(
        "rescales",
        _text("id"),
        _text("job_id"),
        _one_of("status", "IN_PROGRESS", "COMPLETED", "ROLLED_BACK", "FAILED"),
        _one_of("phase", "REQUESTED", "SAVEPOINT", "STOP", "RESTORE", "VERIFY", "ROLL_BACK"),
        _json("phases"),
        _number("from_parallelism"),
        _number("to_parallelism"),
        _number("old_attempt"),
        _number("new_attempt", nullable=True),
        _text("savepoint_location", nullable=True),
        _number("savepoint_checkpoint_id", nullable=True),
        _number("requested_at_ms"),
        _number("ended_at_ms", nullable=True),
        _number("stopped_at_ms", nullable=True),
        _number("resumed_at_ms", nullable=True),
        _json("failure", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_rescales"),
        _owned_by_job("rescales"),
    )
    op.create_index("ix_rescales_job_id", "rescales", ["job_id"])
    op.create_index(
        "uq_rescales_one_running",
        "rescales",
        ["job_id"],
        unique=True,
        postgresql_where=sa.text("status = 'IN_PROGRESS'"),
    )


def _create_audit() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger, sa.Identity(), nullable=False),
        _text("job_id", nullable=True),
        _number("at_ms"),
        _text("kind"),
        _text("actor"),
        _text("message"),
        _json("details"),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
    )
    op.create_index("ix_events_job_id", "events", ["job_id"])
    op.create_table(
        "tokens",
        _text("sha256"),
        _text("name"),
        _one_of("role", "VIEWER", "OPERATOR", "ADMIN"),
        _number("created_at_ms"),
        _number("revoked_at_ms", nullable=True),
        sa.PrimaryKeyConstraint("sha256", name="pk_tokens"),
    )
