"""The routes of artifacts."""

from typing import Annotated

from fastapi import APIRouter, File, Form, Query, Response, UploadFile
from fastapi.responses import StreamingResponse

from keyscale.vocabulary import ArtifactKind

from ..access.identities import Operator, User
from ..control_plane.dependencies import ContextOf, ListingOf
from ..control_plane.guarded_route import UploadRoute
from ..shapes import NAME_PATTERN
from . import artifacts
from .schemas import ArtifactAnswer, ArtifactList, PlatformAnswer

Kinds = Annotated[list[ArtifactKind], Query(max_length=len(ArtifactKind), description="Only these kinds.")]
Name = Annotated[str | None, Query(pattern=NAME_PATTERN, description="Only the versions of this name.")]

router = APIRouter(prefix="/artifacts", tags=["artifacts"], route_class=UploadRoute)


@router.post("", status_code=201, responses={200: {"model": ArtifactAnswer}})
def upload_artifact(
    context: ContextOf,
    user: Operator,
    response: Response,
    file: Annotated[
        UploadFile, File(description="A .py, .zip, .whl or .jar file.", json_schema_extra={"format": "binary"})
    ],
    name: Annotated[
        str | None,
        Form(pattern=NAME_PATTERN, description="Default: the file's name without its ending, or a wheel's package."),
    ] = None,
) -> ArtifactAnswer:
    """Uploads a file.

    If the name exists, the file becomes its next version. Uploading the same bytes again answers 200 and the version
    with these bytes.
    """
    answer, is_new = artifacts.upload(context, user, file.file, file.filename or "", name)
    if not is_new:
        response.status_code = 200
    return answer


@router.get("")
def list_artifacts(
    context: ContextOf,
    user: User,
    listing: ListingOf,
    kind: Kinds = [],  # noqa: B006 - FastAPI copies it
    name: Name = None,
) -> ArtifactList:
    """Lists the artifacts that the user may see, the newest first."""
    return artifacts.list_all(context, user, listing, kind, name)


@router.get("/platform")
def show_platform(context: ContextOf, _: User) -> PlatformAnswer:
    """Shows the Python, packages and jars that the platform offers jobs.

    Every job has the Python and the packages; jobs can name the packages of jars.
    """
    return artifacts.show_platform(context)


@router.get("/{artifact_id}")
def show_artifact(context: ContextOf, user: User, artifact_id: str) -> ArtifactAnswer:
    """Shows an artifact."""
    return artifacts.show(context, user, artifact_id)


@router.get(
    "/{artifact_id}/content",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/octet-stream": {}}}},
)
def download_artifact(context: ContextOf, _: Operator, artifact_id: str) -> StreamingResponse:
    """Downloads the file of an artifact."""
    found = artifacts.content_of(context, artifact_id)
    headers = {"Content-Disposition": f'attachment; filename="{found.filename}"'}
    return StreamingResponse(found.chunks, media_type="application/octet-stream", headers=headers)


@router.delete("/{artifact_id}", status_code=204)
def delete_artifact(context: ContextOf, user: Operator, artifact_id: str) -> None:
    """Deletes an artifact that no job uses."""
    artifacts.delete(context, user, artifact_id)
