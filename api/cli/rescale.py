"""The command that rescales a job, and follows the rescale."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from keyscale.client.errors import OperationFailedError
from keyscale.client.request_paths import job_path
from keyscale.units import duration_text

from .operation_wait import COMPLETED, IN_PROGRESS
from .plan_output import show_plan
from .session import Session, json_option, pass_session, wait_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyscale.client.keyscale import Keyscale

POLL_S = 0.2


def follow(
    control_plane: Keyscale,
    job: str,
    rescale_id: str,
    on_phase: Callable[[dict[str, Any]], None] = lambda _: None,
    on_look: Callable[[], None] = lambda: None,
    *,
    route: str = "rescales",
) -> Any:
    """Polls a rescale or another change until its end; returns it.

    Args:
        control_plane: The control plane that the job runs on.
        job: Id or name of the job.
        rescale_id: Id of the rescale.
        on_phase: Called once per phase, when it has ended.
        on_look: Called after each poll that finds the rescale still in progress.
        route: The list of the rescale: `rescales`, or `changes`.
    """
    shown = 0
    while True:
        answer = control_plane.get(job_path(job, route, rescale_id))
        ended = [phase for phase in answer["phases"] if phase["ended_at_ms"] is not None]
        for phase in ended[shown:]:
            on_phase(phase)
        shown = max(shown, len(ended))
        if answer["status"] != IN_PROGRESS:
            return answer
        on_look()
        time.sleep(POLL_S)


def phase_line(phase: dict[str, Any]) -> str:
    """Returns the line that shows an ended phase."""
    return f"  {phase['phase']:<10} {phase['duration_ms']:>7,} ms"


def step_line(step: dict[str, Any]) -> str:
    """Returns the line that shows a part of the downtime."""
    return f"  downtime: {step['name']:<12} {step['duration_ms']:>7,} ms"


def verdict_line(answer: dict[str, Any]) -> str:
    """Returns the line that shows how a rescale ended."""
    downtime = answer["downtime_ms"]
    return (
        f"{answer['status']}: {answer['from_parallelism']} -> {answer['to_parallelism']}"
        f" in {duration_text(answer['duration_ms'] or 0)}"
        + (f", downtime {duration_text(downtime)}" if downtime is not None else "")
    )


@click.command()
@click.argument("job")
@click.argument("parallelism", type=int)
@click.option("--dry-run", is_flag=True, help="Only show the movement of files and the expected downtime.")
@wait_option("it has ended")
@json_option
@pass_session
def rescale(session: Session, job: str, parallelism: int, dry_run: bool, wait: bool) -> None:
    """Change a running job's parallelism, and follow the phases."""
    output = session.output
    with session.control_plane() as control_plane:
        if dry_run:
            planned = control_plane.post(job_path(job, "rescale"), {"parallelism": parallelism, "dry_run": True})
            output.show(planned, lambda console: show_plan(console, planned))
            return
        accepted = control_plane.post(job_path(job, "rescale"), {"parallelism": parallelism})
        if not wait:
            output.fields(accepted)
            return

        def show_phase(phase: dict[str, Any]) -> None:
            if not output.as_json:
                output.console.print(phase_line(phase))

        answer = follow(control_plane, job, accepted["id"], show_phase)
        for step in answer["steps"] if not output.as_json else ():
            output.console.print(step_line(step))
    output.say(verdict_line(answer), answer)
    if answer["status"] != COMPLETED:
        failure = answer["failure"] or {}
        raise OperationFailedError(
            f"the rescale ended as {answer['status']}: {failure.get('message', 'no reason was given')}"
        )
