"""The command that checks an uploaded program without a job."""

from __future__ import annotations

from typing import Any

import click

from keyscale.client.request_paths import artifact_path

from .check_output import show_check
from .errors import InvalidArgumentError
from .session import Session, json_option, pass_session
from .setting_options import specification_of, specification_options


@click.command()
@specification_options
@json_option
@pass_session
def check(session: Session, /, **options: Any) -> int:
    """Check a program on the control plane, without a job.

    The program runs up to env.execute(), and its functions are opened on empty state. It gets the libraries, parameters
    and secrets that a job of yours would get; --set takes max_parallelism and spark_conf. The exit code is 1 if a job
    could not start with the program. `./keyscale check FILE` checks a program on this host.
    """
    with session.control_plane() as control_plane:
        settings = specification_of(control_plane, **options)
        if (artifact_id := settings.pop("artifact_id", None)) is None:
            raise InvalidArgumentError("give either --artifact or --file")
        answer = control_plane.post(f"{artifact_path(artifact_id)}/check", settings)
    session.output.show(answer, lambda console: show_check(console, answer))
    return 0 if answer["valid"] else 1
