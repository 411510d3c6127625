from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from api.cli.operations import no_wait_option, wait_for
from api.cli.output import make_fields, make_table
from api.cli.paths import job_path
from api.cli.session import Session, json_option, pass_session

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = (
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
    session.output.table(answer, answer["history"], COLUMNS)


@checkpoints.command()
@click.argument("job")
@no_wait_option
@json_option
@pass_session
def trigger(session: Session, job: str, no_wait: bool) -> None:
    """Take a checkpoint of a running job now."""
    with session.control_plane() as control_plane:
        accepted = control_plane.post(job_path(job, "checkpoints"))
        session.output.fields(accepted if no_wait else wait_for(control_plane, accepted))


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
    """Show one checkpoint, an operator and subtask a line."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(job_path(job, "checkpoints", checkpoint_id))
    session.output.show(answer, lambda console: _print_checkpoint(console, answer))


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
