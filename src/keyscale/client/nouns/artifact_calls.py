"""Artifacts: uploaded programs and libraries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from keyscale.api.artifacts.schemas import (
    ArtifactAnswer,
    ArtifactList,
    PlatformAnswer,
    ProgramCheckAnswer,
    ProgramCheckRequest,
)

from ..call import PLAN_TIMEOUT_S, Call, Pages
from ..method import ListMethod, Method, Noun, S, action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.vocabulary import ArtifactKind

ARTIFACTS = "/v1/artifacts"


class Artifacts(Noun[S]):
    """Uploaded programs and libraries."""

    @Method
    def upload(self, file: str | Path, name: str | None = None) -> Call[ArtifactAnswer]:
        """Uploads a .py, .zip, .whl or .jar file.

        The same bytes again are the same version, so that an upload can be repeated.
        """
        path = Path(file)
        return upload(path.name, path.read_bytes(), name)

    @Method
    def upload_content(self, filename: str, content: bytes, name: str | None = None) -> Call[ArtifactAnswer]:
        """Uploads bytes under a file's name."""
        return upload(filename, content, name)

    @ListMethod
    def list(
        self, *, kind: Sequence[ArtifactKind] | None = None, name: str | None = None, limit: int | None = None
    ) -> Pages[ArtifactAnswer]:
        """Lists the artifacts that the user may see, the newest first."""
        query = {"kind": kind, "name": name, "limit": limit}
        return Pages(Call("GET", ARTIFACTS, ArtifactList, query=query), "artifacts")

    @Method
    def get(self, artifact_id: str) -> Call[ArtifactAnswer]:
        """Shows an artifact."""
        return Call("GET", f"{ARTIFACTS}/{{artifact_id}}", ArtifactAnswer, {"artifact_id": artifact_id})

    @Method
    def content(self, artifact_id: str) -> Call[bytes]:
        """Downloads the file of an artifact."""
        return Call("GET", f"{ARTIFACTS}/{{artifact_id}}/content", bytes, {"artifact_id": artifact_id})

    check = action(
        f"{ARTIFACTS}/{{artifact_id}}/check", ProgramCheckRequest, ProgramCheckAnswer, timeout_s=PLAN_TIMEOUT_S
    )

    @Method
    def delete(self, artifact_id: str) -> Call[None]:
        """Deletes an artifact that no job uses."""
        return Call("DELETE", f"{ARTIFACTS}/{{artifact_id}}", None, {"artifact_id": artifact_id})

    @Method
    def platform(self) -> Call[PlatformAnswer]:
        """Shows the Python, packages and jars that the platform offers jobs."""
        return Call("GET", f"{ARTIFACTS}/platform", PlatformAnswer)


def upload(filename: str, content: bytes, name: str | None) -> Call[ArtifactAnswer]:
    """Returns the call that uploads a file."""
    form = {} if name is None else {"name": name}
    return Call("POST", ARTIFACTS, ArtifactAnswer, form=form, file=(filename, content), is_repeatable=True)
