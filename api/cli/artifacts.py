"""The commands on artifacts: upload, list and delete them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keyscale.client.request_paths import artifact_path
from keyscale.vocabulary import ArtifactKind

from .errors import InvalidArgumentError
from .requirements import downloaded_wheels
from .session import Session, json_option, pass_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.client.keyscale import Keyscale

COLUMNS = (
    ("ID", "id"),
    ("FILE", "filename"),
    ("VERSION", "version"),
    ("KIND", "kind"),
    ("SIZE", "size_bytes"),
    ("CREATED", "created_at_ms"),
)
PLATFORM_COLUMNS = (("NAME", "name"), ("VERSION", "version"))
_PACKAGE_PREFIX = "package:"
_NAMED = re.compile(rf"[0-9a-f]{{32}}|{_PACKAGE_PREFIX}.*")


def upload_file(control_plane: Keyscale, path: Path) -> dict[str, Any]:
    """Uploads a local file as an artifact."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error.strerror}") from error
    answer: dict[str, Any] = control_plane.upload("/v1/artifacts", filename=path.name, content=content)
    return answer


def upload_requirements(control_plane: Keyscale, path: Path) -> list[dict[str, Any]]:
    """Uploads the wheels that requirements need and the platform lacks."""
    if not path.is_file():
        raise InvalidArgumentError(f"{path} cannot be read: it is not a file")
    with downloaded_wheels(path, control_plane.get("/v1/artifacts/platform")) as wheels:
        return [upload_file(control_plane, wheel) for wheel in wheels]


def upload_libraries(control_plane: Keyscale, libraries: Sequence[str], requirements: Path | None) -> list[str]:
    """Returns the names of libraries in a specification; uploads files first.

    Args:
        control_plane: Where to upload.
        libraries: Ids of artifacts, packages of jars as `package:NAME`, and files.
        requirements: A file of requirements; its wheels are also libraries.
    """
    wheels = [] if requirements is None else upload_requirements(control_plane, requirements)
    named = [
        library if _NAMED.fullmatch(library) else str(upload_file(control_plane, Path(library))["id"])
        for library in libraries
    ]
    return list(dict.fromkeys([*named, *(str(wheel["id"]) for wheel in wheels)]))


@click.group()
def artifacts() -> None:
    """Upload, list and delete artifacts.

    Artifacts are the programs that jobs run, and the libraries that they bring.
    """


@artifacts.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--requirements",
    type=click.Path(path_type=Path),
    help="Upload the wheels of a pip requirements file, with all that they need and the platform lacks.",
)
@json_option
@pass_session
def upload(session: Session, file: Path | None, requirements: Path | None) -> None:
    """Upload FILE: a Python script, zip, wheel or jar.

    A zip has a main.py or modules.
    """
    with session.control_plane() as control_plane:
        if file is not None and requirements is None:
            answer = upload_file(control_plane, file)
            session.output.table(answer, [answer], COLUMNS)
        elif requirements is not None and file is None:
            uploaded = upload_requirements(control_plane, requirements)
            session.output.table({"artifacts": uploaded}, uploaded, COLUMNS)
        else:
            raise InvalidArgumentError("give either a file or --requirements")


@artifacts.command()
@json_option
@pass_session
def platform(session: Session) -> None:
    """Show the Python, packages and jars that jobs can use.

    Every job has the Python and the packages; a job can name the packages of jars.
    """
    with session.control_plane() as control_plane:
        answer = control_plane.get("/v1/artifacts/platform")
    rows = [{"name": name, "version": version} for name, version in answer["packages"].items()]
    rows += [{"name": f"{_PACKAGE_PREFIX}{name}", "version": None} for name in answer["jar_packages"]]
    session.output.table(answer, [{"name": "python", "version": answer["python_version"]}, *rows], PLATFORM_COLUMNS)


@artifacts.command(name="list")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(list(ArtifactKind), case_sensitive=False),
    help="Only this kind.",
)
@click.option("--name", help="Only the versions of this name.")
@json_option
@pass_session
def list_artifacts(session: Session, kinds: Sequence[str], name: str | None) -> None:
    """List the artifacts, the newest first."""
    with session.control_plane() as control_plane:
        answer = control_plane.get_list("/v1/artifacts", "artifacts", kind=kinds, name=name)
    session.output.table(answer, answer["artifacts"], COLUMNS)


@artifacts.command()
@click.argument("artifact_id")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file (default: the artifact's file name, in this directory).",
)
@json_option
@pass_session
def download(session: Session, artifact_id: str, output: Path | None) -> None:
    """Write the file of an artifact."""
    with session.control_plane() as control_plane:
        file = output or Path(control_plane.artifacts.get(artifact_id).filename)
        content = control_plane.artifacts.content(artifact_id)
    try:
        file.write_bytes(content)
    except OSError as error:
        raise InvalidArgumentError(f"{file} cannot be written: {error.strerror}") from error
    session.output.say(f"wrote {file}", {"file": str(file), "size_bytes": len(content)})


@artifacts.command()
@click.argument("artifact_id")
@json_option
@pass_session
def delete(session: Session, artifact_id: str) -> None:
    """Delete an artifact that no job uses."""
    with session.control_plane() as control_plane:
        answer = control_plane.delete(artifact_path(artifact_id))
    session.output.say(f"deleted artifact {artifact_id}", answer)
