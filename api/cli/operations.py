"""The commands on operations, and how other commands follow an operation."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from keyscale.client.errors import OperationFailedError, WaitTimeoutError
from keyscale.client.request_paths import job_path
from keyscale.units import duration_text
from keyscale.vocabulary import DowntimeStep, OperationKind, OperationStatus

from .output import describe_failure
from .session import Session, json_option, pass_session, timeout_option, wait_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from keyscale.client.keyscale import Keyscale

POLL_S = 0.2
COLUMNS = (
    ("ID", "id"),
    ("KIND", "kind"),
    ("STATUS", "status"),
    ("PHASE", "phase"),
    ("REQUESTED", "requested_at_ms"),
    ("BY", "requested_by"),
    ("DURATION", "duration_ms"),
    ("DOWNTIME", "downtime_ms"),
    ("FAILURE", "failure_code"),
)
BRIEF = ("id", "job_id", "kind", "status", "requested_at_ms", "ended_at_ms", "result", "failure")
WITHOUT_SAVEPOINT = {
    OperationKind.STOP: "no savepoint: the job slept, and its last checkpoint has all state",
    OperationKind.CANCEL: "no savepoint: the next start continues from the latest checkpoint",
}
"""What a completed operation without a result has done."""


def operation_path(operation_id: str, *rest: str) -> str:
    """Returns the path of an operation."""
    return "/".join(["/v1/operations", quote(operation_id, safe=""), *rest])


def follow(
    control_plane: Keyscale,
    operation_id: str,
    on_phase: Callable[[dict[str, Any]], None] = lambda _: None,
    on_poll: Callable[[], None] = lambda: None,
    on_note: Callable[[str], None] = lambda _: None,
    *,
    timeout_s: float | None = None,
) -> Any:
    """Polls an operation until its end; returns it.

    Args:
        control_plane: The control plane that the job runs on.
        operation_id: The operation.
        on_phase: Called once per phase, when it has ended.
        on_poll: Called after each poll that finds the operation still in progress.
        on_note: Called once per note on the operation's course.
        timeout_s: Time limit; None for no limit.

    Raises:
        WaitTimeoutError: The time is over; the operation continues.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    shown = 0
    noted = set[str]()
    while True:
        answer = control_plane.get(operation_path(operation_id))
        for note in notes_of(answer):
            if note not in noted:
                on_note(note)
                noted.add(note)
        ended = [phase for phase in answer["phases"] if phase["ended_at_ms"] is not None]
        for phase in ended[shown:]:
            on_phase(phase)
        shown = max(shown, len(ended))
        if has_ended(answer):
            return answer
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeoutError(f"after {timeout_s:g} s {answer['kind']} is still {answer['status']}")
        on_poll()
        time.sleep(POLL_S)


def show_end(
    session: Session,
    control_plane: Keyscale,
    accepted: dict[str, Any],
    *,
    wait: bool,
    timeout_s: float | None = None,
) -> None:
    """Shows the phases of an accepted operation; without `wait`, its id.

    Raises:
        OperationFailedError: The operation did not complete.
        WaitTimeoutError: The time is over; the operation continues.
    """
    output = session.output
    if accepted["status"] == OperationStatus.PENDING_APPROVAL and not output.as_json:
        output.console.print(approval_line(accepted["id"]), markup=False)
    if not wait and not has_ended(accepted):
        output.show(accepted, lambda console: console.print(accepted["id"], markup=False))
        return

    def show_phase(phase: dict[str, Any]) -> None:
        if not output.as_json:
            output.console.print(phase_line(phase))

    def show_note(note: str) -> None:
        if not output.as_json:
            output.console.print(f"  {note}", markup=False)

    answer = follow(control_plane, accepted["id"], show_phase, on_note=show_note, timeout_s=timeout_s)
    for step in answer["steps"] if not output.as_json else ():
        output.console.print(step_line(step))
    if answer["phases"]:
        output.say(verdict_line(answer), answer)
    else:
        output.view(answer, brief(answer))
    require_completed(answer)


def brief(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of an ended operation that a command prints."""
    fields = {name: answer[name] for name in BRIEF}
    if answer["status"] == OperationStatus.COMPLETED and answer["result"] is None:
        fields["result"] = WITHOUT_SAVEPOINT.get(answer["kind"])
    return fields


def notes_of(answer: dict[str, Any]) -> Iterator[str]:
    """Yields the reasons for a new driver and for a wait."""
    if answer["not_live"]:
        yield f"by a new driver: {answer['not_live']['message']}"
    for phase in answer["phases"]:
        if phase.get("waits_for"):
            yield f"waits for the object store: {phase['waits_for']['message']}"


def require_completed(answer: dict[str, Any]) -> None:
    """Refuses an operation that has ended without success.

    Raises:
        OperationFailedError: The operation did not complete.
    """
    if answer["status"] != OperationStatus.COMPLETED:
        why = describe_failure(answer["failure"]) if answer["failure"] else "no reason was given"
        raise OperationFailedError(f"the {answer['kind'].lower()} ended as {answer['status']}: {why}")


def has_ended(answer: dict[str, Any]) -> bool:
    """Returns whether an operation keeps its status."""
    return OperationStatus(answer["status"]).has_ended


def approval_line(operation_id: str) -> str:
    """Returns the line that asks for the approval of a change."""
    return f"The change waits for another user: `./keyscale operations approve {operation_id}`"


def phase_line(phase: dict[str, Any]) -> str:
    """Returns the line that shows an ended phase."""
    return f"  {phase['phase']:<10} {phase['duration_ms']:>7,} ms"


def step_line(step: dict[str, Any]) -> str:
    """Returns the line that shows a part of the downtime or afterwards."""
    when = "then" if step["name"] == DowntimeStep.CAUGHT_UP else "downtime"
    return f"  {when + ':':<9} {step['name']:<12} {step['duration_ms']:>7,} ms"


def verdict_line(answer: dict[str, Any]) -> str:
    """Returns the line that shows how a change ended."""
    downtime = answer["downtime_ms"]
    if answer["kind"] == "RESCALE":
        led = f"{answer['from_parallelism']} -> {answer['to_parallelism']}"
    elif answer["from_revision"] == answer["to_revision"]:
        led = f"a new driver of revision {answer['to_revision']}"
    else:
        led = f"revision {answer['from_revision']} -> {answer['to_revision']}"
    return f"{answer['status']}: {led} in {duration_text(answer['duration_ms'] or 0)}" + (
        f", downtime {duration_text(downtime)}" if downtime is not None else ""
    )


@click.group()
def operations() -> None:
    """List, show, follow, approve and cancel operations: the long actions on jobs."""


@operations.command(name="list")
@click.argument("job")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(list(OperationKind), case_sensitive=False),
    help="Only this kind.",
)
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(list(OperationStatus), case_sensitive=False),
    help="Only this status.",
)
@json_option
@pass_session
def list_operations(session: Session, job: str, kinds: Sequence[str], statuses: Sequence[str]) -> None:
    """List a job's operations, the newest first."""
    with session.control_plane() as control_plane:
        answer = control_plane.get_list(job_path(job, "operations"), "operations", kind=kinds, status=statuses)
    rows = [{**each, "failure_code": (each["failure"] or {}).get("code")} for each in answer["operations"]]
    session.output.table(answer, rows, COLUMNS)


@operations.command()
@click.argument("operation_id", metavar="ID")
@json_option
@pass_session
def show(session: Session, operation_id: str) -> None:
    """Show an operation: its failure, if any, its phases and its result."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(operation_path(operation_id))
    session.output.fields(answer)


@operations.command()
@click.argument("operation_id", metavar="ID")
@timeout_option
@json_option
@pass_session
def watch(session: Session, operation_id: str, timeout_s: float | None) -> None:
    """Follow an operation to its end; fail if it does not complete."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(operation_path(operation_id))
        show_end(session, control_plane, answer, wait=True, timeout_s=timeout_s)


@operations.command()
@click.argument("operation_id", metavar="ID")
@json_option
@pass_session
def cancel(session: Session, operation_id: str) -> None:
    """Cancel a rescale or another change; the job stays unchanged."""
    with session.control_plane() as control_plane:
        answer = control_plane.post(operation_path(operation_id, "cancel"))
    session.output.say(f"the cancel is stored; `operations watch {operation_id}` returns at its end", answer)


@operations.command()
@click.argument("operation_id", metavar="ID")
@wait_option("the change has ended")
@timeout_option
@json_option
@pass_session
def approve(session: Session, operation_id: str, *, wait: bool, timeout_s: float | None) -> None:
    """Approve a change that another user has requested, and follow it."""
    with session.control_plane() as control_plane:
        answer = control_plane.post(operation_path(operation_id, "approve"))
        show_end(session, control_plane, answer, wait=wait, timeout_s=timeout_s)
