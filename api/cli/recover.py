"""The command that rebuilds jobs after the database was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .session import Session, json_option, pass_session

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = (
    ("ID", "id"),
    ("NAME", "name"),
    ("OUTCOME", "outcome"),
    ("REVISION", "revision"),
    ("WHY", "why"),
)


@click.command()
@click.option("--store", "store_url", help="URL of the store with the jobs (default: the store of new jobs).")
@click.option("--job", "jobs", multiple=True, help="Id of a job; may be repeated (default: every job of the store).")
@click.option("--dry-run", is_flag=True, help="Only show what would be rebuilt.")
@json_option
@pass_session
def recover(session: Session, /, *, store_url: str | None, jobs: Sequence[str], dry_run: bool) -> int:
    """Rebuild jobs from the object store after the database was lost.

    The jobs keep their ids and are STOPPED. Jobs that the database has stay unchanged. The exit code is 1 if a job is
    refused. Needs an administrator's token.
    """
    body: dict[str, Any] = {"store_url": store_url, "jobs": list(jobs), "dry_run": dry_run, "after": None}
    found: list[dict[str, Any]] = []
    with session.control_plane() as control_plane:
        while True:
            part = control_plane.post("/v1/recover", body)
            found += part["jobs"]
            body["after"] = part["next"]
            if part["next"] is None:
                break
    refused = [job for job in found if job["outcome"] == "REFUSED"]
    rows = [{**job, "outcome": _outcome(job, dry_run=dry_run), "why": _why(job)} for job in found]
    answer = {**part, "jobs": found}
    if found:
        session.output.table(answer, rows, COLUMNS)
    else:
        session.output.say("the store has no record of a job; check the URL of --store", answer)
    return 1 if refused else 0


def _outcome(job: dict[str, Any], *, dry_run: bool) -> str:
    return "would be recovered" if dry_run and job["outcome"] == "RECOVERED" else job["outcome"].lower()


def _why(job: dict[str, Any]) -> str | None:
    failure = job["failure"]
    return None if failure is None else f"{failure['code']}: {failure['message']}"
