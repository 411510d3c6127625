"""Artifacts: upload, list, show and delete the programs that jobs run.

An uploaded file is what its bytes say; a file whose name says otherwise is refused.
"""

from __future__ import annotations

import ast
import hashlib
import re
import uuid
import zipfile
from pathlib import PurePath, PurePosixPath
from typing import IO, TYPE_CHECKING

from keyscale.api.errors import (
    ArtifactInUseError,
    ArtifactInvalidError,
    ArtifactNotFoundError,
    BodyTooLargeError,
    RequestInvalidError,
)
from keyscale.api.schemas.artifact import ArtifactAnswer, ArtifactList
from keyscale.api.schemas.base import NAME_PATTERN
from keyscale.clock import now_ms
from keyscale.db.models import Artifact
from keyscale.db.repositories import artifacts, events
from keyscale.db.statuses import ArtifactKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.api.access.identities import Principal
    from keyscale.api.services.context import Context

CHUNK_BYTES = 1 << 20
FILENAME_ENDINGS = {ArtifactKind.PYTHON: ".py", ArtifactKind.ZIP: ".zip", ArtifactKind.JAR: ".jar"}
ENTRY_POINTS = ("main.py", "__main__.py")  # the driver runs the first one that is in the zip

_SCRIPT_BYTES_MAX = 4 << 20
_ZIP_ENTRIES_MAX = 20_000
_ZIP_UNPACKED_BYTES_MAX = 2 << 30
_ZIP_MAGIC = b"PK"


def upload(
    context: Context, user: Principal, content: IO[bytes], filename: str, name: str | None
) -> tuple[ArtifactAnswer, bool]:
    """Stores a file as the next version of its name.

    Args:
        context: The control plane.
        user: The user who uploads it.
        content: The file, seekable.
        filename: The client's name for it; never used as a path.
        name: The artifact's name; None: the file's name without its ending.

    Returns:
        The artifact, and whether it is new: if the latest version has the same bytes, that version is returned.

    Raises:
        ArtifactInvalidError: It is not a valid Python file, zip or jar.
        BodyTooLargeError: It is larger than the settings allow.
    """
    plain = PurePath(filename.replace("\\", "/")).name
    chosen = name or PurePath(plain).stem
    if not re.fullmatch(NAME_PATTERN, chosen):
        raise RequestInvalidError("name: letters, digits, dots, - and _, at most 100, the first one a letter or digit")
    sha256, size_bytes = _measure(content, context.settings.artifact_bytes_max)
    kind = inspect_artifact(content, plain)
    with context.sessions.begin() as session:
        artifacts.lock_writers(session)
        if (existing := artifacts.find_version(session, chosen, sha256)) is not None:
            return ArtifactAnswer.model_validate(existing), False
        artifact = Artifact(
            id=uuid.uuid4().hex,
            name=chosen,
            version=artifacts.next_version(session, chosen),
            filename=f"{chosen.removesuffix(FILENAME_ENDINGS[kind])}{FILENAME_ENDINGS[kind]}",
            kind=kind,
            sha256=sha256,
            size_bytes=size_bytes,
            created_at_ms=now_ms(),
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
    return ArtifactAnswer.model_validate(artifact), True


def list_all(context: Context) -> ArtifactList:
    """Lists all artifacts."""
    with context.sessions() as session:
        found = artifacts.list_all(session)
    return ArtifactList(artifacts=[ArtifactAnswer.model_validate(artifact) for artifact in found])


def show(context: Context, artifact_id: str) -> ArtifactAnswer:
    """Shows an artifact.

    Raises:
        ArtifactNotFoundError: There is no artifact with this id.
    """
    with context.sessions() as session:
        found = artifacts.find(session, artifact_id)
    if found is None:
        raise ArtifactNotFoundError("no artifact has this id")
    return ArtifactAnswer.model_validate(found)


def delete(context: Context, user: Principal, artifact_id: str) -> None:
    """Deletes an artifact.

    Raises:
        ArtifactNotFoundError: There is no artifact with this id.
        ArtifactInUseError: A job uses it.
    """
    with context.sessions.begin() as session:
        artifacts.lock_writers(session)
        found = artifacts.find(session, artifact_id)
        if found is None:
            raise ArtifactNotFoundError("no artifact has this id")
        if artifacts.is_used(session, artifact_id):
            raise ArtifactInUseError(f"a job uses {found.name} version {found.version}")
        artifacts.remove(session, found)
        events.record(
            session,
            job_id=None,
            at_ms=now_ms(),
            kind="ARTIFACT_DELETED",
            actor=user.name,
            message=f"deleted {found.name} version {found.version}",
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


def inspect_artifact(content: IO[bytes], filename: str) -> ArtifactKind:
    """Returns the kind of an uploaded file.

    Args:
        content: The file, seekable.
        filename: The client's name for it; its ending must match its bytes.

    Raises:
        ArtifactInvalidError: It is not a valid Python file, zip or jar.
    """
    ending = PurePosixPath(filename).suffix.lower()
    if ending not in FILENAME_ENDINGS.values():
        raise ArtifactInvalidError("the file's name does not end in .py, .zip or .jar")
    content.seek(0)
    kind = _zip_kind(content) if content.read(2) == _ZIP_MAGIC else _python_kind(content)
    if ending != FILENAME_ENDINGS[kind]:
        raise ArtifactInvalidError(f"the file is named {ending} but is a {FILENAME_ENDINGS[kind]}")
    if kind is ArtifactKind.ZIP:
        _check_entry_point(content)
    return kind


def _python_kind(content: IO[bytes]) -> ArtifactKind:
    content.seek(0)
    source = content.read(_SCRIPT_BYTES_MAX + 1)
    if len(source) > _SCRIPT_BYTES_MAX:
        raise ArtifactInvalidError("the file is not a zip or jar, and too large for a Python file")
    if not source.strip():
        raise ArtifactInvalidError("the file is empty")
    try:
        # Parsed, never run; syntax warnings in user code are not our concern.
        compile(source, "<artifact>", "exec", flags=ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        raise ArtifactInvalidError(f"Python cannot parse line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError, UnicodeError):
        raise ArtifactInvalidError("the file is not a zip or jar, and Python cannot parse it") from None
    return ArtifactKind.PYTHON


def _zip_kind(content: IO[bytes]) -> ArtifactKind:
    content.seek(0)
    try:
        with zipfile.ZipFile(content) as archive:
            entries = archive.infolist()
            _check_entries(entries)
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, OSError, EOFError, ValueError):
        raise ArtifactInvalidError("the zip cannot be read") from None
    if damaged is not None:
        raise ArtifactInvalidError("an entry of the zip is damaged")
    is_jar = any(entry.filename.upper() == "META-INF/MANIFEST.MF" for entry in entries)
    return ArtifactKind.JAR if is_jar else ArtifactKind.ZIP


def _check_entries(entries: list[zipfile.ZipInfo]) -> None:
    if len(entries) > _ZIP_ENTRIES_MAX:
        raise ArtifactInvalidError(f"the zip has more than {_ZIP_ENTRIES_MAX} entries")
    if sum(entry.file_size for entry in entries) > _ZIP_UNPACKED_BYTES_MAX:
        raise ArtifactInvalidError(f"the zip unpacks to more than {_ZIP_UNPACKED_BYTES_MAX} bytes")
    for entry in entries:
        name = entry.filename.replace("\\", "/")
        is_link = (entry.external_attr >> 28) == 0xA  # the high bits are the Unix mode; 0xA is a symbolic link
        if name.startswith("/") or ".." in name.split("/") or ":" in name.split("/")[0] or is_link:
            raise ArtifactInvalidError("an entry of the zip points outside of it")


def _check_entry_point(content: IO[bytes]) -> None:
    content.seek(0)
    with zipfile.ZipFile(content) as archive:
        entry = next((name for name in ENTRY_POINTS if name in archive.namelist()), None)
        if entry is None:
            raise ArtifactInvalidError(f"the zip has none of {' and '.join(ENTRY_POINTS)} at its root")
        with archive.open(entry) as script:
            try:
                compile(script.read(_SCRIPT_BYTES_MAX), entry, "exec", flags=ast.PyCF_ONLY_AST, dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                raise ArtifactInvalidError(f"Python cannot parse the zip's {entry}") from None
