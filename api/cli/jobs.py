"""The commands on jobs.

They create, list, show, start, stop, cancel and delete jobs, wait for them, and print their logs.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

import click

from keyscale.client.errors import RefusedError
from keyscale.client.request_paths import job_path
from keyscale.units import bytes_text
from keyscale.vocabulary import PLAIN, DiagnosticKind, JobStatus, OperationKind

from .diagnostics import taken, text_of
from .errors import InvalidArgumentError
from .job_wait import LASTING, RUNNING, wait_until, wait_until_started
from .operations import show_end
from .output import describe_failure
from .restore_options import RESTORE_OPTIONS, restore_options, restore_request
from .session import Session, json_option, pass_session, timeout_option, wait_option
from .setting_options import Pair, specification_of, specification_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.client.keyscale import Keyscale

FOLLOW_S = 0.5
SEARCH_RETRY_S = 0.5
COLUMNS = (
    ("ID", "id"),
    ("NAME", "name"),
    ("STATE", "state"),
    ("HEALTH", "health_score"),
    ("PARALLELISM", "parallelism"),
    ("RESTARTS", "restarts"),
    ("FAILURE", "failure_code"),
    ("CREATED", "created_at_ms"),
)


SETTING_COLUMNS = (
    ("PATH", "path"),
    ("TYPE", "type"),
    ("DEFAULT", "default"),
    ("CHANGE", "change_class"),
    ("WHAT IT IS", "description"),
)
BRIEF = (
    "name",
    "state",
    "health",
    "revision",
    "parallelism",
    "restarts",
    "started_at_ms",
    "latest_checkpoint",
    "failure",
)


def job_rows(*found: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns jobs as table rows, with the code of the last failure."""
    return [
        {
            **{name: job[name] for name in ("id", "name", "created_at_ms")},
            "state": job["status"]["state"],
            "health_score": job["status"]["health"]["score"],
            "parallelism": job["spec"]["parallelism"],
            "restarts": job["status"]["restarts"],
            "failure_code": (job["status"]["failure"] or {}).get("code"),
        }
        for job in found
    ]


@click.group()
def jobs() -> None:
    """Create, list, start, stop, cancel, delete and wait for jobs.

    A JOB is named by its id or its name.
    """


@jobs.command()
@click.argument("name")
@specification_options
@click.option(
    "--label", "labels", type=Pair(), multiple=True, help="A label, key=value; tokens can be limited to labels."
)
@restore_options
@click.option("--start", is_flag=True, help="Start the job immediately.")
@wait_option("the job that --start has started has processed its first input", default=False)
@timeout_option
@json_option
@pass_session
def create(
    session: Session,
    /,
    *,
    name: str,
    labels: Sequence[tuple[str, str]],
    start: bool,
    wait: bool,
    timeout_s: float | None,
    **options: Any,
) -> None:
    """Create the job NAME from an artifact."""
    if (options["artifact_id"] is None) == (options["file"] is None):
        raise InvalidArgumentError("give either --artifact or --file")
    if wait and not start:
        raise InvalidArgumentError("--wait needs --start")
    restore = restore_request(**{name: options.pop(name) for name in RESTORE_OPTIONS})
    with session.control_plane() as control_plane:
        spec = specification_of(control_plane, **options)
        answer = control_plane.post("/v1/jobs", {"name": name, "labels": dict(labels), "spec": spec, **restore})
        if start:
            control_plane.post(job_path(answer["id"], "start"))
            path = job_path(answer["id"])
            answer = wait_until_started(control_plane, answer["id"], timeout_s) if wait else control_plane.get(path)
    session.output.table(answer, job_rows(answer), COLUMNS)


@jobs.command()
@json_option
@pass_session
def settings(session: Session) -> None:
    """List the settings of a job, for --set.

    CHANGE says when a running job takes over another value: FIXED never, RESTART with a new driver.
    """
    with session.control_plane() as control_plane:
        answer = control_plane.get("/v1/settings")
    session.output.table(answer, [setting_row(each) for each in answer["settings"]], SETTING_COLUMNS)


def setting_row(setting: dict[str, Any]) -> dict[str, Any]:
    """Returns a setting as a table row."""
    default = setting["default"]
    shown = "-" if default in (None, []) else str(default)
    return {**setting, "default": shown, "type": " | ".join(setting["choices"]) or setting["type"]}


@jobs.command(name="list")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(list(JobStatus), case_sensitive=False),
    help="Only jobs with this status; may be repeated.",
)
@click.option("--label", "labels", multiple=True, type=Pair(), help="Only jobs with this label, key=value.")
@json_option
@pass_session
def list_jobs(session: Session, statuses: Sequence[str], labels: Sequence[tuple[str, str]]) -> None:
    """List the jobs, the newest first."""
    with session.control_plane() as control_plane:
        answer = control_plane.get_list("/v1/jobs", "jobs")
    answer["jobs"] = [job for job in answer["jobs"] if is_chosen(job, statuses, labels)]
    session.output.table(answer, job_rows(*answer["jobs"]), COLUMNS)


def is_chosen(job: dict[str, Any], statuses: Sequence[str], labels: Sequence[tuple[str, str]]) -> bool:
    """Returns whether a job has one of the statuses and all labels."""
    return (not statuses or job["status"]["state"] in statuses) and set(labels) <= set(job["labels"].items())


@jobs.command()
@click.argument("job")
@click.option("--brief", is_flag=True, help="Omit the specification and the metrics of operators.")
@json_option
@pass_session
def show(session: Session, job: str, *, brief: bool) -> None:
    """Show a job: its failure, if any, its status and its specification."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(job_path(job))
    shown = job_fields(answer)
    if brief:
        session.output.fields({name: shown[name] for name in BRIEF})
    else:
        session.output.view(answer, {name: value for name, value in shown.items() if name != "parallelism"})


def job_fields(job: dict[str, Any]) -> dict[str, Any]:
    """Returns the shown fields of a job."""
    status = {name: value for name, value in job["status"].items() if name not in {"conditions", "health"}}
    conditions = {
        each["type"]: f"{each['status']}, {each['reason']}: {each['message']}" for each in job["status"]["conditions"]
    }
    identity = {name: job[name] for name in ("id", "name", "labels", "revision", "created_at_ms")}
    parallelism = job["spec"]["parallelism"]
    return {
        **identity,
        "health": health_text(job["status"]["health"]),
        **conditions,
        **status,
        "parallelism": parallelism,
        "spec": job["spec"],
        "metrics": job["metrics"],
    }


def health_text(health: dict[str, Any]) -> str:
    """Returns a job's health: its score, and a line per reason."""
    score = "" if health["score"] is None else f", {health['score']} of 100"
    reasons = [
        f"{each['code']}: {each['message']}." + (f" {each['advice']}" if each["advice"] else "")
        for each in health["reasons"]
    ]
    return "\n".join([f"{health['level']}{score}", *reasons])


@jobs.command()
@click.argument("job")
@click.option(
    "--skip-lost-records",
    is_flag=True,
    help="Continue without records that a source has lost, such as expired records of Kafka.",
)
@click.option("--reset-time", is_flag=True, help="Begin event time and processing time again, and keep all state.")
@restore_options
@click.option("--parallelism", "-p", type=int, help="Start with as many subtasks per operator.")
@wait_option("the job has processed its first input", default=False)
@timeout_option
@json_option
@pass_session
def start(
    session: Session,
    /,
    *,
    job: str,
    skip_lost_records: bool,
    reset_time: bool,
    parallelism: int | None,
    wait: bool,
    timeout_s: float | None,
    **restore: Any,
) -> None:
    """Start a job, from its latest checkpoint or savepoint if any."""
    chosen = {} if parallelism is None else {"parallelism": parallelism}
    flags = {"skip_lost_records": skip_lost_records, "reset_time": reset_time}
    body = {**flags, **chosen, **restore_request(**restore)}
    with session.control_plane() as control_plane:
        answer = control_plane.post(job_path(job, "start"), body)
        if wait:
            show_job(session, wait_until_started(control_plane, job, timeout_s))
        else:
            show_end(session, control_plane, answer, wait=False)


@jobs.command()
@click.argument("job")
@click.option("--drain", is_flag=True, help="As `jobs drain`.")
@wait_option(OperationKind.STOP.traits.until)
@timeout_option
@json_option
@pass_session
def stop(session: Session, job: str, drain: bool, wait: bool, timeout_s: float | None) -> None:
    """Stop a job with a savepoint, for a later start."""
    _ask(session, job, OperationKind.DRAIN if drain else OperationKind.STOP, wait=wait, timeout_s=timeout_s)


def imperative(text: str) -> str:
    """Returns a description as an instruction.

    "Ends a job" becomes "End a job".
    """
    verb, rest = text.split(" ", 1)
    return f"{verb.removesuffix('s')} {rest}"


def _command(kind: OperationKind) -> click.Command:
    """Returns the command that requests an operation without arguments."""

    @click.command(kind.short_form, help=imperative(kind.description))
    @click.argument("job")
    @wait_option(kind.traits.until)
    @timeout_option
    @json_option
    @pass_session
    def command(session: Session, job: str, wait: bool, timeout_s: float | None) -> None:
        _ask(session, job, kind, wait=wait, timeout_s=timeout_s)

    return command


# Checkpoints and savepoints have groups of their own; `stop` has an option.
for _kind in PLAIN:
    if not _kind.is_snapshot and _kind is not OperationKind.STOP:
        jobs.add_command(_command(_kind))


def _ask(session: Session, job: str, kind: OperationKind, *, wait: bool, timeout_s: float | None) -> None:
    with session.control_plane() as control_plane:
        answer = control_plane.post(job_path(job, kind.short_form))
        show_end(session, control_plane, answer, wait=wait, timeout_s=timeout_s)


def show_job(session: Session, job: dict[str, Any]) -> None:
    """Prints a job as a row of the list of jobs."""
    session.output.table(job, job_rows(job), COLUMNS)


@jobs.command()
@click.argument("job")
@click.option(
    "--for",
    "status",
    type=click.Choice(LASTING, case_sensitive=False),
    default=RUNNING,
    show_default=True,
    help="The status.",
)
@timeout_option
@json_option
@pass_session
def wait(session: Session, job: str, status: str, timeout_s: float | None) -> None:
    """Return when a job has a status.

    Ends with exit code 1 if the job has FAILED, and shows its failure; if it has ended in another way, so that it
    cannot reach the status; and with 3 after --timeout.
    """
    with session.control_plane() as control_plane:
        answer = wait_until(control_plane, job, {status}, timeout_s)
    session.output.table(answer, job_rows(answer), COLUMNS)


@jobs.command()
@click.argument("job")
@click.option("--keep-objects", is_flag=True, help="Keep its checkpoints and log in the object store.")
@json_option
@pass_session
def delete(session: Session, job: str, keep_objects: bool) -> None:
    """Delete a stopped job and its checkpoints; its savepoints stay."""
    with session.control_plane() as control_plane:
        answer = control_plane.delete(job_path(job), keep_objects=keep_objects)
    session.output.say(f"deleted job {job}", answer)


@click.command()
@click.argument("job")
@click.option("--attempt", type=int, help="The attempt (default: the attempt that runs the job, or ran it last).")
@click.option(
    "--tail-bytes", default=1 << 16, show_default=True, help="Bytes to print from the end of the log, at most 1 MiB."
)
@click.option("--follow", "-f", is_flag=True, help="Continue with new lines until Ctrl-C.")
@click.option("--search", help="Print all lines of the log with this text; case is ignored.")
@click.option("--executors", is_flag=True, help="Print the end of the logs of a running job's executors instead.")
@json_option
@pass_session
def logs(
    session: Session,
    /,
    *,
    job: str,
    attempt: int | None,
    tail_bytes: int,
    follow: bool,
    search: str | None,
    executors: bool,
) -> None:
    """Print a driver's log, and below it the job's last failure.

    The failure is shown until a later batch is committed.
    """
    if executors:
        if attempt is not None or follow or search is not None:
            raise InvalidArgumentError("--executors excludes --attempt, --follow and --search")
        shown = taken(session, job, DiagnosticKind.EXECUTOR_LOGS)
        session.output.show(shown, lambda _: sys.stdout.writelines([text_of(shown)]))
        return
    with session.control_plane() as control_plane:
        query: dict[str, Any] = {} if attempt is None else {"attempt": attempt}
        if search is not None:
            found = found_lines(control_plane, job, search, query)
            lines = [f"{each['text']}\n" for each in found["matches"]]
            session.output.show(found, lambda _: sys.stdout.writelines(lines))
            return
        if follow:
            follow_log(control_plane, job, tail_bytes, query)
        answer = control_plane.get(job_path(job, "logs"), tail_bytes=tail_bytes, **query)
        failure = control_plane.get(job_path(job))["status"]["failure"]
    session.output.show(answer, lambda _: print_log(answer, failure))


def found_lines(control_plane: Keyscale, job: str, search: str, query: dict[str, Any]) -> dict[str, Any]:
    """Returns the lines of a log with a text, with several requests."""
    matches: list[dict[str, Any]] = []
    offset, size = 0, 1
    while offset < size:
        try:
            answer = control_plane.get(job_path(job, "logs"), search=search, offset=offset, **query)
        except RefusedError as error:
            if error.problem.get("code") != "TOO_MANY_IN_FLIGHT":
                raise
            time.sleep(SEARCH_RETRY_S)  # only a few logs are searched at once
            continue
        matches += answer["matches"]
        if answer["next_offset"] <= offset:
            break
        offset, size = answer["next_offset"], answer["size_bytes"]
    return {"matches": matches}


def follow_log(control_plane: Keyscale, job: str, tail_bytes: int, query: dict[str, Any]) -> NoReturn:
    """Writes the end of a log and new lines until interrupted."""
    answer = control_plane.get(job_path(job, "logs"), tail_bytes=tail_bytes, **query)
    query = {**query, "attempt": answer["attempt"]}
    while True:
        sys.stdout.write(answer["text"])
        sys.stdout.flush()
        if not answer["text"]:
            time.sleep(FOLLOW_S)
        offset = answer["next_offset"]
        answer = control_plane.get(job_path(job, "logs"), offset=offset, limit_bytes=1 << 20, **query)
        if (gone := answer["offset"] - offset) > 0:
            sys.stderr.write(f"({bytes_text(gone)} are missing here: newer output has replaced them)\n")


def print_log(answer: dict[str, Any], failure: dict[str, Any] | None) -> None:
    """Writes the text unchanged.

    A note on standard error says if the beginning is missing.

    The failure is below it, as Spark's own traces above say little about the user's code, and as the log may belong to
    an attempt that has not failed yet.
    """
    if answer["truncated"]:
        sys.stderr.write(f"(the end of a log of {bytes_text(answer['size_bytes'])})\n")
    sys.stdout.write(answer["text"])
    if failure is not None:
        sys.stdout.write(f"\n--- the job's last failure ---\n{describe_failure(failure)}\n")
