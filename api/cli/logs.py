from __future__ import annotations

import sys
from typing import Any

import click

from api.cli.output import format_bytes
from api.cli.paths import job_path
from api.cli.problems import InvalidArgumentError
from api.cli.session import Session, json_option, pass_session


@click.command()
@click.argument("job")
@click.option("--attempt", type=int, help="Of this attempt (default: the latest).")
@json_option
@pass_session
def logs(session: Session, job: str, attempt: int | None) -> None:
    """Print a driver's log."""
    with session.control_plane() as control_plane:
        if attempt is None:
            runs = control_plane.get(job_path(job, "attempts"))["attempts"]
            if not runs:
                message = f"job {job} has never been started, so it has no log"
                raise InvalidArgumentError(message)
            attempt = int(runs[0]["number"])
        answer = control_plane.get(job_path(job, "attempts", attempt, "log"))
    session.output.show(answer, lambda _: print_log(answer))


def print_log(answer: dict[str, Any]) -> None:
    """Writes the text as it is; that something is missing before it goes to standard error."""
    if answer["truncated"]:
        sys.stderr.write(f"(the end of {format_bytes(answer['size_bytes'])} of log)\n")
    sys.stdout.write(answer["text"])
