"""The command that shows the metrics of a job's functions."""

from __future__ import annotations

from typing import Any

import click

from keyscale.client.request_paths import job_path

from .session import Session, json_option, pass_session

COLUMNS = (("METRIC", "name"), ("LABELS", "labels"), ("OPERATOR", "operator"), ("KIND", "kind"), ("VALUE", "value"))


@click.command()
@click.argument("job")
@json_option
@pass_session
def metrics(session: Session, job: str) -> None:
    """Show the metrics that a job's functions declare.

    The value of a histogram is the number and the mean of its observations.
    """
    with session.control_plane() as control_plane:
        answer = control_plane.get(f"{job_path(job)}/user-metrics")
    session.output.table(answer, map(_row, answer["user_metrics"]), COLUMNS)


def _row(metric: dict[str, Any]) -> dict[str, Any]:
    labels = ", ".join(f"{name}={value}" for name, value in metric["labels"].items())
    return {**metric, "labels": labels or None, "value": _value(metric["value"], metric["histogram"])}


def _value(value: float | None, histogram: dict[str, Any] | None) -> str | None:
    if histogram is None:
        return None if value is None else f"{value:,.15g}"
    count, total = histogram["count"], histogram["sum"]
    return f"{count:,}, mean {total / count:,.6g}" if count else "0"
