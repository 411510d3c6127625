"""The commands on the autoscaler of a job."""

from __future__ import annotations

from typing import Any

import click

from keyscale.client.request_paths import job_path

from .output import cell
from .session import Session, json_option, pass_session

COLUMNS = (
    ("AT", "at_ms"),
    ("UNTIL", "confirmed_at_ms"),
    ("VERDICT", "verdict"),
    ("FROM", "parallelism"),
    ("TO", "target"),
    ("OUTCOME", "outcome"),
    ("MESSAGE", "message"),
)


@click.group()
def autoscaler() -> None:
    """The autoscaler: parallelism that jobs choose by themselves.

    `jobs update JOB --set autoscaler.mode=MONITORING` lets it advise, `ACTIVE` lets it rescale the job.
    """


@autoscaler.command()
@click.argument("job")
@json_option
@pass_session
def show(session: Session, job: str) -> None:
    """Show the mode, the latest decision and the last move."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(f"{job_path(job)}/autoscaler")
    decision, move = answer["decision"], answer["last_move"]
    fields: dict[str, Any] = {"mode": answer["mode"]}
    if decision is not None:
        shown = ("verdict", "message", "advice", "parallelism", "target", "at_ms", "confirmed_at_ms")
        fields |= {name: decision[name] for name in shown}
        fields |= {name: decision[name] for name in ("present", "expected", "facts") if decision[name] is not None}
    if move is not None:
        shown = ("message", "outcome", "at_ms", "operation_id", "present", "expected", "measured")
        fields["last_move"] = {name: move[name] for name in shown if move[name] is not None}
    session.output.view(answer, fields)


@autoscaler.command()
@click.argument("job")
@click.option("--parallelism", "-p", type=int, required=True, help="The parallelism to replay the input at.")
@click.option("--hours", type=float, default=24.0, show_default=True, help="How much of the past is replayed.")
@json_option
@pass_session
def replay(session: Session, job: str, *, parallelism: int, hours: float) -> None:
    """Replay a job's past input at another parallelism, by the model."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(f"{job_path(job)}/autoscaler/replay", parallelism=parallelism, hours=hours)
    peaks = answer["peaks"]
    if peaks is None:
        session.output.say(f"nothing can be replayed: {answer['reason']}", answer)
        return
    fields = {
        "parallelism": answer["parallelism"],
        "capacity": f"{answer['capacity']:,.0f} records/s",
        "largest lag, replayed": cell("lag_ms", peaks["replayed_ms"]),
        "largest lag, measured": cell("lag_ms", peaks["measured_ms"]),
        "largest lag, by the model as run": cell("lag_ms", peaks["as_run_ms"]),
        "error of the model": "-" if answer["error"] is None else f"{answer['error']:.0%}",
    }
    session.output.view(answer, fields)


@autoscaler.command()
@click.argument("job")
@click.option("--moves", is_flag=True, help="Only the decisions that have rescaled the job.")
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True, help="The number of decisions.")
@json_option
@pass_session
def decisions(session: Session, job: str, *, moves: bool, limit: int) -> None:
    """List the decisions about a job, the newest first."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(f"{job_path(job)}/autoscaler/decisions", limit=limit, moves_only=moves)
    session.output.table(answer, answer["decisions"], COLUMNS)
