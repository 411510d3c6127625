"""Artifacts: upload, list, show and delete the programs that jobs run.

The bytes of an uploaded file determine its type; a file with a contradicting name is refused.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass
from pathlib import PurePath
from typing import IO, TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.db.models import Artifact
from keyscale.db.repositories import artifacts, events

from ..control_plane.cursors import write_cursor
from ..errors import ArtifactInUseError, ArtifactNotFoundError, BodyTooLargeError, RequestInvalidError
from ..jobs.program_loads import stored_bytes
from ..libraries.artifact_inspection import inspect_artifact
from ..libraries.artifact_inspector import ENDINGS
from ..libraries.library_set import Library, check_wheel
from ..libraries.platform_packages import installed_platform
from ..shapes import NAME_PATTERN
from .schemas import ArtifactAnswer, ArtifactList, PlatformAnswer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from sqlalchemy.orm import Session

    from keyscale.vocabulary import ArtifactKind

    from ..access.principal import Principal
    from ..control_plane.context import Context
    from ..control_plane.cursors import Listing

CHUNK_BYTES = 1 << 20


def upload(
    context: Context, user: Principal, content: IO[bytes], filename: str, name: str | None
) -> tuple[ArtifactAnswer, bool]:
    """Stores a file as the next version of its name.

    Args:
        context: The control plane.
        user: The user who uploads it.
        content: The file, seekable.
        filename: The client's name for it; never used as a path.
        name: The artifact's name; None: the file's name without its ending, or a wheel's name without its version.

    Returns:
        The artifact, and whether it is new: if the latest version has the same bytes, that version is returned.

    Raises:
        ArtifactInvalidError: It is not a valid Python file, zip, wheel or jar, or a wheel for another platform.
        LibraryClashError: It is a wheel of a package that the platform itself runs on.
        BodyTooLargeError: It is larger than the settings allow.
    """
    plain = PurePath(filename.replace("\\", "/")).name
    is_wheel = plain.lower().endswith(ENDINGS["WHEEL"])
    chosen = name or (plain.partition("-")[0] if is_wheel else PurePath(plain).stem)
    if not re.fullmatch(NAME_PATTERN, chosen):
        raise RequestInvalidError("name: letters, digits, dots, - and _, at most 100, the first one a letter or digit")
    sha256, size_bytes = _measure(content, context.settings.artifact_bytes_max)
    with context.inspections:
        kind, contents = inspect_artifact(content, plain)
    if is_wheel:  # its file's name contains its purpose, and stays
        check_wheel(Library(plain, kind, sha256, contents), installed_platform())
    with context.sessions.begin() as session:
        artifacts.lock_writers(session)
        if (existing := artifacts.find_version(session, chosen, sha256)) is not None and artifacts.is_visible(
            session, existing.id, scope=user.scope, user_id=user.id
        ):
            return _answers(session, user, [existing])[0], False
        artifact = Artifact(
            id=uuid.uuid4().hex,
            name=chosen,
            version=artifacts.next_version(session, chosen),
            filename=plain if is_wheel else f"{chosen.removesuffix(ENDINGS[kind])}{ENDINGS[kind]}",
            kind=kind,
            sha256=sha256,
            size_bytes=size_bytes,
            created_at_ms=now_ms(),
            uploaded_by=user.id,
            contents=contents.model_dump(),
        )
        if not artifacts.has_bytes(session, sha256):
            artifacts.add_bytes(session, sha256, _chunks(content))
        session.add(artifact)
        events.record(
            session,
            job_id=None,
            at_ms=artifact.created_at_ms,
            kind="ARTIFACT_UPLOADED",
            actor=user.name,
            message=f"uploaded {chosen} version {artifact.version}",
            artifact_id=artifact.id,
            sha256=sha256,
        )
        session.flush()
        answer = _answers(session, user, [artifact])[0]
    return answer, True


def list_all(
    context: Context, user: Principal, listing: Listing, kinds: Collection[ArtifactKind], name: str | None
) -> ArtifactList:
    """Lists the artifacts that a user may see.

    Without kinds or a name, every kind or name is in the list.
    """
    with context.reads() as session:
        page = listing.page(int, str)
        found = artifacts.list_page(session, page, scope=user.scope, user_id=user.id, kinds=kinds, name=name)
        shown = _answers(session, user, found.rows)
    return ArtifactList(artifacts=shown, next=write_cursor(found.next))


def show_platform(context: Context) -> PlatformAnswer:
    """Shows the Python, the system and the packages that every job has."""
    platform = installed_platform()
    return PlatformAnswer(
        python_version=platform.python_version,
        platforms=list(platform.platforms),
        packages={name: package.version for name, package in sorted(platform.packages.items())},
        jar_packages=list(context.settings.jar_rules.packages()),
    )


def show(context: Context, user: Principal, artifact_id: str) -> ArtifactAnswer:
    """Shows an artifact.

    Raises:
        ArtifactNotFoundError: No artifact has this id.
    """
    with context.reads() as session:
        found = require_artifact(session, artifact_id)
        return _answers(session, user, [found])[0]


@dataclass(frozen=True, slots=True)
class Content:
    """The file of an artifact.

    Attributes:
        filename: Its name.
        chunks: Its bytes.
    """

    filename: str
    chunks: Iterator[bytes]


def content_of(context: Context, artifact_id: str) -> Content:
    """Returns the file of an artifact.

    Raises:
        ArtifactNotFoundError: No artifact has this id.
    """
    with context.reads() as session:
        found = require_artifact(session, artifact_id)
        return Content(found.filename, stored_bytes(context, found.sha256))


def require_artifact(session: Session, artifact_id: str) -> Artifact:
    """Returns the artifact with an id.

    Raises:
        ArtifactNotFoundError: No artifact has this id.
    """
    found = artifacts.find(session, artifact_id)
    if found is None:
        raise ArtifactNotFoundError("no artifact has this id")
    return found


def _answers(session: Session, user: Principal, shown: Sequence[Artifact]) -> list[ArtifactAnswer]:
    actors = events.uploaders(session, [each.created_at_ms for each in shown])
    jobs = artifacts.jobs_using(session, [each.id for each in shown], user.scope) if shown else {}
    return [
        ArtifactAnswer(
            id=each.id,
            name=each.name,
            version=each.version,
            filename=each.filename,
            kind=each.kind,
            sha256=each.sha256,
            size_bytes=each.size_bytes,
            created_at_ms=each.created_at_ms,
            uploaded_by=actors.get(each.id),
            used_by=jobs[each.id],
        )
        for each in shown
    ]


def delete(context: Context, user: Principal, artifact_id: str) -> None:
    """Deletes an artifact.

    Raises:
        ArtifactNotFoundError: No artifact has this id.
        ArtifactInUseError: A revision of a job uses it.
    """
    with context.sessions.begin() as session:
        artifacts.lock_writers(session)
        found = require_artifact(session, artifact_id)
        shown = f"{found.name} version {found.version}"
        if (use := artifacts.first_use(session, artifact_id, user.scope)) is not None:
            job, revision = use
            raise ArtifactInUseError(f"revision {revision} of job {job} uses {shown}")
        if artifacts.first_use(session, artifact_id) is not None:
            raise ArtifactInUseError(f"a job that you may not see uses {shown}")
        artifacts.remove(session, found)
        events.record(
            session,
            job_id=None,
            at_ms=now_ms(),
            kind="ARTIFACT_DELETED",
            actor=user.name,
            message=f"deleted {shown}",
            artifact_id=artifact_id,
        )


def _measure(content: IO[bytes], bytes_max: int) -> tuple[str, int]:
    digest, size_bytes = hashlib.sha256(), 0
    for chunk in _chunks(content):
        digest.update(chunk)
        size_bytes += len(chunk)
        if size_bytes > bytes_max:
            raise BodyTooLargeError(f"an artifact has at most {bytes_max} bytes")
    return digest.hexdigest(), size_bytes


def _chunks(content: IO[bytes]) -> Iterator[bytes]:
    content.seek(0)
    while chunk := content.read(CHUNK_BYTES):
        yield chunk
