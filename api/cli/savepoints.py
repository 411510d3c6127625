from __future__ import annotations

import click

from api.cli.operations import no_wait_option, wait_for
from api.cli.paths import job_path
from api.cli.session import Session, json_option, pass_session

COLUMNS = (
    ("ID", "savepoint_id"),
    ("STATUS", "status"),
    ("CHECKPOINT", "checkpoint_id"),
    ("CREATED", "created_at_ms"),
    ("ENDED", "ended_at_ms"),
    ("LOCATION", "location"),
)


@click.group()
def savepoints() -> None:
    """Trigger and list savepoints: self-contained copies of a job's state that the system never deletes."""


@savepoints.command()
@click.argument("job")
@click.option("--id", "savepoint_id", help="Its id; the same id again takes no second one.")
@no_wait_option
@json_option
@pass_session
def trigger(session: Session, job: str, savepoint_id: str | None, no_wait: bool) -> None:
    """Take a savepoint of a running job; the job goes on."""
    with session.control_plane() as control_plane:
        accepted = control_plane.post(job_path(job, "savepoints"), {"savepoint_id": savepoint_id})
        session.output.fields(accepted if no_wait else wait_for(control_plane, accepted))


@savepoints.command(name="list")
@click.argument("job")
@json_option
@pass_session
def list_savepoints(session: Session, job: str) -> None:
    """List a job's savepoints, the latest first."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(job_path(job, "savepoints"))
    rows = [{**savepoint, **(savepoint["operation"] or {})} for savepoint in answer["savepoints"]]
    session.output.table(answer, rows, COLUMNS)
