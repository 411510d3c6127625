"""The definition of a job, for its record in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.db.repositories import artifacts, attempts
from keyscale.identifiers import Attempt as AttemptNumber
from keyscale.identifiers import JobId
from keyscale.state.doors.catalogue import JobRecord, RecordedArtifact, RecordedOrigin, RecordedRestore
from keyscale.state.doors.paths import job_of_manifest, split_location
from keyscale.vocabulary import AttemptStage, RestoreMode

from ..job_spec import spec_of
from ..libraries.jar_rules import PACKAGE_PREFIX

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from keyscale.db.models import Attempt, Job, Revision


def record_of(session: Session, job: Job, revision: Revision, attempt: Attempt) -> JobRecord:
    """Returns the record of a job.

    It is stored before the driver of the attempt is launched.
    """
    brought = [name for name in revision.libraries if not name.startswith(PACKAGE_PREFIX)]
    known = artifacts.find_all(session, [revision.artifact_id, *brought])
    origins = [
        RecordedOrigin(location, claim_mode.value)
        for location, claim_mode in sorted(attempts.restored_from(session, job.id))
        if job_of_manifest(split_location(location)[1]) != job.id
    ]
    return JobRecord(
        job_id=JobId(job.id),
        attempt=AttemptNumber(attempt.number),
        continues=AttemptNumber(attempts.newest_restored(session, job.id, before=attempt.number)),
        name=job.name,
        labels=dict(job.labels),
        max_parallelism=job.max_parallelism,
        hash_id=job.hash_id,
        created_at_ms=job.created_at_ms,
        revision=revision.number,
        revised_at_ms=revision.created_at_ms,
        revised_by=revision.created_by,
        message=revision.message,
        specification=spec_of(revision).given(),
        artifacts=tuple(
            RecordedArtifact(
                id=found.id,
                name=found.name,
                version=found.version,
                filename=found.filename,
                kind=found.kind.value,
                sha256=found.sha256,
                size_bytes=found.size_bytes,
                created_at_ms=found.created_at_ms,
            )
            for found in sorted(known.values(), key=lambda each: each.id)
        ),
        restore=_restore_of(attempt),
        origins=tuple(origins),
        rewound_to=job.rewound_to,
    )


def _restore_of(attempt: Attempt) -> RecordedRestore | None:
    """Returns an attempt's request to start from a certain snapshot.

    A standby gets its restore later; the log then has it.
    """
    if attempt.stage is not AttemptStage.ACTIVE:
        return None
    if attempt.restore_mode is RestoreMode.CONTINUE and attempt.restore_id is None:
        return None
    return RecordedRestore(
        id=attempt.restore_id,
        mode=attempt.restore_mode.value,
        location=attempt.restore_from,
        claim_mode=attempt.claim_mode.value,
        allow_non_restored_state=attempt.allow_non_restored_state,
    )
