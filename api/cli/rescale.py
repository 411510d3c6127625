"""The command that rescales a job, and follows the rescale."""

from __future__ import annotations

import click

from keyscale.client.request_paths import job_path

from .operations import show_end
from .plan_output import show_plan
from .session import Session, json_option, pass_session, wait_option


@click.command()
@click.argument("job")
@click.argument("parallelism", type=int)
@click.option("--dry-run", is_flag=True, help="Only show the movement of files and the expected downtime.")
@wait_option("it has ended")
@json_option
@pass_session
def rescale(session: Session, job: str, parallelism: int, dry_run: bool, wait: bool) -> None:
    """Change a running job's parallelism, and follow the phases."""
    body = {"parallelism": parallelism, **({"dry_run": True} if dry_run else {})}
    with session.control_plane() as control_plane:
        answer = control_plane.post(job_path(job, "rescale"), body)
        if dry_run:
            session.output.show(answer["plan"], lambda console: show_plan(console, answer["plan"]))
        else:
            show_end(session, control_plane, answer, wait=wait)
