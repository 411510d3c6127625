from __future__ import annotations

import sys
from typing import Any

import click

from api.cli.output import format_bytes
from api.cli.paths import job_path
from api.cli.session import Session, json_option, pass_session


@click.command()
@click.argument("job")
@click.option("--attempt", type=int, help="Of this attempt (default: the latest).")
@click.option("--tail-bytes", default=1 << 16, show_default=True, help="How much of its end, at most 1 MiB.")
@json_option
@pass_session
def logs(session: Session, job: str, attempt: int | None, tail_bytes: int) -> None:
    """Print a driver's log."""
    with session.control_plane() as control_plane:
        query = {} if attempt is None else {"attempt": attempt}
        answer = control_plane.get(job_path(job, "logs"), tail_bytes=tail_bytes, **query)
    session.output.show(answer, lambda _: print_log(answer))


def print_log(answer: dict[str, Any]) -> None:
    """Writes the text as it is; that something is missing before it goes to standard error."""
    if answer["truncated"]:
        sys.stderr.write(f"(the end of {format_bytes(answer['size_bytes'])} of log)\n")
    sys.stdout.write(answer["text"])
