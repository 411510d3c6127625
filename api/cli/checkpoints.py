"""The commands on checkpoints and savepoints."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from keyscale.client.errors import OperationFailedError
from keyscale.client.request_paths import job_path
from keyscale.vocabulary import CheckpointStatus, SnapshotOwner

from .operations import show_end
from .output import make_fields, make_table
from .session import Session, json_option, pass_session, wait_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from keyscale.client.keyscale import Keyscale

POLL_S = 0.2
CHECKPOINT_COLUMNS = (
    ("ID", "id"),
    ("STATUS", "status"),
    ("TYPE", "checkpoint_type"),
    ("OWNER", "owner"),
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
COMPARISON_COLUMNS = (
    ("OPERATOR", "uid"),
    ("FULL SIZE", "from_state_size"),
    ("OTHER FULL SIZE", "to_state_size"),
    ("OTHER INCREMENT", "to_checkpointed_size"),
    ("SHARED FILES", "shared_files"),
    ("SHARED SIZE", "shared_bytes"),
    ("ONLY HERE", "only_from_bytes"),
    ("ONLY IN OTHER", "only_to_bytes"),
)
SAVEPOINT_COLUMNS = (
    ("ID", "savepoint_id"),
    ("CHECKPOINT", "checkpoint_id"),
    ("OWNER", "owner"),
    ("TRIGGERED", "trigger_timestamp"),
    ("DURATION", "end_to_end_duration"),
    ("FULL SIZE", "state_size"),
    ("LOCATION", "external_path"),
)


@click.group()
def checkpoints() -> None:
    """List and show a job's checkpoints, with Flink's statistics."""


@checkpoints.command(name="list")
@click.argument("job")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(list(CheckpointStatus), case_sensitive=False),
    help="Only this status.",
)
@json_option
@pass_session
def list_checkpoints(session: Session, job: str, statuses: Sequence[str]) -> None:
    """List a job's checkpoints and savepoints, the latest first."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(job_path(job, "checkpoints"), status=statuses)
    session.output.table(answer, answer["history"], CHECKPOINT_COLUMNS)


@checkpoints.command()
@click.argument("job")
@wait_option("it is complete")
@json_option
@pass_session
def trigger(session: Session, job: str, wait: bool) -> None:
    """Take a checkpoint of a running job now."""
    with session.control_plane() as control_plane:
        show_end(session, control_plane, control_plane.post(job_path(job, "checkpoint")), wait=wait)


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


dry_run_option = click.option(
    "--dry-run", is_flag=True, help=("Only show what the deletion would free, and what needs it.")
)
hashes_option = click.option("--hashes", is_flag=True, help="Read every file in full and compare its hash.")


@checkpoints.command()
@click.argument("job")
@click.argument("checkpoint_id", type=int)
@dry_run_option
@json_option
@pass_session
def delete(session: Session, job: str, checkpoint_id: int, dry_run: bool) -> None:
    """Delete an unneeded checkpoint and its unshared files."""
    with session.control_plane() as control_plane:
        answer = control_plane.delete(job_path(job, "checkpoints", checkpoint_id), dry_run=dry_run)
    session.output.fields(answer)


@checkpoints.command()
@click.argument("job")
@click.argument("checkpoint_id", type=int)
@hashes_option
@json_option
@pass_session
def verify(session: Session, job: str, checkpoint_id: int, hashes: bool) -> None:
    """Check that a checkpoint is complete and that its job could start."""
    with session.control_plane() as control_plane:
        answer = _verified(control_plane, job, checkpoint_id, hashes=hashes)
    _show_verification(session, answer)


@checkpoints.command()
@click.argument("job")
@click.argument("checkpoint_id", type=int)
@click.argument("other_id", type=int)
@json_option
@pass_session
def compare(session: Session, job: str, checkpoint_id: int, other_id: int) -> None:
    """Compare two checkpoints or savepoints by operator.

    The comparison shows sizes and shared files.
    """
    with session.control_plane() as control_plane:
        path = job_path(job, "checkpoints", checkpoint_id, "compare")
        answer = control_plane.get_list(path, "operators", to=other_id)
    session.output.table(answer, answer["operators"], COMPARISON_COLUMNS)


@click.group()
def savepoints() -> None:
    """Trigger, list, keep, verify and delete savepoints.

    A savepoint is a self-contained copy of a job's state. The platform deletes its own savepoints, taken for rescales
    and upgrades, when nothing needs them. It never deletes a savepoint of a user.
    """


@savepoints.command(name="trigger")
@click.argument("job")
@click.option("--id", "savepoint_id", help="The savepoint's id; the same id again takes no second savepoint.")
@wait_option("it is complete")
@json_option
@pass_session
def trigger_savepoint(session: Session, job: str, savepoint_id: str | None, wait: bool) -> None:
    """Take a savepoint of a running job; the job runs on."""
    with session.control_plane() as control_plane:
        body = {} if savepoint_id is None else {"id": savepoint_id}
        show_end(session, control_plane, control_plane.post(job_path(job, "savepoint"), body), wait=wait)


@savepoints.command(name="list")
@click.argument("job")
@click.option(
    "--owner",
    type=click.Choice(list(SnapshotOwner), case_sensitive=False),
    help="Only savepoints of this owner; the platform takes its own for changes.",
)
@json_option
@pass_session
def list_savepoints(session: Session, job: str, owner: str | None) -> None:
    """List a job's savepoints, the latest first."""
    with session.control_plane() as control_plane:
        answer = control_plane.get_list(job_path(job, "savepoints"), "savepoints", owner=owner)
    session.output.table(answer, answer["savepoints"], SAVEPOINT_COLUMNS)


@savepoints.command()
@click.argument("job")
@click.argument("savepoint_id")
@json_option
@pass_session
def keep(session: Session, job: str, savepoint_id: str) -> None:
    """Keep a savepoint of a rescale or upgrade for yourself."""
    with session.control_plane() as control_plane:
        answer = control_plane.post(job_path(job, "savepoints", savepoint_id, "keep"))
    session.output.fields(answer)


@savepoints.command(name="delete")
@click.argument("job")
@click.argument("savepoint_id")
@dry_run_option
@json_option
@pass_session
def delete_savepoint(session: Session, job: str, savepoint_id: str, dry_run: bool) -> None:
    """Delete a savepoint that nothing needs."""
    with session.control_plane() as control_plane:
        answer = control_plane.delete(job_path(job, "savepoints", savepoint_id), dry_run=dry_run)
    session.output.fields(answer)


@savepoints.command(name="verify")
@click.argument("job")
@click.argument("savepoint_id")
@hashes_option
@json_option
@pass_session
def verify_savepoint(session: Session, job: str, savepoint_id: str, hashes: bool) -> None:
    """Check that a savepoint is complete and that its job could start."""
    with session.control_plane() as control_plane:
        number = control_plane.get(job_path(job, "savepoints", savepoint_id))["checkpoint_id"]
        answer = _verified(control_plane, job, number, hashes=hashes)
    _show_verification(session, answer)


def _verified(control_plane: Keyscale, job: str, checkpoint_id: int, *, hashes: bool) -> dict[str, Any]:
    """Verifies, and returns the result once it is known."""
    path = job_path(job, "checkpoints", checkpoint_id)
    answer: dict[str, Any] = control_plane.post(f"{path}/verify", {"hashes": hashes})
    while answer["ended_at_ms"] is None:
        time.sleep(POLL_S)
        answer = control_plane.get(f"{path}/verification")
    return answer


def _show_verification(session: Session, answer: dict[str, Any]) -> None:
    session.output.fields(answer)
    if not answer["restorable"]:
        raise OperationFailedError("the job could not start from it: " + "; ".join(answer["problems"]))


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
