from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from api.cli.artifacts import upload_file
from api.cli.operations import no_wait_option, wait_for
from api.cli.paths import job_path
from api.cli.problems import InvalidArgumentError
from api.cli.session import Session, json_option, pass_session

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = (
    ("ID", "id"),
    ("NAME", "name"),
    ("STATUS", "status"),
    ("PARALLELISM", "parallelism"),
    ("MAX PARALLELISM", "max_parallelism"),
    ("RESTARTS", "restarts"),
    ("CREATED", "created_at_ms"),
)


class Pair(click.ParamType[tuple[str, str]]):
    """A `key=value` argument."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Splits at the first equals sign."""
        key, equals, text = str(value).partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not of the form key=value", param, ctx)
        return key, text


@click.group()
def jobs() -> None:
    """Create, list, show, start, stop, cancel and delete jobs. A JOB is named by its id or its name."""


@jobs.command()
@click.argument("name")
@click.option("--artifact", "artifact_id", help="Id of an uploaded artifact.")
@click.option("--file", type=click.Path(path_type=Path), help="Upload this file and use it.")
@click.option("--parallelism", "-p", type=int, default=1, show_default=True, help="Subtasks an operator.")
@click.option("--max-parallelism", type=int, help="Key groups, fixed for the job's life (default: Flink's formula).")
@click.option("--hash", "hash_id", type=click.Choice(["spark", "java"]), help="How keys are hashed (default: spark).")
@click.option("--parameter", "-P", "parameters", type=Pair(), multiple=True, help="What the script reads, key=value.")
@click.option("--spark-conf", "spark_conf", type=Pair(), multiple=True, help="A Spark setting of the job, key=value.")
@click.option("--checkpoint-interval-ms", type=int, help="Time between the starts of two checkpoints.")
@click.option("--retained-checkpoints", type=int, help="How many completed checkpoints are kept.")
@click.option(
    "--restart-strategy",
    type=click.Choice(["none", "fixed-delay", "exponential-delay", "failure-rate"]),
    help="Whether and when it is started again after a failure.",
)
@click.option(
    "--restart-option", "restart_options", type=Pair(), multiple=True, help="Of the strategy, such as attempts=3."
)
@click.option("--start", is_flag=True, help="Start it at once.")
@json_option
@pass_session
def create(
    session: Session, /, name: str, artifact_id: str | None, file: Path | None, start: bool, **options: Any
) -> None:
    """Create the job NAME from an artifact."""
    if (artifact_id is None) == (file is None):
        raise InvalidArgumentError("give either --artifact or --file")
    with session.control_plane() as control_plane:
        if file is not None:
            artifact_id = upload_file(control_plane, file)["id"]
        answer = control_plane.post("/jobs", job_request(name, str(artifact_id), **options))
        if start:
            answer = control_plane.post(job_path(answer["id"], "start"))
    session.output.table(answer, [answer], COLUMNS)


def job_request(
    name: str,
    artifact_id: str,
    *,
    parallelism: int,
    max_parallelism: int | None = None,
    hash_id: str | None = None,
    parameters: Sequence[tuple[str, str]] = (),
    spark_conf: Sequence[tuple[str, str]] = (),
    checkpoint_interval_ms: int | None = None,
    retained_checkpoints: int | None = None,
    restart_strategy: str | None = None,
    restart_options: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:
    """Builds the body of a request for a job; what is None is left to the control plane's defaults."""
    checkpoints = {"interval_ms": checkpoint_interval_ms, "retained_count": retained_checkpoints}
    if restart_options and restart_strategy is None:
        raise InvalidArgumentError("--restart-option needs --restart-strategy")
    restart = None if restart_strategy is None else {"type": restart_strategy, **dict(restart_options)}
    optional = {"max_parallelism": max_parallelism, "hash_id": hash_id, "restart": restart}
    return {
        "name": name,
        "artifact_id": artifact_id,
        "parallelism": parallelism,
        "parameters": dict(parameters),
        "spark_conf": dict(spark_conf),
        "checkpoints": {key: value for key, value in checkpoints.items() if value is not None},
        **{key: value for key, value in optional.items() if value is not None},
    }


@jobs.command(name="list")
@json_option
@pass_session
def list_jobs(session: Session) -> None:
    """List all jobs."""
    with session.control_plane() as control_plane:
        answer = control_plane.get("/jobs")
    session.output.table(answer, answer["jobs"], COLUMNS)


@jobs.command()
@click.argument("job")
@json_option
@pass_session
def show(session: Session, job: str) -> None:
    """Show a job: what was asked for, where it is, and why it failed if it did."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(job_path(job))
    session.output.fields(answer)


@jobs.command()
@click.argument("job")
@json_option
@pass_session
def start(session: Session, job: str) -> None:
    """Start a job, from its latest checkpoint or savepoint if it has one."""
    with session.control_plane() as control_plane:
        answer = control_plane.post(job_path(job, "start"))
    session.output.table(answer, [answer], COLUMNS)


@jobs.command()
@click.argument("job")
@click.option("--drain", is_flag=True, help="First process all input that is there; the job ends as FINISHED.")
@no_wait_option
@json_option
@pass_session
def stop(session: Session, job: str, drain: bool, no_wait: bool) -> None:
    """Stop a job with a savepoint, from which it can be started again."""
    with session.control_plane() as control_plane:
        accepted = control_plane.post(job_path(job, "stop"), {"drain": drain})
        session.output.fields(accepted if no_wait else wait_for(control_plane, accepted))


@jobs.command()
@click.argument("job")
@json_option
@pass_session
def cancel(session: Session, job: str) -> None:
    """End a job at once, without a savepoint; its latest checkpoint stays."""
    with session.control_plane() as control_plane:
        answer = control_plane.post(job_path(job, "cancel"))
    session.output.table(answer, [answer], COLUMNS)


@jobs.command()
@click.argument("job")
@json_option
@pass_session
def delete(session: Session, job: str) -> None:
    """Delete a job that does not run."""
    with session.control_plane() as control_plane:
        answer = control_plane.delete(job_path(job))
    session.output.say(f"deleted job {job}", answer)
