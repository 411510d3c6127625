"""Commands that give a job another revision, or a clone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from keyscale.client.request_paths import job_path
from keyscale.vocabulary import SETTLED

from .errors import InvalidArgumentError
from .job_wait import wait_until_started
from .jobs import COLUMNS as JOB_COLUMNS
from .jobs import job_rows
from .operations import has_ended, show_end
from .restore_options import RESTORE_OPTIONS, restore_options, restore_request
from .session import Session, json_option, pass_session, timeout_option, wait_option
from .setting_options import specification_of, specification_options

if TYPE_CHECKING:
    from keyscale.client.keyscale import Keyscale

_allow_option = click.option(
    "--allow-non-restored-state", is_flag=True, help="Drop state that the new program no longer has."
)
_plan_option = click.option(
    "--plan-first/--no-plan-first",
    default=True,
    show_default=True,
    help="Refuse a change of a running job, before anything stops, if it could not take over its state.",
)


@click.command()
@click.argument("job")
@specification_options
@click.option(
    "--upgrade-mode",
    type=click.Choice(["savepoint", "last-state", "stateless"]),
    default="savepoint",
    show_default=True,
    help="How a running job takes its state along.",
)
@click.option(
    "--last-state-age-ms-max", type=int, help=("With last-state: the maximum age of the checkpoint to continue from.")
)
@_allow_option
@_plan_option
@click.option("--message", "-m", help="Why; shown with the revision.")
@wait_option("the change has ended")
@json_option
@pass_session
def update(
    session: Session,
    /,
    *,
    job: str,
    upgrade_mode: str,
    last_state_age_ms_max: int | None,
    allow_non_restored_state: bool,
    plan_first: bool,
    message: str | None,
    wait: bool,
    **options: Any,
) -> None:
    """Change a job's program, parameters, parallelism or settings.

    A running job continues with the new revision, or with the old revision if the new revision fails. A job that does
    not run starts with the new revision.
    """
    optional = {"last_state_age_ms_max": last_state_age_ms_max, "message": message}
    with session.control_plane() as control_plane:
        present = control_plane.get(job_path(job))
        body = {
            "spec": specification_of(control_plane, **options),
            **{name: value for name, value in optional.items() if value is not None},
            "upgrade_mode": upgrade_mode.upper().replace("-", "_"),
            "allow_non_restored_state": allow_non_restored_state,
            "plan_first": plan_first,
        }
        answer = control_plane.patch(job_path(job), body, if_match=f'"{present["revision"]}"')
        _show_update(session, control_plane, job, answer, wait=wait)


@click.command()
@click.argument("job")
@click.argument("revision", type=int)
@click.option(
    "--state",
    type=click.Choice(["savepoint", "current"]),
    default="savepoint",
    show_default=True,
    help="savepoint: the state when the revision was replaced. current: the current state.",
)
@_allow_option
@_plan_option
@wait_option("the change has ended")
@json_option
@pass_session
def rollback(session: Session, /, *, job: str, state: str, wait: bool, **options: Any) -> None:
    """Take a job back to an earlier revision."""
    body = {**options, "state": state.upper()}
    with session.control_plane() as control_plane:
        answer = control_plane.post(job_path(job, "rollback"), body)
        _show_update(session, control_plane, job, answer, wait=wait)


@click.command()
@click.argument("job")
@click.argument("name")
@specification_options
@restore_options
@click.option("--start", is_flag=True, help="Start the new job immediately.")
@wait_option("the job that --start has started is RUNNING", default=False)
@timeout_option
@json_option
@pass_session
def clone(
    session: Session,
    /,
    *,
    job: str,
    name: str,
    start: bool,
    wait: bool,
    timeout_s: float | None,
    **options: Any,
) -> None:
    """Create the job NAME with another job's specification and state.

    The other job continues unchanged.
    """
    if wait and not start:
        raise InvalidArgumentError("--wait needs --start")
    restore = restore_request(**{option: options.pop(option) for option in RESTORE_OPTIONS})
    with session.control_plane() as control_plane:
        body = {"name": name, "start": start, "spec": specification_of(control_plane, **options), **restore}
        answer = control_plane.post(job_path(job, "clone"), body)
        if wait:
            answer = wait_until_started(control_plane, answer["id"], timeout_s)
    session.output.table(answer, job_rows(answer), JOB_COLUMNS)


def _show_update(session: Session, control_plane: Keyscale, job: str, answer: dict[str, Any], *, wait: bool) -> None:
    if not has_ended(answer) or answer["phases"]:
        show_end(session, control_plane, answer, wait=wait)
        return
    is_settled = control_plane.get(job_path(job))["status"]["state"] in SETTLED
    uses = "its next start uses it" if is_settled else "its driver follows it"
    session.output.say(f"{job} has revision {answer['to_revision']}; {uses}", answer)
