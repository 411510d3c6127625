"""A job record: the definition of a job, in the object store.

Jobs of a lost database are rebuilt from their records.

The control plane writes a record before it launches the driver of an attempt. Records are outside of the job's own
prefix: a job could otherwise give itself secrets and labels. A record has the names of secrets, never their values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from keyscale.identifiers import Attempt, JobId

from ..layout import Layout
from .checked_document import DocumentCorruptError, decode_document, document_bytes, encode_document

if TYPE_CHECKING:
    from ..objects.object_store import ObjectStore

KIND = "job-record"
FORMAT_VERSION = 1


class RecordedArtifact(msgspec.Struct, frozen=True):
    """A program or library; the SHA-256 names the object with its bytes."""

    id: str
    name: str
    version: int
    filename: str
    kind: str
    sha256: str
    size_bytes: int
    created_at_ms: int


class RecordedRestore(msgspec.Struct, frozen=True):
    """The snapshot that an attempt was told to start from.

    Attributes:
        id: Names the request, so that it is carried out once.
        mode: As an assignment's `restore_mode`.
        location: The location of the manifest; None: the job's own latest, or no state.
        claim_mode: The owner of the snapshot afterwards.
        allow_non_restored_state: Whether state without an operator is dropped.
    """

    id: str | None
    mode: str
    location: str | None
    claim_mode: str
    allow_non_restored_state: bool


class RecordedOrigin(msgspec.Struct, frozen=True):
    """Another job's snapshot that the job has restored, and may need again."""

    location: str
    claim_mode: str


class JobRecord(msgspec.Struct, frozen=True):
    """The definition of a job at one attempt.

    Attributes:
        job_id: The job.
        attempt: The attempt that runs this definition.
        continues: The newest earlier attempt that has restored state; 0 without one. Records of earlier attempts are
            outdated.
        name: The job's name.
        labels: The job's labels.
        max_parallelism: Number of key groups.
        hash_id: How keys are hashed to key groups.
        created_at_ms: When the job was created.
        revision: The number of the revision.
        revised_at_ms: When the revision was created.
        revised_by: The user who created the revision.
        message: What the user said about the revision.
        specification: The revision's fields, as the control plane stores them.
        artifacts: The program, and the libraries that are artifacts.
        restore: The attempt's request to start from a certain snapshot, or None.
        origins: The snapshots of other jobs that the job has restored.
        rewound_to: The snapshot that the job's present history begins with; None for its own beginning.
    """

    job_id: JobId
    attempt: Attempt
    continues: Attempt
    name: str
    labels: dict[str, str]
    max_parallelism: int
    hash_id: str
    created_at_ms: int
    revision: int
    revised_at_ms: int
    revised_by: str | None
    message: str | None
    specification: dict[str, Any]
    artifacts: tuple[RecordedArtifact, ...]
    restore: RecordedRestore | None = None
    origins: tuple[RecordedOrigin, ...] = ()
    rewound_to: str | None = None

    @property
    def path(self) -> str:
        """The path where it is stored."""
        return Layout(self.job_id).record(self.attempt)


def write_job_record(store: ObjectStore, record: JobRecord) -> None:
    """Stores a record; a second launch stores the same bytes."""
    store.put(record.path, encode_document(KIND, FORMAT_VERSION, record))


def read_job_record(store: ObjectStore, job_id: JobId, attempt: Attempt) -> JobRecord:
    """Reads and verifies the record of an attempt.

    Raises:
        ObjectNotFoundError: The record does not exist.
        DocumentCorruptError: It is damaged, too large, or another attempt's.
        FormatTooNewError: A newer version wrote it.
    """
    path = Layout(job_id).record(attempt)
    record = decode_document(document_bytes(store, path, KIND), KIND, FORMAT_VERSION, JobRecord, path)
    if (record.job_id, record.attempt) != (job_id, attempt):
        raise DocumentCorruptError(f"{path} is the record of another job or attempt")
    return record
