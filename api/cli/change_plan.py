"""The command that shows a change's effects before anything stops."""

from __future__ import annotations

from typing import Any

import click

from keyscale.client.errors import OperationFailedError
from keyscale.client.request_paths import job_path

from .plan_output import show_plan
from .session import Session, json_option, pass_session
from .setting_options import specification_of, specification_options


@click.command()
@click.argument("job")
@specification_options
@json_option
@pass_session
def plan(session: Session, /, *, job: str, **options: Any) -> None:
    """Show the effects of a change of a job, without changing it.

    The options are as in `jobs update`. The command fails if the change cannot be applied.
    """
    with session.control_plane() as control_plane:
        body = {"spec": specification_of(control_plane, **options), "dry_run": True}
        answer = control_plane.patch(job_path(job), body, if_match="*")["plan"]
    session.output.show(answer, lambda console: show_plan(console, answer))
    if not answer["compatible"]:
        raise OperationFailedError("the change cannot be applied")
