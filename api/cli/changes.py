"""The command that cancels a rescale or another change of a job."""

from __future__ import annotations

import click

from keyscale.client.request_paths import job_path

from .errors import InvalidArgumentError
from .session import Session, json_option, pass_session


@click.command("cancel-change")
@click.argument("job")
@click.argument("change_id", required=False)
@json_option
@pass_session
def cancel_change(session: Session, job: str, change_id: str | None) -> None:
    """Cancel a rescale or another change; the job stays unchanged.

    CHANGE_ID is by default the change in progress.
    """
    with session.control_plane() as control_plane:
        chosen = change_id or control_plane.get(job_path(job))["status"]["change_id"]
        if chosen is None:
            raise InvalidArgumentError(f"no change of the job {job} is in progress")
        answer = control_plane.post(job_path(job, "changes", chosen, "cancel"))
    session.output.say(f"the cancel of {chosen} is stored; `jobs wait {job}` returns when the job runs", answer)
