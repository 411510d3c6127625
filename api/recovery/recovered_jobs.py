"""Rebuilds jobs from the store after the database was lost."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from pydantic import ValidationError
from sqlalchemy.exc import DataError, IntegrityError

from keyscale.clock import now_ms
from keyscale.db.models import Artifact, Attempt, DeletedJob, Job, Revision
from keyscale.db.repositories import artifacts, events, jobs
from keyscale.errors import KeyscaleError
from keyscale.identifiers import Attempt as AttemptNumber
from keyscale.identifiers import JobId
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.jobs.protocol.storable_text import is_storable
from keyscale.state.doors.catalogue import DocumentCorruptError, FormatTooNewError, read_job_record
from keyscale.state.doors.objects import (
    InvalidObjectPathError,
    ObjectCorruptError,
    ObjectNotFoundError,
    StoreUrlError,
    canonical_url,
)
from keyscale.state.doors.paths import (
    JOB_RECORDS,
    Layout,
    LocationError,
    job_of_manifest,
    location_of,
    recorded_job,
    split_location,
)
from keyscale.vocabulary import KEY_GROUPS_MAX, AttemptStage, ClaimMode, DesiredState, JobStatus, RestoreMode

from ..artifacts.artifacts import CHUNK_BYTES
from ..errors import JobNameTakenError, JobRecordInvalidError, RequestInvalidError
from ..jobs.jobs import check_specification, require_name, require_program
from ..jobs.schemas.job import JobRequest
from ..libraries.artifact_inspection import inspect_artifact
from ..libraries.jar_rules import PACKAGE_PREFIX
from ..lifecycle.restoring import Restore
from ..lifecycle.steps import Cause
from ..shapes import NAME_PATTERN, FailureAnswer
from ..store_check import open_to_read, store_failures
from .schemas import RecoveredJobAnswer, RecoveredJobList

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy.orm import Session

    from keyscale.state.doors.catalogue import JobRecord, RecordedArtifact
    from keyscale.state.doors.objects import ObjectStore
    from keyscale.vocabulary import ArtifactKind

    from ..access.principal import Principal
    from ..control_plane.context import Context
    from ..libraries.contents import ArtifactContents
    from .schemas import RecoverRequest

JOBS_AT_ONCE = 5
"""The most jobs of an answer: each takes the time to read and to inspect its program and its libraries."""
NUMBER_MAX = 10**11
_ID = re.compile("[0-9a-f]{32}")
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class _Inspected:
    """An artifact of a record, with its bytes in a local file."""

    recorded: RecordedArtifact
    kind: ArtifactKind
    contents: ArtifactContents
    path: Path


def recover(context: Context, user: Principal, request: RecoverRequest) -> RecoveredJobList:
    """Rebuilds the next few jobs of a store.

    Raises:
        RequestInvalidError: The store's URL has an unknown form.
        StoreUnavailableError: The store does not list its records.
        TooManyInFlightError: Other jobs are being rebuilt.
    """
    store_url = context.settings.store_url
    try:
        store = open_to_read(store_url if request.store_url is None else request.store_url)
        if store.url != canonical_url(store_url):
            store_url = store.url
    except (StoreUrlError, InvalidObjectPathError) as error:
        raise RequestInvalidError(f"store_url: {error}") from error
    with context.recoveries.place(user.id):
        with store_failures():
            chosen, rest = _chosen(store, request)
        recovery = _Recovery(context, user, store, store_url, dry_run=request.dry_run)
        answers = [recovery.answer(job_id) for job_id in chosen]
    return RecoveredJobList(jobs=answers, dry_run=request.dry_run, next=chosen[-1] if rest else None)


def _chosen(store: ObjectStore, request: RecoverRequest) -> tuple[list[str], bool]:
    """Returns the ids of the next jobs, and whether there are more."""
    found: Iterator[str]
    if request.jobs:
        found = iter(sorted(each for each in set(request.jobs) if request.after is None or each > request.after))
    else:
        found = _recorded(store, request.after)
    chosen: list[str] = []
    for job_id in found:
        if len(chosen) == JOBS_AT_ONCE:
            return chosen, True
        chosen.append(job_id)
    return chosen, False


def _recorded(store: ObjectStore, after: str | None) -> Iterator[str]:
    """Yields the ids of the jobs with records, in order."""
    last = after
    for info in store.list(JOB_RECORDS, start_after="" if after is None else f"{JOB_RECORDS}{after}0"):  # 0 follows /
        job_id = recorded_job(info.path)
        if job_id is None or (last is not None and job_id <= last):
            continue
        if _ID.fullmatch(job_id):
            last = job_id
            yield job_id


class _Recovery:
    """Rebuilds jobs of one store, one by one."""

    def __init__(self, context: Context, user: Principal, store: ObjectStore, store_url: str, *, dry_run: bool) -> None:
        self._context, self._user, self._store, self._store_url = context, user, store, store_url
        self._dry_run = dry_run

    def answer(self, job_id: str) -> RecoveredJobAnswer:
        """Rebuilds a job, or says why it is refused."""
        record: JobRecord | None = None
        newest = 0
        try:
            with self._context.reads() as session:
                if (known := session.get(Job, job_id)) is not None:
                    return RecoveredJobAnswer(id=job_id, name=known.name, outcome="KNOWN", revision=known.revision)
            newest = self._context.store.newest_attempt(self._store_url, job_id)
            record, attempt = self._read(job_id, newest)
            self._rebuild(record, newest=newest, attempt=attempt)
        except KeyscaleError as error:  # also if the store does not answer: it may answer for another job
            failure = FailureAnswer(code=error.code, message=str(error), advice=error.advice)
            name = None if record is None or not is_storable(record.name) else record.name[:100]
            return RecoveredJobAnswer(id=job_id, name=name, outcome="REFUSED", failure=failure)
        return RecoveredJobAnswer(
            id=job_id, name=record.name, outcome="RECOVERED", revision=record.revision, attempt=attempt
        )

    def _read(self, job_id: str, newest: int) -> tuple[JobRecord, int]:
        """Returns a job's record, and the highest attempt in the store.

        The record is that of the attempt that has run last.

        A driver that never opened its attempt has run nothing: the record of a failed change does not count.
        """
        layout = Layout(JobId(job_id))
        with store_failures():
            paths = [info.path for info in self._store.list(layout.records)]
        recorded = {number for path in paths if (number := layout.recorded_attempt(path)) is not None}
        if not recorded:
            raise JobRecordInvalidError("the store has no record of the job: no driver of it was ever started")
        chosen = AttemptNumber(newest) if newest in recorded else max(recorded)
        path = layout.record(chosen)
        with store_failures(but=(JobRecordInvalidError, FormatTooNewError)):
            try:
                record = read_job_record(self._store, JobId(job_id), chosen)
            except (DocumentCorruptError, ObjectNotFoundError) as error:
                raise JobRecordInvalidError(str(error)) from error
        _check(record, path)
        highest = max(newest, *recorded)
        if not 0 < highest <= NUMBER_MAX:
            raise JobRecordInvalidError(f"{path}: the number of an attempt is not from 1 to {NUMBER_MAX}")
        return record, highest

    def _rebuild(self, record: JobRecord, *, newest: int, attempt: int) -> None:
        """Stores a job and its artifacts; a dry run rolls back."""
        context = self._context
        spec = _spec(record)
        require_name(self._user, record.name, record.labels)
        check_specification(context, spec)
        with tempfile.TemporaryDirectory(prefix="keyscale-recover-") as directory:
            brought = [self._inspect(record, each, Path(directory)) for each in record.artifacts]
            try:
                with context.sessions() as session:
                    artifacts.lock_writers(session)  # also one recovery after the other
                    self._require_free(session, record)
                    for each in brought:
                        self._add_artifact(session, each)
                    session.flush()
                    require_program(context, session, self._user, spec)
                    self._add_job(session, record, spec, is_restored=newest >= record.attempt)
                    self._add_attempts(session, record, attempt, spec.parallelism)
                    session.flush()
                    if self._dry_run:
                        session.rollback()
                    else:
                        session.commit()
            except (DataError, IntegrityError) as error:
                if "uq_jobs_name" in str(error.orig):
                    raise JobNameTakenError(f"another job is called {record.name}") from None
                raise JobRecordInvalidError(f"{record.path} contradicts the database") from error

    @staticmethod
    def _require_free(session: Session, record: JobRecord) -> None:
        if (other := jobs.find(session, record.name)) is not None:
            raise JobNameTakenError(f"another job is called {record.name}: {other.id}")
        if session.get(DeletedJob, record.job_id) is not None:
            raise JobRecordInvalidError(f"job {record.job_id} was deleted, and its objects are being deleted")

    def _inspect(self, record: JobRecord, recorded: RecordedArtifact, directory: Path) -> _Inspected:
        """Fetches an artifact, verifies its bytes, and inspects it."""
        limit = self._context.settings.artifact_bytes_max
        if not 0 <= recorded.size_bytes <= limit:
            raise JobRecordInvalidError(f"{record.path}: an artifact has more than {limit} bytes")
        path = directory / recorded.id
        source = Layout(record.job_id).recorded_artifact(recorded.sha256)
        with store_failures(but=(JobRecordInvalidError,)):
            try:
                self._store.download(source, path, size_bytes=recorded.size_bytes, sha256=recorded.sha256)
            except (ObjectNotFoundError, ObjectCorruptError) as error:
                raise JobRecordInvalidError(f"{recorded.filename}: {error}") from error
        with self._context.inspections, path.open("rb") as content:
            kind, contents = inspect_artifact(content, recorded.filename)
        if kind != recorded.kind:
            raise JobRecordInvalidError(f"{record.path}: {recorded.filename} is a {kind}")
        return _Inspected(recorded, kind, contents, path)

    @staticmethod
    def _add_artifact(session: Session, inspected: _Inspected) -> None:
        recorded = inspected.recorded
        if (known := artifacts.find(session, recorded.id)) is not None:
            if known.sha256 != recorded.sha256:
                raise JobRecordInvalidError(f"the artifact {recorded.id} has other bytes in the database")
            return
        if not artifacts.has_bytes(session, recorded.sha256):
            artifacts.add_bytes(session, recorded.sha256, _chunks(inspected.path))
        is_taken = artifacts.has_version(session, recorded.name, recorded.version)
        session.add(
            Artifact(
                id=recorded.id,
                name=recorded.name,
                version=artifacts.next_version(session, recorded.name) if is_taken else recorded.version,
                filename=recorded.filename,
                kind=inspected.kind,
                sha256=recorded.sha256,
                size_bytes=recorded.size_bytes,
                created_at_ms=recorded.created_at_ms,
                contents=inspected.contents.model_dump(),
            )
        )
        session.flush()

    def _add_job(self, session: Session, record: JobRecord, spec: JobSpec, *, is_restored: bool) -> None:
        at_ms = now_ms()
        restore = self._restore(record)
        rewound = is_restored and restore is not None and restore.mode is not RestoreMode.CONTINUE
        session.add(
            Job(
                id=record.job_id,
                name=record.name,
                revision=record.revision,
                max_parallelism=record.max_parallelism,
                hash_id=record.hash_id,
                labels=record.labels,
                store_url=self._store_url,
                restore=None if restore is None or is_restored else restore.dump(),
                rewound_by=record.attempt if rewound else 0,
                rewound_to=restore.location if rewound and restore is not None else self._here(record.rewound_to),
                desired=DesiredState.STOPPED,
                status=JobStatus.STOPPED,
                consecutive_failures=0,
                restarts=0,
                next_start_at_ms=0,
                created_at_ms=record.created_at_ms,
                ended_at_ms=at_ms,
            )
        )
        session.flush()
        session.add(
            Revision(
                job_id=record.job_id,
                number=record.revision,
                spec=spec.given(),
                created_at_ms=record.revised_at_ms,
                created_by=record.revised_by,
                message=record.message,
            )
        )
        events.record(
            session,
            job_id=record.job_id,
            at_ms=at_ms,
            kind="JOB_REBUILT",
            actor=self._user.name,
            message=f"rebuilt {record.name} from the store, with revision {record.revision}",
            attempt=record.attempt,
            store_url=self._store_url,
        )

    def _add_attempts(self, session: Session, record: JobRecord, highest: int, parallelism: int) -> None:
        """Stores ended attempts, from the highest known number on.

        New attempts get higher numbers. An attempt per origin keeps the driver's rights to the snapshots of other jobs.
        """
        origins: Sequence[tuple[str | None, str]] = [
            (self._here(each.location), each.claim_mode) for each in record.origins
        ]
        at_ms = now_ms()
        for number, (location, claim_mode) in enumerate(origins or [(None, ClaimMode.NO_CLAIM)], start=highest):
            session.add(
                Attempt(
                    job_id=record.job_id,
                    number=number,
                    stage=AttemptStage.ENDED,
                    cause=Cause.RECOVER,
                    revision=record.revision,
                    parallelism=parallelism,
                    restore_from=location,
                    claim_mode=ClaimMode(claim_mode),
                    created_at_ms=at_ms,
                    ended_at_ms=at_ms,
                    reaped=True,
                )
            )

    def _restore(self, record: JobRecord) -> Restore | None:
        given = record.restore
        if given is None:
            return None
        location, claim_mode = self._here(given.location), ClaimMode(given.claim_mode)
        return Restore(given.id, RestoreMode(given.mode), location, claim_mode, given.allow_non_restored_state)

    def _here(self, location: str | None) -> str | None:
        """Returns the location of a snapshot in this store.

        The store may be a copy of the recorded one.
        """
        return None if location is None else location_of(self._store.url, split_location(location)[1])


def _check(record: JobRecord, path: str) -> None:
    """Refuses a record that the control plane would not have written.

    Raises:
        JobRecordInvalidError: A value of it cannot be a job's.
    """
    for problem, is_wrong in (
        ("its revision or a time is out of range", not _are_numbers(record)),
        ("a location in it is no snapshot's", not _are_locations(record)),
        ("an artifact in it has an impossible name, id or hash", not all(map(_is_artifact, record.artifacts))),
        ("a text in it cannot be stored", not all(map(is_storable, _texts(record)))),
        ("max_parallelism is out of range", not 1 <= record.max_parallelism <= KEY_GROUPS_MAX),
    ):
        if is_wrong:
            raise JobRecordInvalidError(f"{path}: {problem}")


def _texts(record: JobRecord) -> list[str]:
    restore_id = None if record.restore is None else record.restore.id
    return [text for text in (record.message, record.revised_by, restore_id) if text is not None]


def _are_numbers(record: JobRecord) -> bool:
    numbers = (record.revision, record.created_at_ms, record.revised_at_ms)
    times = (artifact.created_at_ms for artifact in record.artifacts)
    return record.revision > 0 and all(0 <= number < 1 << 50 for number in (*numbers, *times))


def _are_locations(record: JobRecord) -> bool:
    given = [each.location for each in record.origins]
    given += [] if record.rewound_to is None else [record.rewound_to]
    if record.restore is not None and record.restore.location is not None:
        given.append(record.restore.location)
    try:
        for location in given:
            job_of_manifest(split_location(location)[1])
        for each in record.origins:
            ClaimMode(each.claim_mode)
        if record.restore is not None:
            RestoreMode(record.restore.mode)
            ClaimMode(record.restore.claim_mode)
    except (LocationError, ValueError):
        return False
    return all(map(is_storable, given))


def _is_artifact(artifact: RecordedArtifact) -> bool:
    is_plain = PurePath(artifact.filename).name == artifact.filename and len(artifact.filename) <= 255
    return (
        is_plain
        and "\\" not in artifact.filename
        and is_storable(artifact.filename)
        and re.fullmatch(NAME_PATTERN, artifact.name) is not None
        and _ID.fullmatch(artifact.id) is not None
        and _SHA256.fullmatch(artifact.sha256) is not None
        and 0 < artifact.version < 1 << 31
    )


def _spec(record: JobRecord) -> JobSpec:
    """Returns the specification of a record.

    A request could have given it, too.

    Raises:
        JobRecordInvalidError: It is not.
    """
    fixed = {"max_parallelism": record.max_parallelism, "hash_id": record.hash_id}
    try:
        spec = JobSpec.model_validate({**record.specification, **fixed})
        JobRequest(name=record.name, labels=record.labels, spec=spec)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:100]
        raise JobRecordInvalidError(f"{record.path}: {where}: {first['msg']}") from error
    named = {spec.artifact_id, *(each for each in spec.libraries if not each.startswith(PACKAGE_PREFIX))}
    if named != {artifact.id for artifact in record.artifacts}:
        raise JobRecordInvalidError(f"{record.path}: its artifacts differ from the artifacts of its specification")
    return spec


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as content:
        while chunk := content.read(CHUNK_BYTES):
            yield chunk
