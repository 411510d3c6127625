from __future__ import annotations

import click

from api.cli.paths import job_path
from api.cli.session import Session, json_option, pass_session

COLUMNS = (("AT", "at_ms"), ("JOB", "job_id"), ("KIND", "kind"), ("ACTOR", "actor"), ("MESSAGE", "message"))


@click.command()
@click.argument("job", required=False)
@json_option
@pass_session
def events(session: Session, job: str | None) -> None:
    """List what has happened, to JOB or to everything, the newest first."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(job_path(job, "events") if job else "/events")
    session.output.table(answer, answer["events"], COLUMNS)
