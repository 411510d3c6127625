"""The libraries of a job, as named and as files for drivers.

The specification names them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.db.repositories import artifacts
from keyscale.jobs.protocol.messages import LibraryFile
from keyscale.vocabulary import ArtifactKind

from ..errors import ArtifactNotFoundError, ArtifactNotRunnableError, LibraryInvalidError
from .contents import ArtifactContents
from .jar_rules import PACKAGE_PREFIX
from .library_set import Library, check_libraries
from .platform_packages import installed_platform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

    from keyscale.db.job_scope import JobScope
    from keyscale.db.models import Artifact

    from .jar_rules import JarRules


@dataclass(frozen=True, slots=True)
class JobLibraries:
    """Files that a job brings, and packages of jars that it names."""

    files: tuple[LibraryFile, ...] = ()
    packages: tuple[str, ...] = ()


NO_JOB_LIBRARIES = JobLibraries()


def libraries_of(session: Session, names: Sequence[str]) -> JobLibraries:
    """Returns the libraries that a specification names.

    Args:
        session: The transaction.
        names: Ids of artifacts, and packages as `package:NAME`.

    Raises:
        ArtifactNotFoundError: An artifact is gone.
    """
    packages = tuple(name.removeprefix(PACKAGE_PREFIX) for name in names if name.startswith(PACKAGE_PREFIX))
    files = [
        LibraryFile.model_validate({"filename": found.filename, "sha256": found.sha256, "kind": found.kind.value})
        for found in _found(session, names)
    ]
    return JobLibraries(tuple(files), packages)


def require_libraries(
    session: Session,
    artifact_id: str,
    names: Sequence[str],
    rules: JarRules,
    *,
    scope: JobScope,
    user_id: str,
) -> None:
    """Refuses a program and libraries that a job cannot run with.

    Args:
        session: The transaction.
        artifact_id: The program.
        names: Its libraries: ids of artifacts, and packages as `package:NAME`.
        rules: The jars that jobs may have.
        scope: The jobs of the requesting user.
        user_id: The requesting user.

    Raises:
        ArtifactNotFoundError: The artifact does not exist, or the user may not see it.
        ArtifactNotRunnableError: The program is not a script or a zip with a main.py.
        JarNotAllowedError: A job may not bring this jar.
        LibraryInvalidError: A library cannot be used.
        LibraryClashError: Two libraries, or a library and the platform, have the same names.
        LibraryRequirementError: A wheel needs a package that the job and the platform lack.
    """
    for known in (artifact_id, *(name for name in names if not name.startswith(PACKAGE_PREFIX))):
        if not artifacts.is_visible(session, known, scope=scope, user_id=user_id):
            raise ArtifactNotFoundError(f"no artifact has the id {known[:100]}")
    [program] = _found(session, [artifact_id])
    if program.kind not in {ArtifactKind.PYTHON, ArtifactKind.ZIP} or not _contents(program).runnable:
        raise ArtifactNotRunnableError(f"{program.filename} holds no PySpark program")
    if len(set(names)) < len(names):
        raise LibraryInvalidError("a library is named twice")
    libraries = [_library(found) for found in _found(session, names)]
    rules.require_allowed(libraries)
    rules.jars_of(name.removeprefix(PACKAGE_PREFIX) for name in names if name.startswith(PACKAGE_PREFIX))
    check_libraries(_library(program), libraries, installed_platform())


def _found(session: Session, names: Sequence[str]) -> list[Artifact]:
    ids = [name for name in names if not name.startswith(PACKAGE_PREFIX)]
    known = artifacts.find_all(session, ids)
    if gone := [name for name in ids if name not in known]:
        raise ArtifactNotFoundError(f"no artifact has the id {gone[0][:100]}")
    return [known[name] for name in ids]


def _library(artifact: Artifact) -> Library:
    return Library(artifact.filename, artifact.kind, artifact.sha256, _contents(artifact))


def _contents(artifact: Artifact) -> ArtifactContents:
    return ArtifactContents() if artifact.contents is None else ArtifactContents.model_validate(artifact.contents)
