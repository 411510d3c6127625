"""The commands about the control plane itself.

They start it, find it, and show its health and events.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from keyscale.client.errors import RefusedError
from keyscale.client.request_paths import job_path
from keyscale.installation import IMPORT_PATH

from .restore_options import Moment
from .session import Session, json_option, pass_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.client.keyscale import Keyscale

EXPORTED_AT_ONCE = 1000
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
    quotas = ", ".join(f"{name} {limit}" for name, limit in answer["quotas"].items())
    shown = {**answer, "leader": answer["leader"]["url"], "quotas": quotas}
    session.output.say("\n".join(f"{name}: {value}" for name, value in shown.items()), answer)


@click.command()
@click.argument("job", required=False)
@click.option("--kind", "kinds", multiple=True, help="Only this kind, such as JOB_FAILED. May be repeated.")
@click.option("--actor", help="Only events that this user or driver caused.")
@click.option("--since", "from_ms", type=Moment(), help="Only events since a time: 09:00 or 2026-11-24T09:00, in UTC.")
@click.option("--until", "to_ms", type=Moment(), help="Only events up to a time.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="The most events to list.")
@click.option(
    "--export",
    "form",
    type=click.Choice(["csv", "ndjson"]),
    help="Print all chosen events, however many there are, as CSV or as lines of JSON.",
)
@json_option
@pass_session
def events(  # noqa: PLR0917 - click passes them by name
    session: Session,
    job: str | None,
    kinds: Sequence[str],
    actor: str | None,
    from_ms: int | None,
    to_ms: int | None,
    limit: int,
    form: str | None,
) -> None:
    """List the events of JOB or of everything, the newest first.

    JOB may be the id of a deleted job. Refused requests are listed with --kind ACCESS_DENIED.
    """
    chosen = {"actor": actor, "from_ms": from_ms, "to_ms": to_ms}
    query: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    query |= {"limit": limit, "kind": [kind.upper() for kind in kinds]}
    with session.control_plane() as control_plane:
        if form is not None:
            _export(control_plane, form, {**query, "job": job, "limit": EXPORTED_AT_ONCE})
            return
        try:
            answer = control_plane.get(job_path(job, "events") if job else "/v1/events", **query)
        except RefusedError as refusal:
            if refusal.problem["code"] != "JOB_NOT_FOUND":
                raise
            answer = control_plane.get("/v1/events", job=job or "", **query)
            if not answer["events"]:
                raise  # the job was not deleted
    session.output.table(answer, answer["events"], EVENT_COLUMNS)


def _export(control_plane: Keyscale, form: str, query: dict[str, Any]) -> None:
    """Prints all chosen events, part by part."""
    after, lines = None, csv.writer(sys.stdout)
    while True:
        answer = control_plane.get("/v1/events", **query, after=after)
        if form == "ndjson":
            sys.stdout.writelines(json.dumps(event, ensure_ascii=False) + "\n" for event in answer["events"])
        elif answer["events"]:
            if after is None:
                lines.writerow(answer["events"][0])
            details = ({**event, "details": json.dumps(event["details"])} for event in answer["events"])
            lines.writerows(event.values() for event in details)
        after = answer["next"]
        if after is None:
            return
