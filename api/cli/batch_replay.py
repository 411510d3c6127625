"""The command that runs a batch again under a debugger.

The replay needs Spark and the job's program, so this process becomes that of `keyscale.replay.replay_process`.
"""
# ruff: noqa: PLC0415 (the reading of state takes half a second to import)

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keyscale.client.request_paths import artifact_path, job_path
from keyscale.installation import IMPORT_PATH

from .errors import InvalidArgumentError
from .replay_directory import new_directory, remove_abandoned
from .session import Session, json_option, pass_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.client.keyscale import Keyscale

MODULE = "keyscale.replay.replay_process"
_MASK = "*****"
_PACKAGE = "package:"


@click.command()
@click.argument("source", metavar="JOB|LOCATION")
@click.option(
    "--batch", "batch_id", type=click.IntRange(min=0), help="The batch (default: the batch after the last commit)."
)
@click.option("--key", help="Run only the records of this key; with several columns, a JSON list.")
@click.option("--operator", help="The operator of the key (default: the only operator).")
@click.option(
    "--program",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Run this program, a .py or .zip file (default: the program that has committed the batch).",
)
@click.option(
    "--parameter", "parameters", multiple=True, metavar="NAME=VALUE", help="A parameter in place of the job's own."
)
@click.option(
    "--break",
    "breakpoints",
    multiple=True,
    metavar="LINE|FUNCTION",
    help="Stop at a line of the program, or in a function, such as Count.process_element.",
)
@click.option("--pdb", "post_mortem", is_flag=True, help="Open a debugger where the batch fails.")
@click.option(
    "--rows", "rows_max", type=click.IntRange(min=0), default=20, show_default=True, help="Rows of each kind to show."
)
@json_option
@pass_session
def replay(
    session: Session,
    /,
    *,
    source: str,
    batch_id: int | None,
    program: Path | None,
    parameters: Sequence[str],
    **options: Any,
) -> None:
    """Run a batch again in this terminal, under a debugger, without effects.

    The batch runs on the state before it and on its own records, in this process, where `breakpoint()` works. Nothing
    is written to the object store or to a sink. The result is compared with what the batch has committed; the exit code
    is 4 if it differs, and 1 if the batch fails. This process needs its own access to the object store and the sources,
    and the secrets of the job as variables KEYSCALE_JOB_SECRET_<NAME>.

    With the LOCATION of one of the job's checkpoints or savepoints, no control plane is needed.
    """
    if program is not None and not program.is_file():
        raise InvalidArgumentError(f"{program} cannot be read: it is not a file")
    remove_abandoned()
    directory = new_directory()
    try:
        given = _parameters(parameters)
        request = {
            **_job(session, source, batch_id, directory, given),
            **options,
            "batch_id": batch_id,
            "program": None if program is None else str(program.absolute()),
            "parameters": given,
            "as_json": session.as_json,
        }
        file = directory / "request.json"
        file.write_text(json.dumps(request))
        become(file)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def become(request: Path) -> None:
    """Replaces this process by the replay, which removes the request's directory."""
    path = os.pathsep.join(filter(None, (str(IMPORT_PATH), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    os.execve(sys.executable, [sys.executable, "-m", MODULE, str(request)], environment)  # noqa: S606 - no shell is needed


def _parameters(given: Sequence[str]) -> dict[str, str]:
    parameters = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise InvalidArgumentError(f"--parameter is NAME=VALUE, not {each!r}")
        parameters[name] = value
    return parameters


def _job(session: Session, source: str, batch_id: int | None, directory: Path, given: dict[str, str]) -> dict[str, Any]:
    """Returns the job of a request, with its program and parameters."""
    from keyscale.state_io.recorded_attempt import job_at, recorded_attempt

    if "://" in source:
        store_url, job_id = job_at(source)
        return {"store_url": store_url, "job_id": job_id}
    with session.control_plane() as control_plane:
        job = control_plane.get(job_path(source))
        store_url, job_id = job["status"]["store_url"], job["id"]
        number = recorded_attempt(store_url, job_id, batch_id)
        attempts = control_plane.get_list(job_path(job_id, "attempts"), "attempts")["attempts"]
        revision = next((each["revision"] for each in attempts if each["number"] == number), None)
        if revision is None:
            raise InvalidArgumentError(f"the control plane does not know attempt {number}, which ran the batch")
        return {
            "store_url": store_url,
            "job_id": job_id,
            "definition": _definition(control_plane, job_id, revision, directory, given),
        }


def _definition(
    control_plane: Keyscale, job_id: str, revision: int, directory: Path, given: dict[str, str]
) -> dict[str, Any]:
    """Downloads the program and the libraries of a revision."""
    spec = control_plane.get(job_path(job_id, "revisions", str(revision)))["spec"]
    masked = [name for name, value in spec["parameters"].items() if _MASK in str(value) and name not in given]
    if masked:
        raise InvalidArgumentError(f"the control plane masks the parameter {masked[0]}: give it with --parameter")
    for name in spec["libraries"]:
        if name.startswith(_PACKAGE):
            click.echo(f"left out: the jars of {name}, which only the control plane has", err=True)
    files = [
        _downloaded(control_plane, artifact, directory)
        for artifact in (spec["artifact_id"], *spec["libraries"])
        if not artifact.startswith(_PACKAGE)
    ]
    return {
        "file": files[0],
        "libraries": files[1:],
        "parameters": spec["parameters"],
        "spark_conf": spec["spark_conf"],
        "revision": revision,
    }


def _downloaded(control_plane: Keyscale, artifact_id: str, directory: Path) -> str:
    place = directory / "artifacts" / artifact_id
    place.mkdir(parents=True)
    file = place / Path(control_plane.get(artifact_path(artifact_id))["filename"]).name
    file.write_bytes(control_plane.artifacts.content(artifact_id))
    return str(file)
