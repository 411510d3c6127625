"""The commands that say what is wrong with a job."""

from __future__ import annotations

from typing import Any

import click

from keyscale.client.request_paths import job_path
from keyscale.metrics import BATCH_PARTS

from .session import Session, json_option, pass_session

BATCH_COLUMNS = (
    ("BATCH", "batch_id"),
    ("COMMITTED", "at_ms"),
    ("RECORDS", "input_records"),
    ("TIME", "duration_ms"),
    *((part.label.upper(), part.name) for part in BATCH_PARTS),
)


@click.command()
@click.argument("job")
@json_option
@pass_session
def batches(session: Session, job: str) -> None:
    """Show where the time of a job's last batches went.

    The newest batch comes first. The parts of a batch add up to its TIME, which begins when the previous batch ends.
    """
    with session.control_plane() as control_plane:
        attempt = control_plane.get(job_path(job))["status"]["attempt"] or {}
    found = (attempt.get("metrics") or {}).get("recent_batches") or []
    session.output.table(found, map(_row, reversed(found)), BATCH_COLUMNS)


def _row(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "duration_ms": sum(batch[part.name] for part in BATCH_PARTS)}
