"""The commands on the revisions of a job's specification."""

from __future__ import annotations

from typing import Any

import click

from keyscale.client.request_paths import job_path

from .session import Session, json_option, pass_session

COLUMNS = (
    ("REVISION", "number"),
    ("CURRENT", "is_current"),
    ("PROGRAM", "program"),
    ("PARALLELISM", "parallelism"),
    ("CREATED", "created_at_ms"),
    ("BY", "created_by"),
    ("OPERATION", "outcome"),
    ("MESSAGE", "message"),
)
DIFFERENCE_COLUMNS = (("SETTING", "path"), ("BEFORE", "before"), ("AFTER", "after"))


@click.group()
def revisions() -> None:
    """List, show and compare the revisions of a job's specification."""


@revisions.command("list")
@click.argument("job")
@click.option("--by", help="Only revisions that this user created.")
@json_option
@pass_session
def list_revisions(session: Session, job: str, by: str | None) -> None:
    """List a job's revisions, the newest first."""
    with session.control_plane() as control_plane:
        answer = control_plane.get_list(job_path(job, "revisions"), "revisions", created_by=by)
    session.output.table(answer, [_row(revision) for revision in answer["revisions"]], COLUMNS)


@revisions.command("show")
@click.argument("job")
@click.argument("revision", type=int)
@json_option
@pass_session
def show_revision(session: Session, job: str, revision: int) -> None:
    """Show a revision of a job with its specification."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(job_path(job, "revisions", revision))
    session.output.view(answer, {**{field: _row(answer)[field] for _, field in COLUMNS}, "spec": answer["spec"]})


@revisions.command()
@click.argument("job")
@click.argument("before", type=int)
@click.argument("after", type=int)
@json_option
@pass_session
def diff(session: Session, job: str, before: int, after: int) -> None:
    """Show the differences between a job's revisions BEFORE and AFTER."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(job_path(job, "revisions", before, "diff"), to=after)
    session.output.table(answer, answer["differences"], DIFFERENCE_COLUMNS)


def _row(revision: dict[str, Any]) -> dict[str, Any]:
    """Returns a revision with its program and outcome in words."""
    return {
        **revision,
        "parallelism": revision["spec"]["parallelism"],
        "program": f"{revision['artifact_name']} v{revision['artifact_version']}",
        "outcome": (revision["operation"] or {}).get("status"),
    }
