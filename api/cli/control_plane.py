"""The commands about the control plane itself.

They start it, find it, and show its health and events.
"""

from __future__ import annotations

import os
import sys

import click

from keyscale.installation import IMPORT_PATH

from .client import job_path
from .session import Session, json_option, pass_session

EVENT_COLUMNS = (("AT", "at_ms"), ("JOB", "job_id"), ("KIND", "kind"), ("ACTOR", "actor"), ("MESSAGE", "message"))


@click.command()
@click.option("--host", envvar="KEYSCALE_HOST", help="Address to listen on (default: 127.0.0.1).")
@click.option(
    "--port", envvar="KEYSCALE_PORT", type=click.IntRange(0, 65535), help="Port (default: 8080; 0: a free one)."
)
@pass_session
def up(session: Session, host: str | None, port: int | None) -> None:
    """Start the control plane in the foreground.

    It prints its address and token. Ctrl-C stops it; running jobs continue.
    """
    settings = {"KEYSCALE_HOME": str(session.home), "KEYSCALE_HOST": host, "KEYSCALE_PORT": port}
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(IMPORT_PATH), os.environ.get("PYTHONPATH", "")])),
        **{name: str(value) for name, value in settings.items() if value is not None},
    }
    command = [sys.executable, "-P", "-m", "keyscale.api.web"]
    # In this same process: signals and the exit code are the control plane's own.
    os.execve(sys.executable, command, environment)  # noqa: S606 - the platform's own program


@click.command()
@click.option("--show-token", is_flag=True, help="Print the token in full; it gives full rights.")
@json_option
@pass_session
def where(session: Session, show_token: bool) -> None:
    """Show the control plane, its dashboard and the token in use."""
    connection = session.connection
    token = connection.token if show_token else connection.masked_token()
    answer = {"url": connection.url, "dashboard": connection.dashboard_url, "token": token, "home": str(session.home)}
    session.output.say("\n".join(f"{name + ':':<11}{value}" for name, value in answer.items()), answer)


@click.command()
@json_option
@pass_session
def health(session: Session) -> None:
    """Show the version and health of the control plane.

    Its health includes its database and object store.
    """
    with session.control_plane() as control_plane:
        answer = control_plane.get("/health")
    shown = {**answer, "leader": answer["leader"]["url"]}
    session.output.say("\n".join(f"{name}: {value}" for name, value in shown.items()), answer)


@click.command()
@click.argument("job", required=False)
@json_option
@pass_session
def events(session: Session, job: str | None) -> None:
    """List the events of JOB or of everything, the newest first."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(job_path(job, "events") if job else "/events")
    session.output.table(answer, answer["events"], EVENT_COLUMNS)
