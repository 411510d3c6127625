"""The commands on checkpoints and savepoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from keyscale.api.cli.client import job_path, wait_for
from keyscale.api.cli.output import make_fields, make_table
from keyscale.api.cli.session import Session, json_option, pass_session, wait_option

if TYPE_CHECKING:
    from rich.console import Console

CHECKPOINT_COLUMNS = (
    ("ID", "id"),
    ("STATUS", "status"),
    ("TYPE", "checkpoint_type"),
    ("ATTEMPT", "attempt"),
    ("BATCH", "batch_id"),
    ("ACKNOWLEDGED", "num_acknowledged_subtasks"),
    ("TRIGGERED", "trigger_timestamp"),
    ("DURATION", "end_to_end_duration"),
    ("INCREMENT", "checkpointed_size"),
    ("FULL SIZE", "state_size"),
)
SUBTASK_COLUMNS = (
    ("OPERATOR", "operator_uid"),
    ("SUBTASK", "index"),
    ("FROM GROUP", "key_group_start"),
    ("TO GROUP", "key_group_end"),
    ("STATUS", "status"),
    ("SYNC", "sync_duration"),
    ("ASYNC", "async_duration"),
    ("START DELAY", "start_delay_ms"),
    ("INCREMENT", "checkpointed_size"),
    ("FULL SIZE", "state_size"),
)
SAVEPOINT_COLUMNS = (
    ("ID", "savepoint_id"),
    ("STATUS", "status"),
    ("CHECKPOINT", "checkpoint_id"),
    ("CREATED", "created_at_ms"),
    ("ENDED", "ended_at_ms"),
    ("LOCATION", "location"),
)


@click.group()
def checkpoints() -> None:
    """List and show a job's checkpoints, with Flink's statistics."""


@checkpoints.command(name="list")
@click.argument("job")
@json_option
@pass_session
def list_checkpoints(session: Session, job: str) -> None:
    """List a job's checkpoints and savepoints, the latest first."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(job_path(job, "checkpoints"))
    session.output.table(answer, answer["history"], CHECKPOINT_COLUMNS)


@checkpoints.command()
@click.argument("job")
@wait_option("it is complete")
@json_option
@pass_session
def trigger(session: Session, job: str, wait: bool) -> None:
    """Take a checkpoint of a running job now."""
    with session.control_plane() as control_plane:
        accepted = control_plane.post(job_path(job, "checkpoints"))
        session.output.fields(wait_for(control_plane, accepted) if wait else accepted)


@checkpoints.command()
@click.argument("job")
@json_option
@pass_session
def config(session: Session, job: str) -> None:
    """Show how a job's checkpoints are taken."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(job_path(job, "checkpoints", "config"))
    session.output.fields(answer)


@checkpoints.command()
@click.argument("job")
@click.argument("checkpoint_id", type=int)
@json_option
@pass_session
def show(session: Session, job: str, checkpoint_id: int) -> None:
    """Show one checkpoint, one line per operator and subtask."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(job_path(job, "checkpoints", checkpoint_id))
    session.output.show(answer, lambda console: _print_checkpoint(console, answer))


@click.group()
def savepoints() -> None:
    """Trigger and list savepoints: self-contained copies of a job's state that the system never deletes."""


@savepoints.command(name="trigger")
@click.argument("job")
@click.option("--id", "savepoint_id", help="The savepoint's id; the same id again takes no second savepoint.")
@wait_option("it is complete")
@json_option
@pass_session
def trigger_savepoint(session: Session, job: str, savepoint_id: str | None, wait: bool) -> None:
    """Take a savepoint of a running job; the job runs on."""
    with session.control_plane() as control_plane:
        accepted = control_plane.post(job_path(job, "savepoints"), {"savepoint_id": savepoint_id})
        session.output.fields(wait_for(control_plane, accepted) if wait else accepted)


@savepoints.command(name="list")
@click.argument("job")
@json_option
@pass_session
def list_savepoints(session: Session, job: str) -> None:
    """List a job's savepoints, the latest first."""
    with session.control_plane() as control_plane:
        answer = control_plane.get_list(job_path(job, "savepoints"), "savepoints")
    rows = [{**savepoint, **(savepoint["operation"] or {})} for savepoint in answer["savepoints"]]
    session.output.table(answer, rows, SAVEPOINT_COLUMNS)


def _print_checkpoint(console: Console, answer: dict[str, Any]) -> None:
    operators = answer["operators"]
    console.print(make_fields({field: value for field, value in answer.items() if field != "operators"}))
    rows = [
        {**subtask, "operator_uid": operator["uid"], **_durations(subtask)}
        for operator in operators
        for subtask in operator["subtasks"]
    ]
    console.print()
    console.print(make_table(rows, SUBTASK_COLUMNS))


def _durations(subtask: dict[str, Any]) -> dict[str, int]:
    return {
        "sync_duration": subtask["checkpoint"]["sync"],
        "async_duration": subtask["checkpoint"]["async"],
        "start_delay_ms": subtask["start_delay"],
    }
