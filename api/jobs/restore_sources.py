"""Restore sources: finds and checks a requested checkpoint or savepoint.

The check precedes the start.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.db.repositories import checkpoints, jobs, operations
from keyscale.identifiers import CheckpointId, JobId
from keyscale.jobs.protocol.storable_text import storable
from keyscale.state.doors.catalogue import SnapshotKind
from keyscale.state.doors.paths import (
    InvalidNameError,
    Layout,
    LocationError,
    job_of_manifest,
    location_of,
    split_location,
)
from keyscale.vocabulary import KEY_GROUPS_MAX, CheckpointStatus, ClaimMode, RestoreMode

from ..errors import JobNotFoundError, OutputWithdrawnError, RequestInvalidError, RestoreSourceError
from ..lifecycle.job_transaction import JobTransaction
from ..lifecycle.restoring import Restore

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from keyscale.db.models import Checkpoint, Job
    from keyscale.state.doors.catalogue import Manifest

    from ..access.principal import Principal
    from ..control_plane.context import Context
    from .schemas.restore import RestoreRequest, RestoreSource


@dataclass(frozen=True, slots=True)
class Restorer:
    """The job that shall restore.

    Attributes:
        job: The job; None: the job is about to be created.
        store_url: Its store.
        max_parallelism: Its number of key groups; None: the job takes the snapshot's number.
        hash_id: Its hash; None: the job takes the snapshot's hash.
    """

    job: Job | None
    store_url: str
    max_parallelism: int | None
    hash_id: str | None

    @classmethod
    def of(cls, job: Job) -> Restorer:
        """Returns the restorer of an existing job."""
        return cls(job, job.store_url, job.max_parallelism, job.hash_id)


@dataclass(frozen=True, slots=True)
class FoundSource:
    """A snapshot that a job can start from, and the pending restore."""

    restore: Restore
    max_parallelism: int
    hash_id: str


def find_source(context: Context, user: Principal, request: RestoreRequest, restorer: Restorer) -> FoundSource | None:
    """Finds and checks the source of a restore request.

    Holds no transaction while it reads from the store.

    Returns:
        None if the request names no source.

    Raises:
        JobNotFoundError: The user may not see the other job, or it does not exist.
        RestoreSourceError: The snapshot does not exist, or the job cannot start from it.
        OutputWithdrawnError: The job's sinks have taken output of the snapshot back.
        RequestInvalidError: A claim mode without a source, or a new job's source without its job.
        StoreUnavailableError: The store does not answer.
        PlanTimeoutError: The snapshot was not read in time.
    """
    source = request.restore_from
    if source is None:
        if request.claim_mode is ClaimMode.CLAIM:
            raise RequestInvalidError("claim_mode: CLAIM needs restore_from")
        return None
    with context.sessions.begin() as session:
        path, owner_id = _locate(session, user, source, restorer)
    location = location_of(restorer.store_url, path)
    claims = request.claim_mode is ClaimMode.CLAIM
    job_id = None if restorer.job is None else restorer.job.id
    found = context.store.read_snapshot(restorer.store_url, path, limit_ms=context.settings.plan_timeout_ms)
    if found.claimed_by not in {None, job_id}:
        with context.reads() as session:
            raise RestoreSourceError(f"{location}: {named_to(session, user, found.claimed_by or '')} has claimed it")
    manifest = found.manifest
    problem = why_not(manifest, restorer, claims=claims)
    if problem is not None:
        raise RestoreSourceError(f"{location}: {problem}")
    goes_on = source.latest and owner_id == job_id
    if manifest.job_id == job_id and not goes_on and not found.keeps_output:
        raise OutputWithdrawnError(f"{location}: the job went back behind it")
    restore = Restore(
        uuid.uuid4().hex,
        RestoreMode.CONTINUE if goes_on else RestoreMode.REWIND,
        location,
        request.claim_mode,
        request.allow_non_restored_state,
    )
    return FoundSource(restore, manifest.max_parallelism, manifest.hash_id)


def named_to(session: Session, user: Principal, job_id: str) -> str:
    """Returns the job's name, or a placeholder for a hidden job.

    A job is hidden if the user may not see it.

    Args:
        session: The transaction.
        user: The user.
        job_id: The job's id, as a job has written it into the store.
    """
    found = jobs.find(session, storable(job_id), scope=user.scope)
    if found is not None:
        return f"the job {found.name}"
    return f"job {job_id}" if user.scope.is_everything else "a job that you may not see"


def require_kept(session: Session, source: FoundSource) -> None:
    """Refuses a snapshot that a user has deleted since it was found.

    Until this transaction ends, the snapshot cannot be deleted.

    Raises:
        RestoreSourceError: The snapshot is deleted.
    """
    location = source.restore.location or ""
    operations.reserve_id(session, location)
    if checkpoints.is_discarded(session, location):
        raise RestoreSourceError(f"{location}: it was deleted")


def why_not(manifest: Manifest, restorer: Restorer, *, claims: bool) -> str | None:
    """Returns why a job cannot start from a snapshot, if so.

    Pure.
    """
    if restorer.max_parallelism not in {None, manifest.max_parallelism}:
        return f"its max parallelism is {manifest.max_parallelism}, the job's {restorer.max_parallelism}"
    if not 1 <= manifest.max_parallelism <= KEY_GROUPS_MAX:
        return f"its max parallelism is {manifest.max_parallelism}, which no job has"
    if restorer.hash_id not in {None, manifest.hash_id}:
        return f"its hash is {manifest.hash_id}, the job's {restorer.hash_id}"
    is_own = restorer.job is not None and manifest.job_id == restorer.job.id
    if claims and not is_own and manifest.kind is not SnapshotKind.SAVEPOINT:
        return "it is another job's checkpoint, which cannot be claimed: it shares files with other checkpoints"
    return None


def why_not_own(manifest: Manifest, job: Job) -> str | None:
    """Returns why a job cannot start from its own snapshot, if so.

    Pure.
    """
    return why_not(manifest, Restorer.of(job), claims=False)


def _locate(session: Session, user: Principal, source: RestoreSource, restorer: Restorer) -> tuple[str, str]:
    """Returns the path of the manifest and its job's id."""
    if source.location is not None:
        return _of_location(session, user, source.location, restorer.store_url)
    owner = restorer.job if source.job is None else jobs.find(session, source.job, scope=user.scope)
    if owner is None:
        if source.job is None:
            raise RequestInvalidError("restore_from: name the `job` of the checkpoint or savepoint")
        raise JobNotFoundError("no job has this id or name")
    if owner.store_url != restorer.store_url:
        raise RestoreSourceError(f"job {owner.name} has another store: {owner.store_url}")
    if source.savepoint_id is not None:
        try:
            return Layout(JobId(owner.id)).manifest(CheckpointId(0), source.savepoint_id), owner.id
        except InvalidNameError as error:
            raise RestoreSourceError(f"job {owner.name} has no such savepoint: {error}") from error
    found = _checkpoint(session, owner, source)
    if found.external_path is None:
        raise RestoreSourceError(f"checkpoint {found.checkpoint_id} of job {owner.name} has no location")
    return split_location(found.external_path)[1], owner.id


def _checkpoint(session: Session, owner: Job, source: RestoreSource) -> Checkpoint:
    if source.checkpoint_id is not None:
        found = checkpoints.find(session, owner.id, source.checkpoint_id)
        if found is None:
            raise RestoreSourceError(f"job {owner.name} has no checkpoint {source.checkpoint_id}")
        if found.status is not CheckpointStatus.COMPLETED:
            raise RestoreSourceError(f"checkpoint {source.checkpoint_id} of job {owner.name} is {found.status}")
        return found
    if source.before_ms is not None:
        found = checkpoints.latest_completed(session, owner.id, before_ms=source.before_ms)
        when = f" from before {source.before_ms}"
    else:
        locked = jobs.lock(session, owner.id)
        found, when = (JobTransaction(session, locked).latest_completed() if locked is not None else None), ""
    if found is None:
        raise RestoreSourceError(f"job {owner.name} keeps no completed checkpoint or savepoint{when}")
    return found


def _of_location(session: Session, user: Principal, location: str, store_url: str) -> tuple[str, str]:
    try:
        url, path = split_location(location)
        owner_id = job_of_manifest(path)
    except LocationError as error:
        raise RestoreSourceError(f"{location}: {error}") from error
    if url.rstrip("/") != store_url.rstrip("/"):
        raise RestoreSourceError(f"{location} is not in the job's store, {store_url}")
    owner = jobs.find(session, owner_id)
    name, labels = ("", {}) if owner is None else (owner.name, owner.labels)
    if not user.scope.covers(job_id=owner_id, name=name, labels=labels):
        raise RestoreSourceError(f"{location}: no manifest can be read there")
    return path, owner_id
