"""Queries on artifacts and their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, delete, func, or_, select, text, true
from sqlalchemy.dialects.postgresql import array, insert

from ..job_scope import EVERYTHING, JobScope
from ..models import Artifact, ArtifactChunk, Job, Revision
from .pages import Page, PageRequest, read_page

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from sqlalchemy.orm import Session

    from keyscale.vocabulary import ArtifactKind

_WRITERS_LOCK = 0x61727466


def lock_writers(session: Session) -> None:
    """Keeps other transactions from adding and deleting artifacts.

    Meanwhile this transaction counts versions or deletes bytes.
    """
    session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _WRITERS_LOCK})


def list_page(
    session: Session,
    page: PageRequest,
    *,
    scope: JobScope = EVERYTHING,
    user_id: str = "",
    kinds: Collection[ArtifactKind] = (),
    name: str | None = None,
) -> Page[Artifact]:
    """Returns the artifacts that a user may see, the newest first.

    Without kinds or a name, every kind or name is in the list.
    """
    wanted = select(Artifact).where(_visible(scope, user_id))
    if kinds:
        wanted = wanted.where(Artifact.kind.in_(kinds))
    if name is not None:
        wanted = wanted.where(Artifact.name == name)
    return read_page(session, wanted, (Artifact.created_at_ms, Artifact.id), page)


def find_all(session: Session, artifact_ids: Collection[str]) -> dict[str, Artifact]:
    """Returns artifacts by their ids."""
    found = session.scalars(select(Artifact).where(Artifact.id.in_(artifact_ids)))
    return {artifact.id: artifact for artifact in found}


def find(session: Session, artifact_id: str) -> Artifact | None:
    """Returns the artifact with this id."""
    return session.get(Artifact, artifact_id)


def is_visible(session: Session, artifact_id: str, *, scope: JobScope, user_id: str) -> bool:
    """Returns whether an artifact exists and a user may see it."""
    found = find(session, artifact_id)
    if found is None or scope.is_everything or found.uploaded_by == user_id:
        return found is not None
    return first_use(session, artifact_id, scope) is not None


def find_version(session: Session, name: str, sha256: str) -> Artifact | None:
    """Returns the latest version of a name, if it has these bytes."""
    latest = session.scalars(
        select(Artifact).where(Artifact.name == name).order_by(Artifact.version.desc()).limit(1)
    ).first()
    return latest if latest is not None and latest.sha256 == sha256 else None


def has_version(session: Session, name: str, version: int) -> bool:
    """Returns whether a name has a version."""
    found = select(Artifact.id).where(Artifact.name == name, Artifact.version == version)
    return session.scalar(found) is not None


def next_version(session: Session, name: str) -> int:
    """Returns the next version of a name; call `lock_writers` first."""
    return (session.scalar(select(func.max(Artifact.version)).where(Artifact.name == name)) or 0) + 1


def has_bytes(session: Session, sha256: str) -> bool:
    """Returns whether bytes with this hash are stored."""
    return session.scalar(select(ArtifactChunk.position).where(ArtifactChunk.sha256 == sha256).limit(1)) is not None


def add_bytes(session: Session, sha256: str, chunks: Iterable[bytes]) -> None:
    """Stores bytes under their hash, one chunk in memory at a time."""
    for position, data in enumerate(chunks):
        statement = insert(ArtifactChunk).values(sha256=sha256, position=position, data=data)
        session.execute(statement.on_conflict_do_nothing())


def read_bytes(session: Session, sha256: str) -> Iterator[bytes]:
    """Yields the bytes in order, one chunk in memory at a time."""
    count = session.scalar(select(func.count()).where(ArtifactChunk.sha256 == sha256)) or 0
    for position in range(count):
        yield session.scalars(
            select(ArtifactChunk.data).where(ArtifactChunk.sha256 == sha256, ArtifactChunk.position == position)
        ).one()


def keep(session: Session, artifact_ids: Collection[str]) -> None:
    """Keeps other transactions from deleting artifacts until this one ends."""
    session.execute(select(Artifact.id).where(Artifact.id.in_(artifact_ids)).with_for_update(read=True, key_share=True))


def first_use(session: Session, artifact_id: str, scope: JobScope = EVERYTHING) -> tuple[str, int] | None:
    """Returns a job's name and revision number that use an artifact.

    The job is in the scope; None if the artifact is unused.
    """
    used = or_(Revision.artifact_id == artifact_id, Revision.libraries.contains([artifact_id]))
    statement = (
        select(Job.name, Revision.number).join(Revision, Revision.job_id == Job.id).where(used, scope.criterion())
    )
    found = session.execute(statement.order_by(Job.name, Revision.number.desc()).limit(1)).first()
    return None if found is None else (found[0], found[1])


def jobs_using(session: Session, artifact_ids: Collection[str], scope: JobScope = EVERYTHING) -> dict[str, list[str]]:
    """Returns the names of a scope's jobs that use artifacts, by artifact."""
    in_revisions = select(Job.name, Revision.artifact_id, Revision.libraries).join(Revision, Revision.job_id == Job.id)
    used = or_(Revision.artifact_id.in_(artifact_ids), Revision.libraries.has_any(array(sorted(artifact_ids))))
    found: dict[str, set[str]] = {artifact_id: set() for artifact_id in artifact_ids}
    for name, program, libraries in session.execute(in_revisions.where(used, scope.criterion()).distinct()):
        for artifact_id in {program, *libraries} & found.keys():
            found[artifact_id].add(name)
    return {artifact_id: sorted(names) for artifact_id, names in found.items()}


def remove(session: Session, artifact: Artifact) -> None:
    """Deletes a version, and its bytes unless another version shares them."""
    session.delete(artifact)
    session.flush()
    if session.scalar(select(Artifact.id).where(Artifact.sha256 == artifact.sha256).limit(1)) is None:
        session.execute(delete(ArtifactChunk).where(ArtifactChunk.sha256 == artifact.sha256))


def _visible(scope: JobScope, user_id: str) -> ColumnElement[bool]:
    """Returns the condition of the artifacts that a user may see.

    They belong to jobs in the scope, or are the user's own uploads.
    """
    if scope.is_everything:
        return true()
    programs = select(Revision.artifact_id).join(Job, Job.id == Revision.job_id).where(scope.criterion())
    libraries = select(func.jsonb_array_elements_text(Revision.libraries)).join(Job, Job.id == Revision.job_id)
    used = programs.union(libraries.where(scope.criterion()))
    return or_(Artifact.id.in_(used), Artifact.uploaded_by == user_id)
