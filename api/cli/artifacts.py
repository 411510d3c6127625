"""The commands on artifacts: upload, list and delete them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keyscale.api.cli.client import artifact_path
from keyscale.api.cli.errors import InvalidArgumentError
from keyscale.api.cli.session import Session, json_option, pass_session

if TYPE_CHECKING:
    from keyscale.api.cli.client import ControlPlane

COLUMNS = (
    ("ID", "id"),
    ("FILE", "filename"),
    ("VERSION", "version"),
    ("KIND", "kind"),
    ("SIZE", "size_bytes"),
    ("CREATED", "created_at_ms"),
)


def upload_file(control_plane: ControlPlane, path: Path) -> dict[str, Any]:
    """Uploads a local file as an artifact."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error.strerror}") from error
    answer: dict[str, Any] = control_plane.upload("/artifacts", filename=path.name, content=content)
    return answer


@click.group()
def artifacts() -> None:
    """Upload, list and delete artifacts: the programs that jobs run."""


@artifacts.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@pass_session
def upload(session: Session, file: Path) -> None:
    """Upload FILE: a Python script, a zip with a __main__.py, or a jar."""
    with session.control_plane() as control_plane:
        answer = upload_file(control_plane, file)
    session.output.table(answer, [answer], COLUMNS)


@artifacts.command(name="list")
@json_option
@pass_session
def list_artifacts(session: Session) -> None:
    """List all artifacts."""
    with session.control_plane() as control_plane:
        answer = control_plane.get_list("/artifacts", "artifacts")
    session.output.table(answer, answer["artifacts"], COLUMNS)


@artifacts.command()
@click.argument("artifact_id")
@json_option
@pass_session
def delete(session: Session, artifact_id: str) -> None:
    """Delete an artifact that no job uses."""
    with session.control_plane() as control_plane:
        answer = control_plane.delete(artifact_path(artifact_id))
    session.output.say(f"deleted artifact {artifact_id}", answer)
