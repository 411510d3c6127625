"""The commands on jobs.

They create, list, show, start, stop, cancel and delete jobs, wait for them, and print their logs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from keyscale.units import bytes_text

from .artifacts import upload_file, upload_libraries
from .client import job_path, wait_for
from .errors import InvalidArgumentError, RefusedError
from .job_wait import ENDED, LASTING, RUNNING, STATUSES, wait_until, wait_until_started
from .output import describe_failure
from .restore_options import RESTORE_OPTIONS, restore_options, restore_request
from .session import Session, json_option, pass_session, timeout_option, wait_option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .client import ControlPlane

FOLLOW_S = 0.5
SEARCH_RETRY_S = 0.5
COLUMNS = (
    ("ID", "id"),
    ("NAME", "name"),
    ("STATUS", "status"),
    ("PARALLELISM", "parallelism"),
    ("MAX PARALLELISM", "max_parallelism"),
    ("RESTARTS", "restarts"),
    ("FAILURE", "failure_code"),
    ("CREATED", "created_at_ms"),
)


BRIEF = ("name", "status", "revision", "parallelism", "restarts", "started_at_ms", "latest_checkpoint", "failure")


def job_rows(*found: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns jobs as table rows, with the code of the last failure."""
    return [{**job, "failure_code": (job["failure"] or {}).get("code")} for job in found]


class Pair(click.ParamType[tuple[str, str]]):
    """A `key=value` argument."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Splits at the first equals sign."""
        key, equals, text = str(value).partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not of the form key=value", param, ctx)
        return key, text


def strategy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a restart strategy; `restart_of` reads them."""
    strategies = click.Choice(["none", "fixed-delay", "exponential-delay", "failure-rate"])
    for option in (
        click.option(
            "--restart-option",
            "restart_options",
            type=Pair(),
            multiple=True,
            help="An option of the strategy, such as attempts=3.",
        ),
        click.option(
            "--restart-strategy", type=strategies, help="Whether and when the job is started again after a failure."
        ),
    ):
        command = option(command)
    return command


@click.group()
def jobs() -> None:
    """Create, list, start, stop, cancel, delete and wait for jobs.

    A JOB is named by its id or its name.
    """


@jobs.command()
@click.argument("name")
@click.option("--artifact", "artifact_id", help="Id of an uploaded artifact.")
@click.option("--file", type=click.Path(path_type=Path), help="Upload this file and use it.")
@click.option(
    "--library",
    "libraries",
    multiple=True,
    help=(
        "A library that the program imports: a .py, .zip, .whl or .jar file to upload, the id of an uploaded library,"
        " or a package of the platform's jars as package:NAME. May be repeated."
    ),
)
@click.option(
    "--requirements",
    type=click.Path(path_type=Path),
    help="Upload and use the wheels of a pip requirements file, with all that they need.",
)
@click.option("--parallelism", "-p", type=int, default=1, show_default=True, help="Subtasks per operator.")
@click.option("--max-parallelism", type=int, help="Key groups, fixed for the job's life (default: Flink's formula).")
@click.option("--hash", "hash_id", type=click.Choice(["spark", "java"]), help="How keys are hashed (default: spark).")
@click.option(
    "--label", "labels", type=Pair(), multiple=True, help="A label, key=value; tokens can be limited to labels."
)
@click.option(
    "--parameter", "-P", "parameters", type=Pair(), multiple=True, help="A parameter of the script, key=value."
)
@click.option("--secret", "secrets", multiple=True, help="Name of a secret that the script reads. May be repeated.")
@click.option(
    "--secret-parameter",
    "secret_parameters",
    type=Pair(),
    multiple=True,
    help="A parameter that is a secret: key=name of the secret.",
)
@click.option("--spark-conf", "spark_conf", type=Pair(), multiple=True, help="A Spark setting of the job, key=value.")
@click.option("--checkpoint-interval-ms", type=int, help="Time between the starts of two checkpoints.")
@click.option("--batch-interval-ms", type=int, help="Least time between the starts of two batches.")
@click.option("--retained-checkpoints", type=int, help="Number of completed checkpoints to keep.")
@strategy_options
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
    artifact_id: str | None,
    file: Path | None,
    libraries: Sequence[str],
    requirements: Path | None,
    start: bool,
    wait: bool,
    timeout_s: float | None,
    **options: Any,
) -> None:
    """Create the job NAME from an artifact."""
    if (artifact_id is None) == (file is None):
        raise InvalidArgumentError("give either --artifact or --file")
    if wait and not start:
        raise InvalidArgumentError("--wait needs --start")
    restore = restore_request(**{name: options.pop(name) for name in RESTORE_OPTIONS})
    with session.control_plane() as control_plane:
        if file is not None:
            artifact_id = upload_file(control_plane, file)["id"]
        brought = upload_libraries(control_plane, libraries, requirements)
        body = job_request(name, str(artifact_id), libraries=brought, **options)
        answer = control_plane.post("/v1/jobs", {**body, **restore})
        if start:
            answer = control_plane.post(job_path(answer["id"], "start"))
        if wait:
            answer = wait_until_started(control_plane, answer["id"], timeout_s)
    session.output.table(answer, job_rows(answer), COLUMNS)


def restart_of(strategy: str | None, options: Sequence[tuple[str, str]]) -> dict[str, str] | None:
    """Returns the restart strategy of a command, if given."""
    if options and strategy is None:
        raise InvalidArgumentError("--restart-option needs --restart-strategy")
    return None if strategy is None else {"type": strategy, **dict(options)}


def job_request(
    name: str,
    artifact_id: str,
    *,
    libraries: Sequence[str] = (),
    parallelism: int,
    max_parallelism: int | None = None,
    hash_id: str | None = None,
    labels: Sequence[tuple[str, str]] = (),
    parameters: Sequence[tuple[str, str]] = (),
    secrets: Sequence[str] = (),
    secret_parameters: Sequence[tuple[str, str]] = (),
    spark_conf: Sequence[tuple[str, str]] = (),
    checkpoint_interval_ms: int | None = None,
    retained_checkpoints: int | None = None,
    batch_interval_ms: int | None = None,
    restart_strategy: str | None = None,
    restart_options: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:
    """Returns the body of a request for a new job.

    The control plane chooses the values that are None.
    """
    checkpoints = {"interval_ms": checkpoint_interval_ms, "retained_count": retained_checkpoints}
    restart = restart_of(restart_strategy, restart_options)
    optional = {
        "max_parallelism": max_parallelism,
        "hash_id": hash_id,
        "restart": restart,
        "batch_interval_ms": batch_interval_ms,
    }
    return {
        "name": name,
        "artifact_id": artifact_id,
        "libraries": list(libraries),
        "parallelism": parallelism,
        "labels": dict(labels),
        "parameters": {**dict(parameters), **{key: {"secret": name} for key, name in secret_parameters}},
        "secrets": list(secrets),
        "spark_conf": dict(spark_conf),
        "checkpoints": {key: value for key, value in checkpoints.items() if value is not None},
        **{key: value for key, value in optional.items() if value is not None},
    }


@jobs.command(name="list")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(STATUSES, case_sensitive=False),
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
    return (not statuses or job["status"] in statuses) and set(labels) <= set(job["labels"].items())


@jobs.command()
@click.argument("job")
@click.option("--brief", is_flag=True, help="Omit the specification and the metrics of operators.")
@json_option
@pass_session
def show(session: Session, job: str, *, brief: bool) -> None:
    """Show a job: its failure, if any, its status and its specification."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(job_path(job))
    session.output.fields({field: answer[field] for field in BRIEF} if brief else answer)


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
            answer = wait_until_started(control_plane, answer["id"], timeout_s)
    session.output.table(answer, job_rows(answer), COLUMNS)


@jobs.command()
@click.argument("job")
@click.option(
    "--drain",
    is_flag=True,
    help="First process the present input and fire all event-time timers; the job ends as FINISHED.",
)
@wait_option("the job is STOPPED, or with --drain FINISHED")
@timeout_option
@json_option
@pass_session
def stop(session: Session, job: str, drain: bool, wait: bool, timeout_s: float | None) -> None:
    """Stop a job with a savepoint, for a later start."""
    with session.control_plane() as control_plane:
        answer = control_plane.post(job_path(job, "stop"), {"drain": drain})
        if wait:
            answer = wait_for(control_plane, answer, timeout_s)
            wait_until(control_plane, job, ENDED, timeout_s)
        session.output.fields(answer)


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
@wait_option("the job is STOPPED", default=False)
@timeout_option
@json_option
@pass_session
def cancel(session: Session, job: str, wait: bool, timeout_s: float | None) -> None:
    """End a job immediately, without a savepoint; its latest checkpoint stays."""
    with session.control_plane() as control_plane:
        answer = control_plane.post(job_path(job, "cancel"))
        if wait:
            answer = wait_until(control_plane, answer["id"], ENDED, timeout_s)
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
@json_option
@pass_session
def logs(
    session: Session, /, *, job: str, attempt: int | None, tail_bytes: int, follow: bool, search: str | None
) -> None:
    """Print a driver's log, and below it the job's last failure.

    The failure is shown until a later batch is committed.
    """
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
        failure = control_plane.get(job_path(job))["failure"]
    session.output.show(answer, lambda _: print_log(answer, failure))


def found_lines(control_plane: ControlPlane, job: str, search: str, query: dict[str, Any]) -> dict[str, Any]:
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


def follow_log(control_plane: ControlPlane, job: str, tail_bytes: int, query: dict[str, Any]) -> NoReturn:
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
